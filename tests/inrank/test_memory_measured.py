"""The memory estimate beside what real ranks allocate for the shipped model."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest
from measuring import LONG, MB, PARTS, SHORT, Case, Row

ERROR = 0.15
"""What an estimate may be off by."""
DOCS = Path(__file__).parents[2] / "docs/presets.md"
LINE = re.compile(r"^\| ([^|]+?) \|((?: [\d.na/]+ / [\d.]+ \|){5}) [+-][\d.]+ % \|$", re.MULTILINE)

ranks = pytest.mark.usefixtures("glibc")


@pytest.fixture
def glibc() -> None:
    """The C library counts the bytes."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("only glibc says how much was mapped at most")


def check(case: Case, folder: Path) -> None:
    """Components and peak of the fullest rank."""
    expected, row = case.estimate(), Row(case=case, ranks=case.measure(folder))
    assert len(row.ranks) == case.ranks
    for part, estimated in PARTS.items():
        if case.whole:
            assert getattr(expected, estimated) == pytest.approx(row.most(part), rel=ERROR), part
    assert expected.total == pytest.approx(row.most("total"), rel=ERROR)


@pytest.mark.long
@pytest.mark.torch
@ranks
@pytest.mark.parametrize("case", SHORT, ids=lambda case: case.name)
def test_the_estimate_is_what_ranks_allocate(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.torch
@pytest.mark.long
@ranks
@pytest.mark.parametrize("case", LONG, ids=lambda case: case.name)
def test_so_it_is_with_other_presets_and_options(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_the_documentation_shows_these_estimates() -> None:
    """The table was measured once; what it says of the estimate must be what is estimated now, and near enough."""
    shown = {found[1]: found[2].strip(" |").split(" | ") for found in LINE.finditer(DOCS.read_text())}
    assert set(shown) == {case.name for case in (*SHORT, *LONG)}
    for case in (*SHORT, *LONG):
        one = case.estimate()
        estimates = [*(getattr(one, name) for name in PARTS.values()), one.total]
        for cell, estimated in zip(shown[case.name], estimates, strict=True):
            measured, _, said = cell.rpartition(" / ")
            assert said == f"{estimated / MB:.1f}"
            assert measured == "n/a" or float(said) == pytest.approx(float(measured), rel=ERROR)
