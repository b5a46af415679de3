"""Pieces of logs that end before the exception that they carry, and states that others than ranks report."""

from __future__ import annotations

from each import for_each

from .test_exceptions import said
from .test_fragments import first_of

SPAWNED = (
    "Traceback (most recent call last):",
    '  File "/opt/env/lib/python3.7/site-packages/torch/multiprocessing/spawn.py", line 118, in join',
    "    raise Exception(msg)",
    "Exception: ",
    "",
    "-- Process 2 terminated with the following error:",
    "Traceback (most recent call last):",
    '  File "/srv/otter/train.py", line 12, in work',
    "    loss = model(batch)",
)
"""What torch.multiprocessing.spawn prints, without the exception of its process."""


def test_what_spawn_raises_is_no_cause_and_the_traceback_below_it_is_of_its_process() -> None:
    cut = first_of(*SPAWNED)
    assert (cut.id, cut.rank) == ("died-cut-off", 2)
    assert "within a traceback, at train.py:12, at `loss = model(batch)`" in cut.text
    whole = first_of(*SPAWNED, "KeyError: 'labels'")
    assert (whole.text, whole.rank) == ("A rank raised KeyError: 'labels' at train.py:12.", 2)


def test_the_type_of_an_exception_that_ray_passes_on_is_told_where_its_traceback_is_not_there() -> None:
    first = first_of(
        '  File "/opt/env/lib/python3.11/site-packages/ray/_private/worker.py", line 919, in get_objects',
        "    raise value.as_instanceof_cause()",
        "ray.exceptions.RayTaskError(DistBackendError): ray::Actor.init_mod",
    )
    assert first.text.startswith("The log ends within a traceback, of DistBackendError")


@for_each(
    ("lines", "words"),
    [
        (['  File "/srv/otter/data.py", line 172, in _load', "    raise StopIteration", "StopIteration   ",
          "", "The above exception was the direct cause of the following exception:"],
         "raised StopIteration at data.py:172"),
        (["DistBackendError: NCCL error in: x.cpp:1197, internal error, NCCL version 2.18.3",
          "ncclInternalError: Internal check failed.", "Last error:", "Error : ring 1 does not contain rank 0"],
         "NCCL gives this reason: Error : ring 1 does not"),
        (["DistBackendError: NCCL error in: x.cpp:1197, internal error, NCCL version 2.18.3", "Last error:"],
         "torch passes on an error of NCCL"),
        (["otter.errors.SetupException: ", "       You asked for GPUs: [0, 1]", "       There is only: [0]"],
         "SetupException: You asked for GPUs: [0, 1]"),
        (["[1/2] c++ -MMD -c cpu_adam.cpp -o cpu_adam.o ", "FAILED: cpu_adam.o"],
         "could not build an extension in C++ or CUDA: FAILED: cpu_adam.o"),
        (["nvcc fatal   : Unsupported gpu architecture 'compute_86'", "ninja: build stopped: subcommand failed."],
         "nvcc fatal : Unsupported gpu architecture"),
        (["Events:", "  Type     Reason            Age    From     Message",
          "  Warning  FailedScheduling  4m31s  volcano  pod group is not ready, 1 Pending, 1 minAvailable"],
         "no node of its Kubernetes cluster: pod group is not ready"),
        (["  - message: '3/0 tasks in gang unschedulable: job is not ready, 3 minAvailable.'",
          "    reason: NotEnoughResources", '    status: "True"'], "in gang unschedulable: job is not ready"),
        (["libtorch_cuda.so: undefined symbol: ncclCommRegister"],
         "cannot load a library: libtorch_cuda.so: undefined symbol: ncclCommRegister"),
        (["ncclSystemError: System call (e.g. socket, malloc) or external library call failed.",
          '  File "/srv/otter/model.py", line 33, in make', "    self.neck = Linear(4, 8)"],
         "torch passes on an error of NCCL (ncclSystemError)"),
        (["gpu-b:11:14 [0] NCCL INFO Channel 15/0 : 0[90000] -> 1[1000] [send] via NET/Socket/7",
          "gpu-b:11:15 [0] NCCL INFO include/net.h:25 -> 2", "gpu-b:11:15 [0] NCCL INFO transport/net.cc:515 -> 2"],
         "NCCL met an error (unhandled system error)"),
        (["WARNING worker.py:1228 -- The node with node id: 5b0e and ip: 10.0.8.41 has been marked dead because"],
         "Ray lost node 10.0.8.41"),
    ],
)  # fmt: skip
def test_more_words_in_which_a_failure_is_told(lines: list[str], words: str) -> None:
    assert words in " ".join(first_of(*lines).text.split())


STEPS = [f"(Driver pid=9) step:{step} - actor/loss:0.1 - actor/grad_norm:0.4" for step in (10, 11, 12)]


@for_each(
    "lines",
    [
        ["(Scorer pid=10) Traceback (most recent call last):",
         '(Scorer pid=10)   File "/tmp/answer.py", line 3, in <module>',
         "(Scorer pid=10)     print(1 / 0)", "(Scorer pid=10) ZeroDivisionError: division by zero"],
        ["bash: line 1: module: command not found"],
        ["INFO:sky: Cluster 'otter' was preempted. Recovering..."],
        ["gpu-1:10:20 [0] transport/net_ib.cc:200 NCCL WARN NET/IB : mlx5_2:1 Got async event : port error"],
    ],
)  # fmt: skip
def test_training_after_a_problem_shows_that_the_job_survived_it(lines: list[str]) -> None:
    assert said(lines).failed
    assert not said([*lines, *STEPS]).failed


