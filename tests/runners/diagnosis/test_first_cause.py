"""The first cause, what is folded beneath it, and findings that are derived from many lines."""

from __future__ import annotations

from pathlib import Path

from each import for_each

from distui.runners.diagnosis.diagnosis_document import document
from distui.runners.diagnosis.first_cause import Verdict, judge
from distui.runners.diagnosis.read_logs import read_all

CLOSED = "{}:1:2 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer x<1>"
OOM = "{}:1:2 [0] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'"
PORT = "{}:1:2 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error"
REFUSED = "{}:1:2 [0] NCCL INFO Call to connect returned Connection refused, retrying"
WATCHDOG = (
    "[rank{0}]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600060 milliseconds "
)
STATUS = (
    "[rank{0}]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:1664] [PG 1 Rank {0}] Timeout at NCCL work: 9, "
    "last enqueued NCCL work: {1}, last completed NCCL work: {2}."
)


def of(folder: Path, *logs: list[str]) -> Verdict:
    paths = []
    for number, lines in enumerate(logs):
        paths.append(folder / f"{number}.log")
        paths[-1].write_text("\n".join(lines) + "\n")
    return judge(read_all((str(path), path) for path in paths))


def test_victims_are_folded_beneath_the_cause_with_counts(tmp_path: Path) -> None:
    lines = [
        CLOSED.format("a"),
        *[WATCHDOG.format(rank, 9) for rank in range(4)],
        OOM.format("b"),
        CLOSED.format("c"),
    ]
    verdict = of(tmp_path, lines)
    assert verdict.first is not None
    assert (verdict.first.id, verdict.first.host, verdict.first.lines[0].line) == ("cuda-oom", "b", 6)
    victims = {one.id: one for one in verdict.victims}
    assert (victims["sock-closed-by-peer"].count, victims["sock-closed-by-peer"].hosts) == (2, ("a", "c"))
    assert (victims["pt-watchdog"].count, victims["pt-watchdog"].ranks) == (4, (0, 1, 2, 3))
    assert verdict.failed


def test_symptoms_alone_are_no_cause(tmp_path: Path) -> None:
    verdict = of(tmp_path, [CLOSED.format("a")])
    assert verdict.failed
    assert verdict.first is not None
    assert (verdict.first.id, verdict.first.role) == ("sock-closed-by-peer", "symptom")


def test_a_rank_that_no_job_has_counts_nobody_as_missing(tmp_path: Path) -> None:
    verdict = of(tmp_path, [WATCHDOG.format(999999998, 49)])
    assert verdict.first is not None
    assert (verdict.first.id, verdict.first.ranks) == ("rank-absent", ())


def test_in_one_file_the_earlier_line_is_first(tmp_path: Path) -> None:
    for lines, first in (([PORT.format("a"), OOM.format("b")], "ib-port-error"),
                         ([OOM.format("b"), PORT.format("a")], "cuda-oom")):  # fmt: skip
        verdict = of(tmp_path, lines)
        assert verdict.first is not None
        assert (verdict.first.id, verdict.order) == (first, "lines")


EXIT = "failed (exitcode: 1) local_rank: 0 (pid: 75) of binary: /usr/bin/python"


@for_each(
    ("lines", "ranked"),
    [
        (
            [CLOSED.format("a"), EXIT, REFUSED.format("a"), OOM.format("b")],
            [("cause", "cuda-oom", 4), ("cause", "sock-refused-retry", 3), ("symptom", "sock-closed-by-peer", 1)],
        ),
        (
            [EXIT, REFUSED.format("a"), "step 1", "ERROR: the disk went away"],
            [("message", "unexplained", 4), ("report", "died-exit-silent", 1), ("cause", "sock-refused-retry", 2)],
        ),
        ([EXIT, REFUSED.format("a")], [("report", "died-exit-silent", 1), ("cause", "sock-refused-retry", 2)]),
    ],
)  # fmt: skip
def test_candidates_are_ranked(
    tmp_path: Path, lines: list[str], ranked: list[tuple[str, str, int]]
) -> None:
    """By role, severity and how much they explain: a launcher's report of an exit explains least."""
    path = tmp_path / "a.log"
    path.write_text("\n".join(lines) + "\n")
    reading = read_all([("a.log", path)])
    found = document(reading, judge(reading))
    assert [(each["explains"], each["id"], each["line"]) for each in found["candidates"]] == ranked
    assert found["findings"][0]["id"] == found["candidates"][0]["id"]
    assert found["candidates"][0]["score"]["severity"] == "error"


