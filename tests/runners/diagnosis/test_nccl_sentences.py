"""Sentences that NCCL's own host code and torch's newer backend were seen to write, and what they are told as."""

from __future__ import annotations

from pathlib import Path

from each import for_each

from distui.runners.diagnosis.first_cause import Verdict, judge
from distui.runners.diagnosis.read_logs import read_all
from distui.runners.diagnosis.reading import Reading

HEAD = "gpu-a:{0}:{0} [{1}] NCCL INFO "
START = (
    "[Rank {1}] ncclCommInitRank comm 0x7f{1} rank {1} nranks 2 cudaDev {1} nvmlDev {1} busId 1b000 "
    "commId 0x344c723a9b0947d2 - Init START"
)
OTHER_BUILD = (
    "[2026-11-22 10:27:44] gpu-a:100:121 [0] bootstrap.cc:346 NCCL WARN Bootstrap Root : mismatch in info from procs, "
    "nranks 2 vs 2, nroots 1 vs 1, iroot 0 vs 0, offset 0 vs -2048917502"
)
TIMED_OUT = "[rank{0}]:[E1122 09:00:00.4263 WorkNCCL.cpp:196] [TC][rank={0}][name=0] Operation timed out after 600080 ms"
ABORTING = (
    "[rank{0}]:[E1122 09:00:00.426570554 ProcessGroupNCCLUtils.cpp:214] [TC][rank={0}][name=0] Aborting process due to "
    "timeout on rank {0} - timeout watchdog detected operation timeout"
)
RAISED = (
    "[rank{0}]: torch.distributed.DistBackendError: Watchdog caught collective operation timeout: "
    "NCCL operation timed out"
)


def verdict(folder: Path, *logs: list[str]) -> Verdict:
    paths = []
    for rank, lines in enumerate(logs):
        paths.append(folder / f"rank{rank}.log")
        paths[-1].write_text("\n".join(lines) + "\n")
    return judge(read_all((path.name, path) for path in paths))


def init(rank: int, version: str) -> list[str]:
    head = HEAD.format(100 + rank, rank)
    return [f"{head}NCCL version {version}+cuda13.0", head + START.format(0, rank)]


def test_ranks_with_other_builds_are_told_as_that_and_both_versions_are_named(tmp_path: Path) -> None:
    """A struct that became longer: the number of ranks agrees, and what follows it does not."""
    told = verdict(tmp_path, [*init(0, "2.29.7"), OTHER_BUILD], init(1, "2.28.9")).first
    assert told is not None
    assert (told.id, told.count) == ("version-mismatch", 1)
    assert "rank 1 has 2.28.9+cuda13.0, rank 0 has 2.29.7+cuda13.0" in told.text


def test_other_builds_are_told_also_where_no_version_is_logged(tmp_path: Path) -> None:
    told = verdict(tmp_path, [OTHER_BUILD]).first
    assert told is not None
    assert (told.id, told.text) == ("version-mismatch", "The ranks have loaded different builds of NCCL.")


def test_what_ras_says_of_other_builds_is_told(tmp_path: Path) -> None:
    warned = (
        "[2026-11-25 15:20:01] gpu-a:100:107 [0] ras/rasnet.cc:421 NCCL WARN NCCL version mismatch with remote peer "
        "10.0.0.7<35839> (local: 22907, remote 23007)"
    )
    first = verdict(tmp_path, [warned]).first
    assert first is not None
    assert first.id == "version-mismatch"


def test_a_wrong_number_of_ranks_is_no_other_build(tmp_path: Path) -> None:
    told = verdict(tmp_path, [OTHER_BUILD.replace("nranks 2 vs 2", "nranks 2 vs 4")]).first
    assert told is not None
    assert told.id == "boot-mismatch"


def test_two_jobs_of_one_host_may_have_two_builds(tmp_path: Path) -> None:
    """Only ranks of one communicator have to be alike."""
    other = [line.replace("0x344c723a9b0947d2", "0x1") for line in init(1, "2.28.9")]
    assert verdict(tmp_path, init(0, "2.29.7"), other).first is None


def test_a_machine_without_verbs_is_healthy(tmp_path: Path) -> None:
    """NCCL warns of it in every init."""
    lines = [
        HEAD.format(100, 0) + "Failed to open libibverbs.so[.1]",
        "[2026-11-22 10:17:57] gpu-a:100:100 [0] misc/ibvwrap.cc:173 NCCL WARN lib wrapper not initialized.",
        "[2026-11-22 10:17:57] gpu-a:100:100 [0] misc/ibvwrap.cc:185 (wrap_ibv_alloc_pd) NCCL WARN lib wrapper not initialized.",  # noqa: E501
        *init(0, "2.29.7"),
    ]
    assert [(each.id, each.role) for each in verdict(tmp_path, lines).findings] == [("ib-none", "fact")]


