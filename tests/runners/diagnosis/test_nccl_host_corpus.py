"""What real ranks on NCCL's own host code printed (tests/corpus/nccl_host), and the verdict that it must lead to.

The rig that printed it is tests/rigs/nccl_host; `make test-nccl` runs it again.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from each import for_each

TESTS = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TESTS / "rigs"))

from nccl_host.build import VERSIONS  # noqa: E402
from nccl_host.scenarios import SCENARIOS, Scenario  # noqa: E402
from nccl_host.table import in_document, text  # noqa: E402
from nccl_host.verdicts import of_folder, wrong  # noqa: E402

CORPUS = TESTS / "corpus" / "nccl_host"
HOST = re.compile(r"(?:^|\] )([\w.-]+):\d+:\d+ \[")
FOLDER = re.compile(r"(?<![\w.])/(?!job/|sys/)\w+/[\w./-]+")


@for_each("scenario", SCENARIOS)
@for_each("version", VERSIONS)
def test_real_lines_lead_to_the_verdict(version: str, scenario: Scenario) -> None:
    assert wrong(scenario, of_folder(CORPUS / version / scenario.name)) == ""


def test_the_corpus_has_every_scenario_of_every_version_and_no_other() -> None:
    there = {path.relative_to(CORPUS).as_posix() for path in CORPUS.glob("*/*")}
    assert there == {f"{version}/{scenario.name}" for version in VERSIONS for scenario in SCENARIOS}


def test_the_table_of_the_documentation_is_that_of_the_corpus() -> None:
    assert in_document() == text(), "write it anew: python -m tests.rigs.nccl_host table"


def test_the_corpus_names_no_machine() -> None:
    for path in CORPUS.rglob("rank*.log"):
        lines = path.read_text().splitlines()
        assert {host for line in lines for host in HOST.findall(line)} <= {"gpu-a", "gpu-b", "gpu-c"}, path
        assert not [line for line in lines if FOLDER.search(line)], path
