"""The journal: in order, whole, and never torn."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from distui.runners.run import file_io, journal
from distui.runners.run.chronicle import Chronicle
from distui.runners.run.history import REPORT, read_history
from distui.runners.run.journal import END_FILE, NAME, RESERVE_BYTES, Journal
from distui.runners.run.model import (
    AttemptEnded,
    AttemptStarted,
    Event,
    FirstCause,
    Outcome,
    PlanSummary,
    RankPlace,
    RunCreated,
    RunEnded,
    RunnerLost,
    RunPhase,
    Stamped,
)
from distui.runners.run.run_record import RunRecord


def stamped(seq: int) -> Stamped:
    return Stamped(float(seq), RunnerLost(seq, f"line {seq}"), seq)


def filled(path: Path, count: int) -> Journal:
    kept = Journal(path)
    for seq in range(1, count + 1):
        kept.append(stamped(seq))
    return kept


def test_what_was_appended_is_read_back_from_any_point(tmp_path: Path) -> None:
    kept = filled(tmp_path, 5)
    assert kept.seq == 5
    assert [one.seq for one in journal.read(tmp_path)] == [1, 2, 3, 4, 5]
    assert [one.seq for one in journal.read(tmp_path, after=3)] == [4, 5]
    assert list(journal.read(tmp_path / "nowhere")) == []


def test_a_password_in_a_long_exception_is_not_written(tmp_path: Path) -> None:
    text = "a frame of the stack\n" * 2000 + "no answer from https://me:geheim1@db/x"
    chronicle = Chronicle(tmp_path)
    chronicle.emit(AttemptEnded(1, Outcome.FAILED, FirstCause(0, 0, 0, text=text)))
    chronicle.journal.close()
    written = (tmp_path / NAME).read_text()
    assert "https://***@db/x" in written
    assert "geheim1" not in written


def test_a_torn_end_does_not_swallow_the_next_line(tmp_path: Path) -> None:
    filled(tmp_path, 3).close()
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'{"time":4.0,"event":{"type":"Runn')
    again = Journal(tmp_path)
    assert [one.seq for one in again.replay()] == [1, 2, 3]
    again.append(stamped(4))
    assert [one.seq for one in journal.read(tmp_path)] == [1, 2, 3, 4]


def test_an_event_of_a_newer_version_is_passed_over(tmp_path: Path) -> None:
    filled(tmp_path, 1).close()
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'{"time":2.0,"seq":2,"event":{"type":"FromTheFuture","x":1}}\nnot json\n')
    Journal(tmp_path).append(stamped(3))
    assert [one.seq for one in journal.read(tmp_path)] == [1, 3]


def test_a_full_disk_keeps_lines_in_order_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = filled(tmp_path, 1)
    room = [7]  # bytes that still fit; the kernel writes what fits of a line
    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = real(descriptor, data[: room[0]])
        room[0] -= done
        return done

    monkeypatch.setattr(os, "write", write)
    kept.append(stamped(2))
    kept.append(stamped(3))
    assert (kept.blocked, [one.seq for one in journal.read(tmp_path)]) == (True, [1])
    room[0] = 1 << 20
    kept.flush()
    assert (kept.blocked, [one.seq for one in journal.read(tmp_path)]) == (False, [1, 2, 3])


RUN = RunRecord("r", "00000000", "run", 0.0, "here")
CREATED = RunCreated("r", "run", "here", PlanSummary("ddp", "ddp", "torchrun", "train.py"))
DONE = RunEnded(RunPhase.SUCCEEDED, 0, "every rank ended with exit code 0")


def keep(path: Path, *events: Event) -> None:
    """Write a journal of these events, numbered from 1."""
    kept = Journal(path)
    for seq, event in enumerate(events, 1):
        kept.append(Stamped(float(seq), event, seq))
    kept.close()


def test_an_event_that_two_agents_wrote_counts_once(tmp_path: Path) -> None:
    keep(tmp_path, CREATED)
    with (tmp_path / NAME).open("ab") as file:
        for seq, text in ((2, "first"), (2, "second"), (3, "last")):
            file.write(msgspec.json.encode(Stamped(float(seq), RunnerLost(seq, text), seq)) + b"\n")
    history = read_history(tmp_path, RUN)
    assert [text for _, text in history.state.notices] == ["first", "last"]
    assert history.problems == [f"{NAME} is out of order"]


def test_a_hub_whose_journal_lost_its_beginning_does_not_end_with_its_first_node(tmp_path: Path) -> None:
    keep(tmp_path, AttemptStarted(1, "launch", 2, (RankPlace(0, 0, 0), RankPlace(1, 0, 1))), DONE)
    state = read_history(tmp_path, structs.replace(RUN, kind="hub", nnodes=2)).state
    assert not state.phase.ended
    assert state.nodes[0].phase is RunPhase.SUCCEEDED


def test_only_what_the_agent_has_not_read_of_the_report_is_added(tmp_path: Path) -> None:
    reported = [AttemptStarted(number, "restart", 1, (RankPlace(0, 0, 0),)) for number in (1, 2, 3)]
    lines = [msgspec.json.encode(Stamped(1.0, event)) + b"\n" for event in reported]
    (tmp_path / REPORT).write_bytes(b"".join(lines))
    kept = Journal(tmp_path)
    kept.append(Stamped(1.0, CREATED, 1))
    for number in (1, 2):
        read = sum(map(len, lines[:number]))
        kept.append(Stamped(1.0, reported[number - 1], number + 1, source=read))
    assert [each.number for each in read_history(tmp_path, RUN).state.attempts] == [1, 2, 3]


def test_a_run_that_failed_while_no_agent_lived_was_not_stopped(tmp_path: Path) -> None:
    keep(tmp_path, CREATED, AttemptStarted(1, "launch", 1, (RankPlace(0, 0, 0),)))
    failed = RunEnded(RunPhase.FAILED, 1, "rank 0 failed")
    (tmp_path / REPORT).write_bytes(msgspec.json.encode(Stamped(3.0, failed)) + b"\n")
    state = read_history(tmp_path, RUN).state
    assert (state.phase, state.end_text) == (RunPhase.FAILED, "rank 0 failed")


def test_a_run_that_went_on_after_its_end_has_not_ended(tmp_path: Path) -> None:
    """A power cut brings the file with the earlier end back."""
    keep(tmp_path, CREATED, DONE, CREATED, AttemptStarted(1, "launch", 1, (RankPlace(0, 0, 0),)))
    (tmp_path / END_FILE).write_bytes(msgspec.json.encode(Stamped(2.0, DONE, 2)))
    assert not read_history(tmp_path, RUN).state.phase.ended
    (tmp_path / END_FILE).write_bytes(msgspec.json.encode(Stamped(5.0, DONE, 5)))
    assert read_history(tmp_path, RUN).state.phase is RunPhase.SUCCEEDED


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of 512 KiB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def fill(directory: Path) -> None:
    """Take all room that is left."""
    with contextlib.suppress(OSError), (directory / "filler").open("ab", buffering=0) as file:
        while file.write(bytes(4096)) == 4096:
            continue


@pytest.mark.real
def test_no_other_writer_of_a_full_disk_takes_the_journals_room(small_disk: Path) -> None:
    """Ranks log as fast as they can; what the agent was told is on the disk before it is killed."""
    kept = filled(small_disk, 1)
    for last in (11, 21):
        fill(small_disk)
        for seq in range(last - 9, last + 1):
            kept.append(Stamped(float(seq), RunnerLost(seq, "x" * 1500), seq))
            fill(small_disk)
            assert not kept.blocked
        kept = Journal(small_disk)  # the next agent, while the disk is still full
        assert [one.seq for one in kept.replay()] == list(range(1, last + 1))
    (small_disk / "filler").unlink()
    kept.append(stamped(22))
    assert kept_bytes(small_disk) > RESERVE_BYTES // 2, "with room it is laid by again"
    kept.close()
    assert kept_bytes(small_disk) <= 4096
    assert os.listdir(small_disk) == [NAME]


def kept_bytes(directory: Path) -> int:
    """Bytes of the disk that the journal has and does not fill."""
    found = (directory / NAME).stat()
    return found.st_blocks * 512 - found.st_size


@pytest.mark.real
def test_where_no_room_can_be_kept_a_file_is_given_back(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(file_io, "keep_room", unsupported)
    kept = filled(small_disk, 1)
    assert (small_disk / f"{NAME}.reserve").stat().st_size == RESERVE_BYTES
    fill(small_disk)
    kept.append(Stamped(2.0, RunnerLost(2, "x" * 9000), 2))
    assert [one.seq for one in journal.read(small_disk)] == [1, 2]
    kept.close()


def test_begin_and_end_of_an_attempt_and_of_the_run_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut must not take: everything before them is synced with them."""
    real, synced = os.fdatasync, list[int]()

    def counted(fd: int) -> None:
        real(fd)
        synced.append(os.fstat(fd).st_size)

    monkeypatch.setattr(os, "fdatasync", counted)
    kept = Journal(tmp_path)
    ends: list[Event] = [
        AttemptStarted(1, "launch", 1, ()),
        AttemptEnded(1, Outcome.SUCCEEDED),
        RunEnded(RunPhase.SUCCEEDED, 0, ""),
    ]
    sizes = []
    for seq, event in enumerate(ends):
        kept.append(stamped(2 * seq + 1))
        kept.append(Stamped(1.0, event, 2 * seq + 2))
        sizes.append((tmp_path / NAME).stat().st_size)
    assert synced == sizes
