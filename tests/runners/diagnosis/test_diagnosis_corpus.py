"""101 logs of real jobs, NCCL 2.3 to 2.32: each leads to the rules that it should, and to no cause beside them."""

from __future__ import annotations

import json
from pathlib import Path

from each import for_each

from distui.runners.diagnosis.first_cause import judge
from distui.runners.diagnosis.read_logs import read_all
from distui.runners.diagnosis.reading import Reading

CORPUS = Path(__file__).parent / "corpus"
LOGS = sorted(CORPUS.glob("*.log"))


def test_the_corpus_is_there() -> None:
    assert len(LOGS) == 101


@for_each("log", LOGS)
def test_a_log_leads_to_its_rules_and_to_no_other_cause(log: Path) -> None:
    expected = set(json.loads(log.with_suffix(".json").read_text("utf-8"))["expect_rules"])
    verdict = judge(read_all([(str(log), log)]))
    found = {one.id: one for one in verdict.findings}
    assert expected <= set(found)
    assert {one.id for one in verdict.findings if one.role == "cause"} <= expected
    for one in verdict.findings:
        assert one.count > 0
        first = one.lines[0]
        assert first.file == str(log)
        raw = log.read_text("utf-8", "replace").splitlines()[first.line - 1]
        assert first.text[:40].strip() in raw


@for_each(
    ("log", "first"),
    [
        ("002", "cuda-oom"),
        ("028", "ib-port-error"),
        ("030", "ib-async-fatal"),
        ("058", "shm-nospace"),
        ("071", "sock-op-in-progress"),
        ("072", "sock-refused-retry"),
        ("114", "dup-gpu"),
        ("own-2.32.3", "cuda-driver-old"),
    ],
)
def test_the_first_cause(log: str, first: str) -> None:
    verdict = judge(read_all([(str(CORPUS / f"{log}.log"), CORPUS / f"{log}.log")]))
    assert verdict.first is not None
    assert (verdict.first.id, verdict.order) == (first, "lines")
    assert verdict.findings[0] is verdict.first


@for_each(("log", "failed"), [("050", False), ("048", False), ("074", True)])
def test_without_a_cause_nothing_is_called_one(log: str, failed: bool) -> None:
    verdict = judge(read_all([(str(CORPUS / f"{log}.log"), CORPUS / f"{log}.log")]))
    assert [each.id for each in verdict.findings if each.role == "cause"] == []
    assert verdict.failed == failed


def test_line_by_line_is_the_same_as_at_once() -> None:
    whole = read_all((str(log), log) for log in LOGS)
    single = Reading()
    for log in LOGS:
        single.open(str(log))
        lines = log.read_text("utf-8", "replace").split("\n")
        single.learn(lines)
        for line in lines:
            single.feed([line])
    assert judge(single) == judge(whole)
