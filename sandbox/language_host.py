"""`pulumi-language-python` of the sandbox: runs Python programs and policy packs for the engine.

``pulumi-language-python ENGINE`` prints its port and serves `LanguageRuntime` until the engine ends it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from queue import Queue
from typing import Any

import grpc
from google.protobuf import empty_pb2, json_format
from pulumi.runtime.proto import language_pb2, language_pb2_grpc, plugin_pb2

TOLD = 32
"""Exit code of a program that has shown its error already."""
RUNNER = Path(__file__).absolute().with_name("program_runner.py")


def interpreter(options: Mapping[str, Any], root: str) -> str:
    """The Python of a program: ``virtualenv`` of its options, else this one. Raises ValueError."""
    virtualenv = options.get("virtualenv")
    if not virtualenv:
        return os.environ.get("PULUMI_PYTHON_CMD") or sys.executable
    python = Path(root, str(virtualenv), "bin", "python")
    if not python.exists():
        raise ValueError(
            f"the 'virtualenv' option says {virtualenv!r}, and {python} is not there: "
            f"make it with `python3 -m venv {python.parents[1]}` and install the program's requirements"
        )
    return str(python)


def program_environment(options: Mapping[str, Any], python: str) -> dict[str, str]:
    """This environment, with the virtual environment's programs first where one is set."""
    environment = dict(os.environ)
    if options.get("virtualenv"):
        folder = Path(python).parent
        environment["VIRTUAL_ENV"] = str(folder.parent)
        environment["PATH"] = os.pathsep.join([str(folder), environment.get("PATH", "")])
        environment.pop("PYTHONHOME", None)
    return environment


