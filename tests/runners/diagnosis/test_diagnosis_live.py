"""Facts: what a reading says in a form that travels, files read in turns, and several nodes as one."""

from __future__ import annotations

import time
from pathlib import Path

from each import for_each

from distui.runners.diagnosis import nccl_facts
from distui.runners.diagnosis.diagnosis_document import Diagnosis, document
from distui.runners.diagnosis.first_cause import judge
from distui.runners.diagnosis.nccl_facts import Communicator, FactLine, NcclFacts, NcclNode, Pair
from distui.runners.diagnosis.read_logs import read_all
from distui.runners.diagnosis.reading import Reading

CORPUS = sorted((Path(__file__).parent / "corpus").glob("[0-9]*.log"))


def head(node: int, rank: int, stamp: str = "") -> str:
    return f"{stamp}node-{node}:{100 + rank}:{200 + rank} [{rank % 2}] NCCL INFO "


def start(rank: int, nranks: int, name: str = "0xabc", end: str = "START") -> str:
    return f"ncclCommInitRank comm 0x{rank + 1} rank {rank} nranks {nranks} cudaDev 0 commId {name} - Init {end}"


def lines(node: int, ranks: tuple[int, int], nranks: int) -> dict[int, list[str]]:
    """Of two ranks of a node: all that INFO says until they are connected, but for what other ranks say."""
    said: dict[int, list[str]] = {}
    for rank in ranks:
        its = head(node, rank)
        said[rank] = [
            its + "NCCL version 2.27.5+cuda12.9",
            its + f"Bootstrap: Using eth0:192.0.2.{node}<0>",
            its + f"NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:192.0.2.{node}<0>",
            its + "NCCL_IB_GID_INDEX set by environment to 3.",
            its + "Using network IB",
            head(node, rank, "[2026-03-01 12:00:00.250000] ") + start(rank, nranks),
            its
            + f"comm 0x{rank + 1} rank {rank} nRanks {nranks} nNodes 2 localRanks 2 localRank 0 MNNVL 0",
            its + f"Channel 00/0 : {rank}[0] -> {(rank + 1) % nranks}[0] via P2P/CUMEM",
            its
            + "2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer",
            its
            + f"Init timings - ncclCommInitRank: rank {rank} nranks {nranks} total 1.{rank} (bootstrap 0.9)",
            its + start(rank, nranks, end="COMPLETE"),
        ]
    said[ranks[0]].insert(7, head(node, ranks[0]) + "Channel 00/02 : " + " ".join(map(str, range(nranks))))
    return said


def node_facts(node: int, ranks: tuple[int, int], nranks: int = 4) -> NcclFacts:
    reading = Reading()
    for rank, its in lines(node, ranks, nranks).items():
        reading.open(f"node-{node}/attempt-001/rank-{rank}.nccl")
        reading.feed(its)
    return nccl_facts.with_node_facts(reading.facts(), node, ("mlx5_0:1",), True)


