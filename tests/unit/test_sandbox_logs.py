"""Container logs on disk."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path

import pytest

from eks_fsdp.sandbox.logs import LONGEST_LINE, Entry, LogFile, LogOptions, entry, timestamp

AT = "2026-01-02T03:04:05.000006Z"


def test_an_entry_reads_back() -> None:
    line = entry(b"two words ", whole=True, at=AT)
    assert line == b"2026-01-02T03:04:05.000006Z stdout F two words \n"
    assert Entry.parse(line) == Entry(AT, True, b"two words ")
    with pytest.raises(ValueError, match="unpack"):
        Entry.parse(b"nothing")


def test_the_time_is_utc() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=2))
    assert timestamp(datetime.datetime(2026, 1, 2, 5, 4, 5, 6, zone)) == AT


def test_lines_long_lines_and_a_last_line_without_end(tmp_path: Path) -> None:
    async def write() -> None:
        log = LogFile(tmp_path / "c" / "0.log")
        log.write(b"one\ntw")
        log.write(b"o\n" + b"x" * (LONGEST_LINE + 1) + b"\nrest")
        log.close()
        log.close()

    asyncio.run(write())
    entries = [Entry.parse(line) for line in (tmp_path / "c" / "0.log").read_bytes().splitlines(keepends=True)]
    assert [(read.whole, len(read.text)) for read in entries] == [
        (True, 3),
        (True, 3),
        (False, LONGEST_LINE),
        (True, 1),
        (False, 4),
    ]


def test_a_follower_gets_lines_until_the_log_is_closed(tmp_path: Path) -> None:
    async def follow() -> list[bytes]:
        log = LogFile(tmp_path / "0.log")
        log.write(b"one\n")

        async def later() -> None:
            await asyncio.sleep(0.01)
            log.write(b"two\n")
            await asyncio.sleep(0.01)
            log.close()

        writing = asyncio.ensure_future(later())
        lines = [Entry.parse(line).text async for line in log.lines(follow=True)]
        await writing
        return lines

    assert asyncio.run(follow()) == [b"one", b"two"]


def test_options_of_the_kubelets_api() -> None:
    options = LogOptions.parse({"timestamps": "true", "tailLines": "3", "sinceTime": "2026-01-02T03:04:06Z"})
    assert options.tail_lines == 3
    assert not options.wants(Entry(AT, True, b""))
    assert options.render(Entry(AT, True, b"x")) == f"{AT} x\n".encode()
    assert LogOptions().render(Entry(AT, False, b"x")) == b"x"
    with pytest.raises(ValueError, match="invalid literal"):
        LogOptions.parse({"tailLines": "many"})


def test_a_full_disk_costs_lines_and_never_the_container() -> None:
    log = LogFile(Path("/dev/full"))
    log.write(b"whole\nrest")
    log.close()
    assert log.closed
