"""The PyTorchJob: golden files, the definition's own schema, and what each of its pods must get right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from eks_fsdp.components import device_plugins, monitoring
from eks_fsdp.components.job_resources import OWN_DAEMONS_CPU_MILLIS, OWN_DAEMONS_MEMORY_MIB
from eks_fsdp.components.training_job import NAME_LIMIT, JobPlan
from eks_fsdp.spec.instances import INSTANCE_TYPES
from eks_fsdp.spec.names import TRAINER_METRICS_PORT
from eks_fsdp.spec.settings import JobSettings, TaintSettings

from . import crd

Golden = Callable[[str, str], None]


def plan(job: str = "llama", instance: str = "p5.48xlarge", over: dict[str, Any] | None = None, **job_: Any) -> JobPlan:
    """A plan; ``over``: its own fields that differ, the rest are the job's settings."""
    settings: dict[str, Any] = {
        "nodes": 16,
        "trainer": {"global_batch_size": 128, "metrics_port": TRAINER_METRICS_PORT},
    }
    fields: dict[str, Any] = {
        "job": job,
        "settings": JobSettings.parse({**settings, **job_}),
        "instance": INSTANCE_TYPES[instance],
        "namespace": "training",
        "node_selector": {"eksfsdp/gpu-group": "p5"},
        "image_version": "eks-fsdp/trainer:0.1.0",
        "claim": "checkpoints",
        "scratch": "empty-dir",
        "region": "us-west-2",
    }
    return JobPlan(**{**fields, **(over or {})})


def full(**job_: Any) -> JobPlan:
    """A plan that uses everything there is."""
    over = {
        "team": "nlp",
        "queue": "training",
        "hugging_face": True,
        "s3_mounts": {"models": "/mnt/models", "data": "/mnt/data"},
        "taints": [TaintSettings(key="team", value="nlp"), TaintSettings(key="spot", effect="NoExecute")],
        "scratch": "first-disk",
        "namespace": "nlp",
    }
    return plan(over=over, labels={"cost-centre": "42"}, **job_)


def rendered(made: JobPlan) -> dict[str, Any]:
    return made.pytorch_job("llama-1-01234567", "registry.example/trainer:0.1.0")


def pod(made: JobPlan) -> dict[str, Any]:
    found: dict[str, Any] = rendered(made)["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    return found


def variables(made: JobPlan) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in made.environment()}


# Golden files


@pytest.mark.parametrize(
    ("transport", "instance"),
    [
        ("efa", "p4de.24xlarge"),
        ("efa", "p5.48xlarge"),
        ("efa", "g5.48xlarge"),
        ("tcp", "p5.48xlarge"),
        ("gloo", "p5.48xlarge"),
    ],
)
def test_pytorch_job(transport: str, instance: str, golden: Golden) -> None:
    made = rendered(plan(instance=instance, transport=transport))
    golden(f"job-{transport}-{instance.partition('.')[0]}.yaml", yaml.safe_dump(made, sort_keys=False, width=120))


def test_pytorch_job_with_everything(golden: Golden) -> None:
    golden("job-full.yaml", yaml.safe_dump(rendered(full()), sort_keys=False, width=120))


def test_trainer_configuration_file(golden: Golden) -> None:
    golden("trainer.json", plan().trainer_json())


# The definition's schema


@pytest.fixture(scope="module")
def schema() -> Any:
    return crd.validator("kubeflow.org_pytorchjobs.yaml")


@pytest.mark.parametrize(
    "made",
    [
        *(plan(instance=name) for name in ("p4de.24xlarge", "p5.48xlarge", "g5.48xlarge")),
        plan(transport="gloo", rendezvous="c10d", topology="none", image="mine:1"),
        full(topology="required"),
    ],
    ids=["p4de", "p5", "g5", "other", "full"],
)
def test_a_job_has_no_field_that_the_operators_definition_does_not_know(made: JobPlan, schema: Any) -> None:
    schema.validate(rendered(made))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "elasticPolicy", "rdzvID"), "x"),
        (("spec", "pytorchReplicaSpecs", "Worker", "template", "spec", "tolerationz"), []),
        (("spec", "nprocPerNode"), 8),
    ],
)
def test_the_schema_is_strict(path: tuple[str, ...], value: Any, schema: Any) -> None:
    made = json.loads(json.dumps(rendered(plan())))
    place = made
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        schema.validate(made)


# Rendezvous, size, name


def test_a_job_with_c10d_leaves_the_endpoint_to_the_operator() -> None:
    elastic = rendered(plan(rendezvous="c10d"))["spec"]["elasticPolicy"]
    assert "rdzvHost" not in elastic


