"""Ranks that die, and the policy that looks at what they left behind: real runs under the real agent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from distui.presets.model import RestartPolicy
from distui.runners.inrank.restart_policy import RankExit, first_failure
from distui.runners.model import RankChanged

from .inrank_rig import Driven, driven, execute, launch, rank

QUICK = RestartPolicy(limit=2, backoff_s=0.05, backoff_max_s=0.05)
RAISES = """\
import os, time
if os.environ["RANK"] == "1":
    raise ValueError("bad sample %d" % time.time_ns())
time.sleep(600)
"""


@pytest.fixture
def script(own_directories: Path) -> Path:
    return own_directories / "train.py"


async def ended(script: Path, policy: RestartPolicy = QUICK) -> Driven:
    """A run of this script to its end."""
    plan, record = launch(script)
    async with driven((replace(plan, restart=policy), record)) as run:
        await run.until(lambda s: s.phase.ended)
        return run


@pytest.mark.long
@pytest.mark.torch
async def test_a_missing_module_is_tried_once(script: Path) -> None:
    script.write_text("import flash_attn_9\n")
    run = await ended(script)
    assert len(run.state.attempts) == 1
    cause = run.state.attempts[0].first_cause
    assert cause is not None
    assert (cause.kind, cause.retry) == ("import-missing", "no")
    assert cause.where.endswith("/train.py:1")
    assert run.state.end_text.startswith(
        f"a restart cannot help: rank {cause.rank} finds no module named flash_attn_9 in "
    )
    assert [one.id for one in run.state.findings.values() if one.severity == "error"] == [
        "died-import-missing"
    ]


@pytest.mark.real
@pytest.mark.torch
async def test_the_same_exception_of_a_script_without_steps_is_tried_twice(script: Path) -> None:
    script.write_text(RAISES)
    run = await ended(script)
    assert len(run.state.attempts) == 2
    assert run.state.end_text.startswith("gave up: failed in the same way twice: rank 1 raised")
    cause = run.state.attempts[1].first_cause
    assert cause is not None
    assert (cause.rank, cause.kind) == (1, "exception")


TRAINS = """\
import os, sys, time, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while not sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks:
    time.sleep(0.01)  # the hook arms itself a moment after the import
for step in range(min(4, 2 + int(os.environ["DISTUI_ATTEMPT"]))):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
if os.environ["RANK"] == "1":
    raise ValueError("bad sample")
time.sleep(600)
"""


@pytest.mark.torch
@pytest.mark.long
async def test_who_comes_further_than_the_attempt_before_goes_on(script: Path) -> None:
    """3 steps, then 4, then 4 again."""
    script.write_text(TRAINS)
    run = await ended(script, replace(QUICK, limit=5))
    assert len(run.state.attempts) == 3
    assert (
        "failed in the same way twice, at the same step (4): rank 1 raised ValueError" in run.state.end_text
    )


@pytest.mark.long
@pytest.mark.torch
async def test_who_says_always_gets_all_attempts(script: Path) -> None:
    script.write_text("import flash_attn_9\n")
    run = await ended(script, replace(QUICK, always=True))
    assert len(run.state.attempts) == 3
    assert "gave up: the restart policy allows 2 failures, this was number 3" in run.state.end_text


@pytest.mark.long
async def test_a_command_is_judged_by_what_it_wrote(own_directories: Path) -> None:
    (own_directories / "job.py").write_text("import flash_attn_9\n")
    async with driven(execute("python3", str(own_directories / "job.py"), restart_limit=3)) as run:
        await run.until(lambda s: s.phase.ended)
        assert len(run.state.attempts) == 1
        assert run.state.end_text.startswith("the command ended with exit code 1; a restart cannot help: ")


@pytest.mark.real
def test_a_rank_notes_where_it_raised_and_how_far_it_had_come(tmp_path: Path) -> None:
    with rank(
        tmp_path, "def f():\n    {}['x']\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    f()\n"
    ) as one:
        assert one.ends() == 1
    noted = json.loads(one.read("exc"))
    assert (noted["type"], noted["step"], noted["importing"]) == ("KeyError", 0, False)
    assert noted["where"] == f"{tmp_path / 'script.py'}:2"
    assert noted["before"] == ["ZeroDivisionError: division by zero"]
    assert not (tmp_path / "rank-0.end").exists()


CRASHES = """\
import ctypes
abort = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p)
ctypes.pythonapi.Py_AtExit(abort)
"""


@pytest.mark.long
def test_a_crash_at_exit_is_told_from_one_in_training(tmp_path: Path) -> None:
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


@pytest.mark.long
@pytest.mark.torch
async def test_the_end_of_a_rank_that_was_killed_may_be_tried_again(script: Path) -> None:
    script.write_text("import os\nif os.environ['RANK'] == '0':\n    os.kill(os.getpid(), 9)\n")
    run = await ended(script)
    killed = [
        one.event
        for one in run.events
        if isinstance(one.event, RankChanged) and one.event.signal == "SIGKILL"
    ]
    assert len(run.state.attempts) == 3
    assert len(killed) == 3
