"""The machine room as the sandbox's daemon starts it: a real control plane, nodes, pods with logs and exec, and its end."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eks_fsdp.sandbox.machine_process import start_machine, stop_machine, wait_for_socket
from eks_fsdp.sandbox.machine_room import MachineRoomError, SocketMachineRoom

pytestmark = pytest.mark.engine
READY_SECONDS = 60.0
GPU_NODE = {"instance_type": "p5.48xlarge", "cpu": 192, "memory_mib": 2097152, "gpus": 8, "efa_interfaces": 32}
SYSTEM_NODE = {"instance_type": "m7i.xlarge", "cpu": 4, "memory_mib": 16384}


@dataclass
class Room:
    """A running machine room and a kubectl for it."""

    folder: Path
    client: SocketMachineRoom
    kubectl_binary: Path
    process: subprocess.Popen[bytes]

    def kubectl(self, *arguments: str, stdin: str | None = None, fails: bool = False, timeout: float = 60) -> str:
        """Its standard output."""
        environment = {**os.environ, "KUBECONFIG": str(self.folder / "kubeconfig")}
        done = subprocess.run(
            [self.kubectl_binary, *arguments],
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert (done.returncode != 0) is fails, done.stderr
        return done.stderr + done.stdout if fails else done.stdout

    def apply(self, *objects: dict[str, Any]) -> None:
        """Create or change objects."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(items))

    def pod(self, name: str) -> dict[str, Any]:
        """A pod's object."""
        found: dict[str, Any] = json.loads(self.kubectl("get", "pod", name, "-o", "json"))
        return found


def eventually(what: str, holds: Callable[[], Any], seconds: float = 20.0) -> Any:
    """The first true value of ``holds()``."""
    deadline = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < deadline, f"after {seconds:.0f} s still not: {what}"
        time.sleep(0.2)
    return value


def toolchain() -> Path:
    """The folder with the programs that the machine room starts."""
    folder = os.environ.get("EKS_FSDP_TOOLCHAIN")
    if not folder:
        pytest.fail("EKS_FSDP_TOOLCHAIN must name the folder with etcd, kube-apiserver and so on")
    return Path(folder)


@contextlib.contextmanager
def forwarded(target: Path) -> Iterator[int]:
    """A TCP port of this machine that leads to a unix socket."""

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve(connection: socket.socket) -> None:
        with connection, socket.socket(socket.AF_UNIX) as other:
            other.connect(str(target))
            back = threading.Thread(target=pump, args=(other, connection), daemon=True)
            back.start()
            pump(connection, other)
            back.join()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    """A machine room with a control plane and a system node group of two."""
    folder = tmp_path_factory.mktemp("room")
    programs = toolchain()
    process = start_machine(folder, programs)
    try:
        client = SocketMachineRoom(wait_for_socket(folder, process))
        with forwarded(folder / "run" / "api.sock") as port:
            plane = client.create_control_plane("test", "1.34", "127.0.0.1", port)
            (folder / "kubeconfig").write_text(json.dumps(kubeconfig(folder, plane, port)))
            client.put_node_group("system", {"desired": 2, **SYSTEM_NODE})
            running = Room(folder, client, programs / "kubectl", process)
            ready = "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"
            eventually("nodes ready", lambda: running.kubectl("get", "nodes", "-o", ready) == "True True")
            untainted = "jsonpath={.items[*].spec.taints}"
            eventually("nodes open", lambda: running.kubectl("get", "nodes", "-o", untainted) == "")
            account = ("get", "serviceaccount", "default", "--ignore-not-found", "-o", "name")
            eventually("service account", lambda: running.kubectl(*account))
            yield running
    finally:
        stop_machine(process)