def test_an_error_goes_before_a_warning_that_came_before_it(tmp_path: Path) -> None:
    verdict = of(tmp_path, [REFUSED.format("a"), OOM.format("b")])
    assert verdict.first is not None
    assert verdict.first.id == "cuda-oom"
    alone = of(tmp_path, [REFUSED.format("a")])
    assert alone.first is not None
    assert (alone.first.id, alone.failed) == ("sock-refused-retry", False)


def test_across_files_time_decides(tmp_path: Path) -> None:
    early, late = "[2025-06-01 12:00:03] ", "[2025-06-01 12:00:07] "
    verdict = of(tmp_path, [late + PORT.format("a")], [early + OOM.format("b")])
    assert verdict.first is not None
    assert (verdict.first.id, verdict.order) == ("cuda-oom", "time")


def test_nccl_and_torch_write_the_same_clock(tmp_path: Path) -> None:
    stuck = "[rank2]:[F601 12:00:05.35 ProcessGroupNCCL.cpp:1224] [PG 3 Rank 2] watchdog got stuck for 600 seconds"
    for stamp, first in (("12:00:03", "cuda-oom"), ("12:00:07", "pt-heartbeat")):
        verdict = of(tmp_path, [stuck], [f"[2025-06-01 {stamp}] " + OOM.format("b")])
        assert verdict.first is not None
        assert (verdict.first.id, verdict.order) == (first, "time")


@for_each("stamp", ["", "2025-06-01T12:00:03 "])
def test_across_files_without_a_common_time_nobody_knows(tmp_path: Path, stamp: str) -> None:
    verdict = of(tmp_path, ["[2025-06-01 12:00:07] " + PORT.format("a")], [stamp + OOM.format("b")])
    assert (verdict.first is not None, verdict.order) == (True, "unknown")


@for_each(
    ("lines", "behind"),
    [
        ([WATCHDOG.format(0, 96120), WATCHDOG.format(7, 64088)], (7,)),
        ([WATCHDOG.format(0, 5), WATCHDOG.format(7, 5)], ()),
        ([STATUS.format(0, 12, 8), STATUS.format(1, 9, 8)], ()),
        ([STATUS.format(0, 12, 8), STATUS.format(1, 9, 6), STATUS.format(2, 9, 6)], (1, 2)),
        ([WATCHDOG.format(0, 9)], ()),
    ],
)
def test_who_is_behind(tmp_path: Path, lines: list[str], behind: tuple[int, ...]) -> None:
    assert of(tmp_path, lines).behind == behind


def test_the_rank_comes_from_the_communicator_where_no_launcher_says_it(tmp_path: Path) -> None:
    lines = [
        "b:1:9 [0] NCCL INFO comm 0x1 rank 5 nranks 8 cudaDev 0 busId 1000 commId 0xa - Init START",
        OOM.format("b"),
    ]
    verdict = of(tmp_path, lines)
    assert verdict.first is not None
    assert (verdict.first.rank, verdict.first.ranks) == (5, (5,))


LINK = "{}:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [{}] via NET/IB/0{}"
INIT = "{}:1:2 [0] NCCL INFO comm 0x1 rank {} nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0xa - Init {}"


def test_gdr_on_one_side_alone(tmp_path: Path) -> None:
    inits = [INIT.format("a", 0, "START"), INIT.format("b", 1, "START")]
    sends, receives = LINK.format("a", "send", "/GDRDMA"), LINK.format("b", "receive", "")
    verdict = of(tmp_path, [*inits, sends, receives])
    assert [(one.id, one.role) for one in verdict.findings] == [("gdr-asymmetric", "cause")]
    assert (
        verdict.findings[0].seen == "channel 0 from rank 0 to rank 1: only the sender uses GPUDirect RDMA"
    )
    assert of(tmp_path, [*inits, sends]).findings == ()
    assert of(tmp_path, [*inits, sends, LINK.format("b", "receive", "/GDRDMA")]).findings == ()
    assert of(tmp_path, [*inits, sends, receives.replace("00/0", "01/0")]).findings == ()


HCA = "a:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>"
SOCKET = "a:1:2 [0] NCCL INFO Using network Socket"
NODES = "a:1:2 [0] NCCL INFO comm 0x1 rank 0 nRanks 2 nNodes {} localRanks 1 localRank 0 MNNVL 0"


