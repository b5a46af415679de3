"""What is said of a run on two nodes: by its hub and once, whatever becomes of the hub."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distui.presets.finding import Finding
from distui.presets.load import load
from distui.presets.plan import Place, Plan, Request, make_plan
from distui.presets.render import rendezvous_port
from distui.runners.diagnosis import nccl_facts
from distui.runners.model import FindingCleared, FindingRaised, RunPhase, Stamped
from distui.runners.state import RunState

from .site import Site, Viewer, Whole, kill

pytestmark = [pytest.mark.torch, pytest.mark.long]
CORPUS = Path(__file__).parents[1] / "diagnosis" / "corpus"
TRAIN = """\
import os, signal, sys, time
import torch
import torch.distributed as dist

FAULT, SECONDS = sys.argv[1], float(sys.argv[2])


class Awake(Exception):
    pass


def awake(*_):
    raise Awake


def load():
    try:
        time.sleep(SECONDS)
    except Awake:
        pass


def fail():
    raise ValueError("label 1007 is out of range: the model has 1000 classes")


def say():
    with open(os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid())), "w") as log:
        log.write(open(f"said-{RANK}.log").read())


signal.signal(signal.SIGUSR1, awake)
dist.init_process_group("gloo")
RANK = dist.get_rank()
total, began, due = torch.ones(16), time.monotonic(), True
if FAULT == "say":
    due = say()
while True:
    if due and RANK == 1 and time.monotonic() - began > 2.0:
        due = {"sleep": load, "raise": fail}[FAULT]()
    dist.all_reduce(total)
    total /= 2
    time.sleep(0.02)
"""


HOSTS = ("ntmra-znfgre", "ntmra-jbexre")
"""Of the ranks 0 and 1 in the log below."""
LOG = "068.log"
LONG_ENOUGH_S = 18.0
"""In which a hub that knows nothing of a hang would have found it anew."""
DISTUI = Path(sys.executable).with_name("distui")


def said() -> dict[int, list[str]]:
    """What NCCL wrote on two nodes, with a version and a network of its own for each."""
    lines = (CORPUS / LOG).read_text().splitlines()
    (one,) = (line for line in lines if "Init COMPLETE" in line)
    other = next(line for line in lines if line.startswith(HOSTS[0])).partition(" NCCL")[0]
    ends = {0: (other + one[len(other) :]).replace("rank 1", "rank 0"), 1: one}
    chosen = {0: ("2.24.3+cuda12.8", "Socket"), 1: ("2.27.5+cuda12.9", "IB")}
    found = {}
    for rank, end in ends.items():
        head, _, init = end.partition("ncclCommInitRank ")
        comm = init.partition(" cudaDev")[0].replace("nranks", "nRanks")
        version, network = chosen[rank]
        found[rank] = [
            f"{head}NCCL version {version}",
            f"{head}Using network {network}",
            end.replace("COMPLETE", "START"),
            f"{head}{comm} nNodes 2 localRanks 1 localRank 0 MNNVL 0",
            *(line for line in lines if line.startswith(HOSTS[rank]) and line != one),
            end,
        ]
    return found


class Training(Whole):
    """By torchrun, with hooks: one rank a node."""

    def planned(self, command: tuple[str, ...], name: str, place: Place, nodes: int) -> Plan:
        script, *args = command
        request = Request(
            script=script, args=tuple(args), name=name, nnodes=nodes, nproc_per_node=1, grace_s=2.0,
            restart_limit=0,
        )  # fmt: skip
        where = replace(
            place, port=rendezvous_port(self.record.run8), python=sys.executable, nodes=nodes,
            script_source=Path(script).read_bytes(),
        )  # fmt: skip
        return make_plan(load("ddp", ()), request, where)

    def findings(self) -> list[Finding]:
        """Alarms in the hub's journal, as often as they were raised."""
        return [one for one in raised(self.journal()) if one.severity != "note"]

    def of_agents(self) -> list[str]:
        """Ids of what the agents raised themselves."""
        return [one.id for node in (0, 1) for one in raised(self.part_journal(node))]

    def clears(self, name: str) -> int:
        events = [one.event for one in self.journal()]
        return sum(isinstance(one, FindingCleared) and one.id == name for one in events)


def raised(told: list[Stamped]) -> list[Finding]:
    return [one.event.finding for one in told if isinstance(one.event, FindingRaised)]


def begun(site: Site, *args: str) -> Training:
    script = site.root / "train.py"
    script.write_text(TRAIN)
    run = Training(site, (str(script), *args))
    run.start()
    return run


def looked_at(state: RunState) -> float:
    """When the newest pulse of the rank that waits was taken."""
    pulse = state.ranks[0].pulse if state.live and 0 in state.ranks else None
    return pulse.at if pulse is not None else 0.0


