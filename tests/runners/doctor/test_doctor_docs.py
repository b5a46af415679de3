"""docs/doctor.md lists every id that the code has, and no other; severities are those that are seen in tests."""

from __future__ import annotations

import re
from pathlib import Path

from distui.runners.doctor.difference_checks import DIFFERENCES
from distui.runners.doctor.pair_checks import LINK, NODE

from .test_doctor_checks import CASES

ROOT = Path(__file__).resolve().parents[3]
ROW = re.compile(r"^\| `(D-[A-Z0-9-]+)` \| ([a-z, ]+) \| [^|]+ \|$")


def listed() -> dict[str, set[str]]:
    """Id → severities, from the table."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / "docs/doctor.md").read_text().splitlines():
        if line.startswith("| `"):
            row = ROW.match(line)
            assert row is not None, line
            assert row[1] not in found, f"{row[1]} is listed twice"
            found[row[1]] = set(row[2].split(", "))
    return found


def test_the_table_and_the_code_agree() -> None:
    sources = [path.read_text() for path in (ROOT / "runners/doctor").rglob("*.py")]
    written = {id_ for text in sources for id_ in re.findall(r'"(D-[A-Z0-9-]+)"', text)}
    assert len(written) > 60
    assert set(listed()) == written


def test_severities_are_as_listed() -> None:
    table = listed()
    seen = [(id_, severity) for _, id_, severity, _ in CASES]
    seen += [(row.id, row.severity) for row in DIFFERENCES]
    seen += [*NODE.values(), *LINK.values()]
    assert [one for one in seen if one[1] not in table[one[0]]] == []
    for id_ in {id_ for _, id_, _, _ in CASES}:
        assert table[id_] == {severity for other, severity in seen if other == id_}, id_
