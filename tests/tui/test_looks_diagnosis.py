"""Snapshots of the findings, of what NCCL says, and of the dialog that asks it for more; see test_looks.py."""

from __future__ import annotations

import pytest
import told
from conftest import Rig, Start
from test_looks import LARGE, MIDDLE, SMALL, Compare, look

from distui.runners.model import CommandDone

pytestmark = pytest.mark.timeout(60)

SIZES = pytest.mark.parametrize("size", [SMALL, MIDDLE, LARGE], ids=["80x24", "120x40", "200x60"])


@SIZES
def test_findings(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    it = rig(told.running(told.facts(), *told.findings()))
    assert look(snap_compare, it, size, "RUNNING", ["i"], then="findings · 3 alarms")


def test_no_findings(snap_compare: Compare, rig: Start) -> None:
    it = rig(told.running(told.facts()))
    assert look(snap_compare, it, SMALL, "RUNNING", ["i"], then="No problems found")


@SIZES
def test_nccl(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    it = rig(told.running(told.facts()))
    assert look(snap_compare, it, size, "RUNNING", ["5"], then="1 node · 1 communicator")


@SIZES
def test_nccl_on_nodes_that_differ(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    it = rig(nodes=told.on_nodes(told.uneven(), 2, *told.findings()))
    assert look(snap_compare, it, size, "RUNNING", ["5"], then="▲ NCCL        2.27.3")


@SIZES
def test_nccl_of_a_thousand_ranks(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    it = rig(nodes=told.on_nodes(told.facts(told.communicator(128, 8))))
    assert look(snap_compare, it, size, "RUNNING", ["5", "pagedown"], then="128 nodes alike")


def test_the_map_below_the_cards(snap_compare: Compare, rig: Start) -> None:
    it = rig(nodes=told.on_nodes(told.uneven()))
    press = ["5", "pagedown", "pagedown"]
    assert look(snap_compare, it, SMALL, "RUNNING", press, then="worse than the usual")


def test_nccl_says_nothing(snap_compare: Compare, rig: Start) -> None:
    it = rig(told.running(told.facts())[:-2])
    assert look(snap_compare, it, SMALL, "RUNNING", ["5"], then="press d")


def test_where_the_ranks_are(snap_compare: Compare, rig: Start) -> None:
    it = rig(told.running(told.facts()))
    it.link.answers["Dump"] = CommandDone("x", True, "stacks of 8 ranks", told.stacks())
    assert look(snap_compare, it, SMALL, "RUNNING", ["w"], then="rank 5 alone")


@pytest.mark.parametrize("size", [SMALL, MIDDLE], ids=["80x24", "120x40"])
def test_a_flood_ends_by_itself(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    it = rig(told.running(told.facts()))
    press = ["d", "right", *["down"] * 4, "space"]
    assert look(snap_compare, it, size, "RUNNING", press, then="after 60 s; earlier")


def test_ascii(snap_compare: Compare, rig: Start) -> None:
    it = rig(nodes=told.on_nodes(told.uneven(), 2, *told.findings()), ascii_only=True)
    assert look(snap_compare, it, MIDDLE, "RUNNING", ["5"], then="! NCCL        2.27.3")


def test_findings_in_ascii(snap_compare: Compare, rig: Start) -> None:
    it = rig(told.running(told.facts(), *told.findings()), ascii_only=True)
    assert look(snap_compare, it, SMALL, "RUNNING", ["i"], then="findings . 3 alarms")


def test_light(snap_compare: Compare, rig: Start) -> None:
    it = rig(nodes=told.on_nodes(told.uneven()))
    assert look(snap_compare, it, MIDDLE, "RUNNING", ["t", "5"], then="▲ NCCL        2.27.3")


@pytest.mark.parametrize("key", ["i", "5"])
def test_without_colour(
    snap_compare: Compare, rig: Start, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    it = rig(told.running(told.facts(), *told.findings()))
    assert look(snap_compare, it, SMALL, "RUNNING", [key], then="rank 3 never joined")


def hung(rig: Start, **more: bool) -> Rig:
    """A run whose ranks all live and wait for one."""
    return rig(told.running(told.facts(), *told.findings()), **more)


@SIZES
def test_a_hung_run(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    assert look(snap_compare, hung(rig), size, "step 29", then="RUNNING · hung?")


def test_a_hung_run_in_light(snap_compare: Compare, rig: Start) -> None:
    assert look(snap_compare, hung(rig), MIDDLE, "step 29", ["t"], then="RUNNING · hung?")


def test_a_hung_run_without_colour(
    snap_compare: Compare, rig: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert look(snap_compare, hung(rig, ascii_only=True), MIDDLE, "step 29", then="RUNNING . hung?")


@SIZES
def test_ranks_of_a_hung_run(snap_compare: Compare, rig: Start, size: tuple[int, int]) -> None:
    assert look(snap_compare, hung(rig), size, "step 29", ["2"], then="[2 Ranks]")
