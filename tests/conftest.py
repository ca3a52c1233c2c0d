"""The toolchain's binaries for every test that runs one, as the make targets set them up."""

from __future__ import annotations

import os
import signal

from eks_fsdp.sandbox.toolchain import ToolchainError, toolchain_bin

try:
    folder = str(toolchain_bin())
except ToolchainError:
    # Unit tests do without; the others fail with the message that says how to set it up.
    pass
else:
    os.environ.setdefault("EKS_FSDP_TOOLCHAIN", folder)
    os.environ["PATH"] = os.pathsep.join([folder, os.environ["PATH"]])

# What is started in the background of a script ignores it, and so would every program that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
