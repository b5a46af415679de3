"""What findings, NCCL's facts and its dialog look like; see looks.py."""

from __future__ import annotations

import told
from conftest import Rig, Start
from looks import LARGE, MIDDLE, SMALL, Look

from distui.runners.run.model import CommandDone


def found(rig: Start, **more: bool) -> Rig:
    """A run whose ranks all live and wait for one, with findings."""
    return rig(told.running(told.facts(), *told.findings()), **more)


async def test_findings(look: Look, rig: Start) -> None:
    await look(lambda: found(rig), "i", resized=True)


async def test_findings_in_ascii(look: Look, rig: Start) -> None:
    await look(lambda: found(rig, ascii_only=True), "i", sizes=[SMALL])


async def test_no_findings(look: Look, rig: Start) -> None:
    await look(lambda: rig(told.running(told.facts())), "i", sizes=[SMALL])


async def test_a_hung_run(look: Look, rig: Start) -> None:
    await look(lambda: found(rig), sizes=[SMALL, MIDDLE])


async def test_ranks_of_a_hung_run(look: Look, rig: Start) -> None:
    await look(lambda: found(rig), "2", sizes=[MIDDLE])


async def test_where_the_ranks_are(look: Look, rig: Start) -> None:
    def make() -> Rig:
        it = rig(told.running(told.facts()))
        it.link.answers["Dump"] = CommandDone("x", True, "stacks of 8 ranks", told.stacks())
        return it

    await look(make, "w", sizes=[SMALL])


async def test_nccl(look: Look, rig: Start) -> None:
    await look(lambda: rig(told.running(told.facts())), "5", resized=True)


async def test_nccl_has_said_nothing(look: Look, rig: Start) -> None:
    *untold, _, caught_up = told.running(told.facts())
    await look(lambda: rig([*untold, caught_up]), "5", sizes=[SMALL])


async def test_nccl_on_nodes_that_differ(look: Look, rig: Start) -> None:
    def make() -> Rig:
        return rig(nodes=told.on_nodes(told.uneven(), 2, *told.findings()))

    await look(make, "5", sizes=[SMALL, LARGE], resized=True)


async def test_nccl_in_ascii(look: Look, rig: Start) -> None:
    def make() -> Rig:
        return rig(nodes=told.on_nodes(told.uneven(), 2, *told.findings()), ascii_only=True)

    await look(make, "5", sizes=[MIDDLE])


async def test_nccl_in_light(look: Look, rig: Start) -> None:
    await look(lambda: rig(nodes=told.on_nodes(told.uneven())), "t", "5", sizes=[MIDDLE])


async def test_the_map_below_the_cards(look: Look, rig: Start) -> None:
    await look(lambda: rig(nodes=told.on_nodes(told.uneven())), "5", "pagedown", "pagedown", sizes=[SMALL])


async def test_nccl_of_a_thousand_ranks(look: Look, rig: Start) -> None:
    def make() -> Rig:
        return rig(nodes=told.on_nodes(told.facts(told.communicator(128, 8))))

    await look(make, "5", "pagedown", sizes=[SMALL, LARGE])


async def test_a_flood_of_logs_ends_by_itself(look: Look, rig: Start) -> None:
    await look(lambda: rig(told.running(told.facts())), "d", "right", sizes=[SMALL])
