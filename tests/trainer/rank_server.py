"""Imports the trainer once, then forks ranks from that: a rank starts in milliseconds instead of four seconds.

Reads one JSON request a line: ``{"ranks": n, "arguments": [...], "environment": {...}, "output": folder}``. Answers
with ``{"pids": [...]}`` at once and ``{"codes": [...]}`` when all have ended; a negative code is a signal's number.
"""

import json
import os
import resource
import signal
import socket
import sys

import torch.distributed.checkpoint  # noqa: F401
import transformers.models.llama.modeling_llama  # noqa: F401

import eks_fsdp.trainer.train  # noqa: F401
from eks_fsdp.trainer import check_nodes
from eks_fsdp.trainer.__main__ import main


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rank(request: dict, number: int, port: int) -> int:
    for stream, name in ((1, "out"), (2, "err")):
        target = os.open(f"{request['output']}/{name}.{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(target, stream)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(request["environment"])
    if "FILE_LIMIT" in os.environ:  # bytes; a stand-in for a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ["FILE_LIMIT"]),) * 2)
    if request["ranks"] > 1:
        os.environ.update(
            RANK=str(number),
            LOCAL_RANK=str(number),
            WORLD_SIZE=str(request["ranks"]),
            LOCAL_WORLD_SIZE=str(request["ranks"]),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
    if "CHECK_NODES" in os.environ:  # its arguments, in place of the trainer
        check_nodes.main(os.environ["CHECK_NODES"].split())
        return 0
    return main(request["arguments"])


def serve() -> None:
    for line in sys.stdin:
        request, port, pids = json.loads(line), free_port(), []
        for number in range(request["ranks"]):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    code = rank(request, number, port)
                except BaseException:  # noqa: BLE001 - a forked child must not go on as the server
                    sys.excepthook(*sys.exc_info())
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code)
            pids.append(pid)
        print(json.dumps({"pids": pids}), flush=True)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps({"codes": codes}), flush=True)


if __name__ == "__main__":
    serve()