def test_hcas_of_a_healthy_socket_network_are_no_fault(tmp_path: Path) -> None:
    head = HEAD.format(100, 0)
    lines = [f"{head}NET/Socket : GPU Direct RDMA Disabled for HCA {nic} 'eth{nic}'" for nic in range(8)]
    assert verdict(tmp_path, [*init(0, "2.29.7"), *lines]).findings == ()


def test_a_failure_of_the_driver_that_ends_init_is_a_failure(tmp_path: Path) -> None:
    warned = "[2026-11-22 10:27:18] gpu-a:100:100 [0] init.cc:1011 NCCL WARN Cuda failure 101 'invalid device ordinal'"
    told = verdict(tmp_path, [*init(0, "2.28.9"), warned, HEAD.format(100, 0) + "init.cc:2055 -> 1"])
    assert told.failed
    assert told.first is not None
    assert (told.first.id, told.first.text) == (
        "cuda-failure", "A call of CUDA failed inside NCCL: invalid device ordinal."
    )  # fmt: skip


def test_after_a_live_toggle_collectives_belong_to_communicators_by_their_size() -> None:
    """Their init was before NCCL logged: the n-th of a size that a process calls is the n-th of the others."""
    call = "AllReduce: opCount 4 sendbuff 0x7 recvbuff 0x7 count 8 datatype 7 op 0 root 0 comm {} [nranks={}] stream 0x9"
    reading = Reading()
    for process in range(2):
        reading.open(f"rank{process}.log")
        head = HEAD.format(100 + process, process)
        calls = [("0xa0", 2), ("0xa0", 2), ("0xb0", 2), ("0xc0", 8)]
        reading.feed([head + call.format(f"{pointer}{process}", size) for pointer, size in calls])
    sizes = [(comm.nranks, dict(comm.collectives)) for comm in reading.statements.sessions.all()]
    assert sizes == [(2, {"AllReduce": 4}), (2, {"AllReduce": 2}), (8, {"AllReduce": 2})]
    names = [comm.id for comm in reading.facts().communicators]
    assert names == ["8 ranks, no. 1", "2 ranks, no. 1", "2 ranks, no. 2"]


def test_time_outs_of_the_backend_nccl2_name_who_did_not_come(tmp_path: Path) -> None:
    logs = [
        [TIMED_OUT.format(rank), ABORTING.format(rank)] if rank != 2 else ["step 41"] for rank in range(4)
    ]
    told = verdict(tmp_path, *logs)
    assert told.failed
    assert told.first is not None
    assert (told.first.id, told.first.ranks) == ("rank-absent", (2,))
    assert told.first.text.startswith("Rank 2 did not come: ranks 0, 1, 3 timed out in a collective")


def test_an_exception_alone_tells_of_a_time_out_of_nccl2(tmp_path: Path) -> None:
    told = verdict(tmp_path, [RAISED.format(0)], [RAISED.format(1)], ["step 41"])
    assert told.failed
    assert told.first is not None
    assert (told.first.id, told.first.ranks) == ("rank-absent", (2,))


def test_an_abort_of_nccl2_after_an_error_is_a_symptom(tmp_path: Path) -> None:
    lost = (
        "[rank3]:[E1122 09:00:00.426370554 ProcessGroupNCCLUtils.cpp:320] [TC][rank=3][name=0] nccl hit async error on "
        "rank 3: remote process exited or there was a network error"
    )
    raised = (
        "[rank3]: torch.distributed.DistBackendError: NCCL communicator was aborted after a previous error"
    )
    told = verdict(tmp_path, [lost, raised])
    assert told.failed
    assert [each.id for each in told.findings if each.role == "cause"] == []
    assert {each.id for each in told.findings} >= {"pt-remote-error", "pt-aborted"}
    broken = lost.replace("remote process exited or there was a network error", "unhandled cuda error")
    first = verdict(tmp_path, [broken, raised]).first
    assert first is not None
    assert (first.id, "unhandled cuda error" in first.text) == ("pt-async-error", True)


@for_each(
    "said",
    ["Failed to initialize any NET plugin", "Error: network IBX not found.", "Error: network  not found."],
)
def test_no_network_at_all_is_named(tmp_path: Path, said: str) -> None:
    """Up to NCCL 2.26 the words are others."""
    lines = [
        "[rank2]: RuntimeError: Failed to initialize NCCL communicator: invalid usage",
        f"[rank2]: NCCL Last Error: {said}",
    ]
    told = verdict(tmp_path, lines).first
    assert told is not None
    assert (told.id, told.rank) == ("net-plugin-none", 2)


