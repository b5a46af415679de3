"""Ranks on NCCL's own host code, broken in every way that the rig can: the verdict, and that the corpus is still true.

Without NCCL's source (DISTUI_NCCL_SOURCES) these are skipped; tests/runners/diagnosis/test_nccl_host_corpus.py judges
what the rig captured on every machine.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from nccl_host.build import VERSIONS, Built, MissingError, built
from nccl_host.conductor import World
from nccl_host.scenarios import CALLS, OTHER, SCENARIOS, Scenario
from nccl_host.trimming import shape
from nccl_host.verdicts import of_folder, wrong

from distui.runners.agent import ras_watch
from distui.runners.diagnosis import ras

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
CORPUS = Path(__file__).resolve().parents[1] / "corpus" / "nccl_host"


def library(version: str) -> Built:
    """The built version; the test is skipped where it cannot be had."""
    try:
        return built(version)
    except MissingError as problem:
        pytest.skip(str(problem))


def ran(scenario: Scenario, version: str, folder: Path) -> Path:
    """The folder with the logs of a run."""
    needed = (version, OTHER[version]) if scenario.mixed else (version,)
    scenario.run({each: library(each) for each in needed}, version, folder)
    return folder


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_logs_of_real_ranks_lead_to_the_verdict(
    version: str, scenario: Scenario, tmp_path: Path
) -> None:
    folder = ran(scenario, version, tmp_path)
    assert wrong(scenario, of_folder(folder)) == ""
    if not scenario.mixed:
        assert warned(CORPUS / version / scenario.name) == warned(folder)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_question_to_ras_is_answered_while_one_of_those_that_share_the_port_is_stopped(
    version: str, tmp_path: Path
) -> None:
    """The kernel gives every third connection to the stopped rank."""

    def steps(world: World) -> None:
        world.meet()
        world.do(CALLS)
        world.signal(signal.SIGSTOP, 2)
        port = int((tmp_path / "port").read_text())
        for _ in range(4):
            report = asyncio.run(ras_watch.ask(port))
            assert 2 in {
                peer.rank for peer in ras.missing(report)
            }  # on a busy machine others may be late, too
        world.signal(signal.SIGCONT, 2)
        world.well("end")

    (scenario,) = (each for each in SCENARIOS if each.name == "ras-incomplete")
    ran(replace(scenario, steps=steps), version, tmp_path)


def warned(folder: Path) -> set[str]:
    """The shapes of what NCCL warned of, in any order: which rank is the first to say so is chance."""
    lines = [
        line for log in folder.glob("rank*.log") for line in log.read_text("utf-8", "replace").splitlines()
    ]
    return {shape(line.partition("NCCL WARN ")[2]) for line in lines if "NCCL WARN " in line}
