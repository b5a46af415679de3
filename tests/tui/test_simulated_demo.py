"""`distui demo` without options: a simulated run, whose faults the real detectors find within a minute."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

import pytest
from conftest import Rig, shown

from distui.runners.run import clock
from distui.runners.watch.simulated_link import RUN
from distui.runners.watch.simulated_training import Faults
from distui.tui.app import CockpitApp
from distui.tui.cli import main
from distui.tui.simulated_source import SimulatedSource
from distui.tui.verbs import demo as verb
from distui.tui.verbs import demo_launch


def simulated(tmp_path: Path, faults: Faults) -> Rig:
    """Return a cockpit on the simulated run."""
    made = Rig(tmp_path / "run", SimulatedSource(faults))  # type: ignore[arg-type]
    made.app = CockpitApp(made.source, RUN, keys=tmp_path / "keys.toml")
    return made


@pytest.fixture
def demo(tmp_path: Path) -> Rig:
    return simulated(tmp_path, Faults())


async def test_three_faults_are_found_within_a_minute_and_a_line_leads_to_them(demo: Rig) -> None:
    async with shown(demo, 120, 40) as it:
        began = clock.now()
        await it.until(lambda: "RUNNING" in it.screen())
        assert "demo (simulated)" in it.screen().splitlines()[0]
        await it.until(lambda: "simulated  16 ranks train on 2 nodes. press 2" in it.screen())
        await it.press("2")
        await asyncio.sleep(9)
        await it.until(lambda: "two faults are found already. press 6" in it.screen())
        await it.press("6")
        await it.until(lambda: "rank 11" in it.screen() and "thermal throttling" in it.screen())
        assert "a hot GPU costs 30 % of each step. press 5" in it.screen()
        await it.press("5")
        await it.until(lambda: "TCP, although there is RDMA" in it.screen())
        await it.press("1")
        await asyncio.sleep(30)
        await it.until(lambda: "one rank holds up 15. press w" in it.screen())
        assert clock.now() - began < 60
        await it.press("6")
        await it.until(lambda: "checkpoint.py:47 wait_for_upload" in it.screen())
        await it.press("w")
        await it.until(
            lambda: "checkpoint.py:47 wait_for_upload" in it.screen() and "all_reduce" in it.screen()
        )
        await it.press("escape", "r", "y")
        await it.until(lambda: "simulated  restarted in place" in it.screen())
        await it.until(lambda: it.run.state.attempt == 2 and it.run.state.ranks[0].sample.step)  # type: ignore[union-attr]


async def test_only_the_hang_is_named_ten_seconds_later_and_a_restart_resumes(tmp_path: Path) -> None:
    """The timeline of the README's recording."""
    demo = simulated(tmp_path, Faults(4.0, hot_gpu=False, tcp=False))
    async with shown(demo, 120, 36) as it:
        began = clock.now()
        await it.until(lambda: "wait: soon one of them hangs" in it.screen())
        await it.until(
            lambda: "rank 5 on sim-1 waits for an event or a condition at checkpoint.py:47" in it.screen()
        )
        assert 13 < clock.now() - began < 16
        assert [finding.rank for finding in it.run.state.findings.values()] == [5]
        await it.press("r")
        await it.until(lambda: "since the checkpoint at step 5" in it.screen())
        await it.press("y", "4")
        await it.until(lambda: "attempt 2" in it.screen() and "ms/step" in it.screen())
        resumed = it.run.state.training[0].step
        assert resumed is not None
        assert 5 < resumed < 10
        assert clock.now() - began < 20


async def test_the_simulation_says_what_it_cannot_do_and_leaves_nothing(
    demo: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with shown(demo, 120, 40) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.until(lambda: it.run.state.ranks[0].sample)
        await it.press("P")
        await it.until(lambda: "y profile" in it.screen())
        await it.press("y")
        await it.until(lambda: "nly a real run can do this" in it.told())
        await it.press("x")
        await it.until(lambda: "y stop" in it.screen())
        await it.press("y")
        await it.until(lambda: "the demo has ended" in it.screen())
    assert list(tmp_path.glob("distui-demo-*")) == []


def test_an_option_of_a_training_and_a_pipe_train_for_real(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal there is no cockpit to simulate in."""
    trained: list[tuple[str, int]] = []

    def train(options: argparse.Namespace) -> int:
        trained.append((options.nproc_per_node, options.steps))
        return 0

    monkeypatch.setattr(demo_launch, "start_demo", train)
    assert main(["demo"]) == 0
    monkeypatch.setattr(verb, "interactive", lambda: True)
    for words in (["--real"], ["--hang"], ["--steps", "7"], ["--nproc-per-node", "4"], ["--detach"]):
        assert main(["demo", *words]) == 0
    assert trained == [("2", 2000), ("2", 2000), ("2", 2000), ("2", 7), ("4", 2000), ("2", 2000)]


def test_what_only_the_simulation_has_is_refused_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--hang-after", "4"], ["--hang-after", "4", "--real"]):
        assert main(["demo", *words]) == 2
        assert "--hang-after is for the simulation, which needs a terminal" in capsys.readouterr().err
