"""What a run's logs are, wherever they lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from distui.runners.diagnosis.read_logs import logs_of_run, read_all, read_run
from distui.runners.run.errors import RunError
from distui.runners.run.run_directories import Entry
from distui.runners.run.run_record import RunRecord

PLAIN = b"h:1:2 [0] NCCL WARN Too many open files\n"


def entry(path: Path, kind: str) -> Entry:
    path.mkdir(parents=True)
    return Entry(path, RunRecord("job-1", "0a1b2c3d", "job", 0.0, "here", kind))


def log(path: Path, text: bytes = PLAIN) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)


def test_the_logs_of_a_run_are_those_of_its_newest_attempt(tmp_path: Path) -> None:
    run = entry(tmp_path / "job-1", "local")
    for name in (
        "node-0/attempt-001/rank-0.err",
        "node-0/attempt-002/rank-1.err",
        "node-0/attempt-002/rank-0.err",
    ):
        log(run.path / name)
    log(run.path / "agent.log")
    assert [name for name, _ in logs_of_run(run)] == [
        "node-0/attempt-002/rank-0.err",
        "node-0/attempt-002/rank-1.err",
    ]


def test_what_a_hub_has_kept_is_read_piece_by_piece(tmp_path: Path) -> None:
    run = entry(tmp_path / "job-1", "hub")
    log(run.path / "record/node-1/attempt-001/rank-8.err@0", b"a\n")
    log(run.path / "record/node-1/attempt-001/rank-8.err@5000", PLAIN)
    found = logs_of_run(run)
    assert [(name, path.name) for name, path in found] == [
        ("node-1/attempt-001/rank-8.err", "rank-8.err@0"),
        ("node-1/attempt-001/rank-8.err", "rank-8.err@5000"),
    ]
    reading = read_all(found)
    assert reading.files == ["node-1/attempt-001/rank-8.err"]
    assert reading.lines == 2


def test_what_a_run_wrote_is_read_whatever_it_is(tmp_path: Path) -> None:
    log(tmp_path / "rank-0.err", bytes(range(256)) * 40 + b"\n" + PLAIN)
    reading, unread = read_run(
        [("node-0/rank-0.err", tmp_path / "rank-0.err"), ("node-0/rank-1.err", tmp_path / "gone")]
    )
    assert [one.rule.id for one in reading.tally.entries if one.count] == ["too-many-files"]
    (said,) = unread
    assert said.startswith("node-0/rank-1.err does not exist")
    with pytest.raises(RunError, match="is not text"):
        read_all([("a", tmp_path / "rank-0.err")])
