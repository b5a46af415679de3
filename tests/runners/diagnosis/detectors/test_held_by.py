"""What a rank that sleeps waits for: a file lock and its holder, a pipe, a thread; and ranks that do not exit."""

from __future__ import annotations

from typing import Any

from each import for_each
from msgspec import structs

from distui.runners.run.pulse import Pulse, RankThread, Site

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
        ("read", "a pipe", "reads from a pipe at train.py:33 load"),
        ("read", "10.0.0.7:443", "waits for an answer of 10.0.0.7:443 at train.py:33 load"),
        ("read", "/data/part-0", "sleeps at train.py:33 load"),
        ("futex", "", "is blocked at train.py:33 load (lock, queue or thread)"),
        ("sleep", "", "sleeps at train.py:33 load"),
        (None, "", "sleeps at train.py:33 load"),
    ],
)
def test_what_it_waits_for_is_in_the_headline(call: str | None, on: str, words: str) -> None:
    made = Made().wait([0, 1, 3]).add(series(2, LOAD, enqueued=41, call=call, on=on))
    assert only(made.hang()).text.startswith(f"rank 2 {words}; ranks 0, 1, 3 wait")


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