@for_each(
    "lines",
    [
        ["Traceback (most recent call last):",
         '  File "/usr/lib/python3.12/multiprocessing/util.py", line 303, in _run_finalizers',
         "    finalizer()", "OSError: [Errno 16] Device or resource busy: '.nfs0000000c4a'"],
        ["[rank7]:[W1022 17:02:45.330160171 TCPStore.cpp:125] [c10d] recvValue failed: got 0 bytes",
         "Exception raised from recvBytes at /pytorch/c10d/Utils.hpp:678 (most recent call first):",
         "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x98 (0x7f3b in libc10.so)"],
        ["Traceback (most recent call last):", '  File "/srv/otter/probe.py", line 3, in <module>',
         "ModuleNotFoundError: No module named 'otter_fast'", *(f"[rank0]: step {at} loss 1.91" for at in range(3))],
        ["ERROR tracker: heartbeat failed: 503 Service Unavailable", "2026-03-03 10:10:00 Training completed in 612 s"],
        ["ERROR: Could not load library: libotter.so", "`Trainer.fit` stopped: `max_epochs=3` reached."],
        ["requests.exceptions.HTTPError: 504 Server Error", "{'train_runtime': 331.72, 'train_loss': 1.2}"],
        ["/bin/sh: 1: ip: not found", *(f"INFO:root:[{at}00/5000] 1.20 it/s, nll 3.2" for at in range(1, 4))],
    ],
)  # fmt: skip
def test_what_python_and_torch_only_print_before_a_good_end_is_no_failure(lines: list[str]) -> None:
    assert not said(lines).failed


def test_an_exception_that_ray_passes_on_is_of_the_rank_of_its_process() -> None:
    first = first_of(
        "(WorkerDict pid=12080, ip=10.55.2.13) [rank19]:[E304 17:52:13.00 ProcessGroupNCCL.cpp:1595] an error",
        *SPAWNED[:3],
        "ray.exceptions.RayTaskError(RuntimeError): ray::WorkerDict.score() (pid=12080, ip=10.55.2.13, actor_id=1d3c)",
        '  File "/srv/otter/workers.py", line 578, in score',
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    )
    assert (first.id, first.rank, first.host) == ("died-ecc", 19, "10.55.2.13")


def test_a_client_s_exception_is_explained_by_what_its_server_printed() -> None:
    first = first_of(
        "(server) ERROR:    [Errno 98] binding to port 8000: address already in use",
        *SPAWNED[:3],
        "httpx.ConnectError: All connection attempts failed",
    )
    assert first.id == "died-port-in-use"


def test_a_bar_that_has_not_moved_is_no_sign_of_life() -> None:
    error = "ERROR trainer: cannot reach the reward server"
    assert said([error, "Progress:   0%|          | 0/120 [31:07<?, ?it/s]"]).failed
    assert not said([error, "Progress:   1%|          | 1/120 [31:07<?, ?it/s]", *STEPS]).failed


def test_a_known_exception_explains_more_than_the_end_of_its_process() -> None:
    first = first_of(
        "[rank3]: terminate called after throwing an instance of 'c10::DistBackendError'",
        "[rank3]:   what():  [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, "
        "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.",
    )
    assert first.id == "rank-absent"


def test_what_a_worker_printed_explains_more_than_the_signal_that_ended_it() -> None:
    first = first_of(
        "malloc_consolidate(): unaligned fastbin chunk detected",
        *SPAWNED[:3],
        "RuntimeError: DataLoader worker (pid 69916) is killed by signal: Aborted. ",
    )
    assert (first.id, first.lines[0].line) == ("died-crash", 1)


def test_a_scheduler_s_report_blames_no_rank_in_whose_output_it_is() -> None:
    first = first_of(
        "3: slurmstepd: error: *** STEP 82.40 ON gpu-1 CANCELLED AT 2026-04-24T14:02:38 DUE TO TIME LIMIT ***"
    )
    assert (first.id, first.rank, first.host) == ("slurm-time-limit", None, "gpu-1")


def test_a_pod_that_is_scheduled_after_a_warning_has_not_failed() -> None:
    warning = "  Warning  FailedScheduling  4m31s  default-scheduler  no nodes with a free GPU yet"
    assert not said(
        [warning, "  Normal   Scheduled  2m  default-scheduler  assigned otter-0 to gpu-b"]
    ).failed


def test_what_spawn_raises_names_its_process_where_nothing_follows() -> None:
    first = first_of(*SPAWNED[:5], "-- Process 1 terminated with the")
    assert (first.id, first.rank) == ("launcher-reports", 1)


def test_what_torch_writes_for_debugging_is_no_failure() -> None:
    assert not said(
        [
            "[I1108 01:20:06.503069695 debug.cpp:49] [c10d] The debug level is set to DETAIL.",
            "[rank3]:[I1108 01:20:27.77 TCPStore.cpp:119] [c10d - debug] Read callback failed. code:-4095 name:EOF",
        ]
    ).failed


def test_a_code_of_nccl_that_ended_peers_cause_too_or_that_one_function_takes_is_no_failure() -> None:
    assert not said(["gpu-b:11:15 [0] NCCL INFO misc/socket.cc:47 -> 3"] * 2).failed
    assert not said(["gpu-b:11:15 [0] NCCL INFO plugin/net.cc:71 -> 2"]).failed