def test_as_many_workers_at_least_as_at_most_and_nothing_that_scales_or_deletes_by_itself() -> None:
    elastic = rendered(plan())["spec"]["elasticPolicy"]
    assert elastic["minReplicas"] == elastic["maxReplicas"] == 16
    # With metrics the operator makes an autoscaler that goes by the CPU's load.
    assert "metrics" not in elastic
    assert "ttlSecondsAfterFinished" not in json.dumps(rendered(plan()))


def test_each_job_has_a_rendezvous_of_its_own() -> None:
    # A closed rendezvous of the same id refuses every newcomer, for ever.
    assert rendered(plan())["spec"]["elasticPolicy"]["rdzvId"] == "llama-1-01234567"
    assert plan().resource_name != plan(run="2").resource_name


def test_neither_torchs_own_etcd_backends_nor_its_version_2_are_ever_asked_for() -> None:
    # They speak an API that etcd 3.6 no longer has, and need a package that images lack.
    from eks_fsdp.spec.base import SettingsError

    assert plan().settings.rendezvous == "etcd-v3"
    for backend in ("etcd", "etcd-v2"):
        with pytest.raises(SettingsError, match="rendezvous"):
            plan(rendezvous=backend)


def test_an_image_of_the_users_own_meets_at_c10d_unless_told_otherwise() -> None:
    assert plan(image="mine:1").settings.rendezvous == "c10d"
    assert plan(image="mine:1", rendezvous="etcd-v3").settings.rendezvous == "etcd-v3"


def test_the_same_job_has_the_same_name_and_any_change_makes_another() -> None:
    names = [
        plan().resource_name,
        plan(nodes=8).resource_name,
        plan(run="2").resource_name,
        plan(trainer={"global_batch_size": 256}).resource_name,
        plan(env={"A": "b"}).resource_name,
        plan(instance="p4de.24xlarge").resource_name,
        plan(over={"image_version": "eks-fsdp/trainer:0.2.0"}).resource_name,
        plan(over={"hugging_face": True}).resource_name,
    ]
    assert plan().resource_name == names[0]
    assert len(set(names)) == len(names)
    assert re.fullmatch(r"llama-1-[0-9a-f]{8}", names[0])


@pytest.mark.parametrize("job", ["a", "a" * 32, "a-" * 15 + "b"])
@pytest.mark.parametrize("run", ["1", "r" * 16])
def test_names_of_jobs_and_pods_fit_a_label(job: str, run: str) -> None:
    name = plan(job, run=run).resource_name
    assert len(name) <= NAME_LIMIT
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", f"{name}-worker-1023")
    assert len(f"{name}-worker-1023") <= 63


# Resources


@pytest.mark.parametrize("instance", INSTANCE_TYPES)
def test_a_worker_takes_all_devices_of_a_node_and_less_than_all_of_the_rest(instance: str) -> None:
    made = plan(instance=instance)
    container = pod(made)["containers"][0]
    requests, limits = container["resources"]["requests"], container["resources"]["limits"]
    assert limits == made.devices() == {key: requests[key] for key in limits}
    assert int(limits["nvidia.com/gpu"]) == made.instance.gpus
    # Without this request libfabric falls back to TCP.
    assert int(limits.get("vpc.amazonaws.com/efa", 0)) == made.instance.efa_interfaces
    cpu, memory = int(requests["cpu"]) * 1000, int(requests["memory"].removesuffix("Mi"))
    assert 0.5 * made.instance.vcpus * 1000 < cpu + OWN_DAEMONS_CPU_MILLIS < made.instance.allocatable_cpu_millis
    assert 0.7 * made.instance.memory_mib < memory + OWN_DAEMONS_MEMORY_MIB < made.instance.allocatable_memory_mib


@pytest.mark.parametrize("name", ["p5.48xlarge", "p6-b300.48xlarge"])
def test_the_efa_request_comes_from_the_type_and_not_from_nodes_that_are_there(name: str) -> None:
    # A group at 0 nodes is asked in the same way as one at 16.
    assert plan(instance=name, transport="tcp").devices()["vpc.amazonaws.com/efa"] == str(
        INSTANCE_TYPES[name].efa_interfaces
    )
    assert "vpc.amazonaws.com/efa" not in plan(instance=name, over={"efa": False}).devices()


