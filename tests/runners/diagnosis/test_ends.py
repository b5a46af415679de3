"""How processes, pods and workers ended, by what launchers, MPI, Ray and Kubernetes print; and logs that are cut off."""

from __future__ import annotations

from collections.abc import Sequence

from each import for_each

from distui.runners.diagnosis.error_lines import MOST
from distui.runners.diagnosis.log_findings import LogFinding

from .test_exceptions import said

LAUNCHER = (
    "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: {0}) local_rank: {1} (pid: 611) of binary: "
    "/usr/bin/python3"
)
ROW = (
    "  host      : node4",
    "  rank      : {0} (local_rank: 1)",
    "  exitcode  : -7 (pid: 611)",
)
CUT = (
    "Traceback (most recent call last):",
    '  File "/srv/otter/train.py", line 33, in <module>',
    "    main()",
    '  File "/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1751, in _call_impl',
)


def first_of(*files: Sequence[str]) -> LogFinding:
    """The first cause of a job that failed."""
    verdict = said(*files)
    assert verdict.failed
    assert verdict.first is not None
    return verdict.first


@for_each(
    ("line", "id_", "rank", "host"),
    [
        ("[lake-4:30455] Signal: Aborted (6)", "died-abort", None, "lake-4"),
        ("[1,3]<stderr>:[meteo-7:518] Signal: Segmentation fault (11)", "died-segfault", 3, "meteo-7"),
        ("[meteo-7:518:0:522] Caught signal 11 (Segmentation fault: address not mapped)", "died-segfault", None,
         "meteo-7"),
        ("*** SIGSEGV received at time=1711111111 on cpu 3 ***", "died-segfault", None, ""),
        ("*** SIGBUS (@0x0) received by PID 4711 (TID 0x7f) from PID 0; stack trace: ***", "died-segfault", None, ""),
        ("Process 2 exit with status code 250.", "died-exit-silent", 2, ""),
        ("-- Process 5 terminated with the following error:", "died-exit-silent", 5, ""),
        ("Child process 719 (local_rank 0) FAILED (exitcode 1)", "died-exit-silent", 0, ""),
        ("17.1\tDEBUG\tevents\tPod: sea.tides-worker-1 exited with code 3\t{}", "died-exit-silent", None,
         "tides-worker-1"),
        ("      Exit Code:    139", "died-segfault", None, ""),
        ("tides-worker-1   0/1     CrashLoopBackOff   20 (24s ago)   79m", "k8s-pod-state", None, "tides-worker-1"),
        ("Back-off restarting failed container trainer in pod tides-master-0", "k8s-pod-state", None, "tides-master-0"),
        ("error: container failed with non-zero exit code: 137", "died-killed", None, ""),
        ("<none>    [2026-03-01T12:00:07.1Z]      || ERROR: resources failed with non-zero exit code: 3 (exit code 3)",
         "died-exit-silent", None, ""),
        ("[rank: 1] Child process with PID 226 terminated with code 1. Forcefully terminating all other processes",
         "died-exit-silent", 1, ""),
        ("tides/2: job terminated with exit code 134", "died-abort", None, ""),
        ("Signal 11 (SIGSEGV) received by PID 719 (TID 719) from PID 0", "died-segfault", None, ""),
        ("INFO elastic.agent.server.api: [default] Worker group FAILED. 2/3 attempts left; will restart worker group",
         "worker-group-failed", None, ""),
        ("Container rank 2 status failed cmd ['/usr/bin/python', '-u', 'tools/train.py'] code -9 log ./log/workerlog.2",
         "died-killed", 2, ""),
        ("LAUNCH INFO 2026-03-10 00:35:51,420 Exit code -9", "died-killed", None, ""),
        ("=   KILLED BY SIGNAL: 9 (Killed)", "died-killed", None, ""),
        ("ERROR:  One or more process (first noticed rank 3) terminated with signal 9", "died-killed", 3, ""),
        ("n3.cluster: rank 3 died from signal 11", "died-segfault", 3, "n3.cluster"),
        ("n3.cluster: rank 3 exited with code 1", "died-exit-silent", 3, "n3.cluster"),
        ("flux-job: task(s) exited with exit code 1", "died-exit-silent", None, ""),
        ("Exited with exit code 1.", "died-exit-silent", None, ""),
        ("PBS: job killed: walltime 3602 exceeded limit 3600", "batch-limit", None, ""),
        ("[ERROR] ME(9:2,MainProcess): [_api.py:314] Worker process 52 exit with exception. Error code: -9.",
         "died-killed", None, ""),
        ("    _queued_calls.append((callable, traceback.format_stack()))", "cuda-deferred", None, ""),
    ],
)  # fmt: skip
def test_an_end_is_read(line: str, id_: str, rank: int | None, host: str) -> None:
    first = first_of(["loading the model", line])
    assert (first.id, first.rank, first.host) == (id_, rank, host)


