"""The stack's configuration as the engine hands it to the program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pulumi
from pulumi.runtime.config import CONFIG, get_config_env

from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.settings import Settings


def load_settings() -> Settings:
    """The stack's settings. Raises `SettingsError`.

    All keys are read, not those that the program knows of: a misspelt one is refused, not ignored.
    """
    return Settings.from_config(CONFIG.get() or get_config_env())


@contextmanager
def refusals_as_run_errors() -> Iterator[None]:
    """Turn `SettingsError` into `pulumi.RunError`, which the CLI shows without a traceback."""
    try:
        yield
    except SettingsError as error:
        raise pulumi.RunError(str(error)) from None