@pytest.mark.parametrize(
    ("instance", "cpu_millis", "memory_kib"),
    # What nodes of these types were seen to have left for pods.
    [("p4de.24xlarge", 95_690, 1_146_004_920), ("p5.48xlarge", 191_450, 2_052_000_000)],
)
def test_a_worker_fits_what_real_nodes_have_left(instance: str, cpu_millis: int, memory_kib: int) -> None:
    requests = pod(plan(instance=instance))["containers"][0]["resources"]["requests"]
    assert int(requests["cpu"]) * 1000 + 1500 <= cpu_millis
    assert int(requests["memory"].removesuffix("Mi")) + 4096 <= memory_kib / 1024


def test_what_the_programs_own_daemons_request_is_the_sum_of_their_manifests() -> None:
    daemons = [
        device_plugins.nvidia_device_plugin(),
        device_plugins.efa_device_plugin(),
        *(m for m in monitoring.dcgm_exporter() if m["kind"] == "DaemonSet"),
    ]
    requested = [c["resources"]["requests"] for d in daemons for c in d["spec"]["template"]["spec"]["containers"]]
    assert sum(int(r["cpu"].removesuffix("m")) for r in requested) == OWN_DAEMONS_CPU_MILLIS
    units = {"Mi": 1, "Gi": 1024}
    assert sum(int(r["memory"][:-2]) * units[r["memory"][-2:]] for r in requested) == OWN_DAEMONS_MEMORY_MIB


def test_of_several_types_the_smallest_sets_what_is_asked_for() -> None:
    both = plan(instance="g6e.24xlarge", over={"alternatives": [INSTANCE_TYPES["g5.24xlarge"]]})
    assert (
        pod(both)["containers"][0]["resources"]["requests"]["memory"]
        == (pod(plan(instance="g5.24xlarge"))["containers"][0]["resources"]["requests"]["memory"])
    )


def test_more_huge_pages_leave_less_memory() -> None:
    def memory(pages: int | None) -> int:
        made = plan(over={"hugepages_2mib": pages})
        return int(pod(made)["containers"][0]["resources"]["requests"]["memory"].removesuffix("Mi"))

    assert memory(0) > memory(None) > memory(50_000)


def test_shared_memory_is_sized() -> None:
    sizes = {v["name"]: v["emptyDir"]["sizeLimit"] for v in pod(plan())["volumes"] if v["name"] == "shm"}
    assert sizes == {"shm": f"{8 * 16}Gi"}


# Environment


def test_nothing_obsolete_is_set() -> None:
    obsolete = re.compile(
        r"FI_PROVIDER|FI_EFA_USE_DEVICE_RDMA|FI_EFA_FORK_SAFE|FI_EFA_ENABLE_SHM|FI_EFA_SET_CUDA|RDMAV_|NCCL_PROTO|"
        r"NCCL_BUFFSIZE|NCCL_P2P_NET|NCCL_TOPO|NCCL_MIN_CHANNELS|NCCL_SOCKET_NTHREADS|NCCL_NSOCKS|NCCL_DEBUG|LOGLEVEL"
    )
    for name in INSTANCE_TYPES:
        for transport in ("efa", "tcp", "gloo"):
            found = variables(plan(instance=name, transport=transport))
            assert not [key for key in found if obsolete.match(key)], f"{transport} on {name}"


def test_a_plugin_that_does_not_load_is_an_error_and_no_fall_back() -> None:
    found = variables(plan(transport="efa"))
    assert found["NCCL_NET"] == "AWS Libfabric"
    assert found["FI_EFA_USE_HUGE_PAGE"] == "0"
    # In a pod there is one interface, and some nodes have a link of the CNI beside it.
    assert found["NCCL_SOCKET_IFNAME"] == found["GLOO_SOCKET_IFNAME"] == "eth0"


def test_gpus_that_meet_in_the_hosts_memory_are_copied_by_their_engines() -> None:
    def set_for(name: str) -> bool:
        return "NCCL_SHM_USE_CUDA_MEMCPY" in variables(plan(instance=name, transport="tcp"))

    assert set_for("g5.48xlarge")
    assert set_for("g6.12xlarge")
    assert not set_for("g5.8xlarge")
    assert not set_for("p5.48xlarge")


def test_no_pod_mounts_the_devices_of_efa_by_itself() -> None:
    # Such a mount hides the devices that the plugin hands in.
    assert "infiniband" not in json.dumps(rendered(full()))


def test_the_users_environment_wins_and_no_name_comes_twice() -> None:
    environment = plan(env={"NCCL_SOCKET_IFNAME": "eth1", "NODE_NAME": "mine", "A": "b"}).environment()
    values = {item["name"]: item.get("value") for item in environment}
    assert len(values) == len(environment)
    assert (values["NCCL_SOCKET_IFNAME"], values["NODE_NAME"], values["A"]) == ("eth1", "mine", "b")


