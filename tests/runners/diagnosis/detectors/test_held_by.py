"""What a rank that sleeps waits for: a file lock and its holder, a pipe, a thread; and ranks that do not exit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from each import for_each
from msgspec import structs

from distui.presets.finding import Finding
from distui.runners.run.pulse import LockWait, ProcessWait, Pulse, RankThread, Site, Stall, Work

from .hang_rig import IN_BARRIER, LOAD, NOW, PYTHON, STEP, Made, call, only, quiet, series, waiting

LOCKED: dict[str, Any] = {"call": "lock", "on": "/data/cache/index.lock"}
SHUTDOWN = (Site(PYTHON + "threading.py", 1553, "_shutdown"),)
UPLOADS = RankThread(
    "uploader", (Site(PYTHON + "threading.py", 655, "wait"), Site("/job/log.py", 9, "send"))
)


def barrier() -> tuple[Pulse, ...]:
    return waiting(1, call(42, "barrier", sites=STEP, what=""), stack=IN_BARRIER)


def test_the_rank_that_holds_the_lock_is_the_culprit_not_those_who_wait_for_it() -> None:
    made = Made(ranks=3).add(barrier())
    made.add(*(series(rank, LOAD, enqueued=41, holder=101, **LOCKED) for rank in (0, 2)))
    found = only(made.hang())
    assert (found.id, found.severity, found.rank, found.ranks) == ("hang-lock", "error", 1, ())
    assert found.text == (
        "rank 1 holds the lock on index.lock that ranks 0, 2 wait for at train.py:33 load, "
        "and waits for them in barrier #42"
    )
    assert "/proc/locks: ranks 0, 2 wait for /data/cache/index.lock, which rank 1 holds" in found.evidence


def test_a_lock_of_another_program_is_told_with_its_pid() -> None:
    made = Made().wait([0, 1, 3])
    made.add(series(2, LOAD, enqueued=41, holder=4711, holder_name="rsync", **LOCKED))
    found = only(made.hang())
    assert (found.id, found.rank) == ("hang-not-joined", 2)
    assert found.text.startswith(
        "rank 2 waits for the lock on index.lock at train.py:33 load, which pid 4711 (rsync) holds; ranks 0, 1, 3 wait"
    )
    assert found.remedy == "check why pid 4711 (rsync) keeps the lock on /data/cache/index.lock"


def test_a_holder_that_is_not_seen_here_is_no_guess() -> None:
    made = Made().wait([0, 1, 3]).add(series(2, LOAD, enqueued=41, **LOCKED))
    found = only(made.hang())
    assert found.text.startswith(
        "rank 2 waits for the lock on index.lock at train.py:33 load; ranks 0, 1, 3 wait"
    )


@for_each(
    ("call", "on", "words"),
    [
        ("open", "FIFO /run/{pipe}", "opens FIFO /run/{pipe} at train.py:33 load"),
        ("open", "/nfs/part-0", "opens /nfs/part-0 at train.py:33 load"),
        ("read", "a pipe", "reads from a pipe at train.py:33 load"),
        (
            "accept",
            "listening at 10.0.0.7:443",
            "waits for a connection to 10.0.0.7:443 at train.py:33 load",
        ),
        ("read", "/data/part-0", "sleeps at train.py:33 load"),
        ("futex", "", "is blocked at train.py:33 load (lock, queue or thread)"),
        ("sleep", "", "sleeps at train.py:33 load"),
        (None, "", "sleeps at train.py:33 load"),
    ],
)
def test_what_it_waits_for_is_in_the_headline(call: str | None, on: str, words: str) -> None:
    made = Made().wait([0, 1, 3]).add(series(2, LOAD, enqueued=41, call=call, on=on))
    assert only(made.hang()).text.startswith(f"rank 2 {words}; ranks 0, 1, 3 wait")


def test_the_address_that_does_not_answer_a_connect_is_named() -> None:
    stalls = (Stall("10.0.0.1:5000", "10.0.0.9:443", "SYN_SENT"),)
    made = Made().wait([0, 1, 3], call(42, age=21))
    found = only(
        made.add(series(2, LOAD, enqueued=41, call="connect", on="a socket", stalls=stalls)).hang()
    )
    assert found.text.startswith(
        "rank 2 gets no answer from 10.0.0.9:443 to its connect at train.py:33 load"
    )
    assert found.remedy.startswith("check that address and port are right")


CHILDREN = [
    (
        ProcessWait(812, "python3", "write", "a pipe", True),
        "which writes into a full pipe that the rank does not read",
    ),
    (ProcessWait(812, "python3", "futex"), "which waits for a lock"),
    (ProcessWait(812, "python3", "connect", "a socket"), "which is in the system call connect (a socket)"),
]


@pytest.mark.parametrize(("child", "does"), CHILDREN)
def test_what_its_child_waits_for_is_in_the_headline(child: ProcessWait, does: str) -> None:
    sleeping = series(2, LOAD, enqueued=41, call="wait", on="812", child=child)
    assert only(Made().wait([0, 1, 3]).add(sleeping).hang()).text == (
        f"rank 2 waits for its child process 812 (python3) at train.py:33 load, {does}; "
        "ranks 0, 1, 3 wait for it in all_reduce #42"
    )


LOCKS = [
    (LockWait("guard"), "waits for the lock guard at train.py:33 load; ranks 0, 1, 3"),
    (
        LockWait("guard", "writer"),
        "waits for the lock guard at train.py:33 load, which its thread writer holds;",
    ),
    (
        LockWait("guard", "writer", "self.table", True),
        "waits for the lock guard at train.py:33 load, which its thread writer holds while that waits for self.",
    ),
]


@pytest.mark.parametrize(("lock", "words"), LOCKS)
def test_a_lock_of_the_script_is_named_with_its_holder(lock: LockWait, words: str) -> None:
    made = Made().wait([0, 1, 3]).add(series(2, LOAD, enqueued=41, call="futex", lock=lock))
    assert only(made.hang()).text.startswith(f"rank 2 {words}")


def in_library(*frames: tuple[str, str]) -> tuple[Site, ...]:
    return (*(Site(PYTHON + file, 7, name) for file, name in frames), *LOAD)


LIBRARY_WAITS = [
    (in_library(("threading.py", "wait"), ("queue.py", "get")), "futex", "waits for an item of a queue"),
    (in_library(("threading.py", "join")), "futex", "waits for the end of a thread"),
    (
        in_library(("threading.py", "wait"), ("concurrent/futures/_base.py", "result")),
        "futex",
        "waits for the result of a future",
    ),
    (in_library(("threading.py", "wait"), ("threading.py", "acquire")), "futex", "waits for a semaphore"),
    (
        in_library(("selectors.py", "select"), ("asyncio/base_events.py", "run_forever")),
        "poll",
        "waits in its event loop at train.py:33 load: no task of asyncio is ready",
    ),
]


@pytest.mark.parametrize(("stack", "kernel_call", "words"), LIBRARY_WAITS)
def test_a_wait_in_a_library_of_python_has_its_words(
    stack: tuple[Site, ...], kernel_call: str, words: str
) -> None:
    made = Made().wait([0, 1, 3]).add(series(2, stack, enqueued=41, call=kernel_call))
    assert only(made.hang()).text.startswith(f"rank 2 {words}")


def test_the_task_that_an_event_loop_waits_for_is_named() -> None:
    task = RankThread(
        "task Task-1", (Site(PYTHON + "asyncio/locks.py", 213, "wait"), Site("/job/log.py", 28, "flush"))
    )
    made = Made().wait([0, 1, 3])
    found = only(
        made.add(series(2, LIBRARY_WAITS[-1][0], enqueued=41, call="poll", threads=(task,))).hang()
    )
    assert found.text.startswith(
        "rank 2 waits in its event loop at train.py:33 load: its task at log.py:28 flush is not ready; ranks 0, 1, 3"
    )


def sleeping(end: float) -> Made:
    """Rank 2 sleeps until some seconds from now."""
    pulses = series(2, LOAD, enqueued=41, call="sleep", until=NOW + end)
    return Made().wait([0, 1, 3], call(42, age=40)).add(pulses)


def test_a_sleep_that_ends_soon_is_no_hang() -> None:
    found = only(sleeping(25.0).hang())
    assert found.severity == "note"
    assert found.text.startswith("rank 2 sleeps until 20:41:32 UTC at train.py:33 load; ranks 0, 1, 3 wait")
    late = only(sleeping(3600.0).hang())
    assert late.severity == "error"
    assert late.text.startswith("rank 2 sleeps until 2025-11-21 21:41:07 UTC at train.py:33 load; ranks")
    # A loop of short sleeps has a new end in every pulse.
    polls = [
        structs.replace(pulse, until=pulse.at + 0.4) for pulse in series(2, LOAD, enqueued=41, call="sleep")
    ]
    assert only(sleeping(1.0).add(polls).hang()).severity == "error"


HELD = (RankThread("", (Site("/job/train.py", 30, "poll"),)), RankThread("", LIBRARY_WAITS[0][0]))


def silent(wakes: float, threads: Sequence[RankThread] = ()) -> Finding:
    """Rank 2's hook has been silent for some pulses; its main thread wakes so often per second."""
    pulses = [
        structs.replace(pulse, work=Work(main_wakes=int(wakes * (pulse.at - NOW + 1000))))
        for pulse in series(
            2, LOAD, hook=False, groups=(), sites=None, source="signal", threads=tuple(threads)
        )
    ]
    return only(Made().wait([0, 1, 3]).add(pulses).hang())