class LanguageHost(language_pb2_grpc.LanguageRuntimeServicer):
    """One host for one engine."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self._children: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    def Handshake(self, request: Any, context: Any) -> Any:
        self.engine = request.engine_address or self.engine
        return language_pb2.LanguageHandshakeResponse()

    def GetRequiredPackages(self, request: Any, context: Any) -> Any:
        # What a program needs is found when it asks for it: naming all that is installed would ask for downloads.
        return language_pb2.GetRequiredPackagesResponse()

    def GetRequiredPlugins(self, request: Any, context: Any) -> Any:
        return language_pb2.GetRequiredPluginsResponse()

    def GetPluginInfo(self, request: Any, context: Any) -> Any:
        return plugin_pb2.PluginInfo(version=metadata.version("pulumi"))

    def About(self, request: Any, context: Any) -> Any:
        version = ".".join(str(part) for part in sys.version_info[:3])
        return language_pb2.AboutResponse(executable=sys.executable, version=version)

    def RuntimeOptionsPrompts(self, request: Any, context: Any) -> Any:
        return language_pb2.RuntimeOptionsResponse()

    def InstallDependencies(self, request: Any, context: Any) -> Iterator[Any]:
        text = b"The sandbox installs nothing: the program's environment is the project's own.\n"
        yield language_pb2.InstallDependenciesResponse(stdout=text)

    def GetProgramDependencies(self, request: Any, context: Any) -> Any:
        found = sorted((d.metadata["Name"], d.version) for d in metadata.distributions() if d.metadata["Name"])
        wanted = [pair for pair in found if request.transitiveDependencies or pair[0].startswith("pulumi")]
        return language_pb2.GetProgramDependenciesResponse(
            dependencies=[language_pb2.DependencyInfo(name=name, version=version) for name, version in wanted]
        )

    def Run(self, request: Any, context: Any) -> Any:
        options = json_format.MessageToDict(request.info.options)
        root = request.info.root_directory or request.pwd
        try:
            python = interpreter(options, root)
        except ValueError as error:
            return language_pb2.RunResponse(error=str(error))
        entry = request.info.entry_point or request.program or "."
        folder = request.info.program_directory or request.pwd
        arguments = {
            "monitor": request.monitor_address,
            "engine": self.engine,
            "project": request.project,
            "stack": request.stack,
            "organization": request.organization or "organization",
            "parallel": int(request.parallel),
            "dry_run": bool(request.dryRun),
            "root_directory": root,
            "pwd": request.pwd,
            "config": dict(request.config),
            "secrets": list(request.configSecretKeys),
            "program": str(Path(folder, entry)),
            "args": list(request.args),
        }
        # Through the environment, not the command line: the configuration may hold secrets.
        environment = program_environment(options, python) | {"EKS_FSDP_PROGRAM": json.dumps(arguments)}
        try:
            child = self._start([python, "-u", str(RUNNER)], request.pwd, environment)
        except OSError as error:
            return language_pb2.RunResponse(error=f"{python} cannot be run: {error}")
        context.add_callback(lambda: self._kill(child))
        code = child.wait()
        self._forget(child)
        if code == 0:
            return language_pb2.RunResponse()
        if code == TOLD:
            return language_pb2.RunResponse(bail=True)
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return language_pb2.RunResponse(error=f"the program {how}")

    def RunPlugin(self, request: Any, context: Any) -> Iterator[Any]:
        options = json_format.MessageToDict(request.info.options)
        folder = request.info.program_directory or request.pwd
        try:
            python = interpreter(options, request.info.root_directory or folder)
        except ValueError as error:
            yield language_pb2.RunPluginResponse(stderr=f"{error}\n".encode())
            yield language_pb2.RunPluginResponse(exitcode=1)
            return
        environment = program_environment(options, python)
        environment.update(pair.split("=", 1) for pair in request.env if "=" in pair)
        if request.kind == "analyzer":
            engine = request.args[0] if request.args else self.engine
            command = [python, "-u", "-m", "pulumi.policy", engine, folder]
        else:
            command = [python, "-u", str(Path(folder, request.info.entry_point or ".")), *request.args]
        child = self._start(command, folder, environment, pipes=True)
        context.add_callback(lambda: self._kill(child))
        yield from _output(child)
        code = child.wait()
        self._forget(child)
        yield language_pb2.RunPluginResponse(exitcode=code if code >= 0 else 128 - code)

    def Cancel(self, request: Any, context: Any) -> Any:
        with self._lock:
            children = list(self._children)
        for child in children:
            self._kill(child)
        return empty_pb2.Empty()

    def _start(
        self, command: list[str], folder: str, environment: dict[str, str], pipes: bool = False
    ) -> subprocess.Popen[bytes]:
        stream = subprocess.PIPE if pipes else None
        child = subprocess.Popen(
            command, cwd=folder or None, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
        )
        with self._lock:
            self._children.add(child)
        return child

    def _forget(self, child: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._children.discard(child)

    @staticmethod
    def _kill(child: subprocess.Popen[bytes]) -> None:
        if child.poll() is None:
            child.terminate()


def _output(child: subprocess.Popen[bytes]) -> Iterator[Any]:
    """Both streams of a child as responses, in the order in which they come."""
    queue: Queue[Any] = Queue()

    def pump(stream: Any, name: str) -> None:
        for chunk in iter(lambda: os.read(stream.fileno(), 65536), b""):
            response = language_pb2.RunPluginResponse()
            setattr(response, name, chunk)
            queue.put(response)
        queue.put(None)

    streams = {"stdout": child.stdout, "stderr": child.stderr}
    for name, stream in streams.items():
        threading.Thread(target=pump, args=(stream, name), daemon=True).start()
    ended = 0
    while ended < len(streams):
        item = queue.get()
        if item is None:
            ended += 1
        else:
            yield item


def serve(host: LanguageHost) -> tuple[grpc.Server, int]:
    """Serve on 127.0.0.1. Returns the server and its port."""
    limit = 400 * 1024 * 1024
    server = grpc.server(
        ThreadPoolExecutor(max_workers=16, thread_name_prefix="language"),
        options=[("grpc.max_receive_message_length", limit), ("grpc.max_send_message_length", limit)],
    )
    language_pb2_grpc.add_LanguageRuntimeServicer_to_server(host, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def main() -> None:
    """Serve until the engine is gone."""
    addresses = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    host = LanguageHost(addresses[0] if addresses else "")
    server, port = serve(host)
    done = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    print(port, flush=True)
    parent = os.getppid()
    while not done.wait(1.0):
        # An engine that was killed cannot end its host.
        if os.getppid() != parent:
            break
    host.Cancel(None, None)
    server.stop(0.5).wait(2)
    os._exit(0)


if __name__ == "__main__":
    main()
