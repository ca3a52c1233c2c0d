"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

StackOption = Annotated[
    str | None,
    typer.Option("--stack", "-s", metavar="STACK", help="Stack of the platform. [default: the selected one]"),
]