def test_the_thread_that_holds_the_gil_is_named_if_the_main_thread_waits_for_it() -> None:
    assert silent(0.0, HELD).text.startswith("rank 2 is in a C call that holds the GIL at train.py:33 load")
    assert silent(200.0, HELD).text.startswith(
        "rank 2 has a thread in a C call that holds the GIL, at train.py:30 poll"
    )
    assert silent(200.0, [HELD[0], HELD[0]]).text.startswith(
        "rank 2 has a thread in a C call that holds the GIL; its main thread waits for the GIL at train.py:33 load"
    )


EXTERNAL: list[tuple[dict[str, Any], str]] = [
    ({"call": "read", "on": "10.0.0.7:443"}, "waits for an answer of 10.0.0.7:443 at train.py:33 load"),
    ({"call": "sleep", "wanted": "/data/part"}, "polls for the file /data/part at train.py:33 load"),
    (
        {"call": "sleep", "wanted": "/data/x.lock", "until_gone": True},
        "waits until the file /data/x.lock is gone at train.py:33 load",
    ),
]


@pytest.mark.parametrize(("waits", "words"), EXTERNAL)
def test_a_wait_for_something_outside_of_the_job_is_a_note_for_eighty_seconds(
    waits: dict[str, Any], words: str
) -> None:
    def found(age: float) -> list[Finding]:
        sleeping = series(2, LOAD, enqueued=41, **waits)
        return Made().wait([0, 1, 3], call(42, age=age)).add(sleeping).hang()

    assert found(25.0) == []
    assert [(only(found(age)).severity) for age in (35.0, 79.0, 81.0)] == ["note", "note", "error"]
    for age in (35.0, 81.0):
        assert only(found(age)).text.startswith(f"rank 2 {words}; ranks 0, 1, 3 wait")


