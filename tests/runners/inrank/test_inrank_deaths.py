"""What ranks that die leave behind, and the policy that looks at it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from distui.presets.model import RestartPolicy
from distui.runners.inrank.restart_policy import RankExit, first_failure

from .inrank_rig import driven, launch, rank

RAISES = """\
import os, time
if os.environ["RANK"] == "1":
    raise ValueError("bad sample %d" % time.time_ns())
time.sleep(600)
"""


@pytest.mark.real
@pytest.mark.torch
async def test_the_same_exception_of_a_script_without_steps_is_tried_twice(own_directories: Path) -> None:
    script = own_directories / "train.py"
    script.write_text(RAISES)
    plan, record = launch(script)
    quick = RestartPolicy(limit=2, backoff_s=0.05, backoff_max_s=0.05)
    async with driven((replace(plan, restart=quick), record)) as run:
        await run.until(lambda s: s.phase.ended)
    assert len(run.state.attempts) == 2
    assert run.state.end_text.startswith("gave up: failed in the same way twice: rank 1 raised")
    cause = run.state.attempts[1].first_cause
    assert cause is not None
    assert (cause.rank, cause.kind) == (1, "exception")


CRASHES = """\
import ctypes
abort = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p)
ctypes.pythonapi.Py_AtExit(abort)
"""


@pytest.mark.real
def test_a_rank_notes_where_it_raised_or_that_it_came_to_its_end(tmp_path: Path) -> None:
    raising = "def f():\n    {}['x']\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    f()\n"
    with rank(tmp_path, raising) as one:
        assert one.ends() == 1
    noted = json.loads(one.read("exc"))
    assert (noted["type"], noted["step"], noted["importing"]) == ("KeyError", 0, False)
    assert noted["where"] == f"{tmp_path / 'script.py'}:2"
    assert noted["before"] == ["ZeroDivisionError: division by zero"]
    assert not (tmp_path / "rank-0.end").exists()
    (tmp_path / "rank-0.exc").unlink()
    with rank(tmp_path, CRASHES) as one:
        assert one.ends() == -6
    (end,) = ends([-6])
    found = first_failure(str(tmp_path), [end])
    assert found is not None
    assert (found.kind, found.retry) == ("exit-abort", "no")
    assert found.text == "rank 0 (pid 7) crashed at interpreter exit (SIGABRT), after its script had ended"
    other = end._replace(rank=1, exit_code=-15, failed=False)
    found = first_failure(str(tmp_path), [end, other])
    assert found is not None
    assert found.retry == "maybe", "the other one was still at work"


def ends(codes: Iterable[int | None]) -> list[RankExit]:
    return [RankExit(number, 7, code, 10.0 + number, True) for number, code in enumerate(codes)]


def test_a_rank_that_nobody_saw_counts_by_its_exception(tmp_path: Path) -> None:
    noted = {"time": 5.0, "type": "ValueError", "text": "x", "where": "train.py:1", "step": 0}
    (tmp_path / "rank-3.exc").write_text(json.dumps(noted))
    (tmp_path / "rank-4.exc").write_text('{"time": 5.0, "ty')  # a full disk
    found = first_failure(str(tmp_path), ends([1]))
    assert found is not None
    assert (found.rank, found.kind) == (3, "exception")
    assert first_failure(str(tmp_path / "none"), []) is None
