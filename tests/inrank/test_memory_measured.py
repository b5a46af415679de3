"""The memory estimate beside what real ranks allocate for the shipped model."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest
from measuring import CASES, MB, PARTS, Case, Row

ERROR = 0.15
"""What an estimate may be off by."""
DOCS = Path(__file__).parents[2] / "docs/development/verification.md"
LINE = re.compile(r"^\| ([^|]+?) \| ([\d.]+)/([\d.]+) \| [+-][\d.]+ % \|$", re.MULTILINE)


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc reports the most that was mapped")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_estimate_is_what_ranks_allocate(case: Case, tmp_path: Path) -> None:
    """Components and peak of the fullest rank."""
    expected, row = case.estimate(), Row(case=case, ranks=case.measure(tmp_path))
    assert len(row.ranks) == case.ranks
    for part, estimated in PARTS.items():
        if case.whole:
            assert getattr(expected, estimated) == pytest.approx(row.most(part), rel=ERROR), part
    assert expected.total == pytest.approx(row.most("total"), rel=ERROR)


def test_the_documentation_shows_these_estimates() -> None:
    """The table was measured once; what it says of the estimate must be what is estimated now, and near enough."""
    shown = {found[1]: (found[2], found[3]) for found in LINE.finditer(DOCS.read_text())}
    assert set(shown) == {case.name for case in CASES}
    for case in CASES:
        measured, estimated = shown[case.name]
        assert estimated == f"{case.estimate().total / MB:.1f}"
        assert float(estimated) == pytest.approx(float(measured), rel=ERROR)
