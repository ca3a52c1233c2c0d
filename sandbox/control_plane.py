"""A real Kubernetes control plane as four processes: etcd, kube-apiserver, kube-controller-manager, kube-scheduler."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from eks_fsdp.sandbox.certificates import Authority, Pair, write_key
from eks_fsdp.sandbox.kubeapi import ApiError, KubeApi
from eks_fsdp.sandbox.network import GATEWAY
from eks_fsdp.sandbox.processes import Exit, Processes, ended_within, send

PORT = 6443
SERVICE_RANGE = "10.96.0.0/16"
SERVER_NAMES = (
    "localhost",
    "127.0.0.1",
    GATEWAY,
    "10.96.0.1",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
READY_SECONDS = 60.0
STOP_SECONDS = 4.0
NODE_GRACE_SECONDS = 16
"""A node whose lease is older than this is not ready."""


class ControlPlaneError(RuntimeError):
    """A process of the control plane ended, or did not answer in time. The message says which, and shows its log's end."""


@dataclass
class Component:
    """One running process."""

    name: str
    pid: int
    exit: asyncio.Future[Exit]
    log: Path


@dataclass
class ControlPlane:
    """One control plane, with state in ``folder`` (wiped at start)."""

    folder: Path
    logs: Path
    toolchain: Path
    processes: Processes
    on_failure: Callable[[str], None]
    """Called with a message when a component ends by itself."""
    components: list[Component] = field(default_factory=list)
    token: str = ""
    progress: str = "not started"

    def __post_init__(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, mode=0o700)
        self.logs.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(self.folder / "certificates")
        self.server = f"https://{GATEWAY}:{PORT}"
        self._stopping = False
        self._watchers: list[asyncio.Task[None]] = []

    def api(self) -> KubeApi:
        """A client with all rights."""
        return KubeApi(self.server, str(self.authority.file), self.token)

    def kubelet_pair(self, hosts: list[str]) -> Pair:
        """What the kubelets' API serves with."""
        return self.authority.sign("kubelet", "system:node:sandbox", groups=["system:nodes"], hosts=hosts)

    async def start(self) -> None:
        """Start everything and wait until the API server is ready. Raises `ControlPlaneError`."""
        self.token = secrets.token_hex(24)
        tokens = self.folder / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(f'{self.token},sandbox-admin,sandbox-admin,"system:masters"\n')
        kubeconfig = self._write_kubeconfig()
        self._start("etcd", _etcd_flags(self.folder))
        self._start("kube-apiserver", self._apiserver_flags(tokens))
        await self._wait_ready()
        self._start("kube-controller-manager", _controller_manager_flags(self.folder, kubeconfig))
        self._start("kube-scheduler", _scheduler_flags(kubeconfig))
        self.progress = "ready"

    async def stop(self) -> None:
        """End every process, the API server first, within about 8 s; wipe the state."""
        self._stopping = True
        for watcher in self._watchers:
            watcher.cancel()
        for component in self.components:
            send(component.pid, signal.SIGTERM if component.name == "etcd" else signal.SIGKILL)
        for component in self.components:
            if not await ended_within(component.exit, STOP_SECONDS):
                send(component.pid, signal.SIGKILL)
                await ended_within(component.exit, STOP_SECONDS)
        self.components.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, name: str, flags: list[str]) -> None:
        log = self.logs / f"{name}.log"
        binary = self.toolchain / name
        if not os.access(binary, os.X_OK):
            raise ControlPlaneError(f"{binary} is not there or cannot be run: the toolchain is not complete")
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.folder),
            "GOMAXPROCS": "2",
            "GOGC": "50",
        }
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pid = self.processes.start([str(binary), *flags], environment, {0: null, 1: output, 2: output})
        finally:
            os.close(output)
            os.close(null)
        component = Component(name, pid, self.processes.exit_of(pid), log)
        self.components.append(component)
        self._watchers.append(asyncio.ensure_future(self._watch(component)))

    async def _watch(self, component: Component) -> None:
        ended = await asyncio.shield(component.exit)
        if not self._stopping:
            self.on_failure(f"{component.name} ended with code {ended.code}; its log ends:\n{tail(component.log)}")

    async def _wait_ready(self) -> None:
        self.progress = "waiting for kube-apiserver to be ready"
        api = self.api()
        last = "no answer yet"
        try:
            async with asyncio.timeout(READY_SECONDS):
                while True:
                    for component in self.components:
                        if component.exit.done():
                            code = component.exit.result().code
                            message = f"{component.name} ended with code {code} at start:\n{tail(component.log)}"
                            raise ControlPlaneError(message)
                    try:
                        await api.request("GET", "/readyz")
                        await api.get("/api/v1/namespaces/default")
                        return
                    except (ApiError, aiohttp.ClientError) as error:
                        last = str(error)
                    await asyncio.sleep(0.1)
        except TimeoutError:
            log = tail(self.logs / "kube-apiserver.log")
            message = f"kube-apiserver was not ready within {READY_SECONDS:.0f} s ({last}); its log ends:\n{log}"
            raise ControlPlaneError(message) from None
        finally:
            await api.close()

    def _write_kubeconfig(self) -> Path:
        path = self.folder / "kubeconfig"
        path.touch(mode=0o600)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "sandbox",
                    "cluster": {"server": self.server, "certificate-authority": str(self.authority.file)},
                }
            ],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "sandbox", "context": {"cluster": "sandbox", "user": "admin"}}],
            "current-context": "sandbox",
        }
        path.write_text(json.dumps(config))
        return path

    def _apiserver_flags(self, tokens: Path) -> list[str]:
        serving = self.authority.sign("apiserver", "kube-apiserver", hosts=SERVER_NAMES)
        client = self.authority.sign("kubelet-client", "kube-apiserver-kubelet-client", groups=["system:masters"])
        proxy = self.authority.sign("front-proxy", "front-proxy-client")
        accounts = write_key(self.folder / "service-accounts.key")
        return [
            "--etcd-servers=http://127.0.0.1:2379",
            f"--bind-address={GATEWAY}",
            f"--advertise-address={GATEWAY}",
            f"--secure-port={PORT}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self.authority.file}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            "--anonymous-auth=true",
            f"--kubelet-client-certificate={client.certificate}",
            f"--kubelet-client-key={client.key}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--proxy-client-cert-file={proxy.certificate}",
            f"--proxy-client-key-file={proxy.key}",
            f"--requestheader-client-ca-file={self.authority.file}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--service-account-key-file={accounts}",
            f"--service-account-signing-key-file={accounts}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            # Webhooks and aggregated APIs are called at their endpoints: there is no kube-proxy.
            "--enable-aggregator-routing=true",
            # Exec goes through to our kubelet as the WebSocket that it is.
            "--feature-gates=TranslateStreamCloseWebsocketRequests=false",
            "--allow-privileged=true",
            "--enable-priority-and-fairness=false",
            "--max-requests-inflight=400",
            "--event-ttl=1h",
            "--profiling=false",
        ]


def _etcd_flags(folder: Path) -> list[str]:
    return [
        f"--data-dir={folder / 'etcd'}",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        # Nothing here outlives the processes, so nothing has to survive a power cut.
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def _controller_manager_flags(folder: Path, kubeconfig: Path) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--service-account-private-key-file={folder / 'service-accounts.key'}",
        f"--root-ca-file={folder / 'certificates' / 'ca.crt'}",
        "--leader-elect=false",
        "--secure-port=0",
        "--controllers=*,-bootstrap-signer-controller,-token-cleaner-controller,-node-ipam-controller,"
        "-node-route-controller,-service-lb-controller",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        "--node-monitor-period=1s",
        f"--node-monitor-grace-period={NODE_GRACE_SECONDS}s",
        "--profiling=false",
    ]


def _scheduler_flags(kubeconfig: Path) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        "--profiling=false",
    ]


def tail(path: Path, lines: int = 8) -> str:
    """The last lines of a log, indented."""
    try:
        text = path.read_bytes()[-8000:].decode(errors="replace")
    except OSError as error:
        text = str(error)
    return "\n".join(f"  {line[:400]}" for line in text.splitlines()[-lines:])
