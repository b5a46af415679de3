"""Log lines by window: the newest, what comes, what was before, and floods."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from each import for_each

from distui.runners.logs import grep, search
from distui.runners.logs.windows import ask_window
from distui.runners.run.log_files import LogFile, parse_file_id
from distui.tui import loaded_logs, log_filter
from distui.tui.loaded_logs import KEPT, LoadedLogs
from distui.tui.log_filter import LogFilter
from distui.tui.log_tail import LogTail

OUT = "node-0/attempt-001/rank-0.out"
ERR = "node-0/attempt-001/rank-1.err"


def files(*names: str) -> list[LogFile]:
    return [file for name in names if (file := parse_file_id(name)) is not None]


def tail_of(run_dir: Path, *names: str) -> LogTail:
    return LogTail(partial(ask_window, run_dir), files(*names))


def filter_of(run_dir: Path, pattern: str, *names: str) -> LogFilter:
    return LogFilter(partial(ask_window, run_dir), files(*names), pattern)


def write(run_dir: Path, name: str, data: bytes, mode: str = "wb") -> dict[str, int]:
    path = run_dir / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode) as file:
        file.write(data)
    return {name: path.stat().st_size}


def texts(tail: LoadedLogs) -> list[str]:
    return [line.text for line in tail.lines]


async def test_new_lines_come_once_and_in_order(tmp_path: Path) -> None:
    write(tmp_path, OUT, b"one\ntwo\n")
    tail = tail_of(tmp_path, OUT)
    await tail.begin()
    assert texts(tail) == ["one", "two"]
    sizes = write(tmp_path, OUT, b"three\nfo", "ab")
    assert await tail.pull(sizes) == 1
    assert [line.text for line in tail.unfinished.values()] == ["fo"]
    await tail.pull(write(tmp_path, OUT, b"ur\n", "ab"))
    assert texts(tail) == ["one", "two", "three", "four"]
    assert tail.unfinished == {}
    assert await tail.pull(sizes | {OUT: 20}) == 0


async def test_a_progress_bar_is_shown_before_its_line_ends(tmp_path: Path) -> None:
    write(tmp_path, ERR, b"")
    tail = tail_of(tmp_path, ERR)
    await tail.begin()
    await tail.pull(write(tmp_path, ERR, b" 10%|#\r 20%|##", "ab"))
    assert [line.text for line in tail.unfinished.values()] == [" 20%|##"]


async def test_files_that_do_not_exist_yet_are_waited_for(tmp_path: Path) -> None:
    tail = tail_of(tmp_path, OUT, ERR)
    await tail.begin()
    assert tail.lines == []
    assert tail.problem == ""
    await tail.pull(write(tmp_path, OUT, b"begun\n"))
    assert texts(tail) == ["begun"]


async def test_rank_0_stdout_stands_last_at_the_beginning(tmp_path: Path) -> None:
    write(tmp_path, OUT, b"step 1\n")
    write(tmp_path, ERR, b"warning\n")
    tail = tail_of(tmp_path, OUT, ERR)
    await tail.begin()
    assert [line.label for line in tail.lines] == ["r1 err", "r0"]


async def test_one_file_can_be_read_back_to_its_first_line(tmp_path: Path) -> None:
    count = 30_000
    write(tmp_path, OUT, b"".join(b"line %06d\n" % number for number in range(count)))
    tail = tail_of(tmp_path, OUT)
    await tail.begin()
    assert tail.lines[-1].text == f"line {count - 1:06d}"
    while not tail.beginning:
        first = tail.lines[0].text
        came = await tail.earlier()
        assert tail.lines[came].text == first
    assert texts(tail) == [f"line {number:06d}" for number in range(KEPT)]
    assert not tail.at_end
    while tail.behind:
        last = tail.lines[-1].text
        await tail.later()
        assert last in texts(tail)
    assert KEPT <= len(tail.lines) <= KEPT * 5 // 4
    assert texts(tail) == [f"line {number:06d}" for number in range(count - len(tail.lines), count)]


async def test_a_reader_far_behind_jumps_to_the_end_and_may_go_back(tmp_path: Path) -> None:
    write(tmp_path, OUT, b"first\n")
    tail = tail_of(tmp_path, OUT)
    await tail.begin()
    lines = b"".join(b"%099d\n" % number for number in range(15_000))
    await tail.pull(write(tmp_path, OUT, lines, "ab"))
    assert int(tail.lines[-1].text) == 14_999
    assert len(tail.lines) < 2000
    while not tail.beginning:
        await tail.earlier()
    assert texts(tail) == ["first", *lines.decode().split()], "each once"


async def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_logs, "KEPT", 100)
    write(tmp_path, OUT, b"")
    tail = tail_of(tmp_path, OUT)
    await tail.begin()
    for part in range(5):
        await tail.pull(write(tmp_path, OUT, b"".join(b"%d-%d\n" % (part, n) for n in range(50)), "ab"))
    assert len(tail.lines) == 100
    assert tail.lines[-1].text == "4-49"


@pytest.mark.real
@for_each("pattern", ["two$", "(?i)TWO", "nothing", "(", "a{3,1}"])
def test_a_search_of_another_process_answers_as_one_in_this_process(tmp_path: Path, pattern: str) -> None:
    write(tmp_path, OUT, b"one\ntwo\n\x1b[31mno. two\x1b[0m\nthree")
    with (tmp_path / OUT).open("rb") as file:
        words = ["0", "100", str(1 << 20), "60", "60", pattern, "0", "0"]
        assert search.run_grep(file.fileno(), words) == grep.answer(file.fileno(), words)


async def test_a_pattern_is_searched_through_the_whole_file(tmp_path: Path) -> None:
    data = b"".join(b"line %06d\n" % number for number in range(40_000))
    sizes = write(tmp_path, OUT, data)
    tail = filter_of(tmp_path, "0000$", OUT)
    await tail.pull(sizes)
    while tail.behind:
        await tail.pull(sizes)
    assert texts(tail) == ["line 000000", "line 010000", "line 020000", "line 030000"]


async def test_a_pattern_that_nearly_every_line_matches_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded_logs, "KEPT", 1000)
    for name, value in {"KEPT": 1000, "COUNTED": 2000, "BEHIND": 4096}.items():
        monkeypatch.setattr(log_filter, name, value)
    count = 200_000
    sizes = write(tmp_path, OUT, b"".join(b"line %06d\n" % number for number in range(count)))
    tail = filter_of(tmp_path, "line", OUT)
    came = 0
    while tail.searching:
        came += await tail.pull(sizes)
        assert len(tail.lines) < 10_000
    assert tail.skipped
    assert came < 30_000, "most of what matches is not read"
    assert texts(tail)[-1000:] == [f"line {number:06d}" for number in range(count - 1000, count)]
    few = filter_of(tmp_path, "99$", OUT)
    while few.searching:
        await few.pull(sizes)
    assert not few.skipped
    assert texts(few) == [f"line {number:06d}" for number in range(99, count, 100)][-len(few.lines) :]


async def test_what_comes_later_is_followed_and_no_file_waits_for_the_others(tmp_path: Path) -> None:
    names = [f"node-0/attempt-001/rank-{rank}.out" for rank in range(5)]
    sizes: dict[str, int] = {}
    for name in names:
        sizes |= write(tmp_path, name, b"hit 0\n")
    tail = filter_of(tmp_path, "hit", *names)
    for turn in range(1, 9):  # all of them grow while they are searched
        await tail.pull(sizes)
        for name in names:
            sizes |= write(tmp_path, name, b"hit %d\nmiss\n" % turn, "ab")
    assert len({line.label for line in tail.lines}) == 5
    while tail.searching:  # a search that is kept waiting tells how far it came
        await tail.pull(sizes)
    await tail.pull(sizes)
    assert len(tail.lines) == 45
    write(tmp_path, names[3], b"hit 9\n", "ab")
    await tail.pull({**sizes, names[3]: sizes[names[3]] + 6})
    assert not tail.searching, "what comes later is no search that began anew"
    assert "hit 9" in texts(tail)


async def test_a_truncated_file_begins_anew(tmp_path: Path) -> None:
    write(tmp_path, OUT, b"old one\nold two\n")
    tail = tail_of(tmp_path, OUT)
    await tail.begin()
    sizes = write(tmp_path, OUT, b"new\n")
    await tail.pull(sizes)
    await tail.pull(sizes)
    assert "new" in texts(tail)