def kubeconfig(folder: Path, plane: dict[str, Any], port: int) -> dict[str, Any]:
    """What kubectl needs."""
    (folder / "ca.pem").write_text(plane["ca_pem"])
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(folder / "ca.pem")}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": plane["admin_token"]}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def pod(name: str, script: str, **spec: Any) -> dict[str, Any]:
    """A pod that runs a shell script."""
    container = {"name": "main", "image": "busybox", "command": ["sh", "-c", script], **spec.pop("container", {})}
    described = {"containers": [container], "terminationGracePeriodSeconds": 1, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": described}


def running(room: Room, name: str) -> bool:
    """Whether a pod is ready."""
    conditions = room.pod(name)["status"].get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def test_a_pod_runs_its_command_with_environment_and_volumes(room: Room) -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cm"}, "data": {"key": "from the map"}}
    script = (
        "cat /etc/config/key /data/init; echo; echo $(IP); hostname; ls /var/run/secrets/kubernetes.io/serviceaccount"
    )
    mounts = [{"name": "config", "mountPath": "/etc/config"}, {"name": "data", "mountPath": "/data"}]
    field = {"fieldRef": {"fieldPath": "status.podIP"}}
    described = pod(
        "once",
        script,
        restartPolicy="Never",
        container={"volumeMounts": mounts, "env": [{"name": "IP", "valueFrom": field}]},
        volumes=[{"name": "config", "configMap": {"name": "cm"}}, {"name": "data", "emptyDir": {}}],
        initContainers=[
            {
                "name": "first",
                "image": "busybox",
                "command": ["sh", "-c", "printf ' and init' > /data/init"],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }
        ],
    )
    room.apply(config, described)
    eventually("it is over", lambda: room.pod("once")["status"]["phase"] == "Succeeded")
    address = room.pod("once")["status"]["podIP"]
    assert room.kubectl("logs", "once", "-c", "main").splitlines() == [
        "from the map and init",
        address,
        "once",
        "ca.crt",
        "namespace",
        "token",
    ]
    status = room.pod("once")["status"]["containerStatuses"][0]
    assert status["state"]["terminated"]["reason"] == "Completed"


def test_logs_are_followed_while_they_are_written(room: Room) -> None:
    room.apply(pod("talker", "for i in 1 2 3; do echo line $i; sleep 0.5; done", restartPolicy="Never"))
    eventually("it has begun", lambda: room.pod("talker")["status"]["phase"] != "Pending")
    assert room.kubectl("logs", "-f", "talker").split() == ["line", "1", "line", "2", "line", "3"]
    last = room.kubectl("logs", "--timestamps", "--tail=1", "talker")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z line 3\n", last)


def test_exec_carries_streams_and_the_exit_code(room: Room) -> None:
    room.apply(pod("shell", "sleep 600"))
    eventually("it is ready", lambda: running(room, "shell"))
    assert room.kubectl("exec", "-i", "shell", "--", "sh", "-c", "cat; hostname", stdin="in\n") == "in\nshell\n"
    text = room.kubectl("exec", "shell", "--", "sh", "-c", "echo problem >&2; exit 3", fails=True)
    assert "problem" in text
    assert "exit code 3" in text
    began = time.monotonic()
    room.kubectl("delete", "pod", "shell")
    assert time.monotonic() - began < 25, "it ends on SIGTERM, not after its grace of 30 s"


def test_a_killed_container_starts_again_and_its_last_log_stays(room: Room) -> None:
    room.apply(pod("mortal", "echo born; trap 'exit 0' TERM; while true; do sleep 0.2; done"))
    eventually("it is ready", lambda: running(room, "mortal"))
    hit = room.client.request("POST", "/faults", {"kind": "kill", "namespace": "default", "pod": "mortal", "signal": 9})
    assert len(hit["killed"]) == 1

    def restarted() -> bool:
        status = room.pod("mortal")["status"]["containerStatuses"][0]
        return bool(status["restartCount"] == 1 and "running" in status["state"])

    eventually("it runs again", restarted)
    last = room.pod("mortal")["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert (last["exitCode"], last["signal"], last["reason"]) == (137, 9, "Error")
    assert room.kubectl("logs", "--previous", "mortal") == "born\n"
    room.kubectl("delete", "pod", "mortal")


def test_probes_and_services(room: Room) -> None:
    probe = {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1}
    server = {
        "image": "python",
        "command": ["python3", "-m", "http.server", "8000", "--directory", "/opt"],
        "ports": [{"name": "http", "containerPort": 8000}],
        "readinessProbe": probe,
        "livenessProbe": {
            "exec": {"command": ["test", "!", "-e", "/tmp/sick"]},
            "periodSeconds": 1,
            "failureThreshold": 1,
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 8000}]},
    }
    room.apply(service, pod("server", "", container=server))
    eventually("it is ready", lambda: running(room, "server"))
    fetch = "import urllib.request as r; print(r.urlopen('http://web.default.svc:8000/').status)"
    code = ["exec", "server", "--", "python3", "-c", fetch]
    eventually(
        "its name resolves", lambda: "web.default.svc" in room.kubectl("exec", "server", "--", "cat", "/etc/hosts")
    )
    assert room.kubectl(*code) == "200\n"
    assert "Directory listing" in room.kubectl("get", "--raw", "/api/v1/namespaces/default/services/web:8000/proxy/")
    room.kubectl("exec", "server", "--", "touch", "/tmp/sick")
    status = "jsonpath={.status.containerStatuses[0].restartCount}"
    eventually("liveness restarts it", lambda: room.kubectl("get", "pod", "server", "-o", status) == "1")
    room.kubectl("delete", "pod/server", "service/web")


