"""Windows: bounded, from a line start, always forward; searches that end."""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path

import pytest
from each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from distui.runners.logs import grep
from distui.runners.logs import search as module
from distui.runners.logs.windows import MAX_LIMIT, ask_window, read_window
from distui.runners.run.commands import ReadLog
from distui.runners.run.opened_logs import LogError
from distui.runners.run.wire.client import Window

NAME = "node-0/attempt-001/rank-0.out"
CONTENT = st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), max_size=30).map(b"\n".join)


def written(folder: Path, data: bytes) -> Path:
    path = folder / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return folder


def whole(run: Path, limit: int, grep: str = "") -> bytes:
    """The file as a reader sees it who asks window after window."""
    data, at = b"", 0
    while True:
        window = read_window(run, ReadLog(NAME, at, limit, grep))
        data += window.data
        if window.next == at:
            return data
        at = window.next


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches run here and not in a process of their own: test_a_search_in_a_process_of_its_own_is_the_same."""
    monkeypatch.setattr(module, "run_grep", grep.answer)


@settings(max_examples=60)
@given(CONTENT, st.integers(1, 40))
def test_windows_one_after_the_other_are_the_file(data: bytes, limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = written(Path(folder), data)
        pieces, at = b"", 0
        while at < len(data):
            window = read_window(run, ReadLog(NAME, at, limit))
            assert len(window.data) <= limit
            assert window.next == window.offset + len(window.data) > at
            pieces += window.data[at - window.offset :]
            at = window.next
        assert pieces == data


@settings(max_examples=60)
@given(CONTENT, st.integers(0, 1000), st.integers(1000, 2000))
def test_a_window_begins_with_the_line_that_holds_the_offset(data: bytes, offset: int, limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        window = read_window(written(Path(folder), data), ReadLog(NAME, offset, limit))
    if offset < len(data):
        assert window.offset == data.rfind(b"\n", 0, offset) + 1
        assert window.data == data[window.offset :]
    else:  # nothing new: whoever polls an unfinished line does not get it again
        assert (window.data, window.next) == (b"", len(data))


@settings(max_examples=60)
@given(CONTENT, st.integers(1, 200))
def test_the_tail_reaches_the_end_and_cuts_no_line_but_the_last(data: bytes, back: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        window = read_window(written(Path(folder), data), ReadLog(NAME, -back, 65536))
    assert window.data == data[window.offset :]
    assert window.next == window.size == len(data)
    assert window.offset == 0 or data[window.offset - 1 : window.offset] == b"\n"
    assert bool(window.data) == bool(data)


def test_the_tail_of_one_long_line_begins_inside_it(tmp_path: Path) -> None:
    window = read_window(written(tmp_path, b"x" * 200_000), ReadLog(NAME, -1000, 1000))
    assert (window.offset, window.data) == (199_000, b"x" * 1000)


def test_of_a_line_of_many_megabytes_no_more_than_the_limit_is_read(tmp_path: Path) -> None:
    written(tmp_path, b"first\n" + bytes(8 << 20))
    window = read_window(tmp_path, ReadLog(NAME, 4 << 20, 64 << 20))
    assert len(window.data) == MAX_LIMIT
    assert window.offset == 4 << 20


def test_a_truncated_file_says_so_by_its_size(tmp_path: Path) -> None:
    window = read_window(written(tmp_path, b"a\nb\n"), ReadLog(NAME, 5000, 100))
    assert window.size == 4
    assert window.next <= window.size


@pytest.mark.usefixtures("in_process")
@for_each("limit", [9, 100, 65536])
def test_grep_gives_the_lines_that_match_and_no_others(tmp_path: Path, limit: int) -> None:
    lines = [f"line {number}\n".encode() for number in range(300)]
    run = written(tmp_path, b"".join(lines) + "größer als \xff".encode("latin-1"))
    expected = b"".join(line for line in lines if re.search(rb"7$", line))
    assert whole(run, limit, "7$") == expected
    assert read_window(run, ReadLog(NAME, 0, 100, "als")).data == b"gr\xf6\xdfer als \xff"


@pytest.mark.usefixtures("in_process")
def test_a_match_longer_than_the_window_is_cut_and_still_a_line(tmp_path: Path) -> None:
    assert whole(written(tmp_path, b"two words\ntwo more\n"), 5, "two") == b"two \ntwo \n"


@pytest.mark.usefixtures("in_process")
def test_grep_finds_the_next_hit_and_where_it_ends(tmp_path: Path) -> None:
    window = read_window(written(tmp_path, b"one\ntwo\nthree\nfour two\n"), ReadLog(NAME, 4, 1, "two"))
    assert (window.offset, window.next) == (4, 8)
    assert read_window(tmp_path, ReadLog(NAME, 8, 1, "two")).next == 23
    assert read_window(tmp_path, ReadLog(NAME, 23, 1, "two")).data == b""


@pytest.mark.usefixtures("in_process")
def test_grep_goes_on_where_its_budget_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCAN_BYTES", 1 << 20)
    data = (b"x" * 99 + b"\n") * 30_000 + b"needle\n"
    window = read_window(written(tmp_path, data), ReadLog(NAME, 0, 100, "needle"))
    assert window.data == b""
    assert 0 < window.next < len(data)
    assert whole(tmp_path, 100, "needle") == b"needle\n"


BAD = ["(", "*", "[z-a]", "a{3,1}", "\0"]


@pytest.mark.usefixtures("in_process")
@for_each("pattern", BAD)
def test_a_bad_pattern_is_one_sentence(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(LogError, match=r"regular expression|NUL") as caught:
        read_window(written(tmp_path, b"a\n"), ReadLog(NAME, 0, 100, pattern))
    assert "\n" not in str(caught.value)


@pytest.mark.real
def test_a_search_in_a_process_of_its_own_is_the_same(tmp_path: Path) -> None:
    with open(written(tmp_path, b"one\ntwo\nthree\nfour two\n") / NAME, "rb") as file:
        for pattern in ("two", "^t", "(?i)T.*E", *BAD[:4]):
            argv = ["4", "100", "1000", "60", "60", pattern, "8", "14"]
            assert module.run_grep(file.fileno(), argv) == grep.answer(file.fileno(), argv), pattern


@pytest.mark.real
async def test_a_pattern_without_end_is_killed_and_the_loop_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = written(tmp_path, b"a" * 60 + b"!\n")
    for seconds in (0.7, 7.0, 70.0):  # this process may be kept waiting until the search is over
        monkeypatch.setattr(module, "GREP_TIMEOUT", seconds)
        asked: asyncio.Task[Window] = asyncio.create_task(ask_window(run, ReadLog(NAME, 0, 100, "(a+)+$")))
        plain = await ask_window(run, ReadLog(NAME, 0, 100))
        assert plain.data
        if not asked.done():
            break
    assert not asked.done()  # the search still backtracks, and another reader was answered meanwhile
    window = await asked
    assert "nested repeats" in window.error
    assert window.data == b""


@pytest.mark.real
def test_a_search_for_which_the_machine_has_no_time_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = tmp_path / "late.py"
    late.write_text(
        f"import runpy, time\ntime.sleep(1.0)\nrunpy.run_path({grep.__file__!r}, run_name='__main__')\n"
    )
    monkeypatch.setattr(module, "_GREP", str(late))
    monkeypatch.setattr(module, "GREP_TIMEOUT", 0.4)
    assert read_window(written(tmp_path, b"one\ntwo\n"), ReadLog(NAME, 0, 100, "two")).data == b"two\n"


async def test_an_error_is_told_in_the_window(tmp_path: Path) -> None:
    window = await ask_window(tmp_path, ReadLog("../x", -5, 100))
    assert "without '..'" in window.error
