"""The runner under torch's launcher: odd moments for a stop or a restart, and ranks that end oddly."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distui.presets.model import RestartPolicy
from distui.runners.model import AttemptStarted, RestartDelayed, Stop
from distui.runners.state import RunState

from .inrank_rig import Driven, driven, eventually, launch

pytestmark = pytest.mark.torch

WAITS = "import time\nwhile True: time.sleep(60)\n"


@pytest.fixture
def script(own_directories: Path) -> Path:
    """A place for a script."""
    return own_directories / "script.py"


def identity(run: Driven) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.path / "runner.json").read_text())
    return found


def no_traceback(run: Driven) -> None:
    log = (run.path / "runner.log").read_text()
    assert "Traceback" not in log, log


def running(state: RunState) -> bool:
    return str(state.phase) == "running"


@pytest.mark.long
async def test_a_signal_while_torch_is_imported_ends_the_run_as_stopped(script: Path) -> None:
    script.write_text(WAITS)
    async with driven(launch(script)) as run:
        who = identity(run)
        eventually(lambda: Path(who["socket"]).exists())
        assert run.state.torch is None, "torch was imported before the signal could come"
        os.kill(who["pid"], signal.SIGTERM)
        await run.until(lambda s: s.phase.ended)
        assert (run.state.phase, run.state.end_text) == ("stopped", "stopped by SIGTERM")
        no_traceback(run)


@pytest.mark.long
async def test_a_stop_while_torch_is_imported_needs_no_grace(script: Path) -> None:
    script.write_text(WAITS)
    for _ in range(5):  # where this process is kept waiting, torch may be imported before the stop comes
        async with driven(launch(script)) as run:
            done = await run.link.send(Stop("s", grace_s=600.0))
            assert done.ok
            await run.until(lambda s: s.phase.ended)
            assert run.state.phase == "stopped"
            no_traceback(run)
            if not run.state.attempts:
                break
    assert run.state.attempts == []


@pytest.mark.real
async def test_a_signal_to_the_running_runner_ends_its_ranks_as_stopped(script: Path) -> None:
    script.write_text(WAITS)
    async with driven(launch(script)) as run:
        await run.until(running)
        await run.hooked()
        os.kill(identity(run)["pid"], signal.SIGTERM)
        await run.until(lambda s: s.phase.ended)
        assert (run.state.phase, run.state.end_text) == ("stopped", "stopped by SIGTERM")
        assert {state for rank in (0, 1) for _, state, _ in run.changes(rank)} == {"running", "stopped"}
        no_traceback(run)


@pytest.mark.real
async def test_restarts_while_the_ranks_come_up_are_no_failures(script: Path) -> None:
    script.write_text(WAITS)
    async with driven(launch(script)) as run:
        await run.until(lambda s: s.ranks)
        assert (await run.restart(N="1")).ok
        assert (await run.restart(N="2")).ok
        await run.hooked()
        started = [e.event for e in run.events if isinstance(e.event, AttemptStarted)]
        assert [(e.attempt, e.cause, e.env_diff) for e in started] == [
            (1, "launch", {}),
            (2, "restart", {"N": "1"}),
            (3, "restart", {"N": "2"}),
        ]
        assert {e.failures for e in started} == {0}
        ended = {(attempt, state) for rank in (0, 1) for attempt, state, _ in run.changes(rank)}
        assert {state for attempt, state in ended if attempt < 3} == {"running", "stopped"}
        assert [str(a.outcome) for a in run.state.attempts[:2]] == ["restarted", "restarted"]


@pytest.mark.real
async def test_a_restart_ends_the_waiting_after_a_failure(script: Path) -> None:
    script.write_text(
        "import os\nif os.environ['RANK'] == '1' and 'GO' not in os.environ: os._exit(3)\n" + WAITS
    )
    plan, record = launch(script)
    patient = RestartPolicy(limit=3, backoff_s=600.0, backoff_max_s=600.0, reset_after_s=600.0)
    async with driven((replace(plan, restart=patient), record)) as run:
        await run.until(lambda s: s.delay)
        assert (await run.restart(GO="1")).ok
        await run.until(lambda s: s.attempt == 2 and running(s))
        first, second = run.state.attempts
        assert first.first_cause is not None
        assert (first.first_cause.rank, first.first_cause.exit_code) == (1, 3)
        assert (second.cause, second.env_diff) == ("restart", {"GO": "1"})
        assert run.changes(0)[1][1] == "stopped"


@pytest.mark.long
async def test_a_stop_ends_the_waiting_after_a_failure(script: Path) -> None:
    script.write_text("raise SystemExit(3)\n")
    plan, record = launch(script)
    patient = RestartPolicy(limit=3, backoff_s=600.0, backoff_max_s=600.0, reset_after_s=600.0)
    async with driven((replace(plan, restart=patient), record)) as run:
        await run.until(lambda s: s.delay)
        assert (await run.link.send(Stop("s"))).ok
        await run.until(lambda s: s.phase.ended)
        assert run.state.phase == "stopped"
        no_traceback(run)


@pytest.mark.long
async def test_ranks_that_end_at_once_count_as_failures_of_the_policy(own_directories: Path) -> None:
    program = own_directories / "ends"
    program.write_text("#!/bin/sh\nexit $((3 + LOCAL_RANK))\n")
    program.chmod(0o755)
    plan, record = launch(program, no_python=True)
    quick = RestartPolicy(limit=1, backoff_s=0.1, backoff_max_s=0.1, reset_after_s=600.0)
    async with driven((replace(plan, restart=quick), record)) as run:
        await run.until(lambda s: s.phase.ended)
        assert run.state.phase == "failed"
        assert "gave up: the restart policy allows 1 failures, this was number 2" in run.state.end_text
        assert len([e for e in run.events if isinstance(e.event, RestartDelayed)]) == 1
        for rank in (0, 1):
            codes = [(attempt, state, code) for attempt, state, code in run.changes(rank) if code]
            assert codes == [(1, "failed", 3 + rank), (2, "failed", 3 + rank)]
        no_traceback(run)


@pytest.mark.long
async def test_a_rank_may_end_well_before_the_others(script: Path, own_directories: Path) -> None:
    script.write_text(
        "import os, sys, time\n"
        "while os.environ['RANK'] == '1' and not os.path.exists(sys.argv[1]): time.sleep(0.02)\n"
    )
    async with driven(launch(script, str(own_directories / "go"))) as run:
        await run.until(lambda s: [str(r.phase) for r in s.ranks.values()] == ["succeeded", "running"])
        assert running(run.state)
        (own_directories / "go").touch()
        await run.until(lambda s: s.phase.ended)
        assert (run.state.phase, run.state.exit_code) == ("succeeded", 0)
        assert [str(rank.phase) for rank in run.state.ranks.values()] == ["succeeded", "succeeded"]


@pytest.mark.long
async def test_a_program_that_cannot_be_executed_is_one_sentence(own_directories: Path) -> None:
    program = own_directories / "broken"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    async with driven(launch(program, no_python=True)) as run:
        await run.until(lambda s: s.phase.ended)
        assert run.state.phase == "failed"
        assert "No such file or directory" in run.state.end_text
        assert "broken" in run.state.end_text


@pytest.mark.long
async def test_arguments_that_the_launcher_refuses_are_one_sentence(script: Path) -> None:
    script.write_text(WAITS)
    plan, record = launch(script)
    async with driven((replace(plan, argv=("--no-such-option", *plan.argv)), record)) as run:
        await run.until(lambda s: s.phase.ended)
        assert run.state.phase == "failed"
        assert run.state.end_text.startswith("torchrun refused the arguments: ")
        assert "\n" not in run.state.end_text
        no_traceback(run)


@pytest.mark.long
async def test_a_python_without_torch_is_one_sentence(script: Path, own_directories: Path) -> None:
    (own_directories / "hides").mkdir()
    (own_directories / "hides" / "torch.py").write_text(
        "raise ImportError('libcudart.so.12: cannot open')\n"
    )
    script.write_text(WAITS)
    planned = launch(script, env={"PYTHONPATH": str(own_directories / "hides")})
    async with driven(planned) as run:
        await run.until(lambda s: s.phase.ended)
        assert run.state.end_text == (
            f"no usable torch in {sys.executable}: ImportError: libcudart.so.12: cannot open"
        )
