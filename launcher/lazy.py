"""A command group whose commands live in another module, which is imported when one of them is wanted."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperGroup


class LazyGroup(TyperGroup):
    """Stands in for the typer app named by `target`."""

    target: str = ""
    """``module:attribute`` of the app."""

    def _load(self) -> None:
        if not self.commands:
            module, attribute = self.target.split(":")
            loaded: Any = typer.main.get_command(getattr(importlib.import_module(module), attribute))
            # An app of one command is that command; sandbox-like apps have several.
            self.commands = dict(getattr(loaded, "commands", {loaded.name: loaded}))

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands, in the order of their definition."""
        self._load()
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The named command."""
        self._load()
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of commands for the help page."""
        self._load()
        super().format_commands(ctx, formatter)


def lazy_group(of: str) -> type[LazyGroup]:
    """The class to give to ``typer.Typer(cls=...)``."""
    return type("LazyGroup", (LazyGroup,), {"target": of})
