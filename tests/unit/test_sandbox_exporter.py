"""The simulated DCGM exporter."""

from __future__ import annotations

from eks_fsdp.sandbox.exporter import DEFAULT_PORT, listen_port, render

STATE = {
    "node": "n",
    "gpus": 2,
    "users": [{"namespace": "x", "pod": "p", "container": "c", "gpus": [1]}],
    "xid": {"0": 79},
}


def test_busy_gpus_are_attributed_and_errors_shown() -> None:
    lines = render(STATE, 0.0).splitlines()
    busy = [line for line in lines if line.startswith("DCGM_FI_DEV_GPU_UTIL{") and 'gpu="1"' in line]
    idle = [line for line in lines if line.startswith("DCGM_FI_DEV_GPU_UTIL{") and 'gpu="0"' in line]
    assert 'pod="p"' in busy[0]
    assert float(busy[0].split()[-1]) > 80
    assert float(idle[0].split()[-1]) == 0
    assert [line.split()[-1] for line in lines if line.startswith("DCGM_FI_DEV_XID_ERRORS{")] == ["79", "0"]


def test_the_port_as_the_real_one_takes_it() -> None:
    assert listen_port(["-f", "/etc/x.csv"], "") == DEFAULT_PORT
    assert listen_port(["-a", ":9401"], ":9402") == 9401
    assert listen_port(["--address=0.0.0.0:9403"], "") == 9403
    assert listen_port([], ":9404") == 9404
