"""What is tried in every row, on one run and in this order: each raises AssertionError, or returns a remark."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.runs import Run, World, kill, until
from e2e.screen import Screen

from .rows import Row

SCRIPTS = Path(__file__).with_name("scripts")


@dataclass(slots=True)
class Trial:
    """A row on its way."""

    row: Row
    world: World
    python: str
    """The interpreter of the ranks."""
    run: Run | None = None

    @property
    def live(self) -> Run:
        """The run. Fails where the launch has failed."""
        assert self.run is not None, "not launched"
        return self.run

    def trains(self, attempt: int) -> dict[str, Any]:
        """The status of that attempt, once each of its two ranks has made more steps than at the first look."""
        first: list[int | None] = []

        def moved(status: dict[str, Any]) -> bool:
            assert status["state"] != "failed", self.live.describe()
            steps = [rank["step"] for rank in status["ranks"]]
            if status["attempt"] != attempt or len(steps) != 2 or None in steps:
                return False
            first.extend([] if first else steps)
            return all(now > before for now, before in zip(steps, first, strict=True))

        return self.live.eventually(moved)


def launch(trial: Trial) -> str:
    """Two ranks train; the plan has the interpreter that was named."""
    built = ("--env", f"TORCH_EXTENSIONS_DIR={Path(trial.python).parents[1] / 'torch_extensions'}")
    words = ("--nproc-per-node", "2", "--python", trial.python, "--grace", "5", *built)
    trial.run = trial.world.run("launch", trial.row.preset, *words, "--", str(SCRIPTS / trial.row.script))
    status = trial.trains(1)
    for rank in status["ranks"]:
        assert os.path.samefile(f"/proc/{rank['pid']}/exe", trial.python), "another interpreter"
    return ""


def restart(trial: Trial) -> str:
    """In place, with a variable more."""
    trial.live.distui("restart", "--yes", "--env", "MATRIX_CHANGED=yes").fine()
    for rank in trial.trains(2)["ranks"]:
        environment = Path(f"/proc/{rank['pid']}/environ").read_bytes().split(b"\0")
        assert b"MATRIX_CHANGED=yes" in environment, "without the changed variable"
    return ""


def failure(trial: Trial) -> str:
    """A rank is killed: it is named as the first cause, and the next attempt trains."""
    kill(trial.live.pids()[1])
    trial.trains(3)
    endings = [end for end in trial.live.of("AttemptEnded") if end["attempt"] == 2]
    assert endings, "the end of attempt 2 is not in the journal"
    first = endings[0]["first_cause"]
    assert first["rank"] == 1, f"first cause: {first}"
    return ""


def cockpit(trial: Trial) -> str:
    """`distui attach` in a real terminal."""
    screen = Screen([trial.world.program, "attach", trial.live.id], trial.world.env, trial.world.work)
    try:
        screen.until(lambda text: "RUNNING" in text and "attempt 3" in text)
    finally:
        screen.close()
    return ""


def hang(trial: Trial) -> str:
    """Rank 1 sleeps, or is stopped; the verdict names it."""
    if trial.row.sleeps:
        trial.world.script("stall", "")
    else:
        os.kill(trial.live.pids()[1], signal.SIGSTOP)
    status = trial.live.eventually(_hangs)
    (finding, *_) = _hangs(status)
    wanted = "hang-not-joined" if trial.row.sleeps else "hang-stopped"
    assert (finding["id"], finding["rank"]) == (wanted, 1), f"{finding['id']}: {finding['text']}"
    return ""


def _hangs(status: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for finding in status["findings"] if finding["id"].startswith("hang-")]


def stacks(trial: Trial) -> str:
    """The stack of the rank that waits, and of the one that sleeps."""
    waits = trial.live.distui("dump", "stacks", "--rank", "0").fine().out
    assert trial.row.script in waits, f"rank 0: {waits[:300]!r}"
    if trial.row.sleeps:
        sleeps = trial.live.distui("dump", "stacks", "--rank", "1").fine().out
        assert "stall" in sleeps, f"rank 1: {sleeps[:300]!r}"
    return ""


def flight(trial: Trial) -> str:
    """The collective in which rank 0 waits; or the sentence that says why it is not recorded."""
    dumped = trial.live.distui("dump", "flight", "--rank", "0").fine().out
    if "only NCCL's collectives, not gloo's" in dumped:
        return "says that gloo is not recorded"
    assert "Rank 0 waits in" in dumped, dumped[:300]
    return ""


def stop(trial: Trial) -> str:
    """Everything is gone, what hangs included."""
    trial.live.stop("--grace", "5").fine()
    status = trial.live.status()
    assert status["state"] == "stopped", status["state"]
    assert until(lambda: not trial.live.marked()), f"left: {trial.live.marked()}"
    return ""


FEATURES: Mapping[str, Callable[[Trial], str]] = {
    "launch": launch,
    "restart with a changed environment": restart,
    "rank killed": failure,
    "cockpit": cockpit,
    "hang": hang,
    "stacks": stacks,
    "flight recorder": flight,
    "stop": stop,
}
"""By the heads of the table's columns."""
