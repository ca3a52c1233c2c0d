"""The Pulumi program: the stack's settings become a platform with its jobs."""

from datetime import UTC, datetime

import pulumi

from eks_fsdp.components.caller_address import allowed_cidrs
from eks_fsdp.components.configuration import load_settings, refusals_as_run_errors
from eks_fsdp.components.platform import TrainingPlatform, TrainingPlatformArgs
from eks_fsdp.spec.names import PROGRAM_NAME

with refusals_as_run_errors():
    settings = load_settings()
    arguments = TrainingPlatformArgs(
        settings=settings,
        stack=pulumi.get_stack(),
        now=datetime.now(UTC),
        allowed_cidrs=allowed_cidrs(settings, preview=pulumi.runtime.is_dry_run()),
    )
    for name, value in TrainingPlatform(PROGRAM_NAME, arguments).outputs.items():
        pulumi.export(name, value)
