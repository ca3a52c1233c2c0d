"""The stack's configuration as the engine hands it to the program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pulumi
from pulumi.runtime.config import CONFIG, get_config_env, get_config_secret_keys_env, is_config_secret

from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.settings import Settings


def load_settings() -> Settings:
    """The stack's settings. Raises `SettingsError`.

    All keys are read, not those that the program knows of: a misspelt one is refused, not ignored.
    """
    config = CONFIG.get() or get_config_env()
    # Some language hosts tell which keys are secret by the environment, others by a call before the program.
    secret = {*get_config_secret_keys_env(), *(key for key in config if is_config_secret(key))}
    return Settings.from_config(config, secret)


@contextmanager
def refusals_as_run_errors() -> Iterator[None]:
    """Turn `SettingsError` into `pulumi.RunError`, which the CLI shows without a traceback."""
    try:
        yield
    except SettingsError as error:
        raise pulumi.RunError(str(error)) from None
