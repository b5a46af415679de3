"""Real pairs: torch, gloo, processes of this machine; and pairs of which one side is killed, stopped, slow."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hub.site import until
from patience import HANG_S

from distui.runners.doctor import pair_checks as checks
from distui.runners.doctor.pair_trials import PairMember, try_group, two_rounds
from distui.runners.doctor.session import NodeSession

from . import faults
from .made import unexpected

pytestmark = pytest.mark.torch
SIZE = 4 << 20


@pytest.fixture
async def session() -> AsyncIterator[NodeSession]:
    found = await NodeSession.open("here", None, unexpected)
    try:
        yield found
    finally:
        await found.close()


def members(session: NodeSession, *pythons: str) -> list[PairMember]:
    return [
        PairMember(f"r{at}", session, python or sys.executable, "127.0.0.1")
        for at, python in enumerate(pythons)
    ]


def workers(folder: Path) -> list[str]:
    """Processes with a fault of that folder that live."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode("utf-8", "replace").replace("\0", " ")
        except OSError:
            continue
        found += [words] if "i=sys.stdin.buffer" in words and str(folder) in words else []
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "dk-fault"
    path.mkdir()
    return path


@pytest.mark.real
async def test_a_pair_reduces(session: NodeSession, folder: Path) -> None:
    heard: list[tuple[int, int, int]] = []
    both = members(session, "", faults.python(folder, "talkative"))
    first, second = await two_rounds(both, SIZE, lambda *one: heard.append(one))
    (result,) = first
    assert (result.members, result.right, result.problem, second) == ((0, 1), True, "", [])
    assert result.seconds is not None
    assert result.seconds > 0
    assert heard == [(1, 0, 1), (1, 1, 1)]
    assert checks.check_pairs(["r0", "r1"], first, second) == []


@pytest.mark.real
async def test_what_goes_wrong_is_said_of_its_side(session: NodeSession, folder: Path) -> None:
    """A rank that is killed, an interpreter that cannot be executed, and a node that is lost."""
    result = await try_group(members(session, "", faults.python(folder, "killed")), (0, 1), SIZE, HANG_S)
    assert result.problem == "r1, in meeting the other: its process was killed by signal 9"
    (found,) = checks.check_pairs(["r0", "r1"], [result], [])
    assert (found.id, found.severity) == ("D-LINK-DEAD", "error")
    result = await try_group(members(session, "", "/no/such/python"), (0, 1), SIZE, HANG_S)
    assert result.problem.startswith("r1, in the import of torch: ended with code None: /no/such/python: ")
    other = await NodeSession.open("there", None, unexpected)
    await other.close()
    both = [
        PairMember("here", session, sys.executable, "127.0.0.1"),
        PairMember("there", other, sys.executable, "127.0.0.1"),
    ]
    result = await try_group(both, (0, 1), SIZE, HANG_S)
    assert result.problem.startswith("there, in the import of torch: the connection to there was closed")


@pytest.mark.long
async def test_wrong_sums_are_told_and_a_side_that_hangs_is_given_up(
    session: NodeSession, folder: Path
) -> None:
    """By torch's own limit, which the side that waits reports, or by ours where they have met too late for it."""
    result = await try_group(members(session, "", faults.python(folder, "wrong")), (0, 1), SIZE, HANG_S)
    assert (result.right, result.problem) == (False, "")
    assert [one.id for one in checks.check_pairs(["r0", "r1"], [result], [])] == ["D-LINK-WRONG"]
    result = await try_group(members(session, "", faults.python(folder, "stopped")), (0, 1), SIZE, 30.0)
    assert await asyncio.to_thread(until, lambda: not workers(folder))
    assert result.problem.startswith(("r0, in the all-reduce: RuntimeError: ", "r1, in "))
