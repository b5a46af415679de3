"""Logs of a terabyte that was never written: every reader takes what is on the disk, and no zeros."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from distui.runners.agent import log_tails
from distui.runners.agent.ended_ranks import last_lines
from distui.runners.agent.log_tails import Tails
from distui.runners.diagnosis.first_cause import judge
from distui.runners.diagnosis.read_logs import read_all, read_run
from distui.runners.logs import gaps, grep, search
from distui.runners.logs.windows import ask_window, read_window
from distui.runners.run import file_io
from distui.runners.run.commands import ReadLog
from distui.runners.run.log_files import LogFile, parse_file_id
from distui.tui.log_tail import LogTail

FILE = "node-0/attempt-001/rank-0.out"
TERABYTE = 1 << 40
HEAD = "".join(f"line {number}\n" for number in range(1000))
MIDDLE = "middle\nNCCL WARN Too many open files\n"
END = "tick\nKeyError: 'labels'\n"
SOME = 64 << 20
"""Bytes that a reader of a few kilobytes of text may take in all."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory whose log has text at its beginning, at half a terabyte, and behind a terabyte."""
    path = tmp_path / FILE
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        for offset, text in ((0, HEAD), (TERABYTE // 2, MIDDLE), (TERABYTE, END)):
            file.seek(offset)
            file.write(text.encode())
    return tmp_path


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Bytes that were read, call by call; no test here may read more than SOME."""
    sizes: list[int] = []
    pread = os.pread

    def counted(descriptor: int, size: int, offset: int) -> bytes:
        data = pread(descriptor, size, offset)
        sizes.append(len(data))
        assert sum(sizes) < SOME, "zeros are read"
        return data

    monkeypatch.setattr(os, "pread", counted)
    monkeypatch.setattr(search, "run_grep", grep.answer)  # no process of its own
    yield sizes
    assert sum(sizes) < SOME


def text(data: bytes) -> str:
    return data.replace(b"\0", b"").decode()


def walked(run: Path, pattern: str = "") -> str:
    """All windows of the log, one after another."""
    at, found, windows = 0, "", 0
    size = (run / FILE).stat().st_size
    while at < size:
        window = read_window(run, ReadLog(FILE, at, 1 << 20, pattern))
        assert not window.error
        assert window.next > at
        found += text(window.data)
        at, windows = window.next, windows + 1
        assert windows < 20
    return found


def test_windows_lead_from_one_text_to_the_next(run: Path) -> None:
    assert walked(run) == HEAD + MIDDLE + END


def test_a_search_finds_what_is_before_and_behind_holes(run: Path) -> None:
    assert walked(run, "tick|middle|line 999") == "line 999\nmiddle\ntick\n"


def test_a_hole_at_the_end_is_no_text(run: Path) -> None:
    os.truncate(run / FILE, 4 * TERABYTE)
    assert walked(run) == HEAD + MIDDLE + END
    assert walked(run, "tick") == "tick\n"
    window = read_window(run, ReadLog(FILE, -(1 << 14), 1 << 16))
    assert text(window.data).endswith(END)
    assert window.size == 4 * TERABYTE
    assert last_lines(run, FILE, 2) == ("tick", "KeyError: 'labels'")


def test_a_search_of_many_texts_goes_on_where_it_ended(run: Path) -> None:
    with (run / FILE).open("r+b") as file:
        for number in range(3 * search.MOST_STRETCHES):
            file.seek((number + 1) << 30)
            file.write(b"hit %d\n" % number)
    hits = walked(run, "^hit").split("\n")[:-1]
    assert hits == [f"hit {number}" for number in range(3 * search.MOST_STRETCHES) if number != 511]


def test_lines_are_counted_past_holes(run: Path) -> None:
    assert gaps.newlines(os.open(run / FILE, os.O_RDONLY), 0, 2 * TERABYTE) == 1004


def test_diagnosis_reads_all_texts(run: Path) -> None:
    verdicts = [judge(read_all([(FILE, run / FILE)])), judge(read_run([(FILE, run / FILE)])[0])]
    for verdict in verdicts:
        assert {one.id for one in verdict.findings} >= {"too-many-files"}


def test_the_agent_reads_on_at_once_and_skips_nothing(run: Path, taken: list[int]) -> None:
    tails = Tails(run, 0, 1)
    left = tails.scan()
    assert left < log_tails.BEHIND
    tails.drain()
    assert (tails.left, tails.sampled) == (0, False)
    assert tails.reading.lines == 1004
    os.truncate(run / FILE, 4 * TERABYTE)
    del taken[:]
    tails.end()
    assert (tails.left, tails.sampled) == (0, False)
    assert sum(taken) <= 4096, "no more than the rest of a block"


async def test_the_log_screen_goes_back_past_holes(run: Path) -> None:
    log: LogFile | None = parse_file_id(FILE)
    assert log is not None
    tail = LogTail(partial(ask_window, run), [log])
    await tail.begin()
    await tail.pull({FILE: (run / FILE).stat().st_size})
    for _ in range(10):
        if not tail.beginning:
            await tail.earlier()
    shown = [line.text for line in tail.lines]
    assert [one for one in shown if "line 7" in one][:1] == ["line 7"]
    assert "middle" in "".join(shown)


def test_a_journal_with_a_hole_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with path.open("wb") as file:
        file.write(json.dumps({"a": 1}).encode() + b"\n")
        file.seek(TERABYTE)
        file.write(b"torn}\n" + json.dumps({"b": 2}).encode() + b"\n")
    lines = [line for _, line in file_io.lines(path)]
    assert lines == [b'{"a": 1}\n', b"", b'{"b": 2}\n']


def test_where_the_file_system_tells_no_holes_all_is_text(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(descriptor: int, offset: int, how: int) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "lseek", refused)
    with (run / FILE).open("rb") as file:
        assert file_io.written(file.fileno(), 5000) == (5000, TERABYTE + len(END))