async def shown(run: Training) -> list[dict[str, Any]]:
    """What `status --json` says is wrong."""
    words = (str(DISTUI), "status", run.record.run, "--json")
    asked = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
    told, _ = await asked.communicate()
    found: list[dict[str, Any]] = json.loads(told)["findings"]
    return found


def ids(state: RunState) -> list[str]:
    return [one.id for one in state.findings.values()]


async def ended(viewer: Viewer) -> None:
    await viewer.stop()
    await viewer.until(lambda state: state.phase.ended)


async def test_a_rank_of_the_second_node_that_sleeps_is_told_once_and_cleared(site: Site) -> None:
    run = begun(site, "sleep", "25")
    async with run.viewer() as viewer:
        await viewer.until(lambda state: "hang-not-joined" in ids(state))
        (found,) = viewer.state.findings.values()
        told = next(one for one in viewer.stamped if isinstance(one.event, FindingRaised))
        assert found.since is not None
        assert told.time - found.since < 30
        assert (found.rank, found.node, found.severity) == (1, 1, "error")
        assert found.text.startswith(
            "rank 1 on host1 sleeps at train.py:18 load; rank 0 waits for it in all_reduce"
        )
        assert [(one["id"], one["rank"], one["node"]) for one in await shown(run)] == [(found.id, 1, 1)]
        await viewer.until(lambda state: not state.findings)
        assert await shown(run) == []
        await ended(viewer)
    assert [one.id for one in run.findings()] == ["hang-not-joined"]
    assert run.of_agents() == []


async def test_a_hub_that_is_made_anew_tells_nothing_twice(site: Site) -> None:
    run = begun(site, "sleep", "1000")
    async with run.viewer() as viewer:
        await viewer.until(lambda state: "hang-not-joined" in ids(state))
        await kill(run.hub_pid())
    async with run.viewer() as viewer:
        began = time.time()
        await viewer.until(lambda state: looked_at(state) > began + LONG_ENOUGH_S)
        assert ids(viewer.state) == ["hang-not-joined"]
        assert ([one.id for one in run.findings()], run.clears("hang-not-joined")) == (
            ["hang-not-joined"],
            0,
        )
        await kill(run.hub_pid())
    os.kill(viewer.state.ranks[1].pid or 0, signal.SIGUSR1)
    async with run.viewer() as viewer:
        await viewer.until(lambda state: state.live and not state.findings)
        await ended(viewer)
    assert ([one.id for one in run.findings()], run.clears("hang-not-joined")) == (["hang-not-joined"], 1)


async def test_an_exception_on_the_second_node_is_told_of_that_node_and_once(site: Site) -> None:
    run = begun(site, "raise", "0")
    async with run.viewer() as viewer:
        state = await viewer.until(lambda state: state.phase.ended)
    assert state.phase is RunPhase.FAILED
    (found,) = run.findings()
    assert (found.id, found.rank, found.node) == ("died-exception", 1, 1)
    assert "host1" in state.end_text
    assert "label 1007" in state.end_text
    assert run.of_agents() == []


def nccl_of_all(state: RunState) -> nccl_facts.NcclFacts:
    """What NCCL's logs of both nodes say, as far as the nodes have reported it."""
    documents = [state.nodes[node].nccl for node in (0, 1)]
    return nccl_facts.merge(nccl_facts.decode(one) for one in documents if one is not None)


async def test_what_nccl_says_on_two_nodes_is_compared_by_the_hub_and_told_once(site: Site) -> None:
    for rank, lines in said().items():
        (site.root / f"said-{rank}.log").write_text("".join(f"{line}\n" for line in lines))
    run = begun(site, "say", "0")
    async with run.viewer() as viewer:
        state = await viewer.until(lambda state: len(state.findings) == 2)
        assert {one.id: one.node for one in state.findings.values()} == {
            "version-mismatch": None,
            "expect-same-network": 0,
        }
        facts = nccl_of_all(await viewer.until(lambda state: len(nccl_of_all(state).nodes) == 2))
        (whole,) = facts.communicators
        assert (whole.nranks, whole.nnodes) == (2, 2)
        assert whole.hosts == {HOSTS[0]: (0,), HOSTS[1]: (1,)}
        assert [(node.node, node.host) for node in facts.nodes] == [(0, HOSTS[0]), (1, HOSTS[1])]
        await kill(run.hub_pid())
    async with run.viewer() as viewer:
        await viewer.until(lambda state: state.live and all(one.pulse for one in state.ranks.values()))
        await asyncio.sleep(5.0)  # in which nothing is to happen
        await ended(viewer)
    assert sorted(one.id for one in run.findings()) == ["expect-same-network", "version-mismatch"]
    assert run.clears("version-mismatch") == 0
    assert run.of_agents() == []