def test_what_one_node_says() -> None:
    facts = node_facts(1, (2, 3))
    assert facts.nodes == (
        NcclNode(
            host="node-1", node=1, versions=("2.27.5+cuda12.9",), networks=("IB over RoCE",),
            bootstrap="eth0:192.0.2.1", interfaces=("eth0:192.0.2.1",), hcas={"mlx5_0:1": "RoCE"},
            env={"NCCL_IB_GID_INDEX": "3"}, devices=("mlx5_0:1",), peermem=True,
        ),
    )  # fmt: skip
    (one,) = facts.communicators
    assert (one.id, one.nranks, one.nnodes, one.hosts) == ("0xabc", 4, 2, {"node-1": (2, 3)})
    assert one.stages == {2: "complete", 3: "complete"}
    at = time.mktime(time.strptime("2026-03-01 12:00:00", "%Y-%m-%d %H:%M:%S")) + 0.25
    assert one.began == {2: at, 3: at}
    assert [(init.rank, init.seconds, init.phases) for init in one.inits] == [
        (2, 1.2, {"bootstrap": 0.9}),
        (3, 1.3, {"bootstrap": 0.9}),
    ]
    assert one.pairs == (Pair(2, 3, "P2P/CUMEM"), Pair(3, 0, "P2P/CUMEM"))
    assert (one.rings, one.ring_count, one.nvls) == (((0, 1, 2, 3),), 2, False)
    file = "node-1/attempt-001/rank-2.nccl"
    assert (
        facts.raw["host:node-1"]
        == facts.raw["version:node-1"]
        == FactLine(file, 1, lines(1, (2, 3), 4)[2][0])
    )
    assert {key: (one.file, one.line) for key, one in facts.raw.items()} == {
        "host:node-1": (file, 1),
        "version:node-1": (file, 1),
        "bootstrap:node-1": (file, 2),
        "hcas:node-1": (file, 3),
        "network:node-1": (file, 5),
        "comm:0xabc": (file, 6),
        "pair:0xabc:P2P/CUMEM": (file, 9),
        "rule:env-set": (file, 4),
    }


def test_nvlink_sharp_is_used_or_not_or_unknown() -> None:
    def nvls(said: list[str]) -> bool | None:
        reading = Reading()
        reading.open("a.log")
        reading.feed(said)
        (communicator,) = document(reading, judge(reading))["communicators"]
        return communicator["nvls"]

    said = lines(1, (2, 3), 4)[2]
    assert nvls(said) is False
    assert nvls([line.replace("0 nvls channels", "16 nvls channels") for line in said]) is True
    assert nvls([line for line in said if "nvls" not in line]) is None


def test_a_second_network_has_a_line_of_its_own() -> None:
    reading = Reading()
    reading.open("a")
    reading.feed([head(0, 0) + f"Using network {name}" for name in ("IB", "IB", "Socket")])
    raw = reading.facts().raw
    assert (raw["network:node-0"].line, raw["network:node-0:Socket"].line) == (1, 3)


def test_a_ring_that_is_cut_has_no_order() -> None:
    reading = Reading()
    reading.open("a")
    reading.feed([head(0, 0) + start(0, 4), head(0, 0) + "Channel 00/02 : 0 1 2"])
    (one,) = reading.facts().communicators
    assert (one.rings, one.ring_count) == ((), 1)


def test_several_nodes_are_one_communicator() -> None:
    merged = nccl_facts.merge([node_facts(0, (0, 1)), node_facts(1, (2, 3))])
    assert [(node.host, node.node) for node in merged.nodes] == [("node-0", 0), ("node-1", 1)]
    (one,) = merged.communicators
    assert one.hosts == {"node-0": (0, 1), "node-1": (2, 3)}
    assert one.stages == dict.fromkeys(range(4), "complete")
    assert len(one.pairs) == len(one.inits) == 4
    assert merged.raw["version:node-1"].file == "node-1/attempt-001/rank-2.nccl"
    assert merged.nccl_lines == sum(node_facts(node, (0, 1)).nccl_lines for node in (0, 1))


def test_of_two_nodes_the_further_stage_counts_and_the_earlier_sight() -> None:
    early = NcclFacts(
        communicators=(Communicator("x", 2, stages={0: "started"}, seen=5.0, collectives={"A": 1}),)
    )
    late = NcclFacts(
        communicators=(Communicator("x", 2, stages={0: "running"}, seen=9.0, collectives={"A": 2}),)
    )
    for given in ([early, late], [late, early]):
        (one,) = nccl_facts.merge(given).communicators
        assert (one.stages, one.seen, one.collectives) == ({0: "running"}, 5.0, {"A": 3})


