"""Statements: what the logs say of nodes and communicators, version by version."""

from __future__ import annotations

from each import for_each

from distui.runners.diagnosis.reading import Reading
from distui.runners.diagnosis.statements import CommunicatorPart, Statements, transport

A, B = "node-a:100:110 [0] NCCL INFO ", "node-b:200:210 [0] NCCL INFO "


def said(*lines: str) -> Statements:
    reading = Reading()
    reading.open("job.log")
    reading.feed(lines)
    return reading.statements


def only(statements: Statements) -> CommunicatorPart:
    (one,) = statements.sessions.all()
    return one


def start(host: str, rank: int, nranks: int, name: str = "0xabc", pointer: str = "0x1") -> str:
    return (
        f"ncclCommInitRank comm {pointer} rank {rank} nranks {nranks} cudaDev 0 nvmlDev 0 busId 1000 "
        f"commId {name} - Init {host}"
    )


def test_from_start_to_the_end() -> None:
    lines = [A + start("START", 0, 2), B + start("START", 1, 2)]
    assert only(said(*lines)).stages() == {"started": 2}
    lines.append(A + "comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0")
    assert only(said(*lines)).stages() == {"started": 1, "bootstrapped": 1}
    lines += [A + start("COMPLETE", 0, 2), B + start("COMPLETE", 1, 2)]
    found = only(said(*lines))
    assert (found.id, found.nranks, found.nnodes) == ("0xabc", 2, 2)
    assert (found.stages(), found.hosts) == ({"complete": 2}, {"node-a", "node-b"})
    lines += [A + "Connected all rings", B + "Connected all trees"]
    assert only(said(*lines)).stages() == {"connected": 2}
    buffers = "sendbuff 0x7 recvbuff 0x7 count 8 datatype 7 op 0 root 0"
    lines.append(A + f"AllReduce: opCount 0 {buffers} comm 0x1 [nranks=2] stream 0x9")
    found = only(said(*lines))
    assert (found.stages(), dict(found.collectives)) == ({"connected": 1, "running": 1}, {"AllReduce": 1})
    lines += [
        A + "comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1000 - Destroy COMPLETE",
        B + "comm 0x1 rank 1 nranks 2 cudaDev 0 busId 1000 - Abort COMPLETE",
    ]
    assert only(said(*lines)).stages() == {"destroyed": 1, "aborted": 1}


@for_each(
    "line",
    [
        "comm 0x1 rank 3 nranks 8 cudaDev 3 nvmlDev 3 - Init COMPLETE",
        "comm 0x1 rank 3 nranks 8 cudaDev 3 busId b1000 - Init COMPLETE",
        "comm 0x1 rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId b1000 commId 0x2f - Init COMPLETE",
        "ncclCommInitRank comm 0x1 rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId b1000 commId 0x2f - Init COMPLETE",
        "ncclCommSplit comm 0x1 rank 3 nranks 8 cudaDev 3 busId b parent 0x9 color 0 key 3 commId 0x2 - Init COMPLETE",
        "[Rank 3] ncclCommInitRankConfig comm 0x1 rank 3 nranks 8 cudaDev 3 nvmlDev 3 commId 0x2 - Init COMPLETE",
    ],
)
def test_init_complete_of_every_version(line: str) -> None:
    found = only(said(A + line))
    assert (found.nranks, list(found.ranks), found.stages()) == (8, [3], {"complete": 1})


