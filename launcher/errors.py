"""Errors that the command line shows as one clear line."""

from __future__ import annotations


class UserError(Exception):
    """Something that the user can put right. The message says what was wrong and the way out; the exit code is 2."""


class WaitError(UserError):
    """A wait reached its limit. The message says what was waited for, for how long, and what was seen last."""
