"""The memory estimate beside what real ranks allocate for ten small models."""

from __future__ import annotations

import itertools
import platform
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from measuring import ALL, CASES, ERROR, REASONS, Case, cell, measured

DOCS = Path(__file__).parents[2] / "docs/memory.md"
ROWS = [(row, list(cases)) for row, cases in itertools.groupby(CASES, key=lambda case: case.row)]


def compared(case: Case) -> set[str]:
    """Return the states whose estimate is what the parameters hold after a step."""
    parts = {"weights", "gradients", "optimizer"}
    if case.preset in ("fsdp1-grad-op", "fsdp2-zero2"):
        parts.remove("weights")  # they are whole only from forward to backward
    if case.preset.startswith("fsdp1") and case.model == "LoRA":
        parts -= {
            "gradients",
            "optimizer",
        }  # FSDP1's flat parameter holds frozen and trained numbers together
    return parts


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc reports the most that was mapped")
@pytest.mark.parametrize(("row", "cases"), ROWS, ids=[row for row, _ in ROWS])
def test_the_estimate_is_what_ranks_allocate(row: str, cases: Sequence[Case], tmp_path: Path) -> None:
    """The states and the peak of the fullest rank."""
    for found in measured(cases, tmp_path):
        assert not found.failure, found.failure
        estimate = found.case.estimate()
        for part in compared(found.case):
            assert getattr(estimate, part) == pytest.approx(found.most(part), rel=ERROR), (row, part)
        error = 2 * ERROR if row in REASONS else ERROR
        assert estimate.total == pytest.approx(found.most("total"), rel=error), (row, found.case.model)


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc reports the most that was mapped")
def test_the_measurement_is_what_is_counted_by_hand(tmp_path: Path) -> None:
    """Ten layers of 768 × 768 and one of 768 × 10, Adam's two copies of one matrix in its step, and the batch."""
    (found,) = measured([Case(model="MLP", ranks=1)], tmp_path)
    parameters = 10 * (768 * 768 + 768) + 768 * 10 + 10
    assert found.most("total") == pytest.approx(
        4 * (4 * parameters + 2 * 768 * 768 + 8 * 32 * 768), rel=0.02
    )


@pytest.mark.torch
def test_the_documentation_shows_these_estimates() -> None:
    """The table was measured once; its errors are those of today's estimates, and near enough."""
    text = DOCS.read_text()
    shown = dict(re.findall(r"^\| ([^|]+, \d ranks?) \| (.*) \|$", text, re.MULTILINE))
    assert [*shown] == [row for row, _ in ROWS]
    for row, cases in ROWS:
        cells = dict(zip(ALL, shown[row].split("|"), strict=True))
        for case in cases:
            peak, error, _ = cells.pop(case.model).split()
            assert f"{peak} {error} %" == cell(case, peak)
            assert abs(float(error)) <= 100 * ERROR or row in REASONS, (row, case.model)
        assert not "".join(cells.values()).strip()
    assert all(
        f"{row.partition(',')[0]}`: {why}." in " ".join(text.split()) for row, why in REASONS.items()
    )
