"""Ranks that others wait for: those that move something are busy, and those that move nothing are hung."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec import structs

from distui.runners.diagnosis import hang
from distui.runners.diagnosis.progress import LASTS_S, movement
from distui.runners.run.model import FirstCause, RankPhase
from distui.runners.run.pulse import EndlessLoop, OwnLine, ProcessWait, Pulse, RankThread, Site, Work

from .hang_rig import IN_LOADER, IN_RECV, LOAD, NOW, PYTHON, STEP, Made, call, only, quiet, series

BYTES_S = 600_000
IN_QUEUE = (Site(PYTHON + "threading.py", 327, "wait"), Site(PYTHON + "queue.py", 171, "get"), *LOAD)
IN_JOIN = (Site(PYTHON + "threading.py", 1119, "join"), *LOAD)
SPIN = Site("/job/train.py", 20, "spin")


IDLE = Work(0, 0, 0, 0, 0, 0.0, 0, 0)


def growing(pulses: Sequence[Pulse], begin: Work = IDLE, /, **rates: float) -> tuple[Pulse, ...]:
    """The same pulses with counters of work: growth per second by name."""

    def work(pulse: Pulse) -> Work:
        grown = {name: type(rate)(rate * (pulse.at - NOW + 1000.0)) for name, rate in rates.items()}
        return structs.replace(begin, **grown)

    return tuple(structs.replace(pulse, work=work(pulse)) for pulse in pulses)


def beside(pulses: Sequence[Pulse], age: float) -> Made:
    """Ranks 1 to 3 have waited for rank 0 for so long."""
    return Made().wait([1, 2, 3], call(42, age=age)).add(pulses)


MOVING = [
    ("read", {"sent": BYTES_S}, "sends over the network at 585.9 KiB/s"),
    ("write", {"received": BYTES_S}, "receives from the network at 585.9 KiB/s"),
    ("read", {"main_read": 40, "main_written": 40}, "writes at 40 B/s"),
    ("sleep", {"main_written": 7}, "writes at 7 B/s"),
    ("sleep", {"main_disk": 40_000}, "reads or writes a disk at 39.1 KiB/s"),
    ("wait", {"child_cpu_s": 0.015}, "waits for a child process that uses CPU time"),
    ("wait", {"child_bytes": 30}, "waits for a child process that reads or writes at 30 B/s"),
    ("read", {"main_wakes": 1}, "exchanges messages"),
]


@pytest.mark.parametrize(("kernel_call", "rates", "does"), MOVING, ids=[does for *_, does in MOVING])
def test_a_rank_that_moves_something_is_busy(kernel_call: str, rates: dict[str, float], does: str) -> None:
    pulses = growing(series(0, LOAD, enqueued=41, call=kernel_call), **rates)
    assert beside(pulses, 20.0).hang() == []
    found = only(beside(pulses, 60.0).hang())
    assert (found.id, found.severity) == ("hang-not-joined", "note")
    assert (
        found.text
        == f"rank 0 {does} in load() (called at train.py:70); ranks 1-3 wait for it in all_reduce #42"
    )
    assert only(beside(pulses, 301.0).hang()).severity == "warning"


STILL = [
    ("read", {"sent": 200, "received": 200}),  # heartbeats
    ("sleep", {"main_read": 30, "main_wakes": 2}),  # it polls a small file
    ("poll", {"main_wakes": 1}),  # it waits with a time-out
    ("futex", {"child_cpu_s": 0.05, "child_bytes": 200}),  # a child that it does not wait for
    ("wait", {}),
]


@pytest.mark.parametrize(("kernel_call", "rates"), STILL)
def test_a_rank_that_moves_nothing_is_hung(kernel_call: str, rates: dict[str, float]) -> None:
    pulses = growing(series(0, LOAD, enqueued=41, call=kernel_call), **rates)
    assert only(beside(pulses, 21.0).hang()).severity == "error"


@pytest.mark.parametrize(("kernel_call", "severity"), [("sleep", "warning"), ("lock", "error")])
def test_a_rank_whose_bytes_are_hidden_is_neither_busy_nor_idle(kernel_call: str, severity: str) -> None:
    hidden = growing(series(0, LOAD, enqueued=41, call=kernel_call, on="/data/index.lock"), Work())
    assert beside(hidden, 15.0).hang() == []
    found = only(beside(hidden, 21.0).hang())
    assert found.severity == severity
    assert any("the kernel hides its bytes" in line for line in found.evidence)


def test_a_movement_that_has_ended_counts_for_some_seconds() -> None:
    pulses = growing(series(0, LOAD, enqueued=41, call="read"), sent=BYTES_S)
    ended = [structs.replace(pulse, work=pulses[-1].work) for pulse in pulses]
    assert movement(pulses) is not None
    assert movement([*pulses[:1], *ended[1:]]) is None
    assert movement([structs.replace(pulse, at=pulse.at + 3 * LASTS_S) for pulse in ended]) is None
    assert movement([]) is None


def test_a_rate_that_hardly_changes_raises_no_new_finding() -> None:
    def found(rate: float, before: Made | None) -> Made:
        made = beside(growing(series(0, LOAD, enqueued=41, call="read"), sent=rate), 60.0)
        for each in before.hang() if before is not None else ():
            made.state.findings[each.id, each.rank, each.node] = each
        return made

    first = found(BYTES_S, None)
    assert only(found(int(BYTES_S * 1.4), first).hang()).text == only(first.hang()).text
    assert "sends over the network at 1.7 MiB/s" in only(found(BYTES_S * 3, first).hang()).text


def retrying(seconds: float, **more: object) -> Made:
    """Rank 0 prints the same failure every few seconds, and has others wait for so long."""
    lines = tuple(OwnLine(f"attempt {number}: connection refused, retry in 3 s") for number in (7, 8))
    pulses = growing(series(0, LOAD, enqueued=41, wrote=lines, call="sleep", **more), main_written=29)  # type: ignore[arg-type]
    return beside(pulses, seconds)


def test_a_rank_that_only_prints_the_same_failure_gets_nowhere() -> None:
    assert only(retrying(79.0).hang()).severity == "note"
    found = only(retrying(81.0).hang())
    assert found.severity == "warning"
    assert found.text.startswith(
        "rank 0 fails and tries again in load() (called at train.py:70); ranks 1-3"
    )
    assert "rank 0 wrote: attempt 8: connection refused, retry in 3 s" in found.evidence
    assert (
        only(retrying(81.0, until=NOW + 40.0).hang()).severity == "note"
    )  # it backs off for longer and longer


def of_thread(
    stack: Sequence[Site], loops: int, rank_stack: Sequence[Site] = IN_QUEUE, turns: int = 10
) -> tuple[Pulse, ...]:
    """A rank whose main thread sleeps while its thread "spin" uses a whole core, by default in an endless loop."""

    def threads(pulse: Pulse) -> tuple[RankThread, ...]:
        return (RankThread("spin", tuple(stack), "", loops, turns, pulse.at - NOW + 1000.0),)

    sleeping = series(0, rank_stack, enqueued=41, call="futex", others=1.0)
    return tuple(structs.replace(pulse, threads=threads(pulse)) for pulse in sleeping)


def test_a_thread_that_spins_does_not_hide_a_hang() -> None:
    found = only(beside(of_thread([SPIN], 10), 21.0).hang())
    assert found.severity == "error"
    assert found.text.startswith("rank 0 waits for an item of a queue at train.py:33 load; ranks 1-3")
    assert any("its thread spin uses CPU time in a loop" in line for line in found.evidence)


def test_a_thread_in_an_endless_loop_excuses_a_sleeping_rank_for_less_than_a_minute() -> None:
    calls_c = of_thread([SPIN], 0)
    assert only(beside(calls_c, 40.0).hang()).severity == "note"
    found = only(beside(calls_c, 46.0).hang())
    assert found.severity == "warning"
    assert "waits for an item of a queue at train.py:33 load while another thread" in found.text
    sign = "its main thread sleeps; only its thread spin (train.py:20 spin) works, in an endless loop"
    assert sign in found.evidence


def test_a_thread_that_computes_or_is_waited_for_excuses_it_for_five() -> None:
    for loops in (0, 10):
        assert only(beside(of_thread([SPIN], loops, turns=0), 200.0).hang()).severity == "note"
    assert only(beside(of_thread([SPIN], 10, IN_JOIN), 200.0).hang()).severity == "note"
    beside_workers = [
        structs.replace(pulse, process_s=3 * (pulse.process_s or 0)) for pulse in of_thread([SPIN], 0)
    ]
    assert only(beside(beside_workers, 200.0).hang()).severity == "note"


@pytest.mark.parametrize(("loops", "share"), [(5, 0.0), (0, 0.08)])
def test_a_thread_works_on_an_overloaded_machine_too(loops: int, share: float) -> None:
    """It gets little CPU time, but the hook finds it in Python code."""

    def starved(pulse: Pulse) -> Pulse:
        used = (pulse.at - NOW + 1000.0) * share
        thread = structs.replace(pulse.threads[0], cpu_s=used)
        return structs.replace(pulse, process_s=used, threads=(thread,))

    pulses = tuple(map(starved, of_thread([SPIN], loops, turns=0)))
    assert only(beside(pulses, 60.0).hang()).severity == "note"


def test_a_rank_that_is_ready_to_run_does_not_sleep() -> None:
    assert quiet(beside(series(0, LOAD, enqueued=41, state="R"), 60.0).hang())


CHECK = (Site("/job/train.py", 40, "ready"), Site("/job/train.py", 44, "hold"), *STEP)


def turning(states: Sequence[str | None], samples: int = 8) -> tuple[Pulse, ...]:
    """A rank that works in a loop without an end, whose condition read these values."""
    pulses = series(0, CHECK, enqueued=41, share=0.9, sites=3, loops=10)
    return tuple(
        structs.replace(pulse, endless=EndlessLoop("/job/train.py", 44, samples, state))
        for pulse, state in zip(pulses, states, strict=True)
    )


def test_a_livelock_is_a_warning_within_a_minute() -> None:
    """The main thread only calls functions of its own, which the hook finds at their beginning or at a jump back."""
    pulses = turning([None] * 5 + ["False"] * 3)
    assert only(beside(pulses, 40.0).hang()).severity == "note"
    found = only(beside(pulses, 46.0).hang())
    assert found.severity == "warning"
    assert found.text.startswith(
        "rank 0 repeats the same code in hold() (called at train.py:50); ranks 1-3"
    )
    sign = "it turns in the loop at train.py:44, whose condition reads the same values in every sample"
    assert sign in found.evidence
    assert only(beside(growing(pulses, main_read=10**6), 61.0).hang()).severity == "note"


def test_the_thread_that_died_is_named_beside_a_livelock() -> None:
    died = (RankThread("prefetch", (SPIN,), "KeyError: 7"),)
    pulses = [structs.replace(pulse, threads=died) for pulse in turning(["False"] * 8)]
    found = only(beside(pulses, 46.0).hang())
    assert (
        "repeats the same code in hold() (called at train.py:50), and its thread prefetch has died of"
        in found.text
    )
    assert found.remedy.startswith("let the thread pass its exception on")


@pytest.mark.parametrize(
    "pulses",
    [
        series(0, CHECK, enqueued=41, share=0.9, sites=3, loops=10),
        turning([str(number) for number in range(8)]),
        turning([None] * 8),
        turning(["False"] * 8, samples=1),
        series(0, (SPIN, *STEP), enqueued=41, share=0.9, loops=10),
    ],
    ids=["a loop that ends", "its condition changes", "unknown", "mostly in inner loops", "one line"],
)
def test_a_long_computation_in_python_is_a_note_until_the_limit_of_the_settings(
    pulses: tuple[Pulse, ...],
) -> None:
    assert only(beside(pulses, 290.0).hang()).severity == "note"
    assert only(beside(pulses, 301.0).hang()).severity == "warning"
    patient = replace(beside(pulses, 301.0).view, works_for_s=1200.0)
    assert only(list(hang.find(patient))).severity == "note"


def test_ranks_that_all_wait_in_a_receive_are_in_a_deadlock() -> None:
    back = (IN_RECV[0], IN_RECV[1], Site("/job/train.py", 61, "back"), *STEP[1:])
    made = Made(ranks=2).add(series(0, IN_RECV), series(1, back))
    found = only(made.hang())
    assert (found.id, found.severity, found.ranks) == ("hang-mismatch", "error", (0, 1))
    assert found.text == (
        "every rank waits, and none makes the call that another waits for: "
        "rank 0 in recv at train.py:50 step; rank 1 in recv at train.py:61 back"
    )
    made.state.findings[found.id, found.rank, found.node] = replace(found, since=NOW - 99)
    assert only(made.hang()).since == NOW - 99


@pytest.mark.parametrize(
    "other",
    [
        series(1, STEP, share=0.9, sites=5),
        growing(series(1, IN_RECV), received=BYTES_S),
        series(1, IN_RECV, looks=3),
    ],
    ids=["works", "receives", "has just begun to wait"],
)
def test_a_receive_that_may_end_is_no_deadlock(other: tuple[Pulse, ...]) -> None:
    assert quiet(Made(ranks=2).add(series(0, IN_RECV), other).hang())


def test_a_frozen_rank_is_named_as_frozen() -> None:
    found = only(beside(series(0, LOAD, enqueued=41, state="D", hook=False, frozen=True), 14.0).hang())
    assert found.id == "hang-stopped"
    assert "rank 0 is frozen: the cgroup freezer has stopped it" in found.text
    assert "thaw" in found.remedy


def test_what_a_worker_of_a_data_loader_is_blocked_in_is_named() -> None:
    worker = ProcessWait(812, "pt_data_worker", "open", "/data/part-7")
    pulses = series(0, IN_LOADER, enqueued=41, call="poll", child=worker)
    assert only(beside(pulses, 14.0).hang()).text.startswith(
        "rank 0 waits for its data loader at train.py:70 main, whose worker 812 is in the system call open "
        "(/data/part-7); ranks 1-3"
    )


@pytest.mark.parametrize("answers", [True, False])
def test_a_rank_in_a_call_of_the_kernel_that_does_not_return_is_told_so(answers: bool) -> None:
    pulses = series(0, LOAD, enqueued=41, state="D", hook=answers)
    found = only(beside(pulses, 21.0).hang())
    assert found.severity == "error"
    assert found.text.startswith(
        "rank 0 is in a call of the kernel that does not return at train.py:33 load (state D); ranks 1-3"
    )
    assert "dmesg" in found.remedy


def test_a_stopped_worker_of_a_data_loader_is_named() -> None:
    pulses = series(0, IN_LOADER, enqueued=41, halted_workers=(812,), call="poll")
    found = only(beside(pulses, 14.0).hang())
    assert found.id == "hang-loader"
    assert "whose worker 812 is stopped (SIGSTOP) or frozen; ranks 1-3 wait" in found.text
    assert "`kill -CONT 812`" in found.remedy


def test_a_rank_whose_interpreter_shuts_down_is_in_no_c_call() -> None:
    leaving = {"hook": False, "leaving": True, "active": (call(42),)}
    gone = [series(rank, (), looks=4, **leaving) for rank in (0, 1)]  # type: ignore[arg-type]
    assert Made(ranks=2).add(*gone).hang() == []
    held = [series(rank, (), **leaving) for rank in (0, 1)]  # type: ignore[arg-type]
    found = only(Made(ranks=2).add(*held).hang())
    assert (found.id, found.severity) == ("hang-leaving", "warning")
    assert "waiting for the end of the interpreter" in found.text


def test_a_rank_that_has_left_its_script_never_joins() -> None:
    found = only(beside(series(0, (), hook=False, leaving=True), 21.0).hang())
    assert (found.id, found.severity) == ("hang-gone", "error")
    assert found.text.startswith(
        "rank 0 is done with its script, and its interpreter shuts down; ranks 1-3"
    )


def test_a_death_that_is_reported_as_such_is_no_second_alarm() -> None:
    made = beside(series(0, LOAD, enqueued=41), 14.0).end(0, RankPhase.FAILED, 1)
    assert only(made.hang()).id == "hang-gone"
    made.state.attempts[-1].first_cause = FirstCause(
        rank=0, local_rank=0, node=0, text="rank 0 raised KeyError", kind="exception", at=NOW - 14.0
    )
    assert made.hang() == []