def test_the_token_is_a_reference_and_nothing_more() -> None:
    assert variables(full())["HF_TOKEN"] == {"secretKeyRef": {"name": "hugging-face", "key": "token"}}
    assert "HF_TOKEN" not in variables(plan())
    assert "HF_TOKEN" not in json.dumps(pod(full())["containers"][0]["command"])


# Placement, volumes, rights


def test_a_job_tolerates_the_taints_of_its_group() -> None:
    assert pod(full())["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "team", "operator": "Equal", "value": "nlp", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Exists", "effect": "NoExecute"},
    ]


def test_pods_of_a_job_are_drawn_to_each_other_the_more_the_closer_the_layer() -> None:
    terms = pod(plan())["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    keys = [term["podAffinityTerm"]["topologyKey"] for term in terms]
    assert keys == [f"topology.k8s.aws/network-node-layer-{layer}" for layer in (1, 2, 3)]
    weights = [term["weight"] for term in terms]
    assert weights == sorted(weights)
    selectors = [term["podAffinityTerm"]["labelSelector"]["matchLabels"] for term in terms]
    assert selectors == [{"training.kubeflow.org/job-name": "llama-1-01234567"}] * 3
    assert "affinity" not in pod(plan(topology="none"))
    required = pod(plan(topology="required"))["affinity"]["podAffinity"]
    assert required["requiredDuringSchedulingIgnoredDuringExecution"][0]["topologyKey"] == keys[0]


def test_scratch_is_where_the_nodes_disks_are() -> None:
    def volume(made: JobPlan) -> Any:
        return next((v for v in pod(made)["volumes"] if v["name"] == "scratch"), None)

    assert volume(plan()) == {"name": "scratch", "emptyDir": {}}
    assert volume(full())["hostPath"]["path"] == "/mnt/k8s-disks/1"
    assert volume(plan(over={"scratch": None})) is None
    assert variables(plan())["HF_HOME"].startswith("/scratch/")
    assert "HF_HOME" not in variables(plan(over={"scratch": None}))


def test_buckets_are_read_only() -> None:
    mounts = {m["name"]: m for m in pod(full())["containers"][0]["volumeMounts"]}
    volumes = {v["name"]: v for v in pod(full())["volumes"]}
    for name, path in {"s3-models": "/mnt/models", "s3-data": "/mnt/data"}.items():
        assert mounts[name] == {"name": name, "mountPath": path, "readOnly": True}
        assert volumes[name]["persistentVolumeClaim"] == {"claimName": name, "readOnly": True}


def test_the_trainer_is_no_root_and_may_not_become_it() -> None:
    made = pod(plan())
    assert made["securityContext"]["runAsNonRoot"]
    assert made["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert made["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    own = pod(plan(image="mine:1"))
    assert own["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert own["containers"][0]["securityContext"] == {"allowPrivilegeEscalation": False}


def test_the_images_user_is_the_one_that_pods_run_as() -> None:
    from pathlib import Path

    from eks_fsdp.components.job_security import TRAINER_USER

    dockerfile = (Path(__file__).parents[2] / "trainer/Dockerfile").read_text()
    assert f"USER {TRAINER_USER}:{TRAINER_USER}\n" in dockerfile


def test_a_job_has_time_to_save_and_an_end() -> None:
    made = plan(grace_seconds=600, deadline_minutes=90)
    assert pod(made)["terminationGracePeriodSeconds"] == 600
    assert pod(made)["activeDeadlineSeconds"] == 90 * 60
    policy = rendered(made)["spec"]["runPolicy"]
    assert (policy["activeDeadlineSeconds"], policy["cleanPodPolicy"]) == (90 * 60, "None")
    assert rendered(made)["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "OnFailure"


def test_the_programs_labels_win_and_the_queues_is_on_the_job_alone() -> None:
    made = rendered(full())
    labels = made["metadata"]["labels"]
    assert (labels["eksfsdp/team"], labels["cost-centre"]) == ("nlp", "42")
    assert labels["kueue.x-k8s.io/queue-name"] == "training"
    # On a pod it would make Kueue admit the pod by itself.
    template = made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["metadata"]["labels"]
    assert "kueue.x-k8s.io/queue-name" not in template
    assert template["eksfsdp/team"] == "nlp"
    assert "kueue.x-k8s.io/queue-name" not in rendered(plan())["metadata"]["labels"]


def test_the_guide_names_every_setting() -> None:
    from pathlib import Path

    guide = (Path(__file__).parents[2] / "docs/jobs.md").read_text()
    rows = {name for line in guide.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line)}
    assert set(JobSettings.model_fields) <= rows
