"""A run that a test has written down is for every reader what a real one is."""

from __future__ import annotations

import stat
import sys
from typing import Any

import pytest

from distui.runners.run.model import Outcome

from .runs import Run, World, gone
from .written import Attempt, write

BY_PROCESSES = ("agent.", "runner.", "metrics/", "times/")
"""Beginnings of the names of files that only a process writes."""


def files(run: Run) -> dict[str, int]:
    """Files that both have, and their modes."""
    paths = {str(path.relative_to(run.path)): path for path in run.path.rglob("*") if path.is_file()}
    return {
        name: stat.S_IMODE(path.stat().st_mode)
        for name, path in paths.items()
        if not name.startswith(BY_PROCESSES)
    }


def shown(run: Run) -> dict[str, Any]:
    """What `status` has, but for times, numbers of processes, samples of telemetry, and findings."""
    status = run.status()
    (attempt,), (rank,) = status["attempts"], status["ranks"]
    cause = attempt["first_cause"]
    return {
        **{name: status[name] for name in ("state", "exit_code", "attempt")},
        "plan": {**status["plan"], "command": ""},
        "attempt's": {name: attempt[name] for name in ("number", "cause", "outcome", "env_diff")},
        "first cause": {name: cause[name] for name in ("rank", "exit_code", "text")},
        "rank's": {name: rank[name] for name in ("rank", "local_rank", "node", "state", "exit_code")},
    }


@pytest.mark.real
def test_a_written_run_is_read_as_a_real_one(world: World) -> None:
    text = "import sys\nprint('hello')\nprint('oops', file=sys.stderr)\nsys.exit(3)\n"
    words = ("--restarts", "0", "--", sys.executable, world.script("job.py", text))
    real = world.run("exec", "--name", "real", *words)
    assert real.wait() == 1
    assert gone(real.agent_pid())
    attempt = Attempt(Outcome.FAILED, "hello\n", "oops\n", exit_code=3)
    written = write(world, "exec", "--name", "written", *words, attempts=[attempt])
    assert files(written) == files(real)
    kinds = [[told["event"]["type"] for told in run.events()] for run in (written, real)]
    assert kinds[0] == [kind for kind in kinds[1] if not kind.startswith("Finding")]
    assert shown(written) == shown(real)
    for stream in ("out", "err"):
        assert written.distui("logs", "--stream", stream).out == real.distui("logs", "--stream", stream).out
    assert written.distui("wait").code == real.distui("wait").code == 1
    listed = {one["name"]: one for one in world.distui("ls", "--json").fine().json()}
    for name in ("state", "exit_code", "ranks", "attempt", "preset"):
        assert listed["written"][name] == listed["real"][name], name