def test_sockets_where_rdma_was_expected(tmp_path: Path) -> None:
    several = [INIT.format("a", 0, "START"), NODES.format(2)]
    verdict = of(tmp_path, [*several, HCA, SOCKET])
    assert [one.id for one in verdict.findings] == ["net-socket-fallback"]
    assert verdict.findings[0].seen == "a uses network Socket, and it has mlx5_0:1"
    assert of(tmp_path, [*several, SOCKET]).findings == ()
    assert of(tmp_path, [INIT.format("a", 0, "START"), NODES.format(1), HCA, SOCKET]).findings == ()
    wanted = "a:1:2 [0] NCCL INFO NCCL_NET set by environment to Socket."
    assert [one.id for one in of(tmp_path, [*several, HCA, SOCKET, wanted]).findings] == ["env-set"]


def test_two_versions_in_one_communicator(tmp_path: Path) -> None:
    version = "{}:1:2 [0] NCCL INFO NCCL version {}+cuda12.4"
    inits = [INIT.format("a", 0, "START"), INIT.format("b", 1, "START")]
    verdict = of(tmp_path, [version.format("a", "2.22.3"), version.format("b", "2.21.5"), *inits])
    assert [(one.id, one.count, one.seen) for one in verdict.findings] == [
        ("version-mismatch", 0, "b has 2.21.5+cuda12.4, a has 2.22.3+cuda12.4")
    ]
    assert (
        of(tmp_path, [version.format("a", "2.22.3"), version.format("b", "2.22.3"), *inits]).findings == ()
    )
    assert of(tmp_path, [version.format("a", "2.22.3"), version.format("b", "2.21.5")]).findings == ()


def test_a_first_collective_that_hangs_over_p2p(tmp_path: Path) -> None:
    ready = [
        INIT.format("a", 0, "COMPLETE"),
        "a:2:3 [1] NCCL INFO comm 0x2 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2000 commId 0xa - Init COMPLETE",
        "a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    ]
    verdict = of(tmp_path, [*ready, WATCHDOG.format(0, 1), WATCHDOG.format(1, 1)])
    assert [(one.id, one.role) for one in verdict.findings] == [
        ("pt-watchdog", "symptom"),
        ("p2p-hang", "hint"),
    ]
    for lines in (
        ready,
        [*ready, WATCHDOG.format(0, 500)],
        [*ready, OOM.format("a"), WATCHDOG.format(0, 1)],
        [*ready[:1], ready[2], WATCHDOG.format(0, 1)],
        [
            *ready,
            "a:1:2 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via SHM/direct/direct",
            WATCHDOG.format(0, 1),
        ],
    ):
        assert "p2p-hang" not in {one.id for one in of(tmp_path, lines).findings}


def test_a_virtual_interface_matters_between_nodes_alone(tmp_path: Path) -> None:
    line = "a:1:2 [0] NCCL INFO Bootstrap: Using docker0:172.17.0.1<0>"
    one_node = [INIT.format("a", 0, "START"), NODES.format(1)]
    assert [one.id for one in of(tmp_path, [line]).findings] == ["sock-bad-interface-hint"]
    assert of(tmp_path, [line, *one_node]).findings == ()
    several = [INIT.format("a", 0, "START"), NODES.format(2), line]
    assert [one.id for one in of(tmp_path, several).findings] == ["sock-bad-interface-hint"]


def test_the_document_holds_what_the_verdict_does(tmp_path: Path) -> None:
    path = tmp_path / "rank-5.nccl"
    path.write_text(f"{OOM.format('b')}\n{CLOSED.format('b')}\n")
    reading = read_all([("node-2/attempt-001/rank-5.nccl", path)])
    found = document(reading, judge(reading))
    cause = found["first_cause"]
    assert cause is not None
    assert (cause["id"], cause["order"]) == ("cuda-oom", "lines")
    first = found["findings"][0]
    assert (first["node"], first["rank"], first["host"], first["count"]) == (2, 5, "b", 1)
    assert first["evidence"] == [
        {"file": "node-2/attempt-001/rank-5.nccl", "line": 1, "text": OOM.format("b")}
    ]
    assert found["victims"] == [{"id": "sock-closed-by-peer", "count": 1, "ranks": [5]}]