def test_a_gpu_pod_waits_for_device_plugins(room: Room) -> None:
    taint = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}
    room.client.put_node_group("gpu", {"desired": 1, "taints": [taint], **GPU_NODE})
    limits = {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32"}
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    wanting = pod("wanting", "echo got it", restartPolicy="Never", tolerations=tolerations)
    wanting["spec"]["containers"][0]["resources"] = {"limits": limits}
    room.apply(wanting)
    reason = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}"
    why = eventually("a reason", lambda: room.kubectl("get", "pod", "wanting", "-o", reason))
    assert "Insufficient nvidia.com/gpu" in why
    images = {
        "nvidia": "nvcr.io/nvidia/k8s-device-plugin:v0.18.1",
        "efa": "registry/eks/aws-efa-k8s-device-plugin:v0.5.20",
    }
    for name, image in images.items():
        room.apply(daemon_set(name, image))
    eventually("it has run", lambda: room.pod("wanting")["status"]["phase"] == "Succeeded")
    room.kubectl("delete", "daemonset", "nvidia")
    gpus = r"jsonpath={.items[*].status.allocatable.nvidia\.com/gpu}"
    selector = ("-l", "node.kubernetes.io/instance-type=p5.48xlarge")
    eventually("the GPUs are gone again", lambda: room.kubectl("get", "nodes", *selector, "-o", gpus) == "0")
    room.client.delete_node_group("gpu")
    assert room.kubectl("get", "nodes", *selector, "-o", "name") == ""