def test_a_process_is_known_by_all_reports_of_its_end() -> None:
    first = first_of([LAUNCHER.format(-7, 1), *(line.format(5) for line in ROW)])
    assert (first.id, first.rank, first.host, first.count) == ("died-segfault", 5, "node4", 1)


def test_a_local_rank_alone_is_the_rank_where_there_is_one_node() -> None:
    assert first_of([LAUNCHER.format(-9, 3)]).rank == 3
    assert first_of([LAUNCHER.format(-9, 3)], [LAUNCHER.format(-15, 1)]).rank is None


def test_what_stands_below_a_killed_process_followed_from_it() -> None:
    first = first_of(
        [LAUNCHER.format(-6, 0), "ERROR: Error waiting on exit barrier. Elapsed: 309.2 seconds"]
    )
    assert first.id == "died-abort"


def test_a_log_that_ends_within_a_traceback_is_of_a_failed_job() -> None:
    first = first_of(["step 3 loss 2.1", *CUT])
    assert first.id == "died-cut-off"
    within = (
        "at train.py:33, in _call_impl (modules/module.py:1751), at `main()`: its exception is not there."
    )
    assert within in first.text
    assert not said([*CUT, *(f"line {number}" for number in range(9))]).failed


def test_of_a_chain_that_is_cut_off_the_exception_before_is_known() -> None:
    chained = [
        *CUT,
        "KeyError: 'labels'",
        "",
        "During handling of the above exception, another exception occurred:",
    ]
    first = first_of([*chained, "", *CUT])
    assert first.text == "A rank raised KeyError: 'labels' at train.py:33."


def test_one_file_that_reports_much_leaves_room_for_the_others() -> None:
    noise = [f"ERROR: sample {number} is damaged" for number in range(2 * MOST)] + ["step 9 loss 2.0"]
    first = first_of(noise, ["starting", "ValueError: the vocabulary has 0 words"])
    assert first.text.endswith("the vocabulary has 0 words")


def test_since_when_is_told_where_the_line_has_a_time() -> None:
    first = first_of(["2025-03-01 12:00:07,100 ERROR trainer: the disk went away"])
    assert first.stamp is not None
    assert first.stamp.clock == "12:00:07"


def test_the_title_of_a_traceback_says_less_than_its_exception() -> None:
    title = "2025-03-01 12:00:07,100 ERROR engine: the engine does not start"
    first = first_of(
        [title, *CUT, "KeyError: 'labels'", *(f"line {number}" for number in range(40))],
        [LAUNCHER.format(1, 0)],
    )
    assert first.id == "died-exception"


@for_each(
    ("lines", "words"),
    [
        (["Loss is nan, stopping training"], "Loss is nan"),
        (["*** An error occurred in MPI_Init_thread"], "MPI_Init_thread"),
        (["   [[ System not yet initialized (error 802) ]]"], "error 802"),
        (
            ['msg="runc create failed: container init was OOM-killed (memory limit too low?)"'],
            "host memory",
        ),
        (["job preempted (node failure)"], "preempted"),
    ],
)
def test_sentences_that_end_a_job(lines: Sequence[str], words: str) -> None:
    assert words in first_of(["starting", *lines]).text


TASK = "srun: error: lake-4: task 5: Exited with exit code 3"
CANCEL = "slurmstepd: error: *** STEP 90.0 ON lake-4 CANCELLED AT 2026-03-01T12:00:09 ***"