def test_the_thread_that_died_is_in_the_headline_and_one_that_lives_in_the_evidence() -> None:
    died = RankThread("Thread-1 (produce)", (Site("/job/data.py", 12, "produce"),), "KeyError: 'x'")
    made = Made().wait([0, 1, 3]).add(series(2, LOAD, enqueued=41, call="futex", threads=(died, UPLOADS)))
    found = only(made.hang())
    assert found.text.startswith(
        "rank 2 is blocked at train.py:33 load (lock, queue or thread), and its Thread-1 (produce) has died of "
        "KeyError: 'x'; ranks 0, 1, 3 wait"
    )
    assert "Thread-1 (produce) died of KeyError: 'x' at data.py:12 produce" in found.evidence
    assert "thread uploader: log.py:9 send" in found.evidence


def leaves(rank: int, *, last_step: float = NOW - 60, share: float = 0.0) -> tuple[Pulse, ...]:
    return series(rank, SHUTDOWN, call="futex", threads=(UPLOADS,), last_step=last_step, share=share)


@pytest.mark.parametrize(("age", "severity"), [(80.0, "warning"), (95.0, "error")])
def test_a_job_that_never_ends_is_an_error(age: float, severity: str) -> None:
    assert only(Made(ranks=2).add(leaves(1, last_step=NOW - age)).end(0).hang()).severity == severity


def test_a_thread_that_sends_at_the_exit_is_at_work() -> None:
    def sending(pulse: Pulse) -> Pulse:
        return structs.replace(pulse, work=Work(0, 0, 0, 0, 0, 0.0, int(1e5 * (pulse.at - NOW + 99)), 0))

    assert Made(ranks=2).add([sending(pulse) for pulse in leaves(1)]).end(0).hang() == []


def test_a_rank_that_does_not_exit_is_named_with_the_thread_it_waits_for() -> None:
    made = Made(ranks=2).add(leaves(1)).end(0)
    found = only(made.hang())
    assert (found.id, found.severity, found.rank) == ("hang-leaving", "warning", 1)
    assert found.text == (
        "rank 1 is done with the script and does not exit, waiting for its thread uploader at log.py:9 send; "
        "rank 0 has exited"
    )
    assert found.evidence == (
        "stack of rank 1: threading.py:1553 _shutdown",
        "thread uploader: log.py:9 send",
    )


def test_ranks_that_do_not_exit_for_the_same_reason_make_one_finding() -> None:
    found = only(Made(ranks=3).add(leaves(0), leaves(1), leaves(2)).hang())
    assert found.text.startswith("ranks 0-2 are done with the script and do not exit")
    assert found.ranks == (0, 1, 2)


def test_a_rank_that_has_just_trained_or_works_at_its_exit_is_left_alone() -> None:
    assert quiet(Made(ranks=2).add(leaves(1, last_step=NOW - 5)).end(0).hang())
    assert quiet(Made(ranks=2).add(leaves(1, share=0.3)).end(0).hang())
    elsewhere = [replace_sites(pulse) for pulse in leaves(1)]
    assert quiet(Made(ranks=2).add(elsewhere).end(0).hang())


def replace_sites(pulse: Pulse) -> Pulse:
    """The same with the script's module below: it is not over."""
    return structs.replace(pulse, stack=(*SHUTDOWN, Site("/job/train.py", 80, "<module>")))
