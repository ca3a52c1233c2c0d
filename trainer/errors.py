"""Exit codes, and the errors that lead to them."""

from __future__ import annotations

DONE = 0
REFUSED = 2
"""The configuration, the environment or the checkpoint cannot be used. Trying again will not help."""
FAILED = 3
"""Training failed for a reason that was told, such as a loss that is not finite."""
STOPPED = 75
"""Asked to stop by SIGTERM, and saved: start again to go on."""


class TrainingFailed(RuntimeError):
    """Training cannot go on, and the message says why."""
