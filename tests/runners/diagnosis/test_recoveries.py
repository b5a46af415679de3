"""Trouble that a job survives is no first cause. The same trouble at the end of a job is one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from each import for_each

from distui.runners.diagnosis.first_cause import Verdict, judge
from distui.runners.diagnosis.read_logs import read_all
from distui.tui.verbs.diagnose import text

PAIRS = tomllib.loads((Path(__file__).parent / "recoveries.toml").read_text("utf-8"))


def told(folder: Path, log: str) -> tuple[Verdict, str]:
    """The verdict on a log, and its headline with the evidence."""
    path = folder / "train.log"
    path.write_text(log, "utf-8")
    reading = read_all([(path.name, path)])
    verdict = judge(reading)
    return verdict, "\n".join(text(reading, verdict)[:3])


@for_each("name", PAIRS)
def test_a_job_that_recovers_has_no_first_cause(name: str, tmp_path: Path) -> None:
    verdict, head = told(tmp_path, PAIRS[name]["before"] + PAIRS[name]["recovers"])
    assert not verdict.failed
    assert not head.startswith("First cause")


@for_each("name", PAIRS)
def test_a_job_that_does_not_recover_has_one(name: str, tmp_path: Path) -> None:
    verdict, head = told(tmp_path, PAIRS[name]["before"] + PAIRS[name]["fails"])
    assert verdict.failed
    assert re.search(PAIRS[name]["names"], head.lower())
