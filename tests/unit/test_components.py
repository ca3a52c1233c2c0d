"""What the components declare, against Pulumi's mocks: conventions of all of them, and what each must get right."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from eks_fsdp.components.platform import TrainingPlatform, TrainingPlatformArgs
from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.names import PROGRAM_NAME, TAG_OWNER, TAG_STACK
from eks_fsdp.spec.settings import Settings
from eks_fsdp.spec.versions import AMI_RELEASES

from .conftest import Declare, Declared

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
ROOT = Path(__file__).parents[2]
COMPONENTS = ROOT / "components"
UNTAGGED = {
    # AWS has no tags on these.
    "aws:ec2/route:Route",
    "aws:ec2/routeTableAssociation:RouteTableAssociation",
    "aws:iam/rolePolicy:RolePolicy",
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment",
    "aws:ecr/lifecyclePolicy:LifecyclePolicy",
    "aws:autoscaling/tag:Tag",
    "aws:autoscaling/schedule:Schedule",
    "aws:lambda/functionEventInvokeConfig:FunctionEventInvokeConfig",
    "aws:scheduler/schedule:Schedule",
}
GUARDED = {"expiry": "2027-01-31T18:00:00Z", "budget_usd": 500, "budget_email": "team@example.com"}


APART = {"p-etcd-storage-class", "p-etcd-claim", "p-etcd-server"}
"""What is deleted by itself, before nodes and cluster."""


def sandbox_settings(**changes: Any) -> Settings:
    """The settings of the sandbox's stack file, with changes."""
    file = yaml.safe_load((ROOT / "stacks/Pulumi.sandbox.yaml").read_text())["config"]
    values = {key.removeprefix(f"{PROGRAM_NAME}:"): value for key, value in file.items()}
    # The URL is not fetched here: kustomize runs in the provider.
    for part in ("training_operator", "queue"):
        values.pop(part)
    return Settings.parse({**values, **changes})


def platform(settings: Settings) -> Callable[[], TrainingPlatform]:
    return lambda: TrainingPlatform("p", TrainingPlatformArgs(settings=settings, stack="unit", now=NOW))


@pytest.fixture(scope="module")
def declared(declare_program: Declare) -> list[Declared]:
    return declare_program(platform(sandbox_settings(guard=GUARDED)))


def of_type(declared: list[Declared], kind: str) -> list[Declared]:
    return [resource for resource in declared if resource.type == kind]


def one(declared: list[Declared], kind: str, name: str = "") -> Declared:
    found = [resource for resource in of_type(declared, kind) if name in resource.name]
    assert len(found) == 1, [resource.name for resource in found]
    return found[0]


# Conventions


def test_every_component_has_the_frozen_token_of_its_class(declared: list[Declared]) -> None:
    tokens = {
        "eksfsdp:access:JobAccess",
        "eksfsdp:addons:EksAddons",
        "eksfsdp:budget:StackBudget",
        "eksfsdp:cluster:Cluster",
        "eksfsdp:devices:DevicePlugins",
        "eksfsdp:etcd:Etcd",
        "eksfsdp:gpu:GpuNodeGroup",
        "eksfsdp:guard:CostGuard",
        "eksfsdp:guard:IdleGuard",
        "eksfsdp:identity:PodIdentity",
        "eksfsdp:image:ImageRepository",
        "eksfsdp:job:TrainingJob",
        "eksfsdp:monitoring:Monitoring",
        "eksfsdp:network:EfaSecurityGroup",
        "eksfsdp:network:Network",
        "eksfsdp:operator:TrainingOperator",
        "eksfsdp:platform:TrainingPlatform",
        "eksfsdp:queue:Queue",
        "eksfsdp:teams:Team",
        "eksfsdp:storage:Storage",
    }
    # A token is part of the URN of everything below it: changing one replaces a live cluster.
    assert {resource.type for resource in declared if resource.type.startswith("eksfsdp:")} == tokens
    written = set()
    for name, node in component_classes():
        token = super_init(node).args[0]
        assert isinstance(token, ast.Constant), name
        assert str(token.value).split(":")[2] == name
        written.add(token.value)
    assert written == tokens | {"eksfsdp:image:ImageBuild", "eksfsdp:storage:S3Mounts"}


