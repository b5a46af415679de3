"""The pace of the rendezvous is set where torch waits, and nowhere else."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from distui.runners.inrank.looking import fresh, look_often

theirs: Any = pytest.importorskip("torch.distributed.elastic.rendezvous.dynamic_rendezvous")
pytestmark = pytest.mark.torch


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What torch's own wait is asked for."""
    found: list[Any] = []

    def wait(seconds: Any) -> None:
        found.append(seconds)

    monkeypatch.setattr(theirs, "_delay", wait)
    return found


@pytest.mark.parametrize(("nodes", "pause"), [(2, 0.05), (8, 0.2), (40, 1.0), (500, 1.0)])
def test_few_nodes_look_often_and_many_as_torch_has_it(waits: list[Any], nodes: int, pause: float) -> None:
    look_often(3)
    look_often(nodes)
    theirs._delay(seconds=1)
    theirs._delay(seconds=(0, 0.3))
    assert waits == [pause, (0, 0.3)]


@pytest.mark.parametrize(("nodes", "seconds"), [(2, 0.05), (500, 1)])
def test_what_was_seen_is_old_sooner_while_the_nodes_meet(nodes: int, seconds: float) -> None:
    holder = theirs._BackendRendezvousStateHolder(None, None)
    handler = SimpleNamespace(_state_holder=holder)
    with contextlib.suppress(ValueError), fresh(handler, nodes):
        assert holder._cache_duration == seconds
        raise ValueError("the meeting failed")
    assert holder._cache_duration == 1
    with fresh(SimpleNamespace(), nodes):
        pass  # a static rendezvous keeps nothing


def test_torch_waits_a_second_where_it_looks_again() -> None:
    """What is changed is there: another torch may do it otherwise, and then this has nothing to change."""
    names = theirs._DistributedRendezvousOpExecutor.run.__code__
    assert "_delay" in names.co_names
    assert 1 in names.co_consts


def test_where_torch_has_no_such_name_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(theirs, "_delay")
    look_often(2)
    assert not hasattr(theirs, "_delay")
