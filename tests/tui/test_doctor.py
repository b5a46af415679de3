"""`distui doctor`: what it prints of this machine and of made findings, and with which exit code."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from each import for_each

from distui.presets.finding import Finding
from distui.runners.doctor.examine import Examination
from distui.runners.doctor.examined_node import ExaminedNode
from distui.runners.doctor.pair_checks import Result
from distui.runners.reports.examination import document
from distui.tui.cli import main
from distui.tui.verbs.doctor import text

HERE = ["doctor", "--python", sys.executable]


def made() -> Examination:
    """Two of three nodes that answered, and a pair of them that did not come about."""
    facts = {
        "training": {"torch": "2.13.0", "cuda": "12.6", "nccl": "2.27.5", "python": "3.11.7"},
        "nvml": {"version": "570.1", "gpus": [{"name": "H100"}] * 8, "lost": []},
        "infiniband": [{"state": "ACTIVE", "gbps": 400.0}] * 8,
        "interfaces": [
            {"name": "eth0", "up": True, "loopback": False, "mtu": 9000, "addresses": ["10.0.0.1"]}
        ],
        "shm": {"total": 1 << 30, "free": 1 << 30},
    }
    return Examination(
        nodes=[ExaminedNode(name="a", facts=facts, ahead_s=0.0123), ExaminedNode(name="b", facts={})],
        findings=[
            Finding(id="D-SSH", severity="error", where="c", value="no", text="It cannot be reached: no."),
            Finding(
                id="D-X", severity="warning", where="a", value="7", text="Bad.\x1b[31m", remedy="Mend it."
            ),
            Finding(id="D-Y", severity="warning", where="", text="They differ."),
        ],
        members=["a", "b"],
        backend="nccl",
        rounds=([Result((0, 1), 1 << 24, problem="b, in the all-reduce: RuntimeError: x")], []),
    )


def test_findings_by_node_then_facts_then_pairs() -> None:
    lines = text(made(), ["a", "b", "c"])
    assert lines[:13] == [
        "a",
        "  warning D-X 7",
        "      Bad.",
        "      → Mend it.",
        "",
        "c",
        "  error D-SSH no",
        "      It cannot be reached: no.",
        "",
        "between the nodes",
        "  warning D-Y",
        "      They differ.",
        "",
    ]
    assert re.split(" {2,}", lines[14]) == [
        *(
            "a",
            "2.13.0",
            "12.6",
            "2.27.5",
            "3.11.7",
            "570.1",
            "8 × H100",
            "8 × 400 Gb/s",
            "eth0 MTU 9000",
        ),
        *("1.0 GiB", "+0.012 s"),
    ]
    assert lines[15].split() == ["b", *["n/a"] * 10]
    assert lines[17:] == [
        "All-reduce of 16.0 MiB with nccl:",
        "round  pair   ms  GB/s",
        "    1  a, b  n/a   n/a  dead",
        "",
        "1 error, 2 warnings",
    ]


def test_a_clock_that_is_right_is_not_behind() -> None:
    """A difference below what is shown has no sign of its own."""
    for ahead_s, shown in ((-0.0004, "+0.000 s"), (-0.0, "+0.000 s"), (-0.0006, "-0.001 s")):
        nodes = [ExaminedNode(name="a", facts={}, ahead_s=ahead_s), ExaminedNode(name="b", facts={})]
        assert f"  {shown}" in "\n".join(text(Examination(nodes=nodes), ["a", "b"]))


def test_the_same_as_json() -> None:
    found = msgspec.to_builtins(document(made(), ["a", "b", "c"]))
    assert [(node["name"], node["reached"]) for node in found["nodes"]] == [
        ("a", True),
        ("b", True),
        ("c", False),
    ]
    assert (found["nodes"][0]["ahead_s"], found["nodes"][0]["training"]["torch"]) == (0.0123, "2.13.0")
    assert found["findings"][0] == {
        "id": "D-SSH", "severity": "error", "where": "c", "value": "no", "text": "It cannot be reached: no.",
        "remedy": "",
    }  # fmt: skip
    assert found["pairs"] == [
        {
            "round": 1, "members": ["a", "b"], "bytes": 1 << 24, "seconds": None, "bytes_per_s": None, "right": True,
            "state": "dead", "problem": "b, in the all-reduce: RuntimeError: x",
        }
    ]  # fmt: skip


def test_of_many_pairs_those_that_are_bad_are_shown() -> None:
    good = [Result((at, at + 1), 1 << 24, 0.01) for at in range(0, 40, 2)]
    slow = Result((40, 41), 1 << 24, 0.1)
    outcome = Examination(
        members=[f"n{at}" for at in range(42)], backend="gloo", rounds=([*good, slow], [])
    )
    lines = text(outcome, [])
    assert [line.split() for line in lines[2:4]] == [
        ["1", "n40,", "n41", "100.0", "0.17", "slow"],
        ["20", "more", "are", "good"],
    ]
    assert lines[-1] == "No findings."


def read_to_end(terminal: int) -> str:
    """What is written to the other end of a terminal until it is closed."""
    text = io.BytesIO()
    with suppress(OSError):
        while data := os.read(terminal, 4096):
            text.write(data)
    os.close(terminal)
    return text.getvalue().decode()


@pytest.mark.real
@pytest.mark.torch
def test_this_node_is_examined_with_a_bar_on_the_terminal_and_json_in_the_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pty.openpty()
    with ThreadPoolExecutor(1) as pool, os.fdopen(theirs, "w") as terminal:
        drawing = pool.submit(read_to_end, ours)  # a terminal that nobody reads blocks the writer
        monkeypatch.setattr(sys, "stderr", terminal)
        code = main([*HERE, "--json", "--size", "1"])
        terminal.close()
    drawn = drawing.result()
    assert "nodes [........................] 0 of 1" in drawn
    assert "nodes [########################] 1 of 1" in drawn
    assert drawn.endswith("\r\x1b[K"), "the bar is gone at the end"
    found = json.loads(capsys.readouterr().out)
    assert code == int(any(one["severity"] == "error" for one in found["findings"]))
    (node,) = found["nodes"]
    assert (node["name"], node["reached"], node["port"]) == ("this node", True, None)
    assert node["training"]["executable"] == sys.executable
    for pair in found["pairs"]:
        assert (pair["bytes"], pair["problem"], pair["right"]) == (1 << 20, None, True)


@pytest.mark.real
def test_an_error_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--python", "/no/such/python", "--no-pairs"]) == 1
    out, _ = capsys.readouterr()
    assert "  error D-PYTHON" in out
    assert (
        "      The training environment's Python cannot be used: /no/such/python is not an executable.\n"
        in out
    )
    assert "1 error" in out.splitlines()[-1]


@for_each(
    ("words", "code", "sentence"),
    [
        (["--size", "0"], 2, "--size 0: write MiB from 1 to 4096"),
        (["--size", "9999"], 2, "--size 9999: write MiB from 1 to 4096"),
        (["--port", "70000"], 2, "70000"),
        (["--hosts", "a,a"], 2, "--hosts names a more than once"),
        (["--hosts", "a", "--hostfile", "x"], 2, "exclude each other"),
        (["--hosts", "a", "--ssh-config", "/no/such"], 2, "--ssh-config /no/such is missing: name"),
        (["some", "--hosts", "a"], 2, "A run has its own hosts"),
        (["no-such-run"], 3, "no-such-run"),
    ],
)
def test_what_is_refused(
    words: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main(["doctor", *words]) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert sentence in err
