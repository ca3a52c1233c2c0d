"""docs/known-failures.md: every complaint has a test, and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "known-failures.md").read_text()
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| \d+ ", line)]


def test_all_of_them_are_there_in_order() -> None:
    numbers = [int(match[1]) for row in ROWS if (match := re.match(r"\| (\d+) ", row))]
    assert numbers == list(range(1, 39))
    assert sum("**!**" in row for row in ROWS) == 12


def test_every_test_that_is_named_exists() -> None:
    for row in ROWS:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        for file, name in named:
            path = ROOT / file
            assert path.exists(), f"{file} is named in: {row}"
            assert re.search(rf"^(async )?def {name}\(", path.read_text(), re.MULTILINE), (
                f"{file}::{name} does not exist"
            )