def test_a_job_that_is_cancelled_after_its_task_failed_failed_of_the_task() -> None:
    first = first_of(["starting", TASK, CANCEL])
    assert (first.id, first.rank, first.host) == ("died-exit-silent", 5, "lake-4")
    assert first_of(["starting", CANCEL, TASK]).id == "slurm-step-cancelled"
    child = (
        "(tune pid=29) [rank: 1] Child process with PID 226 terminated with code 1. Forcefully terminating"
    )
    worker = "(raylet) A worker died or was killed while executing a task by an unexpected system error. "
    first = first_of(["starting", child, worker])
    assert (first.id, first.rank) == ("died-exit-silent", 1)


REPORT = "RuntimeError: NCCL error in: ../c10d/ProcessGroupNCCL.cpp:825, unhandled system error, NCCL version 2.7.8"


def test_what_torch_passes_on_of_nccl_says_more_than_the_exit() -> None:
    first = first_of(["starting", REPORT, LAUNCHER.format(1, 3)])
    assert first.id == "pt-nccl-error"
    assert "unhandled system error" in first.text
    assert not said(["starting", REPORT, *(f"step {number} loss 2.0" for number in range(40))]).failed


@for_each("what", ["client reregistration", "port active", "LID change"])
def test_what_an_infiniband_port_only_tells_is_no_failure(what: str) -> None:
    line = f"sea1:71:99 [0] misc/ibvwrap.cc:93 NCCL WARN NET/IB : Got async event : {what}"
    verdict = said(["starting", line])
    assert (verdict.failed, verdict.first) == (False, None)


LEFT = (
    "[2026-03-01 12:00:09,100] torch.distributed.elastic.rendezvous.dynamic_rendezvous: [WARNING] The node "
    "'lake-4_71_0' has failed to send a keep-alive heartbeat to the rendezvous '90' due to an error of type "
    "RendezvousConnectionError."
)


def test_a_traceback_without_frames_is_one_that_was_cut_off() -> None:
    assert first_of(["step 3 loss 2.1", CUT[0]]).id == "died-cut-off"
    first = first_of([LEFT, CUT[0]])
    assert (first.id, first.host) == ("rendezvous-left", "lake-4")


OLD_WATCHDOG = (
    "[E ProcessGroupNCCL.cpp:587] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=1800000)"
)


@for_each(
    ("lines", "words"),
    [
        (
            ["terminate called after throwing an instance of 'c10::Error'", "  what():  the store is gone"],
            "store is gone",
        ),
        (["terminate called after throwing an instance of 'X'", "  what():  ", "over"], "instance of 'X'"),
        (["RuntimeError: Failed to run step", "   reason: the queue is closed"], "Failed to run step"),
        (["ray.exceptions.RayTaskError(KeyError): \x1b[36mray::go()\x1b[39m (pid=4, ip=10.0.1.2)"], "ray"),
        (["Error invalid argument at line 119 in file /src/csrc/pythonInterface.cpp"], "invalid argument"),
        (
            [
                "Exception raised from ncclCommWatchdogInternal at ../c10d/ProcessGroupNCCL.cpp:42 (most recent call"
            ],
            "ncclCommWatchdogInternal",
        ),
        (
            [OLD_WATCHDOG],
            "Rank 3 timed out in a collective",
        ),
        (
            [
                "[E ProcessGroupNCCL.cpp:341] Some NCCL operations have failed or timed out. Due to the asynchrony"
            ],
            "timed out",
        ),
    ],
)
def test_pieces_that_name_what_failed(lines: Sequence[str], words: str) -> None:
    assert words in first_of(["starting", *lines]).text


def test_what_nobody_caught_is_quoted_with_its_own_rank() -> None:
    what = "  what():  [Rank:5] the graph is gone"
    first = first_of(["starting", "terminate called after throwing an instance of 'c10::Error'", what])
    assert (first.rank, first.lines[0].line) == (5, 3)


def test_a_symptom_that_only_tells_of_another_process_yields() -> None:
    lost = "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task."
    first = first_of(
        ["starting", lost, "[rank1]: torch.distributed.DistNetworkError: Connection reset by peer"]
    )
    assert first.id != "ray-actor-died"