CALL = "AllReduce: opCount 0 sendbuff 0x7 recvbuff 0x8 count 8 datatype 7 op 0 comm 0x7f{0} [nranks={1}] stream 0x9"
GAVE_UP = "TimeoutError: {} timed out after 600 s"


def waited(
    rank: int, world: int, calls: int = 0, call: str = "ncclAllReduce", stage: str = "COMPLETE"
) -> list[str]:
    """The log of a rank that made a communicator, called collectives and gave up."""
    head, line = HEAD.format(100 + rank, rank), START.format(0, rank).replace("nranks 2", f"nranks {world}")
    lines = [head + line.replace("START", stage), *[head + CALL.format(rank, world)] * calls]
    return [
        *lines,
        "Traceback (most recent call last):",
        '  File "train.py", line 9, in <module>',
        GAVE_UP.format(call),
    ]


def test_a_rank_that_called_less_than_those_that_wait_is_named(tmp_path: Path) -> None:
    """No watchdog of torch says it: NCCL's own lines count the calls."""
    away = waited(2, 3, calls=3)[:-3]
    first = verdict(tmp_path, waited(0, 3, calls=4), waited(1, 3, calls=6), away).first
    assert first is not None
    assert (first.id, first.ranks) == ("rank-absent", (2,))
    assert first.text == "Rank 2 is behind, with 3 collectives called, while ranks 0, 1 wait in number 4."


def test_where_all_ranks_wait_none_is_named(tmp_path: Path) -> None:
    """Ranks run ahead of one another: that alone is no sign."""
    told = verdict(tmp_path, waited(0, 2, calls=4), waited(1, 2, calls=6))
    assert told.failed
    assert [each.id for each in told.findings if each.role == "cause"] == []


def test_a_rank_that_never_joined_a_communicator_is_named(tmp_path: Path) -> None:
    logs = [waited(rank, 3, call="ncclCommInitRank", stage="START") for rank in range(2)]
    first = verdict(tmp_path, *logs).first
    assert first is not None
    assert (first.id, first.ranks) == ("rank-absent", (2,))
    assert first.text.startswith(
        "Rank 2 did not join a communicator that ranks 0, 1 were waiting to initialise"
    )


def test_one_log_of_many_does_not_say_that_the_others_did_not_come(tmp_path: Path) -> None:
    told = verdict(tmp_path, waited(0, 8, call="ncclCommInitRank", stage="START"))
    assert told.failed
    assert [each.id for each in told.findings if each.role == "cause"] == []


def test_a_rank_that_ended_without_a_word_is_named(tmp_path: Path) -> None:
    """Killed: the others lost it, and its own log tells of no error."""
    lost = "gpu-a:{0}:{0} [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer x<1>"
    logs = [[*waited(rank, 3)[:-3], lost.format(100 + rank)] for rank in range(2)]
    first = verdict(tmp_path, *logs, waited(2, 3)[:-3]).first
    assert first is not None
    assert (first.id, first.ranks) == ("rank-absent", (2,))
    assert "did not come, or ended: ranks 0, 1 waited" in first.text


def test_what_other_builds_run_into_is_a_symptom_where_the_versions_are_known(tmp_path: Path) -> None:
    cut = (
        "gpu-a:100:100 [0] bootstrap.cc:77 NCCL WARN Message truncated : received 144 bytes instead of 128"
    )
    told = verdict(tmp_path, [*init(0, "2.29.7"), cut], init(1, "2.30.7"))
    assert told.first is not None
    assert (told.first.id, [each.id for each in told.victims]) == ("version-mismatch", ["boot-truncated"])
    alike = verdict(tmp_path, [*init(0, "2.29.7"), cut], init(1, "2.29.7"))
    assert alike.first is not None
    assert alike.first.id == "boot-truncated"


def test_an_error_that_is_passed_on_is_a_trace(tmp_path: Path) -> None:
    lines = [
        "gpu-a:100:100 [0] group.cc:90 NCCL WARN ncclAsyncJobComplete: job 0x55bf failed, job error 3",
        "gpu-a:100:100 [0] init.cc:90 NCCL WARN Comm 0x7fa4ad6db010 is in abort state",
    ]
    assert [(each.id, each.role) for each in verdict(tmp_path, lines).findings] == [
        ("error-trace", "trace")
    ]


def test_a_poll_that_is_refused_is_a_limit_of_open_files(tmp_path: Path) -> None:
    line = "gpu-a:100:103 [0] proxy.cc:1666 NCCL WARN [Proxy Service] Poll failed: Invalid argument"
    first = verdict(tmp_path, [line]).first
    assert first is not None
    assert first.id == "too-many-files"