def component_classes() -> list[tuple[str, ast.ClassDef]]:
    found = []
    for file in sorted(COMPONENTS.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and any("ComponentResource" in ast.unparse(b) for b in node.bases):
                found.append((node.name, node))
    return found


def super_init(node: ast.ClassDef) -> ast.Call:
    calls = [c for c in ast.walk(node) if isinstance(c, ast.Call) and ast.unparse(c.func) == "super().__init__"]
    assert len(calls) == 1
    return calls[0]


@pytest.mark.parametrize(
    ("name", "node"), component_classes(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_component_takes_name_args_and_options_and_registers_its_outputs(name: str, node: ast.ClassDef) -> None:
    init = next(item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__")
    assert [argument.arg for argument in init.args.args] == ["self", "name", "args", "opts"]
    assert ast.unparse(init.args.args[2].annotation or ast.Constant("")) == f"{name}Args"
    assert ast.unparse(init.body[-1]).startswith("self.register_outputs("), "the last statement registers the outputs"
    assert [ast.unparse(argument) for argument in super_init(node).args[1:]] == ["name", "None", "opts"]
    assert ast.get_docstring(node)


def test_args_are_frozen_and_keyword_only_and_every_field_is_documented() -> None:
    for file in COMPONENTS.glob("*.py"):
        tree = ast.parse(file.read_text())
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("Args"):
                assert [ast.unparse(d) for d in node.decorator_list] == ["dataclass(frozen=True, kw_only=True)"]
                fields = node.body[1:]
                assert all(isinstance(field, ast.AnnAssign) for field in fields[::2]), node.name
                assert all(isinstance(text, ast.Expr) for text in fields[1::2]), f"{node.name}: a field without a text"


def test_everything_below_the_platform_has_a_parent_and_its_components_prefix(declared: list[Declared]) -> None:
    by_urn = {resource.urn: resource for resource in declared}
    for resource in declared:
        if resource.type == "eksfsdp:platform:TrainingPlatform":
            continue
        parent = by_urn[resource.parent]
        assert resource.name.startswith(parent.name), f"{resource.name} below {parent.name}"


def test_every_aws_resource_says_who_owns_it(declared: list[Declared]) -> None:
    taggable = [r for r in declared if r.type.startswith(("aws:", "eks:")) and r.type not in UNTAGGED]
    assert len(taggable) > 20
    for resource in taggable:
        tags = resource.inputs["tags"]
        assert (tags[TAG_OWNER], tags[TAG_STACK]) == ("sandbox", "unit"), resource.name


def test_every_resource_has_the_stacks_own_provider(declared: list[Declared]) -> None:
    for resource in declared:
        if resource.custom and not resource.type.startswith("pulumi:providers:"):
            assert "pulumi:providers:" in resource.provider, resource.name
        if resource.type.startswith("eks:"):
            assert "pulumi:providers:aws" in resource.providers["aws"]
    assert one(declared, "pulumi:providers:aws").inputs["region"] == "us-west-2"


def test_what_is_in_the_cluster_ends_with_it_and_jobs_outlive_their_declaration(declared: list[Declared]) -> None:
    control_plane = one(declared, "eks:index:Cluster").urn
    by_urn = {resource.urn: resource for resource in declared}

    def inherited(resource: Declared | None, what: str) -> Any:
        while resource and not getattr(resource, what):
            resource = by_urn.get(resource.parent)
        return getattr(resource, what) if resource else None

    for resource in declared:
        if resource.type.startswith("kubernetes:"):
            job = resource.name.startswith("p-job-")
            # A claim that goes with the cluster leaves its volume behind, and its pod holds it.
            apart = job or resource.name in APART
            assert inherited(resource, "retained") == (True if job else None), resource.name
            assert inherited(resource, "deleted_with") == (None if apart else control_plane), resource.name


def test_names_of_resources_are_unique_by_type(declared: list[Declared]) -> None:
    names = [(resource.type, resource.name) for resource in declared]
    assert len(names) == len(set(names))


def test_no_image_is_latest(declared: list[Declared]) -> None:
    for resource in declared:
        text = json.dumps(resource.inputs, default=str)
        assert ":latest" not in text, resource.name
        for image in _images(resource.inputs):
            assert ":" in image.rpartition("/")[2], f"{resource.name}: {image} has no tag"


def _images(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["image"]] if isinstance(value.get("image"), str) else []
        return own + [image for item in value.values() for image in _images(item)]
    return [image for item in value for image in _images(item)] if isinstance(value, list) else []


def test_components_read_no_environment_and_no_other_room() -> None:
    for file in COMPONENTS.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute):
                assert ast.unparse(node) not in ("os.environ", "os.getenv"), file.name
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("eks_fsdp"):
                assert node.module.split(".")[1] == "spec", f"{file.name} imports {node.module}"
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert "boto" not in ast.unparse(node)


# What each must get right


def test_the_launch_template_names_both_groups_on_every_interface_and_nowhere_else(declared: list[Declared]) -> None:
    template = one(declared, "aws:ec2/launchTemplate:LaunchTemplate", "gpu").inputs
    interfaces = template["networkInterfaces"]
    assert len(interfaces) == 32
    assert all(i["securityGroups"] == ["sg-cluster", "p-efa-group-id"] for i in interfaces)
    assert not any("associatePublicIpAddress" in i or "subnetId" in i for i in interfaces)
    assert "vpcSecurityGroupIds" not in template
    # With an image of its own EKS would neither merge the user data nor keep the AMI type.
    assert "imageId" not in template
    assert template["metadataOptions"]["httpTokens"] == "required"
    assert template["blockDeviceMappings"][0]["ebs"]["encrypted"] == "true"


def test_the_gpu_group_is_tainted_and_in_the_private_subnet_of_its_zone(declared: list[Declared]) -> None:
    group = one(declared, "aws:eks/nodeGroup:NodeGroup").inputs
    assert group["taints"] == [{"effect": "NO_SCHEDULE", "key": "nvidia.com/gpu", "value": "true"}]
    assert group["subnetIds"] == ["p-network-private-us-west-2a-id"]
    assert group["amiType"] == "AL2023_x86_64_NVIDIA"
    assert group["scalingConfig"] == {"minSize": 0, "desiredSize": 4, "maxSize": 4}
    assert group["launchTemplate"] == {"id": "p-gpu-p5-template-id", "version": "1"}
    assert group["releaseVersion"] == AMI_RELEASES["1.34"]


def test_the_programs_labels_of_system_nodes_win_over_the_users(declare_program: Declare) -> None:
    # All that is not training is placed by them.
    settings = sandbox_settings(system_nodes={"labels": {"eksfsdp/role": "mine", "team": "a"}})
    nodes = one(declare_program(platform(settings)), "eks:index:ManagedNodeGroup")
    assert nodes.inputs["labels"] == {"team": "a", "eksfsdp/role": "system"}


def test_checkpoints_stay_where_they_are_when_the_gpu_groups_move(declared: list[Declared]) -> None:
    system = one(declared, "aws:fsx/lustreFileSystem:LustreFileSystem")
    assert system.ignored_changes == ("subnetIds", "securityGroupIds")


def test_the_efa_group_is_open_to_itself_both_ways(declared: list[Declared]) -> None:
    for kind in ("Ingress", "Egress"):
        rule = one(declared, f"aws:vpc/securityGroup{kind}Rule:SecurityGroup{kind}Rule", "-efa-").inputs
        assert rule["ipProtocol"] == "-1"
        assert rule["securityGroupId"] == rule["referencedSecurityGroupId"] == "p-efa-group-id"


def test_no_subnet_gives_out_public_addresses_and_private_ones_go_through_nat(declared: list[Declared]) -> None:
    assert len(of_type(declared, "aws:ec2/subnet:Subnet")) == 6
    assert not any(s.inputs["mapPublicIpOnLaunch"] for s in of_type(declared, "aws:ec2/subnet:Subnet"))
    assert one(declared, "aws:ec2/route:Route", "private").inputs["natGatewayId"] == "p-network-nat-id"
    assert one(declared, "aws:ec2/route:Route", "public").inputs["gatewayId"] == "p-network-internet-id"


def test_the_kubernetes_provider_is_kept_when_endpoint_or_token_change(declared: list[Declared]) -> None:
    provider = one(declared, "pulumi:providers:kubernetes").inputs
    assert provider["clusterIdentifier"].startswith("arn:aws:eks:")
    assert provider["enableServerSideApply"] == "true"


def test_a_job_waits_for_all_that_its_pods_need(declared: list[Declared]) -> None:
    job = one(declared, "kubernetes:kubeflow.org/v1:PyTorchJob")
    needed = {urn.rpartition("::")[2] for urn in job.depends_on}
    assert {
        "p-operator-manifests",
        "p-queue-manifests",
        "p-queue-local-queue-training",
        "p-team-research-namespace",
        "p-etcd-server",
        "p-etcd-service",
        "p-devices-nvidia",
        "p-devices-efa",
        "p-gpu-p5-nodes",
        "p-storage-claim",
        "p-namespace-jobs",
    } <= needed
    assert any(name.startswith("p-job-first-config") for name in needed)


def test_grafanas_password_is_drawn_once(declared: list[Declared], declare_program: Declare) -> None:
    secret = one(declared, "kubernetes:core/v1:Secret")
    assert secret.ignored_changes == ("data",)
    again = one(declare_program(platform(sandbox_settings())), "kubernetes:core/v1:Secret")
    assert secret.inputs["data"] != again.inputs["data"]


def test_a_changed_node_count_changes_one_node_group_and_one_job(declare_program: Declare) -> None:
    def inputs(settings: Settings) -> dict[tuple[str, str], str]:
        declared = declare_program(platform(settings))
        return {
            (r.type, r.name): json.dumps(r.inputs, sort_keys=True, default=str)
            for r in declared
            # A kustomization with local manifests is a copy of this process.
            if "Secret" not in r.type and "kustomize" not in r.type
        }

    settings = sandbox_settings()
    before = inputs(settings)
    values = settings.model_dump(mode="json")
    values["gpu_nodes"][0]["desired"] = 2
    values["jobs"]["first"]["nodes"] = 2
    after = inputs(Settings.parse(values))
    gone, came = before.keys() - after.keys(), after.keys() - before.keys()
    changed = {key for key in before.keys() & after.keys() if before[key] != after[key]}
    assert changed == {("aws:eks/nodeGroup:NodeGroup", "p-gpu-p5-nodes")}
    for keys in (gone, came):
        assert {kind for kind, _ in keys} == {"kubernetes:core/v1:ConfigMap", "kubernetes:kubeflow.org/v1:PyTorchJob"}
        assert all(name.startswith("p-job-first-") for _, name in keys)


def test_on_an_existing_cluster_there_is_no_aws_and_only_the_job(declare_program: Declare) -> None:
    settings = sandbox_settings()
    job = settings.jobs["first"].model_copy(update={"image": "registry.example/eks-fsdp/trainer:0.1.0"})
    narrow = settings.on_existing_cluster("/tmp/kubeconfig", {"first": job})
    declared = declare_program(platform(narrow))
    assert sorted(resource.type for resource in declared) == [
        "eksfsdp:job:TrainingJob",
        "eksfsdp:platform:TrainingPlatform",
        "kubernetes:core/v1:ConfigMap",
        "kubernetes:kubeflow.org/v1:PyTorchJob",
        "pulumi:providers:kubernetes",
    ]


def test_an_image_that_nobody_names_is_refused_before_anything_is_declared(declare_program: Declare) -> None:
    settings = sandbox_settings()
    narrow = settings.on_existing_cluster("/tmp/kubeconfig", settings.jobs)
    with pytest.raises(SettingsError, match=r"jobs\.first\.image: .*accepted: an image"):
        declare_program(platform(narrow))


def test_each_part_can_be_left_out(declare_program: Declare) -> None:
    off = {"mode": "none"}
    settings = sandbox_settings(
        device_plugins={"nvidia": off, "efa": off},
        etcd=off,
        training_operator=off,
        queue=off,
        teams={},
        monitoring=off,
        storage=off,
        namespace={"mode": "existing"},
        guard={"idle_minutes": 0},
        jobs={},
    )
    declared = declare_program(platform(settings))
    assert not [resource.name for resource in declared if resource.type.startswith("kubernetes:")]


def test_the_outputs_of_the_stack(declared: list[Declared]) -> None:
    seen = one(declared, "eksfsdp:platform:TrainingPlatform").outputs
    assert json.loads(seen.pop("kubeconfig"))["users"][0]["user"]["exec"]["command"] == "aws"
    assert seen.pop("jobs")["first"]["nodes"] == 1
    assert seen == {
        "cluster_name": "cluster-1",
        "file_system_id": "p-storage-lustre-id",
        "namespace": "training",
        "image_repository": "123456789012.dkr.ecr.us-west-2.amazonaws.com/unit/eks-fsdp/trainer",
        "image": "123456789012.dkr.ecr.us-west-2.amazonaws.com/unit/eks-fsdp/trainer:sandbox",
        "gpu_node_groups": [{"name": "p5", "instance_type": "p5.48xlarge", "desired": 4}],
    }