def test_the_host_of_a_task_of_ray_is_named() -> None:
    trace = [
        "ray.exceptions.RayTaskError(KeyError): ray::go() (pid=4021, ip=10.0.1.2)",
        *CUT[1:],
        "KeyError: 'x'",
    ]
    first = first_of(["starting", *trace])
    assert (first.id, first.host) == ("died-exception", "10.0.1.2")


def test_a_command_without_its_program_is_no_tool() -> None:
    trace = "subprocess.CalledProcessError: Command '['--seed', '3']' returned non-zero exit status 1."
    assert first_of([*CUT, trace]).id == "died-exit-silent"


REFUSED = "[W socket.cpp:558] [c10d] The IPv6 network addresses of (head, 29500) cannot be retrieved (gai error: -2)."
STEPS = ("Epoch: 0, Training loss 2.1", "Epoch: 1, Training loss 1.7")


def test_training_shows_that_a_name_was_resolved_after_all() -> None:
    assert not said([REFUSED, REFUSED, *STEPS]).failed
    requeued = "slurmstepd: error: *** JOB 4 ON n3 CANCELLED AT 2026-07-09 DUE TO JOB REQUEUE ***"
    assert not said([requeued, *STEPS]).failed
    assert first_of([REFUSED, *STEPS, "restart", REFUSED]).id == "address-unresolved"


ABORT = "Fatal Python error: Aborted"
FATAL = "2026-02-25 11:10:57.934547: F core/store_service.cc:103] Non-OK-status: status: UNKNOWN: no quorum"


def test_what_native_code_logs_before_it_aborts_is_the_reason() -> None:
    first = first_of([FATAL, ABORT])
    assert (first.id, "no quorum" in first.text) == ("unexplained", True)
    assert first_of([ABORT]).id == "died-crash"


def test_an_exception_that_python_ignores_is_no_reason() -> None:
    assert not said(["Exception ignored in: <function Pool.__del__>", "OSError: [Errno 9] Bad file"]).failed


@for_each(
    "end",
    ["train.sh: exit code 0", "I Job 'grpo-1' succeeded",
     "torchx 2026-04-12 20:10:31 INFO     Job finished: SUCCEEDED"],
)  # fmt: skip
def test_a_job_that_ends_well_survived_its_errors(end: str) -> None:
    assert said(
        ["slurmstepd: error: *** JOB 4 ON n3 CANCELLED AT 2026-07-09 DUE TO JOB REQUEUE ***"]
    ).failed
    assert not said(
        ["slurmstepd: error: *** JOB 4 ON n3 CANCELLED AT 2026-07-09 DUE TO JOB REQUEUE ***", end]
    ).failed


def test_a_launcher_of_mindspore_only_reports_its_ranks() -> None:
    lost = "[ERROR] DISTRIBUTED(9,ff,python): UpdateTopoState] The node: 3 is timed out. It may exit with exception."
    raised = "RuntimeError: Distributed job exited with exception. Please check logs in directory: ./log."
    first = first_of([lost, *CUT, raised])
    assert first.id == "mindspore-node-lost"
    assert "rank 3 (worker_3.log)" in first.text


def test_a_rank_that_called_the_late_collective_is_not_absent() -> None:
    group = "[PG ID 0 PG GUID 0(default_pg) Rank {0}]"
    timed_out = (
        "[rank1]:[E301 05:20:03.46 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600020 milliseconds."
    )
    told = (
        "[rank{0}]:[E301 05:20:03.11 ProcessGroupNCCL.cpp:1746] "
        + group
        + " Received a dump signal due to a "
        "collective timeout from  rank 34. Last enqueued NCCL work: 7, last completed NCCL work: 6."
    )
    first = first_of([told.format(0), told.format(2), timed_out])
    assert "did not come" not in first.text
    assert "ALLREDUCE 7" in first.text


def test_a_copied_terminal_shows_the_exit_code_of_its_command() -> None:
    closed = "n1:4112:4388 [2] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n2<52110>"
    assert said([closed, "$ echo $?", "1"]).failed
    assert not said([closed, "$ echo $?", "0"]).failed
