"""`distui diagnose`: what it prints, and with which exit code."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from each import for_each

from distui.presets.finding import Finding
from distui.runners.diagnosis.rules import book
from distui.runners.run import file_io, run_directories
from distui.runners.run.model import (
    AttemptEnded,
    AttemptStarted,
    Event,
    FindingRaised,
    Outcome,
    PlanSummary,
    RankChanged,
    RankPhase,
    RankPlace,
    RunCreated,
    RunEnded,
    RunPhase,
    Stamped,
)
from distui.tui.cli import main

ROOT = Path(__file__).resolve().parents[2]
INIT = (
    "{0}:{1}:{1} [0] NCCL INFO ncclCommInitRank comm 0x55d1 rank {2} nranks 2 cudaDev 0 nvmlDev 0 busId 1000 "
    "commId 0x673b - Init {3}"
)
PORT = "NCCL WARN NET/IB : mlx5_0:1 Got async event : port error"
CLOSED = "NCCL WARN socketProgress: Connection closed by remote peer gpu-b<4>"
WATCHDOG = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=21, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, "
    "Timeout(ms)=600000) ran for 600060 milliseconds before timing out."
)
LOG = [
    "gpu-a:71:71 [0] NCCL INFO NCCL version 2.26.2+cuda12.2",
    "gpu-a:71:71 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
    "gpu-a:71:71 [0] NCCL INFO Using network IB",
    INIT.format("gpu-a", 71, 0, "START"),
    INIT.format("gpu-b", 92, 1, "START"),
    INIT.format("gpu-a", 71, 0, "COMPLETE"),
    INIT.format("gpu-b", 92, 1, "COMPLETE"),
    "gpu-a:71:80 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA",
    "step 20 loss 2.1",
    "",
    f"[2026-03-01 12:00:07] gpu-b:92:99 [0] transport/net_ib.cc:93 {PORT}",
    "",
    f"[2026-03-01 12:00:31] gpu-a:71:80 [0] misc/socket.cc:49 {CLOSED}",
    f"[rank0]:[E301 12:10:09.1 ProcessGroupNCCL.cpp:607] [Rank 0] {WATCHDOG}",
]  # fmt: skip


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.log"
    path.write_text("\n".join(LOG) + "\n")
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["diagnose", *words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def piped_log(log: Path) -> Iterator[None]:
    """Standard input is a pipe with the log in it."""
    kept = os.dup(0)
    reading, writing = os.pipe()
    os.write(writing, log.read_bytes())
    os.close(writing)
    os.dup2(reading, 0)
    os.close(reading)
    yield
    os.dup2(kept, 0)
    os.close(kept)


@pytest.mark.usefixtures("piped_log")
@pytest.mark.parametrize(("name", "called"), [("-", "(standard input)"), ("/dev/stdin", "/dev/stdin")])
def test_a_pipe_is_read_from_its_beginning(
    name: str, called: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing may look into it first: what was read of a pipe is gone."""
    code, out, err = run(capsys, name)
    assert (code, err) == (1, "")
    said = out.splitlines()
    assert said[0].startswith("First cause: ib-port-error ")
    assert said[1].startswith(f"    {called}:11: ")


@pytest.mark.usefixtures("log")
def test_the_first_cause_is_on_top_and_the_documentation_shows_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys, "train.log")
    lines = out.splitlines()
    assert (code, err) == (1, "")
    assert (
        lines[0]
        == "First cause: ib-port-error (rank 1; gpu-b; 12:00:07): A port of InfiniBand or RoCE went down."
    )
    assert lines[1] == f"    train.log:11: {LOG[10]}"
    assert (
        lines[3]
        == "    Symptoms that go with it: sock-closed-by-peer 1 × (rank 0), pt-watchdog 1 × (rank 0)"
    )
    assert lines[5:10] == [
        "● gpu-a  rank 0",
        "  NCCL        2.26.2+cuda12.2",
        "  network     IB over RoCE",
        "  interfaces  eth0",
        "  HCAs        mlx5_0:1 (RoCE)",
    ]
    assert lines[10] == "▲ gpu-b  rank 1"
    assert lines[-2:] == [
        "● 0x673b    2 ranks on 2 hosts seen  2 complete", "  pairs       1 over NET/IB/GDRDMA",
    ]  # fmt: skip
    assert f"$ distui diagnose train.log\n{out}```" in (ROOT / "docs/diagnosis.md").read_text("utf-8")


@pytest.mark.usefixtures("log")
def test_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "train.log", "--json")
    found = json.loads(out)
    assert code == 1
    assert (found["first_cause"]["id"], found["first_cause"]["order"]) == ("ib-port-error", "lines")
    assert [one["id"] for one in found["findings"]] == [
        "ib-port-error",
        "sock-closed-by-peer",
        "pt-watchdog",
    ]
    assert found["findings"][0]["evidence"] == [{"file": "train.log", "line": 11, "text": LOG[10]}]
    assert [(one["id"], one["count"], one["ranks"]) for one in found["victims"]] == [
        ("sock-closed-by-peer", 1, [0]),
        ("pt-watchdog", 1, [0]),
    ]
    assert found["communicators"][0]["stages"] == {"complete": 2}
    keys = re.findall(r"^\| (`.*?`) \|", (ROOT / "docs/diagnosis.md").read_text("utf-8"), re.MULTILINE)
    documented = {key for cell in keys for key in re.findall(r"`(\w+)`", cell)}
    assert set(found) <= documented


