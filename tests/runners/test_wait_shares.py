"""How much a rank waits: from collectives that are old, from stacks, and unknown where neither says."""

from __future__ import annotations

import pytest
from msgspec import structs

from distui.runners.agent.wait_shares import WaitShares, waited
from distui.runners.run.pulse import Collective, ProcessGroup, Pulse, Site

COLLECTIVE = (
    Site("/x/torch/distributed/distributed_c10d.py", 2800, "all_reduce"),
    Site("/code/train.py", 10, "<module>"),
)
WORK = (Site("/code/train.py", 12, "forward"), Site("/code/train.py", 40, "<module>"))


BACKWARD = (
    Site("/x/site-packages/torch/autograd/graph.py", 979, "_engine_run_backward"),
    Site("/code/train.py", 13, "<module>"),
)


def pulse(at: float, stack: tuple[Site, ...] = WORK, pid: int = 7, **more: object) -> Pulse:
    return structs.replace(Pulse(0, at, pid=pid, hook=True, torch=True, stack=stack, step=3), **more)


def call(created: float) -> Collective:
    return Collective("0", 9, "all_reduce", created=created)


def test_the_share_of_looks_that_found_it_in_a_collective() -> None:
    shares = WaitShares()
    for number in range(13):
        shares.take([pulse(100.0 + 5 * number, COLLECTIVE if number % 4 == 0 else WORK)])
    assert shares.percent(0, 7, 160.0) == 25.0


def test_a_collective_older_than_the_look_before_took_all_of_the_time() -> None:
    assert waited(pulse(100.0, WORK, active=(call(94.0),)), 5.0) == 1.0
    assert waited(pulse(100.0, WORK, active=(call(99.9),)), 5.0) == 0.0
    assert waited(pulse(100.0, COLLECTIVE, active=(call(99.9),)), 5.0) == 1.0
    assert waited(pulse(100.0, WORK, active=(structs.replace(call(1.0), done=True),)), 5.0) == 0.0


@pytest.mark.parametrize(
    "silent",
    [
        {
            "hook": False
        },  # the hook is off: py-spy's stack of a stalled rank says nothing of the time between
        {"torch": None},
        {"torch": False},
        {"stack": ()},
    ],
)
def test_unknown_is_unknown(silent: dict[str, object]) -> None:
    shares = WaitShares()
    for number in range(13):
        shares.take([structs.replace(pulse(100.0 + 5 * number, COLLECTIVE), **silent)])
    assert shares.percent(0, 7, 160.0) is None


def test_another_process_begins_anew_and_old_looks_are_dropped() -> None:
    shares = WaitShares()
    for number in range(13):
        shares.take([pulse(100.0 + 5 * number, COLLECTIVE)])
    assert shares.percent(0, 7, 160.0) == 100.0
    assert shares.percent(0, 8, 160.0) is None
    assert shares.percent(0, 7, 176.0) is None  # no look for 16 s
    shares.take([pulse(165.0, WORK, pid=8)])
    assert shares.percent(0, 8, 165.0) is None
    for number in range(5):
        shares.take([pulse(170.0 + 5 * number, WORK, pid=8)])
    assert shares.percent(0, 8, 190.0) == 0.0  # known: five looks, none in a collective
    shares.take([])
    assert shares.percent(0, 8, 190.0) is None


def test_a_minute_ago_does_not_count() -> None:
    shares = WaitShares()
    for number in range(30):
        shares.take([pulse(100.0 + 5 * number, COLLECTIVE if number < 15 else WORK)])
    assert shares.percent(0, 7, 245.0) == 0.0


def looked(at: float, called: int, stack: tuple[Site, ...] = WORK, created: float | None = None) -> Pulse:
    """Of a rank that has called so many collectives, the newest of them at a time and not done."""
    active = () if created is None else (call(created),)
    return pulse(at, stack, groups=(ProcessGroup("0", enqueued=called),), active=active)


def computing() -> WaitShares:
    """A rank that has computed for a minute, and called a collective every five seconds."""
    shares = WaitShares()
    for number in range(13):
        shares.take([looked(100.0 + 5 * number, number + 1)])
    assert shares.percent(0, 7, 160.0) == 0.0
    return shares


def test_a_rank_that_is_blocked_waits_all_of_its_time_whatever_it_did_before() -> None:
    """As it is seen: at each pulse by the age of its collective, or by its stack alone."""
    for created in (160.5, 162.5, 164.5):
        shares = computing()
        shares.take([looked(165.0, 14, WORK, created)])
        shares.take([looked(170.0, 14, WORK, created)])
        assert shares.percent(0, 7, 171.0) == 100.0, created
    shares = computing()
    for at in (165.0, 170.0):
        shares.take([looked(at, 14, COLLECTIVE)])
    assert shares.percent(0, 7, 171.0) == 100.0
    shares.take([looked(175.0, 15)])
    assert (shares.percent(0, 7, 176.0) or 0.0) < 50.0, "it goes on"


