"""A cap on logs: the middle goes, head and tail stay, and no reader tells a wrong line, number or time."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from each import for_each

from distui.runners.diagnosis import log_sources
from distui.runners.logs import gaps, grep, search
from distui.runners.logs.dating import LogSpan
from distui.runners.logs.gaps import Gap, cap_log
from distui.runners.logs.windows import ask_window, read_window
from distui.runners.run.commands import ReadLog
from distui.runners.run.log_files import LogFile, parse_file_id
from distui.tui.log_tail import LogTail
from distui.tui.rows.log import Jump

FILE = "node-0/attempt-001/rank-0.out"
CAP = 4 << 20
LINES = 100_000
WIDE = 96


def line(number: int) -> bytes:
    """One line of exactly WIDE bytes: no two are the same."""
    return f"line {number:08d} ".encode().ljust(WIDE - 1, b".") + b"\n"


@pytest.fixture(scope="module")
def capped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with a log of 10 MB that was capped twice while it grew."""
    folder = tmp_path_factory.mktemp("run")
    path = folder / FILE
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:  # as torch's redirect has it: no O_APPEND
        for begin in range(0, LINES, 12_500):
            file.write(b"".join(map(line, range(begin + 1, begin + 12_501))))
            file.flush()
            os.utime(path, (1000.0, 1000.0 + begin))
            before = os.stat(path).st_mtime_ns
            cap_log(path, CAP)
            assert os.stat(path).st_mtime_ns == before, "how long a rank is silent is read from it"
    return folder


def gap_of(folder: Path) -> Gap:
    gap = gaps.read(folder / FILE)
    assert gap is not None
    return gap


def log() -> LogFile:
    file = parse_file_id(FILE)
    assert file is not None
    return file


def test_the_middle_goes_and_head_and_tail_stay(capped: Path) -> None:
    path, gap = capped / FILE, gap_of(capped)
    assert path.stat().st_size == LINES * WIDE
    assert path.stat().st_blocks * 512 <= CAP
    assert gap.begin % WIDE == gap.end % WIDE == 0
    assert gap.lines == (gap.end - gap.begin) // WIDE
    data = path.read_bytes()
    assert data[: gap.begin] == b"".join(map(line, range(1, gap.begin // WIDE + 1)))
    assert data[gap.end :] == b"".join(map(line, range(gap.end // WIDE + 1, LINES + 1)))
    assert data[gap.begin :].startswith("… ".encode()), "another program is told, too"
    assert gap.begin >= CAP // 4
    assert LINES * WIDE - gap.end > CAP // 2 - WIDE
    assert cap_log(path, CAP) is None


def test_reading_on_gives_every_kept_line_once_and_names_the_rest(capped: Path) -> None:
    span, texts = LogSpan(log()), list[str]()
    span.size = 1
    while span.behind:
        before = span.next
        texts += [
            dated.text for dated in span.feed(read_window(capped, ReadLog(FILE, span.next, 1 << 20)), 0.0)
        ]
        assert span.next > before
    gap = gap_of(capped)
    kept = [*range(1, gap.begin // WIDE + 1), *range(gap.end // WIDE + 1, LINES + 1)]
    notes = [text for text in texts if "left out" in text]
    assert [int(text.split()[1]) for text in texts if "left out" not in text] == kept
    assert len(notes) == 1
    assert f"{(gap.end - gap.begin) / (1 << 20):.1f} MiB" in notes[0]
    assert not any("\0" in text for text in texts)


@for_each("where", ["begin - 1", "begin", "begin + 5", "(begin + end) // 2", "end - 1", "end", "end + 7"])
def test_a_window_anywhere_has_whole_lines_alone(capped: Path, where: str) -> None:
    gap = gap_of(capped)
    offset = int(eval(where, {"begin": gap.begin, "end": gap.end}))
    for limit in (1, 100, 4096, 1 << 20):
        window = read_window(capped, ReadLog(FILE, offset, limit))
        assert b"\0" not in window.data
        assert window.next > offset or window.next == gap.begin
        assert window.offset % WIDE == 0 or limit < WIDE + 7, (
            "a line that does not fit begins where it was asked"
        )
        assert window.size == LINES * WIDE


def test_a_search_finds_what_is_kept_and_no_nul(capped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "run_grep", grep.answer)  # no process of its own
    gap = gap_of(capped)
    dropped, kept = gap.begin // WIDE + 10, gap.end // WIDE + 10
    at, hits = 0, list[bytes]()
    while at < LINES * WIDE:
        window = read_window(
            capped, ReadLog(FILE, at, 1 << 20, f"line ({dropped:08d}|{kept:08d}) |left out|\\x00")
        )
        hits += window.data.splitlines(keepends=True)
        assert window.next > at
        at = window.next
    assert hits == [line(kept)]


def test_diagnosis_counts_the_lines_that_are_left_out(capped: Path) -> None:
    with closing(log_sources._open(FILE, capped / FILE, os.O_RDONLY)) as file:
        data = b""
        while piece := file.read(1 << 16):
            data += piece
    lines = data.split(b"\n")
    gap = gap_of(capped)
    for number in (1, gap.begin // WIDE, gap.end // WIDE + 1, LINES):
        assert lines[number - 1] + b"\n" == line(number)
    assert set(lines[gap.begin // WIDE : gap.end // WIDE]) == {b""}


async def test_the_log_screen_scrolls_up_over_a_gap(capped: Path) -> None:
    gap = gap_of(capped)
    tail = LogTail(partial(ask_window, capped), [log()])
    await tail.begin_at(Jump(file=FILE, offset=gap.end))
    below = next(index for index, each in enumerate(tail.lines) if each.key[4] == gap.end)
    above = tail.lines[below - 1].text
    assert above.startswith(line(gap.begin // WIDE).decode()[:13]), "the lines right before the gap"


def test_a_file_system_without_holes_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gaps.punches(tmp_path)

    def refuse(descriptor: int, begin: int, end: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "no")

    monkeypatch.setattr(gaps, "_punch", refuse)
    assert not gaps.punches(tmp_path)
    assert list(tmp_path.iterdir()) == []


@for_each(
    "spoil",
    [
        lambda path: path.write_text("garbage"), lambda path: path.write_text('{"begin": 5, "end": 3, "lines": 1}'),
        lambda path: path.write_text('{"begin": 0, "end": 99999999999, "lines": 1}'), lambda path: path.mkdir(),
        lambda path: path.symlink_to("/dev/zero"),
    ],
)  # fmt: skip
def test_a_damaged_gap_is_none(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    path = tmp_path / FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(line(1) * 10)
    spoil(Path(f"{path}{gaps.ENDING}"))
    assert read_window(tmp_path, ReadLog(FILE, 0, 10_000)).data == line(1) * 10
