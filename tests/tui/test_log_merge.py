"""Lines of several ranks in the order of time: while following, after every attach, and read back in pieces."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import scripted as play
from each import for_each
from msgspec.structs import replace

from distui.runners.hub import launch_order
from distui.runners.hub.launch_order import SkyRequest
from distui.runners.logs.line_times import LineTimes
from distui.runners.logs.windows import ask_window
from distui.runners.node import local_agent
from distui.runners.run import run_directories
from distui.runners.run.log_files import file_id, parse_file_id
from distui.runners.run.model import Stamped
from distui.tui import log_tail
from distui.tui.cli import main
from distui.tui.loaded_logs import LoadedLogs
from distui.tui.log_filter import LogFilter
from distui.tui.log_tail import LogTail
from distui.tui.rows.log import Jump
from distui.tui.rows.log_lines import LogLine, TimeColumn, folded, log_row, time_column, wrapped

T = 1_700_000_000.0


class Writer:
    """Ranks that write, and an agent that notes when."""

    def __init__(self, run: Path, ranks: int) -> None:
        self.run, self.now = run, T
        self.files = [file for rank in range(ranks) if (file := parse_file_id(file_id(0, 1, rank, "out")))]
        self._times = LineTimes(run)
        self.sizes: dict[str, int] = {}
        for file in self.files:
            (run / file.id).parent.mkdir(parents=True, exist_ok=True)
            (run / file.id).touch()

    def write(self, rank: int, text: str, seconds: float = 0.05) -> None:
        file, before = self.files[rank], self.now
        self.now += seconds
        path = self.run / file.id
        with path.open("ab") as log:
            log.write(text.encode() + b"\n")
        self.sizes[file.id] = path.stat().st_size
        self._times.note(file.id, self.sizes[file.id], self.now, before, self.now)
        self._times.flush(file.id)

    def tail(self) -> LogTail:
        return LogTail(partial(ask_window, self.run), self.files, clock=lambda: self.now)

    def filter(self, pattern: str) -> LogFilter:
        return LogFilter(partial(ask_window, self.run), self.files, pattern, clock=lambda: self.now)


def texts(tail: LoadedLogs) -> list[str]:
    return [line.text for line in tail.lines]


async def test_the_cause_stands_before_its_effect_after_attach(tmp_path: Path) -> None:
    """L2: rank 1 says that it goes to sleep, after step 29 of rank 0 and after nothing else."""
    it = Writer(tmp_path, 2)
    for step in range(30):
        it.write(0, f"step {step}")
    it.write(1, "rank 1 goes to sleep")
    it.write(0, "step 30")
    tail = it.tail()
    await tail.begin()
    assert texts(tail)[-3:] == ["step 29", "rank 1 goes to sleep", "step 30"]


async def test_an_ended_run_has_the_culprit_before_its_victims(tmp_path: Path) -> None:
    """L3: the order of what failed, whatever the order of files."""
    it = Writer(tmp_path, 3)
    for step in range(8):
        for rank in (0, 1, 2):
            it.write(rank, f"step {step}")
    it.write(2, "Traceback: KeyError")
    it.write(0, "Connection closed by peer")
    it.write(1, "Connection closed by peer")
    tail = it.tail()
    await tail.begin()
    assert [line.label for line in tail.lines[-3:]] == ["r2", "r0", "r1"]


@for_each("seed", range(2))
async def test_everybody_sees_the_same_order(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, it = random.Random(seed), Writer(tmp_path, 5)
    monkeypatch.setattr(log_tail, "TAIL", 500)
    monkeypatch.setattr(log_tail, "WINDOW", 2000)
    monkeypatch.setattr(log_tail, "ENOUGH", 20)
    following = it.tail()
    await following.begin()
    written: list[str] = []
    for count in range(1500):
        rank = dice.choice((0, 0, 0, 1, 2, 3, 4) if count < 900 else (0, 0, 0, 1))
        it.write(rank, f"{count} of rank {rank} {'x' * dice.randrange(40)}", dice.choice((0.01, 0.3, 5.0)))
        written.append(f"{count}")
        if dice.random() < 0.05:  # of some files it is heard later than of others
            some = {file: size for file, size in it.sizes.items() if dice.random() < 0.7}
            await following.pull(some)
    await following.pull(it.sizes)
    assert [text.split()[0] for text in texts(following)] == written
    later = it.tail()
    await later.begin()
    shown = [text.split()[0] for text in texts(later)]
    assert shown == written[-len(shown) :]  # no line is missing in between
    while not later.beginning:
        await later.earlier()
    assert [text.split()[0] for text in texts(later)] == written
    back = it.tail()
    await back.begin_at(Jump())
    assert texts(back)[0].startswith("0 ")
    while back.behind:
        await back.later()
    assert [text.split()[0] for text in texts(back)] == written


async def test_a_time_is_gone_to_with_several_files(tmp_path: Path) -> None:
    it = Writer(tmp_path, 3)
    for count in range(3000):
        it.write(count % 3, f"{count}", 1.0)
    tail = it.tail()
    await tail.begin_at(Jump(at=T + 1500))
    assert not tail.at_end
    first = next(line for line in tail.lines if line.key[0] >= T + 1500)
    assert int(first.text) == 1499


async def test_a_search_reports_how_far_it_is_and_never_that_nothing_was_written(tmp_path: Path) -> None:
    it = Writer(tmp_path, 2)
    for count in range(50):
        it.write(count % 2, f"line {count}")
    tail = it.filter("zzznothing")
    assert (tail.searching, tail.searched) == (True, 0.0)
    while tail.searching:
        await tail.pull(it.sizes)
    assert (texts(tail), tail.searched) == ([], 1.0)
    hits = it.filter("7$")
    while hits.searching:
        await hits.pull(it.sizes)
    assert texts(hits) == [f"line {count}" for count in range(50) if count % 10 == 7]
    it.write(0, "line 57")
    await hits.pull(it.sizes)
    assert texts(hits)[-1] == "line 57"


async def test_an_error_beyond_what_is_loaded_is_reached(tmp_path: Path) -> None:
    it = Writer(tmp_path, 2)
    it.write(1, "RuntimeError: early")
    for count in range(4000):
        it.write(0, f"line {count} " + "x" * 60)
        if count % 10 == 0:
            it.write(1, "fine")
    tail = it.tail()
    await tail.begin()
    assert not any("Error" in text for text in texts(tail))
    seen: list[float] = []
    hit = await tail.find("Error", lambda line: "early" in line.text, True, seen.append)
    assert hit is not None
    assert hit.text == "RuntimeError: early"
    tail = it.tail()
    await tail.begin_at(Jump(file=hit.key[3], offset=hit.key[4], at=hit.key[0]))
    assert texts(tail)[0] == "RuntimeError: early"


@for_each("hostile", [b"x" * 3_000_000, b"\0" * 5000 + b"\n", b"10%\r20%\r30%", b"a\r\nb\r\n\r\n"])
async def test_hostile_logs_are_merged_too(tmp_path: Path, hostile: bytes) -> None:
    it = Writer(tmp_path, 2)
    it.write(0, "before")
    with (tmp_path / it.files[1].id).open("ab") as log:
        log.write(hostile)
    sizes = {**it.sizes, it.files[1].id: len(hostile)}
    tail = it.tail()
    await tail.begin()
    await tail.pull(sizes)
    assert "before" in texts(tail)
    (tmp_path / it.files[1].id).write_bytes(b"anew\n")  # truncated while it is read
    sizes[it.files[1].id] = 5
    for _ in range(3):
        await tail.pull(sizes)
    assert "anew" in texts(tail)


def line(text: str, rank: int, at: float | None = None, own: bool = False) -> LogLine:
    file = parse_file_id(file_id(0, 1, rank, "out"))
    assert file is not None
    from distui.runners.logs.dating import key_of
    from distui.runners.logs.levels import Level

    return LogLine(text, f"r{rank}", Level.NONE, at, own, key_of(file, at or 0.0, 0), rank)


def test_equal_lines_of_many_ranks_are_one() -> None:
    lines = [line("init done", rank, T) for rank in range(16)] + [line("x", 0, T), line("x", 0, T)]
    held: dict[tuple[int, int], LogLine] = {}
    (fold, *rest) = folded(lines, held)
    assert "ranks 0–15" in fold.text or "ranks 0-15" in fold.text
    assert fold.label == "×16"
    assert [each.text for each in rest] == ["x", "x"]  # the same rank twice is no fold
    assert folded(lines, held)[0] is fold
    assert folded(lines[:2], held) == lines[:2]


def test_times_are_marked_shortened_and_blank_where_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    clock = TimeColumn("clock")
    assert clock.text(line("x", 0, T), None) == "~22:13:20"
    assert clock.text(line("x", 0, T, True), None) == " 22:13:20"
    assert clock.text(line("x", 0), None) == " " * 9
    assert time_column("clock", 80, (T,)).text(line("x", 0, T), None) == "~22:13:20"
    assert time_column("clock", 47, (T,)).width == 0, "no room: no times rather than a part of them"
    assert TimeColumn("start", (T - 3661, T + 1)).text(line("x", 0, T), None).strip() == "~+1:01:01"
    assert TimeColumn("step").text(line("x", 0, T), line("y", 0, T - 1.5)).strip() == "~+1.5s"
    assert TimeColumn().width == 0


def test_a_long_line_is_wrapped_under_itself() -> None:
    row = log_row(line("abcdefghij" * 3, 0), False, None, 5, "~22:13:20")
    rows = wrapped(row, 3, 30)
    assert ["".join(text for text, _ in each)[-14:] for each in rows] == [
        "abcdefghijabcd",
        "efghijabcdefgh",
        "ij".rjust(14),
    ] or len(rows) == 3


def test_a_managed_job_whose_hub_has_gone_is_no_job_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(play.ScriptedLink):
        async def events(self, after: int = 0) -> AsyncIterator[Stamped]:
            self.break_with("the agent closed the connection")
            async for stamped in super().events(after):
                yield stamped

    async def opened(entry: run_directories.Entry, *_: object) -> Broken:
        return Broken(entry.path, ())

    path = run_directories.create(replace(run_directories.new_record("job"), kind="hub"), b"{}", {})
    launch_order.write(path, SkyRequest(kind="skypilot", cluster="job", managed=True))
    (path / "launch.log").write_text("loss 1.5\n")
    monkeypatch.setattr(local_agent, "open_link", opened)
    assert main(["logs", "-f", "job"]) == 4
    out, err = capsys.readouterr()
    assert (out, err) == ("loss 1.5\n", "distui: job: the agent closed the connection\n")