def daemon_set(name: str, image: str) -> dict[str, Any]:
    """One pod of ``image`` on each node."""
    template = {
        "metadata": {"labels": {"ds": name}},
        "spec": {"containers": [{"name": "c", "image": image}], "tolerations": [{"operator": "Exists"}]},
    }
    spec = {"selector": {"matchLabels": {"ds": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name}, "spec": spec}


def test_a_lost_node_comes_back(room: Room) -> None:
    room.apply(pod("survivor", "sleep 600"))
    eventually("it is ready", lambda: running(room, "survivor"))
    before = room.pod("survivor")
    node = before["spec"]["nodeName"]
    status = ("get", "node", node, "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].status}")
    room.client.request("POST", "/faults", {"kind": "lose-node", "node": node})
    eventually("the node is not ready", lambda: room.kubectl(*status) == "Unknown", seconds=40)
    room.client.request("POST", "/faults", {"kind": "return-node", "node": node})
    eventually("the node is ready", lambda: room.kubectl(*status) == "True")
    eventually(
        "the pod runs again", lambda: room.pod("survivor")["status"]["containerStatuses"][0]["restartCount"] == 1
    )
    eventually("it is ready", lambda: running(room, "survivor"))
    assert room.pod("survivor")["status"]["podIP"] != before["status"]["podIP"]
    room.kubectl("delete", "pod", "survivor")


class _Addons:
    """EKS as far as the driver asks it."""

    def __init__(self) -> None:
        self.installed: list[str] = []

    def list_addons(self, **_: str) -> dict[str, list[str]]:
        return {"addons": self.installed}


def test_a_claim_becomes_a_volume_of_the_account_and_the_volume_goes_with_the_claim(room: Room) -> None:
    from eks_fsdp.sandbox.account import Account, leftovers
    from eks_fsdp.sandbox.ebs_provisioner import ADDON, EbsProvisioner

    account = Account(room.client, cluster_port=6443)
    account.start()
    addons = _Addons()
    known = json.loads((room.folder / "kubeconfig").read_text())
    cluster = {
        "server": known["clusters"][0]["cluster"]["server"],
        "certificate-authority-data": base64.b64encode((room.folder / "ca.pem").read_bytes()).decode(),
    }
    told = {**known, "clusters": [{"name": "c", "cluster": cluster}]}
    driver = EbsProvisioner("test", told, lambda service: addons if service == "eks" else account.client(service))

    def volumes() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = account.client("ec2").describe_volumes()["Volumes"]  # type: ignore[attr-defined]
        return found

    kind = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "gp3"},
        "provisioner": "ebs.csi.aws.com",
        "parameters": {"type": "gp3", "encrypted": "true", "tagSpecification_1": "eksfsdp:stack=unit"},
        "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Delete",
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "disk"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "gp3",
            "resources": {"requests": {"storage": "8Gi"}},
        },
    }
    user = pod(
        "with-disk",
        "echo kept > /disk/file; cat /disk/file",
        restartPolicy="Never",
        volumes=[{"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}],
        container={"volumeMounts": [{"name": "disk", "mountPath": "/disk"}]},
    )
    driver.start()
    try:
        room.apply(kind, claim)
        # Where the claim is to be is known once a pod with it is placed.
        phase = ("get", "pvc", "disk", "-o", "jsonpath={.status.phase}")
        assert room.kubectl(*phase) == "Pending"
        room.apply(user)
        selected = ("get", "pvc", "disk", "-o", "jsonpath={.metadata.annotations}")
        eventually("a node is chosen", lambda: "selected-node" in room.kubectl(*selected))
        assert not volumes(), "the add-on is not installed"
        addons.installed.append(ADDON)
        eventually("the claim is bound", lambda: room.kubectl(*phase) == "Bound")
        [made] = volumes()
        assert (made["Size"], made["VolumeType"], made["Encrypted"]) == (8, "gp3", True)
        assert {"Key": "eksfsdp:stack", "Value": "unit"} in made["Tags"]
        assert made["AvailabilityZone"] == "us-west-2a"
        assert any(line.startswith("EBS volume") for line in leftovers(account.client))
        eventually("it is over", lambda: room.pod("with-disk")["status"]["phase"] == "Succeeded")
        assert room.kubectl("logs", "with-disk").strip() == "kept"
        room.kubectl("delete", "pod", "with-disk", "--wait=true")
        room.kubectl("delete", "pvc", "disk", "--wait=true")
        eventually("the volume is gone", lambda: not volumes())
        eventually("its object too", lambda: room.kubectl("get", "pv", "-o", "name") == "")
    finally:
        driver.stop()
        account.stop()


def test_what_cannot_be_is_refused_with_a_reason(room: Room) -> None:
    with pytest.raises(MachineRoomError, match="one at a time"):
        room.client.create_control_plane("other", "1.34", "127.0.0.1", 1)
    with pytest.raises(MachineRoomError, match="desierd: unknown key"):
        room.client.put_node_group("x", {"desierd": 1})
    with pytest.raises(MachineRoomError, match="does not run here"):
        room.client.request("POST", "/faults", {"kind": "kill", "namespace": "default", "pod": "none"})


def test_a_control_plane_ends_and_the_next_one_starts_empty(room: Room) -> None:
    room.apply(pod("left", "sleep 600"))
    eventually("it is ready", lambda: running(room, "left"))
    room.client.delete_control_plane("test")
    assert room.client.status() == {
        "control_plane": None,
        "nodes": [],
        "failure": "",
        "pods": 0,
        "processes": 1,
    }
    room.client.create_control_plane("next", "1.34", "127.0.0.1", 1)
    assert room.client.status()["nodes"] == []


def test_the_end_leaves_no_process(room: Room) -> None:
    stop_machine(room.process)
    mine = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(room.folder) in _read(path)]
    assert not [path for path in mine if f"/{os.getpid()}/" not in str(path)]


def _read(path: Path) -> str:
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
