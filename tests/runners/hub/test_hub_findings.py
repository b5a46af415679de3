"""What a hub says of ranks on two nodes: once, whatever becomes of the hub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from doubles.served import FakeGpus

from distui.presets.finding import Finding
from distui.runners.diagnosis import nccl_facts
from distui.runners.run.commands import Restart
from distui.runners.run.model import FindingCleared, FindingRaised, RunPhase, Stamped
from distui.runners.run.samples import Gpu
from distui.runners.run.state import RunState
from distui.runners.run.wire.client import new_id

from .rehearsal import Rehearsed
from .site import Site


@pytest.fixture
async def trained(site: Site) -> AsyncIterator[Rehearsed]:
    """One whose ranks have hooks."""
    made = Rehearsed(site, hook=True)
    await made.begin()
    yield made
    await made.close()


def stepping(state: RunState) -> bool:
    return len(state.ranks) == 2 and all(rank.sample and rank.sample.step for rank in state.ranks.values())


def raised(told: list[Stamped]) -> list[Finding]:
    """Alarms, as often as they were raised."""
    events = [one.event for one in told]
    return [
        one.finding for one in events if isinstance(one, FindingRaised) and one.finding.severity != "note"
    ]


async def test_a_hang_of_the_second_node_is_told_once_also_by_another_hub_and_cleared(
    trained: Rehearsed,
) -> None:
    async with trained.viewer() as viewer:
        await viewer.until(stepping)
        trained.runner(1).hooks[0].hang()
        trained.runner(0).hooks[0].wait()
        state = await viewer.until(lambda state: state.findings)
        (found,) = state.findings.values()
        assert (found.id, found.rank, found.node, found.severity) == ("hang-not-joined", 1, 1, "error")
        assert found.text.startswith(
            "rank 1 on host1 sleeps at train.py:12 hang; rank 0 waits for it in all_reduce"
        )
        await trained.kill_hub()
    async with trained.viewer() as viewer:
        await asyncio.sleep(20.0)  # in which a hub that knows nothing of it would find it anew
        assert [one.id for one in viewer.state.findings.values()] == ["hang-not-joined"]
        assert (await viewer.link.send(Restart(new_id()))).ok
        await viewer.until(lambda state: not state.findings)
        await viewer.stop()
    assert [one.id for one in raised(trained.journal())] == ["hang-not-joined"]
    assert sum(isinstance(one.event, FindingCleared) for one in trained.journal()) == 1
    assert [raised(trained.part_journal(node)) for node in (0, 1)] == [[], []]


async def test_a_throttled_gpu_of_a_node_is_told_by_the_hub(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot = Gpu(0, "GPU-0", "H100", util=31.0, temp_c=91.0, throttle=("thermal (hardware)",))
    monkeypatch.setattr(FakeGpus, "gpus", (hot,))
    trained = Rehearsed(site, hook=True)
    await trained.begin()
    async with trained.viewer() as viewer:
        await viewer.until(stepping)
        state = await viewer.until(lambda state: len(state.findings) == 2)
        assert {(found.id, found.rank, found.node) for found in state.findings.values()} == {
            ("gpu-throttled:gpu0", 0, 0),
            ("gpu-throttled:gpu0", 1, 1),
        }
        assert (
            "GPU 0 of host1 is throttled by its hardware" in state.findings["gpu-throttled:gpu0", 1, 1].text
        )
        await viewer.stop()
    assert [raised(trained.part_journal(node)) for node in (0, 1)] == [[], []]
    await trained.close()


async def test_an_exception_on_the_second_node_is_told_of_that_node_and_once(trained: Rehearsed) -> None:
    async with trained.viewer() as viewer:
        await viewer.until(stepping)
        trained.runner(1).writes(
            0,
            "Traceback (most recent call last):\n"
            '  File "/train.py", line 7, in <module>\n'
            "ValueError: label 1007 is out of range\n",
            "err",
        )
        trained.runner(1).exits(0, 1)
        trained.runner(0).exits(0)
        state = await viewer.until(lambda state: state.phase.ended)
    assert state.phase is RunPhase.FAILED
    (found,) = raised(trained.journal())
    assert (found.id, found.rank, found.node) == ("died-exception", 1, 1)
    assert "host1" in state.end_text
    assert "label 1007" in state.end_text
    assert [raised(trained.part_journal(node)) for node in (0, 1)] == [[], []]


async def test_what_nccl_says_on_two_nodes_is_compared_by_the_hub_and_told_once(trained: Rehearsed) -> None:
    async with trained.viewer() as viewer:
        await viewer.until(stepping)
        for node, version in ((0, "2.24.3+cuda12.8"), (1, "2.27.5+cuda12.9")):
            head, comm = (
                f"box{node}:7:7 [0] NCCL INFO",
                f"comm 0x1 rank {node} nranks 2 cudaDev 0 nvmlDev 0",
            )
            text = f"{head} NCCL version {version}\n{head} ncclCommInitRank {comm} busId 1000 commId 0x7 - "
            trained.runner(node).writes(0, f"{text}Init COMPLETE\n", "nccl")
        state = await viewer.until(lambda state: state.findings)
        (found,) = state.findings.values()
        assert (found.id, found.node) == ("version-mismatch", None)
        facts = nccl_facts.merge(
            nccl_facts.decode(node.nccl) for node in state.nodes.values() if node.nccl is not None
        )
        (whole,) = facts.communicators
        assert (whole.nranks, whole.hosts) == (2, {"box0": (0,), "box1": (1,)})
        await trained.kill_hub()
    async with trained.viewer() as viewer:
        await asyncio.sleep(20.0)
        await viewer.stop()
    assert [one.id for one in raised(trained.journal())] == ["version-mismatch"]
    assert [raised(trained.part_journal(node)) for node in (0, 1)] == [[], []]
