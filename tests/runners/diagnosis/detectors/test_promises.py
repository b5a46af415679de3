"""What was promised against what NCCL did: each alarm from real lines, and silence where nothing is wrong or known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from each import for_each

from distui.presets.finding import Finding
from distui.presets.load import load
from distui.presets.plan import Place, Plan, make_plan
from distui.presets.request import Request
from distui.runners.diagnosis import nccl_facts
from distui.runners.diagnosis.expectations import LATE_S, SETTLED_S, Expectations
from distui.runners.diagnosis.reading import Reading
from distui.runners.diagnosis.view import View
from distui.runners.run.samples import Gpu
from distui.runners.run.state import Node, RunState

NOW = 2_000_000.0
EIGHT = 8


class Job:
    """Nodes of eight GPUs, as their logs at INFO tell of them; what is given for a node differs from the others."""

    def __init__(self, nodes: int = 2) -> None:
        self.nodes, self.ranks = nodes, nodes * EIGHT
        self.devices: tuple[str, ...] = ("mlx5_0:1", "mlx5_1:1")
        self.peermem: bool | None = True
        self.env = {"NCCL_SOCKET_IFNAME": "eth0"}
        self.network: dict[int, str] = {}
        self.bootstrap: dict[int, str] = {}
        self.version: dict[int, str] = {}
        self.inside: dict[tuple[int, int], str] = {}
        """How two ranks of node 0 are connected, where that is not P2P."""
        self.between = "NET/IB/0/GDRDMA"
        self.stage = "COMPLETE"
        self.seen = NOW - 600
        self.gpus: tuple[Gpu, ...] = ()
        self.plan: Plan | None = None
        self.findings: list[Finding] = []

    def lines(self, node: int, rank: int) -> Iterable[str]:
        head = f"node-{node}:{100 + rank}:{100 + rank} [{rank % EIGHT}] NCCL INFO "
        mine = f"comm 0x{rank + 1} rank {rank} nranks {self.ranks} cudaDev 0 commId 0xabc - Init "
        yield head + f"NCCL version {self.version.get(node, '2.27.5+cuda12.9')}"
        yield head + f"Bootstrap: Using {self.bootstrap.get(node, f'eth0:10.1.{node}.2')}<0>"
        for name, value in self.env.items():
            yield head + f"{name} set by environment to {value}."
        if self.network.get(node) != "Socket":
            yield head + "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.1.0.2<0>"
        yield head + f"Using network {self.network.get(node, 'IB')}"
        yield head + f"ncclCommInitRank {mine}START"
        if self.stage == "START":
            return
        yield head + f"comm 0x{rank + 1} rank {rank} nRanks {self.ranks} nNodes {self.nodes} localRanks 8"
        for other in range(node * EIGHT, (node + 1) * EIGHT):
            if other != rank:
                via = self.inside.get((min(rank, other), max(rank, other)), "P2P/CUMEM")
                yield head + f"Channel 00/0 : {rank}[{rank % EIGHT}] -> {other}[{other % EIGHT}] via {via}"
        if self.nodes > 1:
            far = (rank + EIGHT) % self.ranks
            between = "NET/Socket/0" if self.network.get(node) == "Socket" else self.between
            yield head + f"Channel 00/0 : {rank}[0] -> {far}[0] [send] via {between}"
        yield head + f"ncclCommInitRank {mine}COMPLETE"

    def document(self, node: int) -> bytes:
        reading = Reading()
        for rank in range(node * EIGHT, (node + 1) * EIGHT):
            reading.open(f"node-{node}/attempt-001/rank-{rank}.nccl")
            reading.feed(list(self.lines(node, rank)))
        facts = nccl_facts.with_node_facts(reading.facts(), node, self.devices, self.peermem)
        seen = tuple(msgspec.structs.replace(one, seen=self.seen) for one in facts.communicators)
        return nccl_facts.encode(msgspec.structs.replace(facts, communicators=seen))

    def view(self) -> View:
        state = RunState(run=f"run-{id(self)}")
        for node in range(self.nodes):
            state.nodes[node] = Node(node, nccl=self.document(node), gpus=self.gpus)
        state.findings = {(one.id, one.rank, one.node): one for one in self.findings}
        return View(state=state, plan=self.plan, now=NOW, history={})

    def found(self) -> dict[str, Finding]:
        said = list(Expectations().find(self.view()))
        assert all(one.evidence for one in said), "no finding without evidence"
        assert len({(one.id, one.rank, one.node) for one in said}) == len(said)
        return {f"{one.id} {one.severity} {one.node}": one for one in said}


@pytest.fixture
def job() -> Job:
    return Job()


def planned(tmp_path: Path, **env: str) -> Plan:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    place = Place(
        run="r",
        run_dir=str(tmp_path),
        cwd=str(tmp_path),
        python="python",
        port=29500,
        ras_port=29501,
        gpus=0,
        cores=2,
    )
    plan = make_plan(load("ddp"), Request(script=str(script), nproc_per_node=1), place)
    return replace(plan, env={**plan.env, **env})


@for_each("nodes", [1, 2, 5])
def test_a_healthy_job_is_silent(nodes: int) -> None:
    assert Job(nodes).found() == {}


def test_nothing_is_known(job: Job) -> None:
    state = RunState(run="x", nodes={0: Node(0), 1: Node(1, nccl=b"no document")})
    assert list(Expectations().find(View(state=state, plan=None, now=NOW, history={}))) == []


def test_tcp_although_the_node_has_rdma(job: Job) -> None:
    job.network = dict.fromkeys(range(2), "Socket")
    found = job.found()
    assert set(found) == {"expect-network warning 0", "expect-network warning 1"}
    one = found["expect-network warning 1"]
    assert (
        one.text == "node-1 talks to other nodes over TCP, although it has RDMA devices: many times slower"
    )
    assert one.evidence == (
        "node-1/attempt-001/rank-8.nccl:4: node-1:108:108 [0] NCCL INFO Using network Socket",
        "active ports on node-1: mlx5_0:1, mlx5_1:1",
    )


@for_each("env", [{"NCCL_IB_DISABLE": "1"}, {"NCCL_NET": "Socket"}])
def test_tcp_that_was_asked_for_is_none(job: Job, env: Mapping[str, str]) -> None:
    job.network, job.env = dict.fromkeys(range(2), "Socket"), dict(env)
    assert job.found() == {}


def test_tcp_without_rdma_devices_or_on_one_node_is_none(job: Job) -> None:
    job.network, job.devices = dict.fromkeys(range(2), "Socket"), ()
    assert job.found() == {}
    one = Job(1)
    one.network = {0: "Socket"}
    assert one.found() == {}


def test_a_node_that_took_another_network_than_the_others() -> None:
    job = Job(3)
    job.network = {2: "Socket"}
    found = job.found()
    assert set(found) == {"expect-same-network warning 2"}, "and not twice"
    one = found["expect-same-network warning 2"]
    assert one.text == "node-2 took the network Socket, and other nodes IB"
    assert one.evidence[0].endswith("Using network Socket")
    assert one.evidence[1].endswith("Using network IB")
    assert one.evidence[2] == "active RDMA ports on node-2: mlx5_0:1, mlx5_1:1"


def test_of_two_nodes_it_is_the_one_with_tcp(job: Job) -> None:
    job.network = {0: "Socket"}
    assert set(job.found()) == {"expect-same-network warning 0"}


def test_rdma_through_host_memory(job: Job) -> None:
    job.between, job.peermem = "NET/IB/0", None
    found = job.found()
    assert set(found) == {"expect-gdr warning 0", "expect-gdr warning 1"}
    (line,) = found["expect-gdr warning 0"].evidence
    assert line.endswith("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0")


def test_gpudirect_that_nobody_wants_or_can_have(job: Job, tmp_path: Path) -> None:
    job.between = "NET/IB/0"
    job.gpus = (Gpu(0, "GPU-1", "NVIDIA GeForce RTX 4090"),) * EIGHT
    assert job.found() == {}
    job.gpus, job.plan = (), planned(tmp_path, NCCL_NET_GDR_LEVEL="LOC")
    assert [name for name in job.found() if "gdr" in name] == []


@for_each(
    ("bootstrap", "why"),
    [
        ("docker0:172.17.0.1", "a virtual interface that seldom leads to another machine"),
        ("lo:127.0.0.1", "a loopback address that no other node can reach"),
        ("eth1:169.254.3.4", "a link-local address that other nodes can seldom reach"),
        ("eth0:fe80::1%eth0", "a link-local address that other nodes can seldom reach"),
    ],
)
def test_an_interface_over_which_the_nodes_do_not_meet(job: Job, bootstrap: str, why: str) -> None:
    job.stage, job.bootstrap = "START", {1: bootstrap}
    found = job.found()
    assert set(found) == {"expect-interface warning 1"}
    one = found["expect-interface warning 1"]
    assert one.text == f"node-1 meets the other nodes over {bootstrap}, {why}"
    assert one.evidence[0].endswith(f"Bootstrap: Using {bootstrap}<0>")


def test_an_interface_is_no_alarm_while_ranks_start_or_after_they_have_met(job: Job) -> None:
    job.bootstrap = dict.fromkeys(range(2), "docker0:172.17.0.1")
    assert job.found() == {}, "they have met"
    job.stage, job.seen = "START", NOW - SETTLED_S + 1
    assert job.found() == {}
    one = Job(1)
    one.stage, one.bootstrap = "START", {0: "lo:127.0.0.1"}
    assert one.found() == {}, "one node meets itself"


def test_a_node_in_another_network_than_the_others() -> None:
    job = Job(3)
    job.stage, job.bootstrap = "START", {0: "eth1:192.168.7.2"}
    found = job.found()
    assert set(found) == {"expect-interface warning 0"}
    one = found["expect-interface warning 0"]
    assert (
        one.text == "node-0 meets the other nodes over eth1:192.168.7.2, and the others are in 10.1.0.0/16"
    )
    assert "10.1.1.2" in one.evidence[1]
    job.seen = NOW - LATE_S + 1
    assert job.found() == {}


def test_different_releases() -> None:
    job = Job(3)
    job.version = {1: "2.21.5+cuda12.4", 2: "2.27.5+cuda13.0"}
    found = job.found()
    assert set(found) == {"version-mismatch warning None"}
    one = found["version-mismatch warning None"]
    assert one.text == (
        "the nodes have loaded different releases of NCCL: 2.27.5 on 2 nodes, 2.21.5 on 1 node"
    )
    assert [line.rpartition(" ")[2] for line in one.evidence] == ["2.27.5+cuda12.9", "2.21.5+cuda12.4"]
    job.stage = "START"
    assert set(job.found()) == {"version-mismatch error None"}, "not running yet, and perhaps never"
    job.findings = [Finding("version-mismatch", "error", "x", rank=1, node=0)]
    assert job.found() == {}, "NCCL has said so itself"


NVLINK = tuple(Gpu(at, f"GPU-{at}", "NVIDIA H100", nvlink_tx_bps=1.0) for at in range(EIGHT))


def test_a_gpu_that_the_others_do_not_reach_by_p2p() -> None:
    job = Job(1)
    job.inside, job.gpus = {(2, 5): "SHM/direct/direct", (4, 5): "SHM/direct/direct"}, NVLINK
    found = job.found()
    assert set(found) == {"expect-p2p warning 0"}
    one = found["expect-p2p warning 0"]
    assert (one.rank, one.ranks) == (5, (2, 4, 5))
    assert (
        one.text
        == "ranks 2 and 5, 4 and 5 of node-0 are connected over SHM, and the other GPUs there by P2P"
    )
    assert one.evidence[0].endswith("Channel 00/0 : 2[2] -> 5[5] via SHM/direct/direct")
    job.gpus = ()
    assert set(job.found()) == {"expect-p2p note 0"}, "without NVLink it may be how the node is built"


def test_one_slow_pair_has_no_culprit() -> None:
    job = Job(1)
    job.inside, job.gpus = {(1, 2): "NET/Socket/0"}, NVLINK
    (one,) = job.found().values()
    assert (one.rank, one.ranks, "NET/Socket" in one.text) == (None, (1, 2), True)


def test_two_sockets_without_p2p_between_them_are_as_they_should_be() -> None:
    job = Job(1)
    job.inside = {(a, b): "SHM" for a in range(4) for b in range(4, 8)}
    assert job.found() == {}
    job.inside = {(a, b): "SHM" for a in range(8) for b in range(8)}
    assert job.found() == {}


def test_variables_that_were_not_read(job: Job, tmp_path: Path) -> None:
    job.plan = planned(
        tmp_path, NCCL_SOCKET_IFNAME="eth0", NCCL_IB_TIMEOUT="22", NCCL_ALGO="Ring", NCCL_P2P_LEVLE="NVL",
        NCCL_MYPLUGIN_THING="1",
    )  # fmt: skip
    found = job.found()
    assert {name: one.text.removeprefix("NCCL has not read ") for name, one in found.items()} == {
        "expect-env:NCCL_ALGO warning None": "NCCL_ALGO: it was set too late, or the processes do not see it",
        "expect-env:NCCL_IB_TIMEOUT note None": "NCCL_IB_TIMEOUT: it is read only where it is needed",
        "expect-env:NCCL_MYPLUGIN_THING note None": "NCCL_MYPLUGIN_THING: no NCCL is known to read it",
        "expect-env:NCCL_P2P_LEVLE warning None": "NCCL_P2P_LEVLE: it looks like NCCL_P2P_LEVEL",
    }
    assert found["expect-env:NCCL_ALGO warning None"].evidence == (
        "the plan sets NCCL_ALGO=Ring",
        "NCCL logs that it read NCCL_SOCKET_IFNAME",
    )
    job.stage = "START"
    assert job.found() == {}, "it may still read them"
    job.stage, job.env = "COMPLETE", {}
    assert job.found() == {}, "without ENV it does not say what it reads"


def test_the_same_document_says_the_same_and_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    decode = nccl_facts.decode

    def counted(document: bytes) -> nccl_facts.NcclFacts:
        read.append(document)
        return decode(document)

    monkeypatch.setattr(nccl_facts, "decode", counted)
    view, expectations = Job(8).view(), Expectations()
    first = list(expectations.find(view))
    documents = len(read)
    assert list(expectations.find(view)) == first == []
    assert len(read) == documents > 0
