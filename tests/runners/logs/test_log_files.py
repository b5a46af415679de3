"""File ids, and that no name leads out of a run directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from each import for_each
from hypothesis import given
from hypothesis import strategies as st

from distui.runners.run.log_files import STREAMS, command_id, file_id, list_files, parse_file_id, silence
from distui.runners.run.opened_logs import LogError, opened

NUMBERS = st.integers(0, 5000)


def test_how_long_a_rank_has_been_silent(tmp_path: Path) -> None:
    folder = tmp_path / "node-0" / "attempt-002"
    folder.mkdir(parents=True)
    assert silence(tmp_path, 0, 2, 3, 1000.0) is None
    for name, text, at in (("out", "a line\n", 900.0), ("err", "", 990.0)):
        (folder / f"rank-3.{name}").write_text(text)
        os.utime(folder / f"rank-3.{name}", (at, at))
    assert silence(tmp_path, 0, 2, 3, 1000.7) == 100  # what is empty was never written
    (folder / "rank-3.err").write_text("x")
    os.utime(folder / "rank-3.err", (1005.0, 1005.0))
    assert silence(tmp_path, 0, 2, 3, 1000.0) == 0  # of a file server whose clock is ahead


@given(NUMBERS, st.integers(1, 5000), NUMBERS, st.sampled_from(STREAMS))
def test_an_id_says_what_it_was_made_from(node: int, attempt: int, rank: int, stream: str) -> None:
    file = parse_file_id(file_id(node, attempt, rank, stream))
    assert file is not None
    assert (file.node, file.attempt, file.rank, file.stream, file.part) == (node, attempt, rank, stream, 0)
    assert file.label == f"rank {rank}"


def test_a_live_toggle_of_nccl_is_a_part_of_its_own() -> None:
    file = parse_file_id("node-0/attempt-002/rank-7.3.nccl")
    assert file is not None
    assert (file.stream, file.part) == ("nccl", 3)


def test_the_command_and_the_services_have_logs_too() -> None:
    command = parse_file_id(command_id(1, "err"))
    assert command is not None
    assert (command.source, command.rank, command.label) == ("command", None, "command")
    runner = parse_file_id("runner.log")
    assert runner is not None
    assert (runner.attempt, runner.label) == (None, "runner")


@for_each(
    "text",
    [
        "",
        "journal.jsonl",
        "plan.json",
        "../runner.log",
        "/node-0/attempt-001/rank-0.out",
        "node-0/attempt-001/../../rank-0.out",
        "node-0/attempt-001/rank-0.out\n",
        "node-0/attempt-1/rank-0.out",
        "node-0/attempt-001/rank-0.1.out",
        "node-x/attempt-001/rank-0.out",
        "node-0/attempt-001/rank-0",
        "node-0/attempt-001/command.nccl",
    ],
)
def test_any_other_name_is_no_log(text: str) -> None:
    assert parse_file_id(text) is None


def test_files_are_listed_by_attempt_node_and_rank(tmp_path: Path) -> None:
    names = [
        "agent.log",
        "runner.log",
        "node-0/attempt-001/rank-2.out",
        "node-0/attempt-001/rank-2.err",
        "node-0/attempt-001/rank-10.out",
        "node-1/attempt-001/rank-11.nccl",
        "node-1/attempt-001/rank-11.1.nccl",
        "node-0/attempt-002/rank-2.out",
        "node-0/attempt-1000/rank-2.out",
    ]
    for name in [*reversed(names), "journal.jsonl", "node-0/attempt-001/core"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "node-7").symlink_to(tmp_path / "node-0")
    assert [file.id for file in list_files(tmp_path)] == names
    assert list_files(tmp_path / "gone") == []


def test_a_log_is_opened_and_closed(tmp_path: Path) -> None:
    (tmp_path / "node-0").mkdir()
    (tmp_path / "node-0/x").write_bytes(b"hello")
    with opened(tmp_path, "node-0/x") as descriptor:
        assert os.pread(descriptor, 9, 0) == b"hello"
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(descriptor)


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A run directory in which somebody has put things that lead elsewhere."""
    run = tmp_path / "run"
    (run / "node-0").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (run / "link").symlink_to(tmp_path / "secret")
    (run / "folder").symlink_to(tmp_path)
    os.mkfifo(run / "fifo")
    return run


@for_each(
    ("name", "why"),
    [
        ("../secret", "without '..'"),
        ("node-0/../../secret", "without '..'"),
        ("/etc/passwd", "without '..'"),
        ("node-0//x", "without '..'"),
        ("", "without '..'"),
        ("./link", "without '..'"),
        ("a\0b", "without '..'"),
        ("link", "links are not followed"),
        ("folder/secret", "links are not followed"),
        ("fifo", "not a regular file"),
        ("node-0", "not a regular file"),
        ("gone", "does not exist"),
        ("node-0/gone/x", "does not exist"),
    ],
)
def test_what_is_no_plain_file_below_the_run_directory_is_refused(trap: Path, name: str, why: str) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(LogError, match=why) as caught, opened(trap, name):
        pytest.fail("it was opened")
    assert "\n" not in str(caught.value)
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_device_is_refused() -> None:
    with pytest.raises(LogError, match="not a regular file"), opened("/dev", "null"):
        pytest.fail("it was opened")
