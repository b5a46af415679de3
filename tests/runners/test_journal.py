"""The journal: in order, whole, and never torn."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from distui.runners import journal
from distui.runners.journal import NAME, Journal
from distui.runners.model import (
    AttemptEnded,
    AttemptStarted,
    Event,
    Outcome,
    RunEnded,
    RunnerLost,
    RunPhase,
    Stamped,
)


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
