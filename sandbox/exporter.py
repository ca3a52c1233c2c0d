"""Stands in for the DCGM exporter: the same metric names, from what the node agent knows of a node's GPUs.

Run as a script with the standard library alone. Values are made up: a GPU is busy while a pod that asked for it runs.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STATE_FILE = "/.node/state.json"
DEFAULT_PORT = 9400
SWING_SECONDS = 20.0
METRICS = {
    "DCGM_FI_DEV_GPU_UTIL": ("gauge", "GPU utilization (in %)."),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("gauge", "Ratio of time the graphics engine is active."),
    "DCGM_FI_PROF_SM_ACTIVE": ("gauge", "Ratio of cycles an SM has at least one warp assigned."),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("gauge", "Ratio of cycles the tensor pipe is active."),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("gauge", "Ratio of cycles the device memory interface is active."),
    "DCGM_FI_DEV_FB_USED": ("gauge", "Frame buffer memory used (in MiB)."),
    "DCGM_FI_DEV_FB_FREE": ("gauge", "Frame buffer memory free (in MiB)."),
    "DCGM_FI_DEV_POWER_USAGE": ("gauge", "Power draw (in W)."),
    "DCGM_FI_DEV_GPU_TEMP": ("gauge", "GPU temperature (in C)."),
    "DCGM_FI_DEV_SM_CLOCK": ("gauge", "SM clock frequency (in MHz)."),
    "DCGM_FI_DEV_XID_ERRORS": ("gauge", "Value of the last XID error encountered."),
}
MEMORY_MIB = 81559


def sample(metric: str, *, busy: bool, swing: float, xid: int) -> float:
    """A plausible value; ``swing`` is between -1 and 1."""
    if metric == "DCGM_FI_DEV_XID_ERRORS":
        return float(xid)
    if metric == "DCGM_FI_DEV_FB_FREE":
        return MEMORY_MIB - sample("DCGM_FI_DEV_FB_USED", busy=busy, swing=swing, xid=xid)
    idle, mean, width = {
        "DCGM_FI_DEV_GPU_UTIL": (0.0, 95.0, 4.0),
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": (0.0, 0.95, 0.04),
        "DCGM_FI_PROF_SM_ACTIVE": (0.0, 0.8, 0.1),
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (0.0, 0.5, 0.1),
        "DCGM_FI_PROF_DRAM_ACTIVE": (0.0, 0.4, 0.1),
        "DCGM_FI_DEV_FB_USED": (3.0, 60000.0, 2000.0),
        "DCGM_FI_DEV_POWER_USAGE": (70.0, 600.0, 60.0),
        "DCGM_FI_DEV_GPU_TEMP": (30.0, 55.0, 5.0),
        "DCGM_FI_DEV_SM_CLOCK": (345.0, 1900.0, 50.0),
    }[metric]
    return mean + width * swing if busy else idle


def render(state: dict[str, Any], now: float) -> str:
    """All metrics in the Prometheus text format. ``now`` is in seconds."""
    users = {gpu: user for user in state.get("users", []) for gpu in user["gpus"]}
    node = state.get("node", "")
    lines = []
    for metric, (kind, description) in METRICS.items():
        lines += [f"# HELP {metric} {description}", f"# TYPE {metric} {kind}"]
        for gpu in range(state.get("gpus", 0)):
            user = users.get(gpu)
            swing = math.sin(2 * math.pi * (now / SWING_SECONDS + gpu / 8))
            value = sample(metric, busy=user is not None, swing=swing, xid=int(state.get("xid", {}).get(str(gpu), 0)))
            labels = {"gpu": str(gpu), "UUID": f"GPU-simulated-{gpu}", "device": f"nvidia{gpu}", "Hostname": node}
            labels["modelName"] = "simulated"
            if user is not None:
                labels |= {key: user[key] for key in ("namespace", "pod", "container")}
            text = ",".join(f'{key}="{value}"' for key, value in labels.items())
            lines.append(f"{metric}{{{text}}} {value:.6g}")
    return "\n".join(lines) + "\n"


def listen_port(arguments: list[str], listen: str) -> int:
    """From ``-a``/``--address`` or DCGM_EXPORTER_LISTEN, as the real one; other arguments do not matter here."""
    for index, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name in ("-a", "--address"):
            listen = value or (arguments[index + 1] if index + 1 < len(arguments) else "")
    port = listen.rpartition(":")[2]
    return int(port) if port.isdigit() else DEFAULT_PORT


class Handler(BaseHTTPRequestHandler):
    """Answers /metrics and /health."""

    def do_GET(self) -> None:
        """Any path that is not the metrics is the health check."""
        try:
            with open(STATE_FILE) as file:
                state = json.load(file)
        except (OSError, ValueError):
            state = {}
        body = (render(state, time.time()) if self.path.startswith("/metrics") else "OK\n").encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing: a scrape every few seconds is not worth a line."""


def main() -> None:
    """Serve until ended."""
    port = listen_port(sys.argv[1:], os.environ.get("DCGM_EXPORTER_LISTEN", ""))
    print(f"simulated DCGM exporter on port {port}", flush=True)
    ThreadingHTTPServer(("", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
