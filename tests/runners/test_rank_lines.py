"""What is quoted of what a rank wrote: lines that may say why it is behind, of that rank alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from distui.runners.agent.rank_lines import CHARACTERS, RankLines
from distui.runners.logs.line_times import LineTimes
from distui.runners.logs.windows import read_window
from distui.runners.run.log_files import file_id
from distui.runners.run.pulse import OwnLine
from distui.runners.run.wire.client import Window

NOW = 1_763_757_667.0


class Logs:
    """The logs of some ranks, with the times of their lines."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir, self.times = run_dir, LineTimes(run_dir)
        self.lines = RankLines(run_dir, 0, self.times.flush)

    def write(self, rank: int, text: str, at: float = NOW, stream: str = "err") -> None:
        """A further piece of a log, all written at this time."""
        file = file_id(0, 1, rank, stream)
        path = self.run_dir / file
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.stat().st_size if path.exists() else 0
        with path.open("a", encoding="utf-8") as log:
            log.write(text)
        if not before:
            self.times.note(file, 0, at - 0.1, at - 0.2, at - 0.1)
        self.times.note(file, path.stat().st_size, at, at - 0.1, at)

    async def of(self, *ranks: int, step: float | None = None) -> dict[int, list[str]]:
        lines = await self.lines.of(1, dict.fromkeys(ranks, step))
        return {rank: [line.text for line in its] for rank, its in lines.items()}


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


async def test_lines_that_tell_of_a_fault_come_with_their_times(logs: Logs) -> None:
    logs.write(1, "loading\n", NOW - 60)
    logs.write(1, "skipping batch 17: bad sample\n", NOW - 50)
    logs.write(1, "step 18 loss 0.3\nstep 19 loss 0.2\n", NOW)
    assert await logs.lines.of(1, {0: None, 1: None}) == {
        1: (OwnLine("skipping batch 17: bad sample", NOW - 50),),
    }


async def test_the_newest_two_of_both_streams_count(logs: Logs) -> None:
    logs.write(0, "WARNING the first\n", NOW - 9)
    logs.write(0, "dropped a sample\n", NOW - 5, "out")
    logs.write(0, "ValueError: of the last\n", NOW - 1)
    assert await logs.of(0) == {0: ["dropped a sample", "ValueError: of the last"]}


async def test_what_other_ranks_wrote_as_well_is_no_reason(logs: Logs) -> None:
    for rank in range(3):
        logs.write(rank, f"[rank{rank}]: UserWarning: the same on all ranks\n")
    logs.write(2, "skipping batch 4\n")
    assert await logs.of(0, 1, 2) == {2: ["skipping batch 4"]}


async def test_where_no_line_tells_those_since_the_newest_step_count(logs: Logs) -> None:
    logs.write(0, "epoch 1\n", NOW - 20)
    logs.write(0, "reading the next shard\n", NOW - 10)
    logs.write(0, " 12%|█ | 12/100 [00:01<00:09]\n", NOW - 10)
    logs.write(0, "on stdout\n", NOW - 10, "out")
    assert await logs.of(0, step=NOW - 15) == {0: ["reading the next shard"]}
    assert await logs.of(0, step=NOW) == {}
    assert await logs.of(0) == {}


async def test_lines_are_cut_and_hold_neither_secrets_nor_codes(logs: Logs) -> None:
    logs.write(0, "\x1b[31mERROR\x1b[0m HF_TOKEN=hf_" + "a1" * 20 + " was refused\n")
    logs.write(0, "WARNING " + "x" * 5000 + "\n")
    first, second = (await logs.of(0))[0]
    assert first == "ERROR HF_TOKEN=*** was refused"
    assert len(second) == CHARACTERS
    logs.write(1, "ERROR HF_TO\x1b[1mKEN\x1b[0m=hf_" + "a1" * 20 + "\n")
    assert await logs.of(1) == {1: ["ERROR HF_TOKEN=***"]}


async def test_a_log_that_did_not_grow_is_not_read_again(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.write(0, "skipping batch 3\n")
    logs.write(0, "step 1\n", stream="out")
    assert await logs.of(0) == {0: ["skipping batch 3"]}
    with monkeypatch.context() as patched:
        patched.setattr("distui.runners.agent.rank_lines.read_window", None)
        assert await logs.of(0) == {0: ["skipping batch 3"]}
    logs.write(0, "skipping batch 4\n", NOW + 1)
    assert await logs.of(0) == {0: ["skipping batch 3", "skipping batch 4"]}


async def test_a_long_log_is_read_from_its_end_alone(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.write(0, "skipping batch 3\n" + "all is well\n" * 20_000)
    sizes: list[int] = []

    def read(*asked: Any) -> Window:
        window = read_window(*asked)
        sizes.append(len(window.data))
        return window

    monkeypatch.setattr("distui.runners.agent.rank_lines.read_window", read)
    assert await logs.of(0, step=NOW + 1) == {}
    assert 0 < sum(sizes) < 100_000
