"""SIGTERM: a spot interruption, a drained node, ``eks-fsdp stop``."""

from __future__ import annotations

import signal
from types import FrameType


class StopRequest:
    """Remembers SIGTERM. The ranks add up their memories in each step, and so stop at the same one."""

    def __init__(self) -> None:
        self.requested = False

    def listen(self) -> None:
        """Take SIGTERM over from now on. Before, there is nothing to save and it ends the process at once."""
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
