"""Times and numbers that none can be, in a bundle of somebody else: every verb has a text for them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from each import for_each

from distui.presets.finding import Finding
from distui.runners.reports.bundle_files import Manifest
from distui.runners.reports.bundle_writer import BundleWriter
from distui.runners.run.formatting import (
    NA,
    duration_exact,
    duration_short,
    duration_text,
    elapsed,
    size_short,
    size_text,
    step_short,
    step_text,
    usage_short,
)
from distui.runners.run.model import (
    AttemptStarted,
    Event,
    FindingRaised,
    PlanSummary,
    RankPlace,
    RunCreated,
    Stamped,
    TrainingTick,
)
from distui.runners.run.samples import TrainingSample
from distui.runners.telemetry.progress import rate_text
from distui.runners.telemetry.quantity_text import value_text
from distui.tui.cli import main

TOP = "20260101-000000-job-0a1b2c3d"
PLAN = {"run": TOP, "launcher": "torchrun", "cwd": "/", "argv": [], "env": {}}


def bundle(path: Path, created: float, ended: float | None, state: str, at: float = 1.79e9) -> Path:
    """A bundle of a run whose journal has no end. `at`: of its events."""
    record = {"run": TOP, "run8": "0a1b2c3d", "name": "job", "created": at, "host": "there"}
    sample = TrainingSample(0, at, step=7, loss=1e300, tokens_s=1e300, step_s=1e300, values={"own": 1e300})
    events: list[Event] = [
        RunCreated(TOP, "job", "there", PlanSummary("ddp", "ddp", "torchrun", "train.py")),
        AttemptStarted(1, "launch", 1, (RankPlace(0, 0, 0, None),), {}),
        FindingRaised(Finding("x", "warning", "odd", since=at)),
        TrainingTick((sample,)),
    ]
    lines = [
        msgspec.json.encode(Stamped(at + number, event, number)) for number, event in enumerate(events, 1)
    ]
    with BundleWriter(path, TOP, force=True) as writer:
        writer.add("run.json", msgspec.json.encode(record))
        writer.add("plan.json", msgspec.json.encode(PLAN))
        writer.add("journal.jsonl", b"\n".join(lines) + b"\n")
        writer.add(
            "status.json", msgspec.json.encode({"text": "", "exit_code": 1, "ended": ended, "ranks": []})
        )
        writer.add("node-0/attempt-001/rank-0.out", b"step 7\n")
        writer.finish(Manifest(1, "1.0", created, TOP, "job", state, False, list(writer.files), [], 0))
    return path


@for_each(
    "created, ended, state, at",
    [
        (1e300, None, "running", 1.79e9),
        (1.79e9, 1e300, "failed", 1.79e9),
        (-1e300, -1e300, "failed", 1.79e9),
        (1.79e9, None, "failed", 1e300),
    ],
)
def test_a_time_that_no_clock_shows_breaks_no_verb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], created: float, ended: Any, state: str, at: float
) -> None:
    path = str(bundle(tmp_path / "it.tar.gz", created, ended, state, at))
    for words in (
        ["status"],
        ["status", "--json"],
        ["logs"],
        ["logs", "--timestamps"],
        ["diagnose"],
        ["events"],
    ):
        assert main([words[0], path, *words[1:]]) in (0, 1), words
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        if "--json" not in words:
            assert not re.search(r"\d{40}", said.out), (words, said.out)


@for_each("value", [1e300, float("inf"), float("nan")])
def test_a_number_that_is_none_has_a_short_text(value: float) -> None:
    for text in (
        duration_exact,
        duration_short,
        duration_text,
        size_short,
        size_text,
        step_short,
        step_text,
    ):
        assert text(value) == NA, text
    assert usage_short(value, value) == NA
    assert elapsed(1.79e9, value) is None
    for unit in ("B", "B/s", "s", "%", "tokens/s"):
        assert len(value_text(value, unit)) < 20 if value == 1e300 else True
    assert len(rate_text(value)) < 12
