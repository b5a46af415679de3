"""What a restart leaves behind of the training signals of the attempt before: nothing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from distui.runners.agent.pattern_process import SignalPatterns
from distui.runners.agent.training import Training
from distui.runners.run.log_files import LogFile, parse_file_id
from distui.runners.run.model import AttemptStarted, RankPlace, Stamped, TrainingTick
from distui.runners.run.parts import in_background
from distui.runners.run.samples import TrainingSample
from distui.runners.run.state import RunState


class Script:
    """A script of one rank, and the agent that reads what it prints."""

    def __init__(self, *patterns: str, command: str = "train.py --steps 2000") -> None:
        self.state, self.samples = RunState(), list[TrainingSample]()
        self.hooks: dict[int, Any] = {}
        plan = SimpleNamespace(command=command.split(), signals=patterns)
        run = SimpleNamespace(plan=plan, state=self.state, emit=self._emit, node=0)
        self.training = Training(cast(Any, run), cast(Any, SimpleNamespace(by_rank=self.hooks)))
        self.attempt(1, 0.0)

    def _emit(self, event: TrainingTick) -> None:
        self.samples += event.ranks

    def attempt(self, number: int, at: float) -> None:
        self.state.apply(Stamped(at, AttemptStarted(number, "restart", 1, (RankPlace(0, 0),)), number))

    def prints(self, attempt: int, text: str, at: float) -> None:
        self.training.heard(file(attempt), text.encode(), at)

    def shown(self) -> TrainingSample:
        self.training.collect()
        return self.samples[-1]


def file(attempt: int) -> LogFile:
    parsed = parse_file_id(f"node-0/attempt-{attempt:03d}/rank-0.out")
    assert parsed is not None
    return parsed


def test_the_last_lines_of_an_attempt_say_nothing_of_the_next() -> None:
    """They are read when the next one has begun: its step 1 is then no step that begins anew."""
    script = Script()
    script.prints(1, "step 280/2000 loss 0.41 lr 1.0e-02\n", 75.0)
    assert script.shown().step == 280
    script.attempt(2, 80.0)
    script.prints(1, "step 282/2000 loss 0.40 lr 1.0e-02\n", 80.5)
    script.training.collect()
    assert [sample.step for sample in script.samples] == [280]
    for step, at in ((1, 92.0), (2, 93.0)):
        script.prints(2, f"step {step}/2000 loss 2.30 lr 1.0e-02\n", at)
    shown = script.shown()
    assert (shown.step, shown.total, shown.loss) == (2, 2000, 2.3)


def test_the_time_between_two_attempts_is_no_time_of_a_step() -> None:
    """A script that resumes counts on where it was."""
    script = Script()
    script.attempt(2, 80.0)
    script.prints(1, "step 280/2000 loss 0.41\n", 80.5)
    script.training.collect()
    for second in range(10):
        script.prints(2, f"step {281 + 4 * second}/2000 loss 0.40\n", 100.0 + second)
        script.training.collect()
    assert script.samples[-1].step_s == 0.25


def test_what_a_tracker_of_the_attempt_before_reported_is_not_taken_up() -> None:
    script = Script()
    script.hooks[0] = SimpleNamespace(attempt=1, reported=object())
    script.attempt(2, 80.0)
    script.training.collect()
    assert script.samples == []


async def test_a_users_pattern_answers_for_no_lines_of_the_attempt_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ask(patterns: SignalPatterns, lines: list[str]) -> list[dict[str, str]]:
        await asyncio.sleep(1.0)
        return [{"step": line.removeprefix("at ")} for line in lines]

    monkeypatch.setattr(SignalPatterns, "_ask", ask)
    script = Script(r"at (?P<step>\d+)", command="train.py")
    async with in_background(script.training.patterns.run()):
        script.prints(1, "at 280\n", 79.0)
        await asyncio.sleep(0.1)  # it is asked for
        script.attempt(2, 80.0)
        script.prints(2, "at 1\n", 90.0)
        await asyncio.sleep(5.0)
    script.training.collect()
    assert [sample.step for sample in script.samples] == [1]
