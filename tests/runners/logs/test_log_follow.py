"""Several files as one stream of lines."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from distui.runners import api
from distui.runners.logs.choice import choose
from distui.runners.logs.dating import CARRY
from distui.runners.logs.merging import MergedLogs, prefixes
from distui.runners.logs.windows import ask_window
from distui.runners.run import run_directories
from distui.runners.run.chronicle import Chronicle
from distui.runners.run.commands import ReadLog
from distui.runners.run.log_files import LogFile, file_id, parse_file_id
from distui.runners.run.model import AttemptStarted, PlanSummary, RankPlace, RunCreated, RunEnded, RunPhase
from distui.runners.run.wire.client import Link, Window


def log(rank: int, stream: str = "out", attempt: int = 1, node: int = 0) -> LogFile:
    file = parse_file_id(file_id(node, attempt, rank, stream))
    assert file is not None
    return file


def test_all_attempts_are_chosen_unless_one_is_named() -> None:
    files = [log(r, s, a) for a in (1, 2) for r in (0, 1) for s in ("out", "err", "nccl")]
    assert choose(files) == [file for file in files if file.stream != "nccl"]
    assert choose(files, ranks=[1], streams=["nccl"], attempt=1) == [log(1, "nccl", 1)]
    assert choose(files, attempt=9) == []
    assert choose([*files, log(4, node=1)], node=1) == [log(4, node=1)]


def test_runner_and_agent_are_chosen_by_their_stream() -> None:
    runner = parse_file_id("runner.log")
    assert runner is not None
    assert choose([runner, log(0)], streams=["log"]) == [runner]


def append(run: Path, file: LogFile, data: bytes) -> None:
    path = run / file.id
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as out:
        out.write(data)


class Reader:
    """Reads the files of a run directory, at most so many bytes at a time."""

    def __init__(self, run: Path, most: int = 1 << 20) -> None:
        self.run, self.most = run, most

    async def read_log(self, ask: ReadLog) -> Window:
        return await ask_window(self.run, replace(ask, limit=min(ask.limit, self.most)))


async def new(merged: MergedLogs, run: Path, most: int = 1 << 20) -> list[str]:
    """What came since, to the ends of all files."""
    for file in merged.files:
        merged.grow(file, (run / file.id).stat().st_size)
    prefix, link = prefixes(merged.files), cast(Link, Reader(run, most))
    return [f"{prefix(file)}{line.text}" async for ready in merged.read(link) for line, file in ready]


def merge(*files: LogFile, grep: str = "") -> MergedLogs:
    merged = MergedLogs(grep)
    for file in files:
        merged.add(file, dated=len(files) > 1)
    return merged


async def test_lines_of_several_ranks_say_who_wrote_them(tmp_path: Path) -> None:
    zero, one = log(0), log(1)
    append(tmp_path, zero, b"a\nunfin")
    append(tmp_path, one, b"b\n")
    merged = merge(zero, one)
    assert sorted(await new(merged, tmp_path)) == ["[rank 0] a", "[rank 1] b"]
    append(tmp_path, zero, b"ished\n")
    assert await new(merged, tmp_path) == ["[rank 0] unfinished"]
    append(tmp_path, one, b"last words")
    assert await new(merged, tmp_path) == []
    assert [line.text for line, _ in merged.last_words([zero, one])] == ["last words"]
    assert merged.last_words([zero, one]) == []


async def test_lines_are_in_order_although_one_rank_writes_much_more(tmp_path: Path) -> None:
    """Windows of one size hold seconds of the one log and the whole of the other."""
    zero, one = log(0), log(1)
    for file, seconds in ((zero, range(60)), (one, range(0, 60, 10))):
        for second in seconds:
            append(tmp_path, file, f"2026-11-24 10:00:{second:02d},{file.rank}00 step\n".encode())
    lines = await new(merge(zero, one), tmp_path, most=100)
    assert len(lines) == 66
    times = [line.split()[3] for line in lines]
    assert times == sorted(times)


async def test_a_file_that_gets_another_name_is_read_on(tmp_path: Path) -> None:
    zero, other = log(0), log(0, attempt=2)
    append(tmp_path, zero, b"before\nunfin")
    append(tmp_path, other, b"x\n")
    merged = merge(zero, other)
    assert sorted(await new(merged, tmp_path)) == ["before", "x"], "one writer in two attempts"
    command = parse_file_id(zero.id.replace("rank-0", "command"))
    assert command is not None
    (tmp_path / zero.id).rename(tmp_path / command.id)
    append(tmp_path, command, b"ished\n")
    merged.take_new_names([command, other])
    assert merged.files == [other, command]
    assert await new(merged, tmp_path) == ["[command] unfinished"]
    assert not merged.problems


async def test_one_file_stands_alone_and_several_streams_are_told_apart(tmp_path: Path) -> None:
    out, err = log(0), log(0, "err")
    append(tmp_path, out, b"x\n")
    append(tmp_path, err, b"y\n")
    assert await new(merge(out), tmp_path) == ["x"]
    assert sorted(await new(merge(out, err), tmp_path)) == ["[rank 0 err] y", "[rank 0 out] x"]


async def test_a_truncated_file_is_said_and_read_from_its_start(tmp_path: Path) -> None:
    zero = log(0)
    append(tmp_path, zero, b"old line one\nold line two\n")
    merged = merge(zero)
    await new(merged, tmp_path)
    (tmp_path / zero.id).write_bytes(b"new\n")
    merged.to_the_end([zero])
    link = cast(Link, Reader(tmp_path))
    lines = [line.text async for ready in merged.read(link) for line, _ in ready]
    assert lines == ["(the file was truncated and starts again)", "new"]


async def test_a_line_without_end_is_given_in_pieces(tmp_path: Path) -> None:
    zero = log(0)
    append(tmp_path, zero, b"x" * (CARRY + 1))
    assert len(await new(merge(zero), tmp_path)) == 1


@given(
    st.lists(st.sampled_from([b"a", b"bc\n", b"\n", b"d" * 50, b"e\nf"]), max_size=30), st.integers(1, 64)
)
def test_nothing_is_lost_or_told_twice(
    tmp_path_factory: pytest.TempPathFactory, writes: list[bytes], limit: int
) -> None:
    run, zero = tmp_path_factory.mktemp("run"), log(0)
    merged = merge(zero)

    async def read() -> list[str]:
        lines: list[str] = []
        for data in writes:
            append(run, zero, data)
            lines += await new(merged, run, limit)
        return lines + [line.text for line, _ in merged.last_words([zero])]

    assert "\n".join(asyncio.run(read())) == b"".join(writes).decode().removesuffix("\n")


def test_python_gives_the_lines_of_all_ranks_in_order_of_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    record = run_directories.new_record("ended")
    run = run_directories.runs_dir() / record.run
    for rank in range(3):
        lines = [f"2026-11-24 10:00:0{second},{rank}00 rank {rank} line {second}\n" for second in range(5)]
        append(run, log(rank), "".join(lines).encode())
    (run / "run.json").write_bytes(msgspec.json.encode(record))
    chronicle = Chronicle(run)
    places = tuple(RankPlace(rank, rank, 0, None) for rank in range(3))
    plan = PlanSummary("ddp", "ddp", "torchrun", "t.py")
    for event in (
        RunCreated(record.run, "ended", "here", plan), AttemptStarted(1, "launch", 3, places),
        RunEnded(RunPhase.SUCCEEDED, 0, "done"),
    ):  # fmt: skip
        chronicle.emit(event, at=1.0)
    chronicle.journal.close()
    printed = list(api.attach("ended").logs())
    assert {line.rank for line in printed} == {0, 1, 2}
    texts = [line.text.split(" ", 2)[2] for line in printed]
    assert texts == [f"rank {rank} line {second}" for second in range(5) for rank in range(3)]