@for_each(
    ("line", "kind"),
    [
        ("Ring 00 : 0[0] -> 1[1] via P2P/IPC", "P2P/IPC"),
        ("Ring 00 : 0 -> 1 [send] via NET/AWS Libfabric/0", "NET/AWS Libfabric"),
        ("Ring 00 : 0[3d000] -> 1[3e000] via direct shared memory", "SHM"),
        ("Channel 00 : 0[ca000] -> 1[31000] via P2P/IPC/read", "P2P/IPC"),
        ("Channel 02 : 0[a000] -> 1[b000] via P2P/direct pointer", "P2P/direct pointer"),
        ("Channel 00/0 : 0[101c0] -> 1[101d0] via P2P/IPC/read comm 0x55 nRanks 02", "P2P/IPC"),
        ("Channel 19/0 : 0[2] -> 1[1] via P2P/CUMEM", "P2P/CUMEM"),
        ("Channel 00/0 : 0[0] -> 1[4] via P2P/indirect/2[2]", "P2P/indirect"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "SHM"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct", "SHM"),
        ("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA", "NET/IB/GDRDMA"),
        (
            "Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IBext_v8/3(2)/GDRDMA(PCI)/Shared",
            "NET/IBext_v8/GDRDMA",
        ),
        ("Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0/Shared", "NET/Socket"),
    ],
)
def test_the_transport_of_a_pair_in_every_version(line: str, kind: str) -> None:
    found = only(said(A + line))
    assert found.pairs == {(0, 1): {kind}}
    assert found.transports() == {kind: 1}


def test_pairs_belong_to_the_communicator_that_the_thread_made() -> None:
    lines = [
        A + start("START", 0, 2),
        A + "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "node-a:100:111 [0] NCCL INFO " + start("START", 0, 4, "0xdef", "0x2"),
        "node-a:100:111 [0] NCCL INFO Channel 00/0 : 0[0] -> 3[3] via SHM/direct/direct",
    ]
    small, large = said(*lines).sessions.all()
    assert (small.id, small.pairs) == ("0xabc", {(0, 1): {"P2P/CUMEM"}})
    assert (large.id, large.pairs) == ("0xdef", {(0, 3): {"SHM"}})


def test_before_2_18_the_connections_come_before_the_communicator_is_named() -> None:
    lines = [
        A + "Channel 00/02 :    0   1",
        A + "Channel 00 : 0[1000] -> 1[2000] via SHM/direct/direct",
        A + "comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE",
        "node-a:101:120 [1] NCCL INFO Channel 00 : 1[2000] -> 0[1000] via SHM/direct/direct",
        "node-a:101:120 [1] NCCL INFO comm 0x1 rank 1 nranks 2 cudaDev 1 busId 2000 - Init COMPLETE",
    ]
    found = only(said(*lines))
    assert (found.rings, found.transports(), sorted(found.ranks)) == ({0: "0 1"}, {"SHM": 2}, [0, 1])


def test_connections_that_name_their_communicator() -> None:
    lines = [
        A + start("COMPLETE", 0, 2, "0xabc", "0x1"),
        A + start("COMPLETE", 0, 2, "0xdef", "0x2"),
        A + "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC comm 0x1 nRanks 02",
        A + "Connected all rings comm 0x1 nRanks 02 busId 1000",
    ]
    first, second = said(*lines).sessions.all()
    assert (first.pairs, first.stages()) == ({(0, 1): {"P2P/IPC"}}, {"connected": 1})
    assert (second.pairs, second.stages()) == ({}, {"complete": 1})


def test_two_communicators_of_one_size_without_ids() -> None:
    line = "comm {} rank {} nranks 2 cudaDev 0 busId 1000 - Init COMPLETE"
    lines = [A + line.format("0x1", 0), A + line.format("0x2", 0), B + line.format("0x1", 1)]
    first, second = said(*lines).sessions.all()
    assert (sorted(first.ranks), sorted(second.ranks)) == ([0, 1], [0])


def test_how_long_init_took_and_where() -> None:
    timing = "Init timings - ncclCommInitRank: rank {} nranks 2 total {} (kernels 0.07, alloc 0.03, bootstrap {})"
    lines = [
        A + start("START", 0, 2),
        A + timing.format(0, 0.26, 0.15),
        B + start("START", 1, 2),
        B + timing.format(1, 9.5, 9.1),
    ]
    slowest = only(said(*lines)).slowest()
    assert slowest is not None
    assert (slowest.rank, slowest.seconds) == (1, 9.5)
    assert slowest.phases == {"kernels": 0.07, "alloc": 0.03, "bootstrap": 9.1}
    old = only(
        said(
            A + start("START", 0, 2),
            A + "Init timings: rank 0 nranks 2 total 1.08 (kernels 0.51, rest 0.57)",
        )
    )
    assert [(one.rank, one.seconds) for one in old.timed.values()] == [(0, 1.08)]
    assert only(said(A + start("START", 0, 2))).slowest() is None


def test_channels_trees_tuning() -> None:
    lines = [
        A + start("START", 0, 2),
        A
        + "24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer",
        A + "Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1",
        A + "AllReduce: 16777216 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..23}",
        A + "AllReduce: 16777216 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..23}",
        A + "4096 Bytes -> Algo 1 proto 0 time 12.5",
        A + "NVLS comm 0x1 headRank 0 nHeads 8 buffSize 4194304 memSize 2097152",
    ]
    found = only(said(*lines))
    assert found.channels == {"coll": 24, "collnet": 24, "nvls": 16, "p2p": 32, "p2p per peer": 32}
    assert (found.trees, found.nvls) == (2, True)
    assert dict(found.tuning) == {"AllReduce RING LL128": 2, "RING LL": 1}


def test_what_a_node_has() -> None:
    lines = [
        A + "NCCL version 2.27.5+cuda12.9",
        A + "Bootstrap: Using eth0:10.0.0.1<0>",
        A + "NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:10.1.0.1<0>",
        A + "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
        A + "Assigned NET plugin IB to comm",
        A + "Using network IB",
        A + "NCCL_IB_HCA set to mlx5_0,mlx5_1",
        A + "NET/OFI Using aws-ofi-nccl 1.4.0aws",
        "NCCL version 2.27.5+cuda12.9",
    ]
    statements = said(*lines)
    (node,) = statements.nodes.values()
    assert (node.host, node.versions, node.bootstrap) == ("node-a", {"2.27.5+cuda12.9"}, "eth0")
    assert node.interfaces == {"eth0": "10.0.0.1", "eth1": "10.1.0.1"}
    assert node.hcas == {"mlx5_0:1": "RoCE", "mlx5_1:1": "RoCE"}
    assert (node.networks, node.named_networks()) == ({"IB"}, ["IB over RoCE"])
    assert node.env == {"NCCL_IB_HCA": "mlx5_0,mlx5_1"}
    assert node.plugins == {"aws-ofi-nccl 1.4.0aws"}


def test_ranks_of_a_node_are_those_of_its_largest_communicator() -> None:
    lines = [A + start("START", 1, 2, "0xs", "0x1"), A + start("START", 5, 8, "0xabcd", "0x2")]
    assert said(*lines).sessions.ranks_on("node-a") == [5]


def test_lines_without_a_host_are_kept_apart_by_file() -> None:
    reading = Reading()
    for number in range(2):
        reading.open(f"rank-{number}.log")
        reading.feed([f"NCCL INFO {start('START', number, 2)}", "NCCL INFO Using network Socket"])
    assert [(node.host, node.file) for node in reading.statements.nodes.values()] == [
        ("", "rank-0.log"),
        ("", "rank-1.log"),
    ]
    assert sorted(only(reading.statements).ranks) == [0, 1]


def test_a_transport_nobody_knows_is_named_as_it_is() -> None:
    assert transport("COLLNET/SHARP/0") == "COLLNET"
    assert transport("") == ""
