"""The sandbox's outer daemon: account, stand-in providers and forwarder, with the machine room as its child."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

from .layout import ACCOUNT_ID, REGION, Layout, write_json, write_text

ALREADY_RUNNING = 3
"""Exit code where another daemon holds the folder."""
FAILED = 1
START_SECONDS = 60.0
"""Limit of the start of the machine room and its control plane."""
log = logging.getLogger("eks_fsdp.sandbox")


class StartError(RuntimeError):
    """A part of the sandbox did not come up; the message says which, and shows the end of its log."""


def lock_folder(layout: Layout) -> IO[str] | None:
    """Take the folder for this process until it ends; None where a live daemon has it."""
    file = layout.lock.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def is_held(layout: Layout) -> bool:
    """Whether a live daemon has the folder. The lock goes with its process, whatever ends it."""
    try:
        file = layout.lock.open("r")
    except OSError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        return False


class Daemon:
    """One sandbox."""

    def __init__(self, layout: Layout, toolchain: Path) -> None:
        self.layout = layout
        self.toolchain = toolchain
        self.stopping = threading.Event()
        self._end = contextlib.ExitStack()
        self._machine: Any = None
        self._account: Any = None
        self._ebs: Any = None

    def progress(self, what: str) -> None:
        """Tell `sandbox up` what is being waited for."""
        log.info("%s", what)
        write_text(self.layout.progress_file, what + "\n")

    def start(self) -> None:
        """Bring everything up. Raises `StartError`."""
        from .machine_process import start_machine, stop_machine

        began = time.monotonic()
        self.progress("machine room")
        try:
            self._machine = start_machine(self.layout.root, self.toolchain)
        except OSError as error:
            raise StartError(f"the machine room cannot be started: {error}") from None
        self._end.callback(stop_machine, self._machine)
        # While it comes up, the account's modules are loaded: each takes seconds.
        ready = self._serve()
        self._wait_for_machine()
        ready |= {
            "pid": os.getpid(),
            "toolchain": str(self.toolchain),
            "region": REGION,
            "account": ACCOUNT_ID,
            "sockets": str(self.layout.socket("").parent),
            "seconds": round(time.monotonic() - began, 2),
        }
        write_json(self.layout.ready_file, ready)
        self.progress("ready")

    def _serve(self) -> dict[str, Any]:
        self.progress("stand-in AWS account")
        from .account import Account
        from .bucket_mirror import BucketMirror
        from .cloud.provider import AwsProvider, serve
        from .eks_provider import EksProvider, EksServer
        from .forwarder import Forwarder
        from .machine_room import SocketMachineRoom
        from .pod_identity import AWS_SOCKET
        from .user_environment import install_commands

        forwarder = Forwarder(self.layout.socket("api.sock"))
        cluster_port = forwarder.start()
        self._end.callback(forwarder.stop)
        room = SocketMachineRoom(self.layout.socket("machine.sock"))
        self._account = account = Account(room, cluster_port, self._cluster_changed)
        url = account.start()
        self._end.callback(account.stop)
        gate = Forwarder(int(url.rpartition(":")[2]), listen=self.layout.socket(AWS_SOCKET))
        gate.start()
        self._end.callback(gate.stop)
        mirror = BucketMirror(self.layout.root / "buckets", lambda: account.client("s3"))
        mirror.start()
        self._end.callback(mirror.stop)
        server, aws_port = serve(AwsProvider(account.client, ACCOUNT_ID, REGION))
        self._end.callback(lambda: server.stop(0.5).wait(2))
        eks = EksServer(EksProvider(account.cluster_token))
        eks_port = eks.start()
        self._end.callback(eks.stop)
        install_commands(self.layout, self.toolchain)
        return {"account_url": url, "aws_port": aws_port, "eks_port": eks_port, "cluster_port": cluster_port}

    def _wait_for_machine(self) -> None:
        from .machine_room import MachineRoomError, SocketMachineRoom

        room = SocketMachineRoom(self.layout.socket("machine.sock"))
        deadline = time.monotonic() + START_SECONDS
        seen = "its socket"
        while not self.stopping.is_set():
            ended = self._machine.poll()
            if ended is not None:
                raise StartError(f"the machine room ended with code {ended}; its log ends:\n{self._machine_log()}")
            if time.monotonic() > deadline:
                raise StartError(
                    f"waited {START_SECONDS:.0f} s for {seen}; the machine room's log ends:\n{self._machine_log()}"
                )
            try:
                told_by_room = room.status()
            except MachineRoomError:
                told_by_room = {}
            if told_by_room.get("failure"):
                raise StartError(told_by_room["failure"])
            plane = told_by_room.get("control_plane") or {}
            if plane.get("ready"):
                return
            told = f"control plane: {plane['progress']}" if plane.get("progress") else "machine room"
            if told != seen:
                seen = told
                self.progress(told)
            self.stopping.wait(0.15)

    def _machine_log(self) -> str:
        try:
            return (self.layout.logs / "machine.log").read_text(errors="replace")[-2000:].strip()
        except OSError as error:
            return f"({error})"

    def _cluster_changed(self, name: str, kubeconfig: dict[str, Any] | None) -> None:
        from .ebs_provisioner import EbsProvisioner

        if self._ebs is not None:
            self._ebs.stop()
            self._ebs = None
        if kubeconfig is None:
            self.layout.kubeconfig.unlink(missing_ok=True)
        else:
            write_json(self.layout.kubeconfig, kubeconfig)
            self._ebs = EbsProvisioner(name, kubeconfig, self._account.client)
            self._ebs.start()

    def watch(self) -> None:
        """Until the end is asked for; tells when the machine room has ended by itself."""
        while not self.stopping.wait(0.5):
            ended = self._machine.poll()
            if ended is not None and not self.layout.failure_file.exists():
                message = f"the machine room has ended (code {ended}); its log ends:\n{self._machine_log()}"
                log.error("%s", message)
                write_text(self.layout.failure_file, message + "\n")

    def stop(self) -> None:
        """End everything that was started."""
        self.layout.ready_file.unlink(missing_ok=True)
        self._end.close()


def run(folder: Path, toolchain: Path) -> int:
    """The daemon's life; its exit code."""
    layout = Layout.of(folder)
    layout.create()
    lock = lock_folder(layout)
    if lock is None:
        log.error("a sandbox is up in %s", layout.root)
        return ALREADY_RUNNING
    for file in (layout.ready_file, layout.failure_file, layout.progress_file):
        file.unlink(missing_ok=True)
    daemon = Daemon(layout, toolchain)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: daemon.stopping.set())
    write_json(layout.daemon_file, {"pid": os.getpid(), "started": started(os.getpid())})
    try:
        daemon.start()
        daemon.watch()
    except StartError as error:
        log.error("%s", error)
        write_text(layout.failure_file, f"{error}\n")
        return FAILED
    except Exception as error:
        log.exception("the sandbox could not be started")
        write_text(layout.failure_file, f"{type(error).__name__}: {error}; see {layout.logs}/daemon.log\n")
        return FAILED
    finally:
        daemon.stop()
        layout.daemon_file.unlink(missing_ok=True)
        lock.close()
    return 0


def started(pid: int) -> int:
    """When a process started, in clock ticks since boot: with the pid, it names one process for ever. 0: there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def live_pid(layout: Layout) -> int | None:
    """The pid of the folder's live daemon, or None."""
    if not is_held(layout):
        return None
    try:
        told = json.loads(layout.daemon_file.read_text())
    except (OSError, ValueError):
        return None
    pid = int(told["pid"])
    return pid if told["started"] and started(pid) == told["started"] else None


def main() -> None:
    """``python -m eks_fsdp.sandbox.daemon DIR TOOLCHAIN``."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Leave at once: pools of threads that wait for an answer must not hold a daemon that has ended its work.
    code = run(Path(sys.argv[1]), Path(sys.argv[2]))
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    main()
