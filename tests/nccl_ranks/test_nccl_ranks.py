"""Ranks on NCCL's own host code, broken in every way that the rig can: the verdict, and that the corpus is still true.

Without NCCL's source (DISTUI_NCCL_SOURCES) these are skipped; tests/runners/diagnosis/test_nccl_host_corpus.py judges
what the rig captured on every machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from nccl_host.build import VERSIONS, Built, MissingError, built
from nccl_host.scenarios import OTHER, SCENARIOS, Scenario
from nccl_host.trimming import shape
from nccl_host.verdicts import of_folder, wrong

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


def warned(folder: Path) -> set[str]:
    """The shapes of what NCCL warned of, in any order: which rank is the first to say so is chance."""
    lines = [
        line for log in folder.glob("rank*.log") for line in log.read_text("utf-8", "replace").splitlines()
    ]
    return {shape(line.partition("NCCL WARN ")[2]) for line in lines if "NCCL WARN " in line}
