"""What the guides tell people to type exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from eks_fsdp.launcher.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
COMMAND = re.compile(r"(?:^\s*|`|\$ |&& |\"\$\()eks-fsdp ((?:[a-z][a-z-]+ ?)+)", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_exists(page: Path) -> None:
    known = dict(getattr(get_command(app), "commands"))  # noqa: B009
    for words in COMMAND.findall(page.read_text()):
        name, *rest = words.split()
        assert name in known, f"eks-fsdp {words.strip()}"
        group = known[name]
        if rest and hasattr(group, "list_commands"):
            assert rest[0] in group.list_commands(None), f"eks-fsdp {words.strip()}"


def test_commands_are_found() -> None:
    found = [words for page in PAGES for words in COMMAND.findall(page.read_text())]
    assert {"preflight ", "sweep ", "sandbox up"} <= {re.sub(r"(up).*", r"\1", words) for words in found}
