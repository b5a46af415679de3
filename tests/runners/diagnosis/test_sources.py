"""Packed logs are read as others are; what a run's logs are, wherever they lie."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from distui.runners.diagnosis.reading import (
    BLOCK,
    LONGEST,
    is_packed,
    lines_of,
    logs_of_run,
    packed_lines,
    read_all,
    read_run,
)
from distui.runners.errors import RunError
from distui.runners.journal import RunRecord
from distui.runners.run_directories import Entry

PLAIN = b"h:1:2 [0] NCCL WARN Too many open files\n"
TEXTS = {
    "short": PLAIN * 3,
    "windows": b"a\r\nb\r\n",
    "open end": b"a\nb",
    "blocks": b"".join(b"line %d\n" % number for number in range(BLOCK // 8)),
    "no end": b"x" * 100,
    "empty": b"",
    "empty lines": b"\n\na\n\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_packed_lines_are_those_of_the_text(tmp_path: Path, text: bytes) -> None:
    plain, packed = tmp_path / "a.log", tmp_path / "a.log.gz"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text))
    assert is_packed(packed)
    assert not is_packed(plain)
    expected = [line for lines in lines_of(plain) for line in lines]
    found = [line for lines in packed_lines(packed) for line in lines]
    assert [line for line in found if line] == [line for line in expected if line]


def test_of_a_line_without_end_its_beginning_is_read(tmp_path: Path) -> None:
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(b"a\n" + b"x" * (3 * BLOCK) + b"\nb\n"))
    found = [line for lines in packed_lines(packed) for line in lines]
    assert [(line[:1], len(line)) for line in found] == [("a", 1), ("x", LONGEST), ("b", 1)]


def test_findings_of_packed_logs(tmp_path: Path) -> None:
    (tmp_path / "rank3.log.gz").write_bytes(gzip.compress(b"a\n" + PLAIN))
    reading = read_all([("rank3.log.gz", tmp_path / "rank3.log.gz")])
    (entry,) = [one for one in reading.tally.entries if one.count]
    assert entry.rule.id == "too-many-files"
    assert reading.lines == 2


@pytest.mark.parametrize(
    "data",
    [gzip.compress(b"a\n" * 1000, mtime=0)[:-9], b"\x1f\x8bnothing", gzip.compress(b"\0" * 99, mtime=0)],
)
def test_what_cannot_be_unpacked_is_one_sentence(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(data)
    with pytest.raises(RunError, match=r"a\.gz (cannot be unpacked|holds no text)"):
        read_all([("a.gz", path)])


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
    with pytest.raises(RunError, match="is no text"):
        read_all([("a", tmp_path / "rank-0.err")])