@for_each(
    ("lines", "says", "expected"),
    [
        ([], "The logs are empty.", 0),
        (["step 1"], "No findings in 1 line, 0 of them from NCCL.", 0),
        (LOG[12:13], "First symptom (its cause was not found in these lines): ", 1),
        (
            ["h:1:2 [0] NCCL INFO Call to connect returned Connection refused, retrying"],
            "Not failed, but worth checking: sock-refused",
            0,
        ),
        (["h:1:2 [0] NCCL WARN Too many open files"], "First cause: too-many-files", 1),
    ],
)
def test_exit_codes(
    log: Path, capsys: pytest.CaptureFixture[str], lines: list[str], says: str, expected: int
) -> None:
    log.write_text("".join(f"{line}\n" for line in lines))
    code, out, _ = run(capsys, str(log))
    assert code == expected
    assert out.startswith(says)


def test_several_files_without_a_common_time(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.with_name("other.log").write_text("h:1:2 [0] NCCL WARN Too many open files\n")
    _, out, _ = run(capsys, "train.log", "other.log")
    assert (
        "    Which cause came first is unknown: the lines of these files have no common clock."
        in out.splitlines()
    )


@for_each(
    ("names", "code", "says"),
    [
        (["gone.log"], 3, "distui: There is no file gone.log, and no run 'gone.log': "),
        (["x" * 300], 3, "distui: There is no file xxx"),
        (["train.log", "x" * 300], 2, "distui: File xxx"),
        (["train.log", "gone.log"], 2, "distui: gone.log does not exist: name log files, or a run "),
        (["nothing"], 2, "distui: No log files in nothing: name another directory"),
        (["no text"], 2, "distui: File no text is not text: give the logs themselves"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(
    log: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    names: list[str],
    code: int,
    says: str,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(log.parent))
    log.with_name("nothing").mkdir(exist_ok=True)
    log.with_name("no text").write_bytes(bytes(range(256)))
    found, out, err = run(capsys, *names)
    assert (found, out) == (code, "")
    assert err.startswith(says)
    assert err.count("\n") == 1


def on_another_host(name: str) -> Path:
    """The directory of a run with a whole plan, which is not lost: nobody here sees its agent."""
    path = run_directories.create(
        run_directories.new_record(name), b'{"run":"","launcher":"","cwd":"/","argv":[],"env":{}}', {}
    )
    file_io.write(path / run_directories.AGENT_FILE, file_io.Identity(1, 1, "another boot", "another host"))
    return path


def test_a_run_by_its_name(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(log.parent))
    path = on_another_host("trained")
    code, out, _ = run(capsys, "trained")
    assert code == 0
    assert out.splitlines() == [
        "No findings of trained now.",
        "  Missing: no logs of the newest attempt are on this machine.",
    ]
    for attempt, text in (("001", "h:1:2 [0] NCCL WARN Too many open files"), ("002", LOG[10])):
        folder = path / f"node-0/attempt-{attempt}"
        folder.mkdir(parents=True)
        (folder / "rank-3.nccl").write_text(f"{text}\n")
        (folder / "rank-3.err").write_text("")
    code, out, _ = run(capsys, "trained", "--json")
    found = json.loads(out)
    assert code == 1
    assert found["files"] == ["node-0/attempt-002/rank-3.err", "node-0/attempt-002/rank-3.nccl"]
    (finding,) = found["findings"]
    assert (finding["id"], finding["rank"], finding["node"]) == ("ib-port-error", 3, 0)


def with_caught_errors(state: Path, monkeypatch: pytest.MonkeyPatch, *events: Event) -> None:
    """A run "caught" of these events, whose rank 1 printed a traceback."""
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    path = on_another_host("caught")
    plan = PlanSummary("ddp", "ddp", "torchrun", "train.py")
    told = (
        RunCreated("caught-1", "caught", "gpu-a", plan),
        AttemptStarted(1, "launch", 1, (RankPlace(1, 1),)),
        RankChanged(1, 1, RankPhase.RUNNING, 1, 7),
        *events,
    )
    lines = [msgspec.json.encode(Stamped(1.7e9, event, seq + 1)) + b"\n" for seq, event in enumerate(told)]
    (path / "journal.jsonl").write_bytes(b"".join(lines))
    folder = path / "node-0/attempt-001"
    folder.mkdir(parents=True)
    (folder / "rank-1.err").write_text(
        'Traceback (most recent call last):\n  File "/job/train.py", line 7, in step\n    kernel()\n'
        "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    )


SUCCEEDED = (
    RankChanged(1, 1, RankPhase.SUCCEEDED, 1, 7, exit_code=0),
    AttemptEnded(1, Outcome.SUCCEEDED),
    RunEnded(RunPhase.SUCCEEDED, 0, ""),
)
FAILED = (
    RankChanged(1, 1, RankPhase.FAILED, 1, 7, exit_code=1),
    AttemptEnded(1, Outcome.FAILED),
    RunEnded(RunPhase.FAILED, 1, ""),
)


@for_each(("events", "code"), [((), 0), (SUCCEEDED, 0), (FAILED, 1)])
def test_what_ranks_outlived_is_no_first_cause(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    events: tuple[Event, ...],
    code: int,
) -> None:
    with_caught_errors(tmp_path, monkeypatch, *events)
    given, out, _ = run(capsys, "caught")
    assert given == code, out
    assert ("First cause: died-cuda-error" in out) == bool(code)
    assert ("Also in the logs: died-cuda-error 1 ×" in out) != bool(code)
    assert ("the script went on after them" in out) != bool(code)
    found = json.loads(run(capsys, "caught", "--json")[1])
    assert (found["failed"], found["first_cause"] is not None) == (bool(code), bool(code))


def test_nothing_that_a_log_holds_is_a_command_to_the_terminal(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text(
        "h\x1b]0;x\x07:1:2 [0] NCCL INFO Using network \x1b[31mIB\n\x1b[2Jh:1:2 [0] NCCL WARN Too many open files\n"
    )
    _, out, _ = run(capsys, str(log))
    assert "\x1b" not in out
    assert "\x07" not in out


def test_the_tables_of_the_documentation_are_those_of_the_rules() -> None:
    """One table per role."""
    text = (
        (ROOT / "docs/diagnosis.md").read_text("utf-8").partition("## The rules")[2].partition("\n## ")[0]
    )
    tables = re.findall(r"^### (\w+)\n\n(.*?)(?=\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    rows = {
        (role.removesuffix("s").lower(), *row)
        for role, table in tables
        for row in re.findall(r"^\| ([a-z0-9-]+) \| (error|warning|note) \| (.+) \|$", table, re.MULTILINE)
    }
    assert rows == {(rule.role, rule.id, rule.severity, rule.text.rstrip(".")) for rule in book().rules}


def test_a_runs_own_findings_stand_above_what_its_logs_say(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(log.parent))
    path = on_another_host("stuck")
    hang = Finding(
        "hang-not-joined", "error", "rank 2 sleeps in load()", rank=2, node=0, remedy="look at the loader",
        evidence=("ranks 0, 1 wait in all_reduce #42", "its stack: train.py:33 load"), since=1.7e9,
    )  # fmt: skip
    told: list[Event] = [
        RunCreated("stuck-1", "stuck", "gpu-a", PlanSummary("ddp", "ddp", "torchrun", "train.py")),
        FindingRaised(Finding("straggler", "warning", "rank 1 is slow", role="hint", ranks=(0, 1))),
        FindingRaised(hang),
    ]
    lines = [msgspec.json.encode(Stamped(1.7e9, event, seq + 1)) + b"\n" for seq, event in enumerate(told)]
    (path / "journal.jsonl").write_bytes(b"".join(lines))
    code, out, _ = run(capsys, "stuck")
    assert code == 1
    assert out.splitlines() == [
        "Findings of stuck now:",
        "  error cause hang-not-joined (rank 2; gpu-a): rank 2 sleeps in load()",
        "      since 22:13:20 UTC",
        "      ranks 0, 1 wait in all_reduce #42",
        "      its stack: train.py:33 load",
        "      Fix: look at the loader",
        "  warning hint straggler (ranks 0, 1): rank 1 is slow",
        "  Missing: no logs of the newest attempt are on this machine.",
    ]
    code, out, _ = run(capsys, "stuck", "--json")
    live = json.loads(out)["live"]
    assert [one["id"] for one in live["findings"]] == ["hang-not-joined", "straggler"]
    assert live["findings"][0]["evidence"] == list(hang.evidence)
    assert live["missing"] == ["no logs of the newest attempt are on this machine"]
    assert code == 1


def test_packed_logs_are_read(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = log.with_name("train.log.gz")
    packed.write_bytes(gzip.compress(log.read_bytes()))
    assert run(capsys, str(packed))[1] == run(capsys, str(log))[1].replace("train.log", "train.log.gz")


def test_what_is_not_read_is_named(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = log.with_name("logs")
    folder.mkdir()
    (folder / "core.71").write_bytes(bytes(range(256)))
    (folder / "passwd.log").symlink_to("/etc/passwd")
    (folder / "torn.gz").write_bytes(gzip.compress(log.read_bytes() * 1000)[:2000])
    code, out, _ = run(capsys, "logs")
    assert code == 1
    assert out.startswith("First cause: ib-port-error")
    torn, *others = (line for line in out.splitlines() if line.startswith("Not read: "))
    assert re.fullmatch(
        r"Not read: logs/torn\.gz breaks off after line \d+ \(.*\): have it copied again\.", torn
    )
    assert others == [
        "Not read: 1 file is not a log: logs/core.71.",
        "Not read: 1 symbolic link is not followed.",
    ]
    code, out, _ = run(capsys, "logs", "--json")
    assert len(json.loads(out)["unread"]) == 3