def test_without_ids_communicators_are_told_apart_by_size_and_order() -> None:
    line = "comm 0x{} rank {} nranks 2 cudaDev 0 busId 1000 - Init COMPLETE"
    facts = []
    for rank in (0, 1):
        reading = Reading()
        reading.open("a")
        reading.feed([head(rank, rank) + line.format(number, rank) for number in (1, 2)])
        facts.append(reading.facts())
    merged = nccl_facts.merge(facts)
    assert [(one.id, one.stages) for one in merged.communicators] == [
        ("2 ranks, no. 1", {0: "complete", 1: "complete"}),
        ("2 ranks, no. 2", {0: "complete", 1: "complete"}),
    ]
    assert merged.raw["comm:2 ranks, no. 2"].line == 2


def test_many_pairs_are_folded_to_hosts() -> None:
    reading, ranks = Reading(), 256
    reading.open("a")
    its = [head(rank // 8, rank) + start(rank, ranks) for rank in range(ranks)]
    for rank in range(ranks):
        kinds = {True: "P2P/CUMEM", False: "[send] via NET/IB/0"}
        its += [
            head(rank // 8, rank)
            + f"Channel 00/0 : {rank}[0] -> {other}[0] "
            + ("via P2P/CUMEM" if rank // 8 == other // 8 else kinds[False])
            for other in range(ranks)
            if other != rank
        ]
    reading.feed(its)
    (one,) = reading.facts().communicators
    hosts = ranks // 8
    assert (
        len(one.pairs)
        == hosts + hosts * (hosts - 1)
        == len({(p.source // 8, p.target // 8) for p in one.pairs})
    )
    assert one.folded + len(one.pairs) == ranks * (ranks - 1)
    assert len(nccl_facts.encode(reading.facts())) < 200_000


@for_each("path", CORPUS)
def test_facts_travel(path: Path) -> None:
    facts = read_all([(str(path), path)]).facts()
    assert nccl_facts.decode(nccl_facts.encode(facts)) == facts
    merged = nccl_facts.merge([facts])
    assert {one.id for one in merged.communicators} == {one.id for one in facts.communicators}


def test_1024_ranks_are_merged() -> None:
    documents = [nccl_facts.encode(node_facts(node, (2 * node, 2 * node + 1), 1024)) for node in range(512)]
    merged = nccl_facts.merge(nccl_facts.decode(document) for document in documents)
    (one,) = merged.communicators
    assert (len(one.stages), len(one.hosts), len(merged.nodes)) == (1024, 512, 512)


# ---- files in turns


def test_files_that_are_read_in_turns_say_what_they_say_one_after_the_other() -> None:
    texts = {path.name: path.read_text("utf-8", "replace").split("\n") for path in CORPUS}
    whole, turns = Reading(), Reading()
    for name, its in texts.items():
        whole.open(name)
        whole.feed(its)
    for name in texts:
        turns.switch_to(name)
    for at in range(max(map(len, texts.values()))):
        for name, its in texts.items():
            if at < len(its):
                turns.switch_to(name)
                turns.feed(its[at : at + 1])
    assert turns.files == whole.files
    said, other = (document(one, judge(one)) for one in (whole, turns))
    assert (said["lines"], said["nccl_lines"]) == (other["lines"], other["nccl_lines"])

    def found(one: Diagnosis) -> dict[str, tuple[int, str, str]]:
        """Findings without their first line, which depends on the order."""
        return {
            finding["id"]: (finding["count"], finding["severity"], finding["role"])
            for finding in one["findings"]
        }

    assert found(other) == found(said)
    for finding in other["findings"]:
        for line in finding["evidence"]:
            assert line["text"][:60] in texts[line["file"]][line["line"] - 1]


def test_lines_that_are_skipped_are_counted() -> None:
    reading = Reading()
    reading.switch_to("a")
    reading.feed(["x"] * 3)
    reading.switch_to("b")
    reading.skip(10)
    reading.switch_to("a")
    reading.skip(5)
    reading.feed(["h:1:2 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error"])
    (one,) = judge(reading).findings
    assert (one.lines[0].file, one.lines[0].line) == ("a", 9)
    assert (reading.lines, reading.files) == (4, ["a", "b"])
