"""One run, one log: lines of all attempts, with a rule between two, and only the files that are needed are read."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from distui.runners.logs import line_times
from distui.runners.logs.levels import ALARMS
from distui.runners.logs.windows import ask_window
from distui.runners.run.commands import ReadLog
from distui.runners.run.log_files import LogFile, file_id, parse_file_id
from distui.runners.run.state import Attempt
from distui.runners.run.wire.client import Window
from distui.tui import loaded_logs, log_filter
from distui.tui.loaded_logs import LoadedLogs
from distui.tui.log_filter import LogFilter
from distui.tui.log_tail import LogTail
from distui.tui.rows.log import Jump
from distui.tui.screens.log_finder import is_alarm

T = 1_700_000_000.0


class Restarted:
    """A run that was restarted again and again, and a reader that notes which attempts it reads.

    Each rank of each attempt writes some lines; the first attempt and `fails` raise. No line has a time.
    """

    def __init__(
        self, run: Path, attempts: int, ranks: int = 2, lines: int = 3, fails: Sequence[int] = (1,)
    ):
        self.run, self.read = run, set[int]()
        self.files: list[LogFile] = []
        self.sizes: dict[str, int] = {}
        self.attempts = [
            Attempt(number, T + 100 * number, "failure" if number > 1 else "launch", ranks, {}, ())
            for number in range(1, attempts + 1)
        ]
        for number in range(1, attempts + 1):
            for rank in range(ranks):
                text = "".join(f"attempt {number} rank {rank} line {line}\n" for line in range(lines))
                if rank == 1 and number in fails:
                    text += f"RuntimeError: of attempt {number}\n"
                self._write(file_id(0, number, rank, "out"), text)

    def _write(self, name: str, text: str) -> None:
        (self.run / name).parent.mkdir(parents=True, exist_ok=True)
        (self.run / name).write_text(text)
        self.sizes[name] = len(text)
        file = parse_file_id(name)
        assert file is not None
        self.files.append(file)

    async def _window(self, ask: ReadLog) -> Window:
        file = parse_file_id(ask.file)
        assert file is not None
        assert file.attempt is not None
        self.read.add(file.attempt)
        return await ask_window(self.run, ask)

    def _told(self, logs: LoadedLogs) -> None:
        logs.take_attempts(self.attempts, self.sizes)

    def tail(self) -> LogTail:
        tail = LogTail(self._window, self.files)
        self._told(tail)
        return tail

    def filter(self, pattern: str) -> LogFilter:
        found = LogFilter(self._window, self.files, pattern)
        self._told(found)
        return found


def texts(logs: LoadedLogs) -> list[str]:
    return [line.text for line in logs.lines]


def rule(number: int) -> str:
    return f"── attempt {number} · restarted after a failure ──"


async def test_the_lines_of_an_attempt_stand_below_its_rule_whatever_their_times(tmp_path: Path) -> None:
    tail = Restarted(tmp_path, 3, lines=1).tail()
    await tail.begin()
    assert texts(tail) == [
        "attempt 1 rank 1 line 0", "RuntimeError: of attempt 1", "attempt 1 rank 0 line 0",
        rule(2), "attempt 2 rank 1 line 0", "attempt 2 rank 0 line 0",
        rule(3), "attempt 3 rank 1 line 0", "attempt 3 rank 0 line 0",
    ]  # fmt: skip
    assert tail.writers == 2


async def test_only_the_attempts_that_are_shown_are_read(tmp_path: Path) -> None:
    it = Restarted(tmp_path, 100, lines=100)
    tail = it.tail()
    await tail.begin()
    assert it.read == {100}
    while not tail.beginning:
        first = tail.lines[0]
        came = await tail.earlier()
        assert tail.lines[came] is first, "what was loaded stays where it is"
    assert texts(tail)[0] == "attempt 1 rank 1 line 0"
    assert [text for text in texts(tail) if text.startswith("──")] == [rule(n) for n in range(2, 101)]


async def test_the_first_line_is_read_without_the_last(tmp_path: Path) -> None:
    it = Restarted(tmp_path, 100, lines=100)
    tail = it.tail()
    await tail.begin_at(Jump())
    assert texts(tail)[0] == "attempt 1 rank 1 line 0"
    assert it.read == {1}
    while tail.behind:
        await tail.later()
    assert texts(tail)[-1] == "attempt 100 rank 0 line 99"


async def test_what_is_far_away_is_given_back_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded_logs, "KEPT", 500)
    monkeypatch.setattr("distui.tui.log_tail.KEPT", 500)
    tail = Restarted(tmp_path, 30, lines=100).tail()
    await tail.begin()
    while not tail.beginning:
        await tail.earlier()
        assert len(tail.lines) <= 500 + 100
        assert len(tail._spans) <= 2 * 4, "the files of a few attempts are open"
    assert not tail.at_end
    seen = list[str]()
    while True:
        seen += [text for text in texts(tail) if text not in seen[-2000:]]
        assert len(tail._spans) <= 2 * 6
        if not tail.behind:
            break
        await tail.later()
    assert len([text for text in seen if text.startswith("attempt")]) == 30 * 200
    assert [text for text in seen if text.startswith("──")] == [rule(n) for n in range(2, 31)]


async def test_an_error_is_found_in_any_attempt_and_the_nearest_first(tmp_path: Path) -> None:
    it = Restarted(tmp_path, 60, lines=100, fails=(1, 20))
    tail = it.tail()
    await tail.begin()
    it.read.clear()
    shares: list[float] = []
    hit = await tail.find(ALARMS, is_alarm, True, shares.append, newest=True)
    assert hit is not None
    assert hit.text == "RuntimeError: of attempt 20"
    assert min(it.read) == 20, "no earlier attempt is searched"
    assert max(shares) < 1
    tail = it.tail()
    await tail.begin_at(Jump(file=hit.key[3], offset=hit.key[4], at=hit.key[0]))
    assert "RuntimeError: of attempt 20" in texts(tail)
    first = await tail.find(ALARMS, is_alarm, True, shares.append, newest=True)
    assert first is not None
    assert first.text == "RuntimeError: of attempt 1"
    assert await tail.find(ALARMS, is_alarm, False, shares.append) is None


async def test_a_pattern_finds_the_lines_of_all_attempts_the_newest_first(tmp_path: Path) -> None:
    it = Restarted(tmp_path, 10, fails=(1, 4))
    found = it.filter("RuntimeError")
    await found.pull(it.sizes)
    assert it.read == {10}
    while found.searching:
        await found.pull(it.sizes)
    assert texts(found) == ["RuntimeError: of attempt 1", rule(4), "RuntimeError: of attempt 4"]


async def test_a_pattern_with_too_many_lines_leaves_out_earlier_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded_logs, "KEPT", 100)
    for name, value in {"KEPT": 100, "COUNTED": 500}.items():
        monkeypatch.setattr(log_filter, name, value)
    it = Restarted(tmp_path, 100, lines=100)
    found = it.filter("line")
    while found.searching:
        await found.pull(it.sizes)
    assert found.skipped
    assert min(it.read) > 95
    assert texts(found)[-1] == "attempt 100 rank 0 line 99"


async def test_the_rule_follows_what_was_shown_when_an_attempt_begins(tmp_path: Path) -> None:
    it = Restarted(tmp_path, 2)
    files, attempts = it.files, it.attempts
    tail = LogTail(partial(ask_window, tmp_path), files[:2])
    tail.take_attempts(attempts[:1], it.sizes)
    await tail.begin()
    before = texts(tail)
    with (tmp_path / files[0].id).open("a") as log:
        log.write("killed, without a newline")
    tail.take_attempts(attempts, it.sizes)
    tail.add(files)
    await tail.pull(it.sizes | {files[0].id: it.sizes[files[0].id] + 25})
    below = len(before) + 2
    assert texts(tail)[:below] == [*before, "killed, without a newline", rule(2)]
    assert texts(tail)[below:][0].startswith("attempt 2")
    assert len(texts(tail)) == below + 6
    assert not tail.unfinished


async def test_a_search_tells_how_far_it_is_and_holds_only_the_files_that_it_searches(
    tmp_path: Path,
) -> None:
    it = Restarted(tmp_path, 50, fails=range(51))
    found = it.filter("RuntimeError")
    shares = [found.searched]
    while found.searching:
        await found.pull(it.sizes)
        shares.append(found.searched)
        assert len(found._spans) <= 2 * 2
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert len(set(shares)) > 40
    assert len(found.lines) == 50 + 49


async def test_every_reader_has_the_same_order_also_of_lines_that_an_agent_saw_late(tmp_path: Path) -> None:
    """Last lines of an attempt are seen when the next one runs already."""
    dice, it = random.Random(7), Restarted(tmp_path, 4, ranks=3, lines=40)
    for file in it.files:
        assert file.attempt is not None
        ends = [0, *(match.end() for match in re.finditer(b"\n", (tmp_path / file.id).read_bytes()))]
        begin = it.attempts[file.attempt - 1].began
        seen = sorted(begin + dice.uniform(0, 102) for _ in ends)  # the next one begins after 100 seconds
        path = tmp_path / line_times.FOLDER / file.id
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(line_times.packed(zip(ends, seen, strict=True)))
    attached = it.tail()
    await attached.begin()
    while not attached.beginning:
        await attached.earlier()
    from_start = it.tail()
    await from_start.begin_at(Jump())
    while from_start.behind:
        await from_start.later()
    found = it.filter(".")
    while found.searching:
        await found.pull(it.sizes)
    following = LogTail(partial(ask_window, tmp_path), [])
    for number in range(1, 5):
        following.take_attempts(it.attempts[:number], it.sizes)
        following.add([file for file in it.files if file.attempt == number])
        await (following.begin() if number == 1 else following.pull(it.sizes))
    expected = [number for number in range(1, 5) for _ in range(3 * 40 + (number == 1))]
    lines = [text for text in texts(attached) if not text.startswith("──")]
    assert [int(re.search(r"attempt (\d)", text)[1]) for text in lines] == expected  # type: ignore[index]
    assert texts(attached) == texts(from_start) == texts(found) == texts(following)