def test_a_rank_that_is_found_in_one_collective_after_the_other_is_not_blocked() -> None:
    shares = computing()
    for number in range(3):
        shares.take([looked(165.0 + 5 * number, 20 + number, COLLECTIVE)])
    assert shares.percent(0, 7, 176.0) == 23.1, "3 of 13 pulses"
    other = computing()
    other.take([looked(165.0, 20, WORK, 100.0)])
    other.take([looked(170.0, 40, WORK, 100.0)])
    assert (other.percent(0, 7, 171.0) or 0.0) < 50.0, "one group waits for long while another one goes on"


def test_before_the_first_step_only_a_wait_is_known() -> None:
    """While a rank imports torch or compiles, "0 %" would say that the data of a training is known."""
    shares = WaitShares()
    for number in range(13):
        shares.take([pulse(100.0 + 5 * number, step=None)])
    assert shares.percent(0, 7, 160.0) is None
    assert waited(pulse(100.0, step=0, groups=(ProcessGroup("0", enqueued=4),)), 5.0) is None
    assert waited(pulse(100.0, COLLECTIVE, step=0), 5.0) == 1.0
    assert waited(pulse(100.0, step=None, groups=(ProcessGroup("0", enqueued=4),)), 5.0) == 0.0, (
        "no optimizer"
    )


def in_backward(backend: str, completed: int, call: str | None = "futex") -> Pulse:
    """A rank of DDP in its backward pass, with one collective open unless `completed` is 9."""
    groups = (ProcessGroup("0", enqueued=9, completed=completed, backend=backend),)
    return pulse(100.0, BACKWARD, groups=groups, call=call)


def test_a_wait_that_no_python_frame_shows_is_seen_or_unknown() -> None:
    """DDP waits for gradients in C++: with gloo on the host, with NCCL on the GPU."""
    assert waited(in_backward("gloo", 8), 5.0) == 1.0
    assert waited(in_backward("gloo", 8, call=None), 5.0) == 0.0, "it computes"
    assert waited(in_backward("gloo", 9), 5.0) == 0.0
    assert waited(in_backward("nccl", 8), 5.0) is None
    assert waited(in_backward("nccl", 9), 5.0) == 0.0
    assert waited(in_backward("nccl2", -1), 5.0) is None, "torch does not record this backend"
    assert waited(pulse(100.0, BACKWARD, call="futex"), 5.0) is None, "nothing is recorded"
    assert waited(structs.replace(in_backward("nccl", 8), stack=WORK), 5.0) is None, (
        "item() waits for the GPU"
    )


def test_a_share_is_unknown_if_many_pulses_are() -> None:
    shares = WaitShares()
    for number in range(12):
        open_on_gpu = structs.replace(in_backward("nccl", 8), at=100.0 + 5 * number)
        shares.take([open_on_gpu if number % 4 == 0 else pulse(100.0 + 5 * number)])
    assert shares.percent(0, 7, 156.0) is None


def with_calls(rank: int, at: float, late_s: float, kernel: bool) -> Pulse:
    """A pulse after ten steps of 1 s with one all_reduce each, that rank 1 calls 600 ms after rank 0."""
    first = round(at) - 9
    calls = tuple(
        Collective(
            "0",
            seq,
            "all_reduce",
            created=seq + 0.2 + (0.0 if kernel else late_s),
            started=True if kernel else None,
            duration_ms=1000 * (0.61 - late_s) if kernel else None,
            done=True,
        )
        for seq in range(first, first + 10)
    )
    backend = "nccl" if kernel else "gloo"
    groups = (ProcessGroup("0", (0, 1), enqueued=first + 9, completed=first + 9, backend=backend),)
    return Pulse(
        rank,
        at + 0.9,
        pid=7,
        hook=True,
        torch=True,
        stack=WORK,
        step=round(at),
        groups=groups,
        recent=calls,
    )


@pytest.mark.parametrize("kernel", [False, True], ids=["gloo", "nccl"])
def test_the_share_comes_from_the_times_of_the_collectives(kernel: bool) -> None:
    """The early rank waits 600 ms in each step of 1 s, the late one not at all, whatever the stacks show."""
    shares = WaitShares()
    for number in range(6):
        at = 100.0 + 10 * number
        shares.take([with_calls(0, at, 0.0, kernel), with_calls(1, at, 0.6, kernel)], world=2)
    assert shares.percent(0, 7, 152.0) == pytest.approx(60.0, abs=0.2)
    assert shares.percent(1, 7, 152.0) == 0.0


def test_without_the_ranks_of_other_nodes_the_stacks_count() -> None:
    shares = WaitShares()
    for number in range(6):
        shares.take([with_calls(0, 100.0 + 10 * number, 0.0, False)], world=2)
    assert shares.percent(0, 7, 152.0) == 0.0
