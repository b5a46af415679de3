"""Commands in findings: they name the run, and can be copied."""

from __future__ import annotations

import pytest
from each import for_each

from distui.presets.finding import Finding
from distui.runners.diagnosis import detectors
from distui.runners.diagnosis.remedy_commands import command_of, with_run
from distui.runners.diagnosis.view import View
from distui.runners.run.model import Event, FindingRaised
from distui.runners.run.state import RunState

STUCK = Finding(
    "hang-lock",
    "error",
    "rank 1 is blocked",
    remedy="press w (in a shell: `distui dump RUN stacks`)",
    evidence=("`distui dump RUN stacks` asks again", "RUN=1 is set"),
)


def test_a_raised_finding_names_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(view: View) -> list[Finding]:
        return [STUCK]

    monkeypatch.setattr(detectors, "DETECTORS", (find,))
    told: list[Event] = []
    detectors.Judging(RunState(name="night"), None, told.append).judge(100.0)
    (raised,) = told
    assert isinstance(raised, FindingRaised)
    assert raised.finding.remedy == "press w (in a shell: `distui dump night stacks`)"
    assert raised.finding.evidence == ("`distui dump night stacks` asks again", "RUN=1 is set")


def test_without_a_name_the_placeholder_stays() -> None:
    assert with_run(STUCK, "") == STUCK


@for_each(
    "remedy, command",
    [
        ("press w (in a shell: `distui dump night stacks`)", "distui dump night stacks"),
        ("for SIGKILL see that node's kernel log (`dmesg -T | grep -i kill`)", "dmesg -T | grep -i kill"),
        ("read the lines up to and after `Last error:`", ""),
        ("set `parameter.grad = None` or call `empty_cache`", ""),
        ("pass `--restarts 3`, then type `distui rerun night`", "distui rerun night"),
        ("", ""),
    ],
)
def test_the_command_of_a_remedy(remedy: str, command: str) -> None:
    assert command_of(remedy) == command
