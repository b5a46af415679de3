"""Runs without processes: a launch writes its directory as usual but starts no agent, and a test writes what that would.

test_written.py compares such a run with a real one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import pytest

from distui.presets.plan_json import plan_from_json
from distui.runners.node import local_agent
from distui.runners.run import file_io, launch_record
from distui.runners.run.chronicle import Chronicle
from distui.runners.run.model import (
    AgentStarted,
    AttemptEnded,
    AttemptStarted,
    Event,
    FirstCause,
    Outcome,
    RankChanged,
    RankPhase,
    RankPlace,
    RunCreated,
    RunEnded,
    RunnerStarted,
    RunPhase,
)
from distui.runners.run.run_record import summarise

from .runs import Run, World

BEGAN_S = 600.0
"""Seconds ago at which such a run began."""
PID = 4_000_000_000
"""Of the first process; no process has such a number."""


class Attempt(NamedTuple):
    """One attempt of one rank: how it ended, and what it wrote."""

    outcome: Outcome | None = Outcome.SUCCEEDED
    out: str = ""
    err: str = ""
    text: str = ""
    """The first cause of one that failed."""
    exit_code: int = 1
    code: dict[str, str] = {}
    """Digests of the user's own files."""


@contextlib.contextmanager
def without_agent() -> Iterator[None]:
    """Let launches start neither an agent nor git."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_agent, "start_agent", lambda *_: None)
        patch.setattr(launch_record, "git_state", lambda folder: None)
        yield


def write(
    world: World, *words: str, attempts: Sequence[Attempt] = (Attempt(),), env: dict[str, str] | None = None
) -> Run:
    """The directory of a run as it is after its last attempt; `words` is a launch or exec command line.

    It is lost where the last attempt has no outcome.
    """
    with without_agent():
        run = world.run(*words, env=env)
    record(run, events_of(run, attempts))
    for number, attempt in enumerate(attempts, 1):
        folder = run.path / f"node-0/attempt-{number:03d}"
        folder.mkdir(parents=True, mode=0o700)
        for stream in ("out", "err"):
            path = folder / f"rank-0.{stream}"
            path.touch(mode=0o600)
            path.write_text(getattr(attempt, stream), encoding="utf-8", errors="surrogateescape")
    return run


def record(run: Run, events: Sequence[Event], begin: float = BEGAN_S) -> None:
    """Add events to the journal, a second after each other; a run that they create was launched then."""
    now = time.time()
    if any(isinstance(event, RunCreated) for event in events):
        about = file_io.document(run.path / "run.json", dict)
        (run.path / "run.json").write_bytes(msgspec.json.encode({**about, "created": now - begin}))
    chronicle = Chronicle(run.path)
    chronicle.replay()
    for number, event in enumerate(events):
        chronicle.emit(event, at=now - begin + number)
    chronicle.journal.close()


def events_of(run: Run, attempts: Sequence[Attempt]) -> list[Event]:
    """What the agent of a run with one rank writes into the journal."""
    plan = plan_from_json(file_io.document(run.path / "plan.json", dict))
    kind = plan.launcher if plan.launcher == "command" else "torchrun"
    host = file_io.document(run.path / "run.json", dict)["host"]
    events: list[Event] = [
        RunCreated(run.id, run.name, host, summarise(plan)),
        AgentStarted(PID, "0.1.0", adopted=False),
        RunnerStarted(PID + 1, kind),
    ]
    for number, attempt in enumerate(attempts, 1):
        pid, cause = PID + 1 + number, None
        events.append(
            AttemptStarted(
                number,
                "launch" if number == 1 else "failure",
                1,
                (RankPlace(0, 0, 0, None),),
                {},
                failures=number - 1,
                code=attempt.code,
            )
        )
        events.append(RankChanged(number, 0, RankPhase.RUNNING, 0, pid))
        if attempt.outcome is None:
            return events
        state = RankPhase(attempt.outcome)
        if attempt.outcome is Outcome.FAILED:
            text = attempt.text or f"rank 0 ended with exit code {attempt.exit_code}"
            lines = tuple(attempt.err.splitlines()[-20:])
            cause = FirstCause(0, 0, 0, pid, attempt.exit_code, text=text, last_lines=lines)
        code = 0 if attempt.outcome is Outcome.SUCCEEDED else attempt.exit_code
        events.append(RankChanged(number, 0, state, 0, pid, code, cause=cause))
        events.append(AttemptEnded(number, attempt.outcome, cause, f"attempt {number} {attempt.outcome}"))
    last = attempts[-1]
    code = 0 if last.outcome is Outcome.SUCCEEDED else last.exit_code
    what = "the command" if kind == "command" else "every rank"
    events.append(RunEnded(RunPhase(str(last.outcome)), code, f"{what} ended with exit code {code}"))
    return events
