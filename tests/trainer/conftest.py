"""Fixtures: ranks forked from one warm process, a real etcd, and torchrun agents."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).parents[2] / "src"
ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if not k.startswith(("PET_", "EKS_FSDP_", "NCCL_", "GLOO_"))},
    "PYTHONPATH": str(SOURCES),
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "CUDA_VISIBLE_DEVICES": "",
}
SMALL = [
    *("--data.sequence_length", "32"),
    *("--global_batch_size", "12"),
    *("--param_dtype", "float32"),
]
"""Flags of a run whose steps take some tens of milliseconds."""


def rows_in(text: str, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
    return [row for row in rows if row["eksfsdp"] == kind]


@dataclass
class Finished:
    """What ranks left behind."""

    codes: list[int]
    out: str
    """Rank 0's stdout."""
    err: str
    """All ranks' stderr."""

    def rows(self, kind: str) -> list[dict[str, Any]]:
        return rows_in(self.out, kind)

    @property
    def losses(self) -> list[float]:
        return [row["loss"] for row in self.rows("step")]

    @property
    def norms(self) -> list[float]:
        return [row["grad_norm"] for row in self.rows("step")]

    def succeeded(self) -> Finished:
        assert set(self.codes) == {0}, self.err
        return self


@dataclass
class RankServer:
    """Runs the trainer's ``main`` on ranks of gloo."""

    process: subprocess.Popen[str]
    folder: Path
    runs: int = 0
    output: Path = field(default_factory=Path)

    def start(self, ranks: int, *arguments: str, environment: dict[str, str] | None = None) -> list[int]:
        """Start ranks; returns their process ids."""
        self.runs += 1
        self.output = self.folder / f"run-{self.runs}"
        self.output.mkdir()
        request = {
            "ranks": ranks,
            "arguments": [*SMALL, *arguments],
            "environment": environment or {},
            "output": str(self.output),
        }
        assert self.process.stdin
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        pids: list[int] = self._answer()["pids"]
        return pids

    def finish(self) -> Finished:
        """Wait for the ranks that were started."""
        codes: list[int] = self._answer()["codes"]
        err = "".join(path.read_text() for path in sorted(self.output.glob("err.*")))
        return Finished(codes, (self.output / "out.0").read_text(), err)

    def run(self, ranks: int, *arguments: str, environment: dict[str, str] | None = None) -> Finished:
        """Start and finish."""
        self.start(ranks, *arguments, environment=environment)
        return self.finish()

    def wait_for_step(self, step: int) -> None:
        """Until rank 0 has printed that step."""
        wait_until(lambda: f'"step":{step},' in (self.output / "out.0").read_text(), f"step {step}")

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


def wait_until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("rank_server.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    with process:
        yield RankServer(process, tmp_path_factory.mktemp("ranks"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Etcd:
    """An etcd of its own on the loopback interface, which tests may stop and start."""

    binary: str
    folder: Path
    port: int = field(default_factory=free_port)
    peer_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        client, peer = f"http://{self.endpoint}", f"http://127.0.0.1:{self.peer_port}"
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(self.binary, "--data-dir", str(self.folder / "data"), "--unsafe-no-fsync"),
                    *("--listen-client-urls", client, "--advertise-client-urls", client),
                    *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                    *("--initial-cluster", f"default={peer}"),
                ],
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"]},
            )
        wait_until(self._answers, f"etcd at {client}")

    def stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _answers(self) -> bool:
        from eks_fsdp.trainer.rendezvous.client import EtcdClient, EtcdError

        client = EtcdClient(f"http://{self.endpoint}", patience=0)
        try:
            client.get("/")
        except EtcdError:
            return False
        finally:
            client.close()
        return True


@pytest.fixture(scope="session")
def etcd_binary() -> str:
    binary = os.environ.get("EKS_FSDP_ETCD") or shutil.which("etcd")
    if not binary:
        pytest.fail("no etcd: put it on PATH, or name it in EKS_FSDP_ETCD; the sandbox's toolchain has it")
    return binary


@pytest.fixture(scope="session")
def etcd(etcd_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    server = Etcd(etcd_binary, tmp_path_factory.mktemp("etcd"))
    server.start()
    yield server
    server.stop()


@dataclass
class Agents:
    """torchrun agents, one for each pretended node, with one worker each."""

    etcd: Etcd
    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    starts: int = 0

    def start(self, run_id: str, nodes: int, max_restarts: int, *arguments: str) -> None:
        self.starts += 1
        self.processes = []
        for node in range(nodes):
            with self._file("out", node).open("wb") as out, self._file("err", node).open("wb") as err:
                self.processes.append(
                    subprocess.Popen(
                        [
                            *(sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=etcd-v3"),
                            *(f"--rdzv-endpoint={self.etcd.endpoint}", f"--rdzv-id={run_id}"),
                            *(f"--nnodes={nodes}", "--nproc-per-node=1", f"--max-restarts={max_restarts}"),
                            *("--local-addr=127.0.0.1", "--monitor-interval=0.2"),
                            *("-m", "eks_fsdp.trainer", *SMALL, *arguments),
                        ],
                        stdout=out,
                        stderr=err,
                        env={**ENVIRONMENT, "PET_RDZV_BACKEND": "etcd-v3"},
                    )
                )

    def worker(self, node: int) -> int:
        """Process id of that agent's worker."""
        pid = self.processes[node].pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[-1])

    def finish(self, seconds: float = 120) -> Finished:
        deadline = time.monotonic() + seconds
        codes = [process.wait(max(0.1, deadline - time.monotonic())) for process in self.processes]
        nodes = range(len(self.processes))
        out = "".join(self._file("out", node).read_text() for node in nodes)
        return Finished(codes, out, "".join(self._file("err", node).read_text() for node in nodes))

    def wait_for_step(self, step: int) -> None:
        files = [self._file("out", node) for node in range(len(self.processes))]
        wait_until(lambda: any(f'"step":{step},' in file.read_text() for file in files), f"step {step}", 120)

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _file(self, kind: str, node: int) -> Path:
        return self.folder / f"{kind}.{self.starts}.{node}"


@pytest.fixture
def agents(etcd: Etcd, tmp_path: Path) -> Iterator[Agents]:
    started = Agents(etcd, tmp_path)
    yield started
    started.end()
