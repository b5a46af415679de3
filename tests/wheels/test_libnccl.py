"""Rules and grammar against real libraries of NCCL, whose texts change with each version and stand in no document."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from distui.runners.diagnosis.first_cause import judge
from distui.runners.diagnosis.heads import MARK
from distui.runners.diagnosis.read_logs import read_all
from distui.runners.diagnosis.reading import Reading
from distui.runners.diagnosis.rules import Rule, book

VERSIONS = ["2.18.1", "2.21.5", "2.24.3", "2.26.2", "2.27.5", "2.28.9", "2.29.7", "2.30.7", "2.32.3"]
LIVE_SINCE = (2, 24)
CALLS = Path(__file__).with_name("calls.py")
TABLE = tomllib.loads(Path(__file__).with_name("formats.toml").read_text())
WITHOUT_GPU = {
    "cuda-driver-old",
    "invalid-usage",
    "env-set",
    "plugin-missing",
    "ib-none",
    "cuda-failure",
    "error-trace",
}
"""What NCCL says on a machine without a GPU, and does say rightly."""

pytestmark = pytest.mark.long


def said(library: Path, log: Path) -> tuple[tuple[int, ...], bool]:
    """Have it speak into `log`; its version, and whether it can change its level while it runs."""
    env = {
        **os.environ,
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,BOOTSTRAP,COLL",
        "NCCL_DEBUG_FILE": str(log),
    }
    done = subprocess.run(
        [sys.executable, str(CALLS), str(library), str(log)],
        env=env,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    value, live = map(int, done.stdout.split())
    return (value // 10000, value // 100 % 100, value % 100), bool(live)


def texts(rule: Rule) -> list[bytes]:
    """Of which one must stand in the library."""
    known: list[str] = TABLE["formats"].get(rule.id, list(rule.needles))
    return [text.encode() for text in known]


@pytest.mark.parametrize("library", VERSIONS, indirect=True)
def test_rules_and_grammar_understand_a_library_whose_level_changes_while_it_runs(
    library: Path, tmp_path: Path
) -> None:
    log = tmp_path / "rank-0.nccl"
    version, live = said(library, log)
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        lost = [
            rule.id
            for rule in book().rules
            if rule.layer == "nccl"
            and rule.needles
            and rule.id not in TABLE["runtime"]["rules"]
            and rule.holds_for(version)
            and not any(content.find(text) >= 0 for text in texts(rule))
        ]
    assert lost == [], f"NCCL {version} has no text for these rules"

    # What it prints without a GPU is understood.
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    assert lines
    strange = [line for line in lines if not MARK.search(line)]
    assert strange == [], "lines of NCCL that the grammar does not know"
    reading = read_all([(str(log), log)])
    assert reading.nccl_lines == len(lines)
    verdict = judge(reading)
    found = {finding.id for finding in verdict.findings}
    assert found <= WITHOUT_GPU, "said of a machine that only lacks a GPU"
    assert verdict.first is not None
    assert verdict.first.id == "cuda-driver-old", version
    (node,) = reading.statements.nodes.values()
    assert node.bootstrap, "the interface of the bootstrap"

    assert live is (version >= LIVE_SINCE)
    if not live:
        return
    silent, again = (tmp_path / f"rank-0.nccl.{name}" for name in ("silent", "again"))
    assert not silent.exists() or silent.stat().st_size == 0
    tapped = Reading()
    tapped.open(again.name)
    tapped.feed(again.read_text(errors="replace").splitlines())
    assert tapped.nccl_lines >= 1
    assert " INFO " not in again.read_text(errors="replace")
