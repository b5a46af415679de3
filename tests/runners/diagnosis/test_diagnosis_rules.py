"""rules.toml: every rule fires on its line and not on its neighbour, and is found through its needles."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from each import for_each

from distui.runners.diagnosis.reading import Reading
from distui.runners.diagnosis.rules import Rule, book, parse, parse_version

LINES = {
    name: (table["fires"], table["spares"])
    for name, table in tomllib.loads((Path(__file__).parent / "lines.toml").read_text("utf-8")).items()
}
DERIVED = {"p2p-hang", "gdr-asymmetric", "net-socket-fallback"}
RULES = book().rules


def fired(*lines: str) -> dict[str, int]:
    reading = Reading()
    reading.open("a.log")
    reading.feed(lines)
    return {entry.rule.id: entry.count for entry in reading.tally.entries if entry.count}


def test_there_are_all_rules_once() -> None:
    assert len(RULES) == len({rule.id for rule in RULES}) == 162
    assert {rule.id for rule in RULES if rule.pattern is None} == DERIVED
    assert set(LINES) == {rule.id for rule in RULES} - DERIVED


@for_each("rule", [rule for rule in RULES if rule.pattern])
def test_a_rule_fires_on_its_line_and_not_on_its_neighbour(rule: Rule) -> None:
    line, neighbour = LINES[rule.id]
    assert fired(line).get(rule.id) == 1
    assert rule.id not in fired(neighbour)


@for_each("rule", [rule for rule in RULES if rule.pattern])
def test_a_line_without_its_head_says_the_same(rule: Rule) -> None:
    """Below torch's report NCCL's message stands alone; what names its source file needs the head."""
    message = LINES[rule.id][0].partition("NCCL WARN ")[2]
    if message and rule.id not in ("cuda-failure", "nvls-invalid-arg"):
        report = [
            LINES["pt-nccl-error"][0].replace("2.21.5", "2.30.7"),
            "ncclInternalError: Internal check failed.",
            "Last error:",
            message,
        ]
        assert fired(*report).get(rule.id) == 1
        assert fired(message).get(rule.id) == (None if rule.marked else 1)


def test_what_others_write_too_is_not_taken_for_nccl() -> None:
    lines = ["ALSA: Unable to open device default", "connect to redis failed", "json: invalid type 3"]
    assert fired(*lines) == {}
    assert set(fired(*(f"h:1:2 [0] NCCL WARN {line}" for line in lines))) == {
        "ib-open-device", "sock-connect-failed", "invalid-usage",
    }  # fmt: skip
    far = [LINES["pt-nccl-error"][0], *["a line of something else"] * 64, lines[0]]
    assert set(fired(*far)) == {"pt-nccl-error"}


@for_each("rule", RULES)
def test_every_text_is_a_sentence(rule: Rule) -> None:
    assert rule.text.endswith(".")
    assert rule.remedy.endswith(".") or (
        not rule.remedy and rule.role in ("fact", "noise", "trace", "symptom")
    )
    assert all(name.isupper() and value for name, value in rule.env.items())
    assert set(rule.unless) <= {one.id for one in RULES}


def test_many_rules_in_one_line() -> None:
    line = f"{LINES['sock-connect-failed'][0]} : Connection closed by remote peer, Too many open files"
    assert set(fired(line)) == {"sock-connect-failed", "sock-closed-by-peer", "too-many-files"}
    both = (
        "NCCL WARN Error while creating shared memory segment /x (size 9), error: No space left on device"
    )
    assert set(fired(both)) == {"shm-nospace", "shm-segment"}


def test_the_same_rule_counts_each_line() -> None:
    assert fired(*[LINES["ib-port-error"][0]] * 5) == {"ib-port-error": 5}


def test_a_rule_of_a_later_version_says_nothing_of_an_earlier_one() -> None:
    line = LINES["version-mismatch"][0]
    assert "version-mismatch" in fired("NCCL version 2.23.4+cuda12.4", line)
    assert "version-mismatch" not in fired("NCCL version 2.21.5+cuda12.4", line)
    assert "version-mismatch" in fired(line)


def test_versions_and_their_ends() -> None:
    assert parse_version("2.21.5+cuda12.4") == (2, 21, 5)
    assert parse_version("none") == ()
    text = (
        '[[rule]]\nid="a"\nseverity="error"\nrole="cause"\nlayer="nccl"\nconfidence="low"\nneedles=["boom"]\n'
        'pattern=\'boom\'\nuntil="2.21"\ntext="A."\nremedy="B."\n'
    )
    rule = parse(text).rules[0]
    assert rule.holds_for((2, 21, 5))
    assert not rule.holds_for((2, 22, 3))


def test_a_rule_of_no_role_is_refused() -> None:
    with pytest.raises(ValueError, match="rule a: no such role"):
        parse(
            '[[rule]]\nid="a"\nseverity="error"\nrole="culprit"\ntext=""\nremedy=""\nlayer=""\nconfidence=""\n'
        )


def test_a_topology_file_is_a_fact_where_a_graph_file_is_a_cause(tmp_path: Path) -> None:
    from distui.runners.diagnosis.first_cause import judge
    from distui.runners.diagnosis.read_logs import read_all

    for name, role in (("TOPO_FILE", "fact"), ("GRAPH_FILE", "cause")):
        path = tmp_path / name
        path.write_text(f"h:1:1 [0] NCCL INFO NCCL_{name} set by environment to /etc/x.xml\n")
        found = {one.id: one.role for one in judge(read_all([(str(path), path)])).findings}
        assert found == {"topo-file-env": role, "env-set": "fact"}


def test_the_corpus_names_rules_that_are_there() -> None:
    corpus = Path(__file__).parent / "corpus"
    named = {
        name for path in corpus.glob("*.json") for name in json.loads(path.read_text())["expect_rules"]
    }
    assert named <= {rule.id for rule in RULES} | {"rank-absent", "unexplained"}
    assert len(named) > 45


@for_each(
    "said",
    [
        "Got async event : port error",
        "Got async error event: port error",
        "Got non-fatal async event: port error(10)",
    ],
)
def test_a_port_that_goes_down_is_told_in_the_words_of_each_version(said: str) -> None:
    line = f"node3:811:860 [2] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_0:1 {said}"
    first = book().needle(line)
    assert first is not None
    assert [rule.id for rule, _ in book().fired(line, first)] == ["ib-port-error"]
