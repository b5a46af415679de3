"""Each row is one run of the real `distui`, from its launch to its stop; what passed goes into the table."""

from __future__ import annotations

import subprocess
import sys

import pytest
from e2e.runs import DISTUI, World

from . import environments, table
from .features import FEATURES, Trial
from .rows import ROWS, Row

pytestmark = [pytest.mark.torch, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_row(row: Row) -> None:
    seen = table.Seen()
    try:
        python = environments.prepared(row)
    except environments.NotHereError as missing:
        seen.missing = str(missing)
        table.record(row, seen)
        pytest.skip(seen.missing)
    seen.versions = environments.versions(python, row.shown)
    program = str(python.with_name("distui")) if row.holds_distui else DISTUI
    world = World(program)
    try:
        evidence = tried(Trial(row, world, sys.executable if row.holds_distui else str(python)), seen)
    finally:
        world.close()
    table.record(row, seen)
    assert not seen.wrong, f"{row.name}: {seen.wrong}\n{evidence}"


def tried(trial: Trial, seen: table.Seen) -> str:
    """Try every feature, also after one that failed; what helps to see why the first one did."""
    evidence = ""
    for name, feature in FEATURES.items():
        try:
            seen.features[name] = feature(trial) or table.PASSED
        except (AssertionError, OSError, subprocess.TimeoutExpired) as failed:
            seen.features[name] = f"wrong: {str(failed).strip().splitlines()[0]}"
            evidence = evidence or f"{failed}\n{_output(trial)}"
            if trial.run is None:
                break
    return evidence


def _output(trial: Trial) -> str:
    paths = sorted(trial.run.path.glob("node-0/attempt-*/*.err")) if trial.run else []
    return "".join(f"\n== {path.parent.name}/{path.name}\n{path.read_text()[-3000:]}" for path in paths)
