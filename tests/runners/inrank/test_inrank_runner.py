"""The runner under torch's launcher: odd moments for a stop or a restart, and ranks that end oddly."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from distui.presets.model import RestartPolicy
from distui.runners.run.model import AttemptStarted
from distui.runners.run.state import RunState

from .inrank_rig import Driven, driven, launch

pytestmark = pytest.mark.torch

WAITS = "import time\nwhile True: time.sleep(60)\n"


@pytest.fixture
def script(own_directories: Path) -> Path:
    """A place for a script."""
    return own_directories / "script.py"


def no_traceback(run: Driven) -> None:
    log = (run.path / "runner.log").read_text()
    assert "Traceback" not in log, log


def running(state: RunState) -> bool:
    return str(state.phase) == "running"


@pytest.mark.real
async def test_a_signal_to_the_running_runner_ends_its_ranks_as_stopped(script: Path) -> None:
    script.write_text(WAITS)
    async with driven(launch(script)) as run:
        await run.until(running)
        await run.hooked()
        os.kill(json.loads((run.path / "runner.json").read_text())["pid"], signal.SIGTERM)
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
async def test_what_starts_no_rank_fails_in_one_sentence(script: Path, own_directories: Path) -> None:
    script.write_text(WAITS)
    broken = own_directories / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    hides = own_directories / "hides"
    hides.mkdir()
    (hides / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open')\n")
    plan, record = launch(script)
    for planned, words in (
        (launch(broken, no_python=True), "No such file or directory: "),
        (
            (replace(plan, argv=("--no-such-option", *plan.argv)), record),
            "torchrun refused the arguments: ",
        ),
        (
            launch(script, env={"PYTHONPATH": str(hides)}),
            f"no usable torch in {sys.executable}: ImportError: libcudart.so.12: cannot open",
        ),
    ):
        async with driven(planned) as run:
            await run.until(lambda s: s.phase.ended)
            assert run.state.phase == "failed"
            assert words in run.state.end_text
            assert "\n" not in run.state.end_text
            no_traceback(run)
