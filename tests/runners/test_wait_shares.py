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
