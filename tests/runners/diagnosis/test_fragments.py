"""Pieces of logs as people paste them: cut at both ends, with the failure told by one line, or only what followed."""

from __future__ import annotations

from pathlib import Path

from each import for_each

from distui.runners.diagnosis.first_cause import Verdict, judge
from distui.runners.diagnosis.log_findings import LogFinding
from distui.runners.diagnosis.read_logs import read_all

from .test_exceptions import said

LAUNCH = (
    "Traceback (most recent call last):",
    '  File "/opt/env/bin/torchrun", line 8, in <module>',
    "    sys.exit(main())",
    '  File "/opt/env/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 264, in launch_agent',
    "    result = agent.run()",
)
"""A launcher's traceback without its end."""
FLAT = (
    'AlgorithmError: ScriptError: Command "python -m launch" Traceback (most recent call last): File "/srv/run.py", '
    'line 193, in main start() File "/srv/go.py", line 42, in start raise ValueError("x") ValueError: no batch'
)
"""A traceback that a cloud wrote into one line."""
TITLE = "tracker: ERROR no key is set for this user"
BARRIER = (
    "[rank1]:[E Gloo.cpp:144] Rank 1 successfully reached monitoredBarrier, but received errors while waiting for "
    "send/recv from rank 0. Please check rank 0 logs for faulty rank."
)


def first_of(*lines: str) -> LogFinding:
    """The first cause, or the first symptom, of a job that failed."""
    verdict = said(lines)
    assert verdict.failed
    assert verdict.first is not None
    return verdict.first


@for_each(
    ("lines", "words"),
    [
        ([f"WARNING:torch.distributed.elastic.multiprocessing.api:Sending process {pid} closing signal SIGHUP"
          for pid in (71, 72)], "ended from outside by SIGHUP"),
        (["[W socket.cpp:401] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - in use).",
          "[E socket.cpp:435] [c10d] The server socket has failed to listen on any local network address."],
         "finds its port 29500 in use"),
        ([TITLE], "No rule knows this: tracker: ERROR no key"),
        (["THCudaCheck FAIL file=THCStream.cpp line=40 error=46 : all CUDA-capable devices are busy"],
         "error=46 : all CUDA-capable devices are busy"),
    ],
)  # fmt: skip
def test_what_stands_above_a_traceback_without_its_end_is_the_cause(lines: list[str], words: str) -> None:
    assert words in first_of(*lines, *LAUNCH).text


def test_a_title_yields_to_the_exception_below_it() -> None:
    first = first_of(TITLE, *LAUNCH[:1], '  File "train.py", line 3, in <module>', "ValueError: no batch")
    assert "ValueError: no batch" in first.text


def test_a_traceback_without_its_end_names_the_function_of_the_library_that_was_called() -> None:
    first = first_of(
        "Traceback (most recent call last):",
        '  File "/srv/otter/tune.py", line 89, in main',
        '  File "/opt/env/lib/python3.11/site-packages/hub/configs.py", line 558, in read_json',
        '  File "/usr/lib/python3.11/json/decoder.py", line 337, in decode',
    )
    assert "at tune.py:89, in read_json (hub/configs.py:558): its exception is not there." in first.text


@for_each("command", ["['ninja', '-v']", "'/usr/bin/g++ -o x.so x.o'", "['nvcc', '--version']"])
def test_a_tool_that_fails_is_no_rank_that_ended(command: str) -> None:
    line = f"subprocess.CalledProcessError: Command {command} returned non-zero exit status 1."
    first = first_of("Traceback (most recent call last):", '  File "train.py", line 9, in <module>', line)
    assert first.id == "died-build-failed"
    assert "could not compile code: Command" in first.text


def test_a_script_that_fails_is_one() -> None:
    line = (
        "subprocess.CalledProcessError: Command '['python3', 'train.py']' returned non-zero exit status 1."
    )
    first = first_of("Traceback (most recent call last):", '  File "launch.py", line 9, in <module>', line)
    assert first.id == "died-exit-silent"


@for_each(
    ("line", "words"),
    [
        ("OMP: Error #13: Assertion failure at z_Linux_util.cpp(2361).", "OMP: Error #13"),
        ("Memory access fault by GPU node-2 (Agent handle: 0x58) on address 0x18000. Reason: Page not present.",
         "Memory access fault by GPU"),
        ("OpenBLAS blas_thread_init: pthread_create failed for thread 50 of 64: Resource temporarily unavailable",
         "pthread_create failed"),
        ("train: pool.cc:12: grow: Assertion `size > 0' failed.", "Assertion `size > 0' failed"),
        ("F0301 10:00:00.000000 7 store.cc:44] Check failed: left == right (1 vs. 2)", "Check failed: left == right"),
        ("/src/Loss.cu:57: void loss(): block: [7,0,0], thread: [129,0,0] Assertion `t >= 0 && t < classes` failed.",
         "a device-side assertion, t >= 0 && t < classes"),
        ("[2022-02-16 12:46:52,789 C 149 149] node_manager.cc:170: This node has been marked as dead.",
         "marked it as dead"),
        ("  Warning  Evicted   109s  kubelet   Pod ephemeral local storage usage exceeds the total limit of 5Gi.",
         "Pod ephemeral local storage usage exceeds"),
        ("otter-3:78:79 [4] ibvwrap.c:130 NCCL WARN Call to ibv_create_qp failed", "Call to ibv_create_qp failed"),
        ("[W socket.cpp:601] [c10d] The client socket has failed to connect to otter-0:43461 (errno: 113 - No route).",
         "errno: 113 - No route"),
        ("Primary job  terminated normally, but 1 process returned", "ended with exit code 1"),
    ],
)  # fmt: skip
def test_a_line_that_tells_of_a_failure_is_enough(line: str, words: str) -> None:
    assert words in first_of("loading the model", line).text


@for_each(
    "line",
    [
        "[W socket.cpp:601] [c10d] The client socket has failed to connect to otter-0:43461 (errno: 97 - no IPv6).",
        "[2024-01-09 11:05:18] [WARNING] [runner.py:203:fetch_hostfile] Unable to find hostfile, will go on without.",
        "INFO: could not find an optional package, it is not installed",
    ],
)
def test_a_warning_at_the_end_is_no_failure(line: str) -> None:
    assert not said(["loading the model", line]).failed


def test_words_of_failure_count_at_the_very_end_alone() -> None:
    assert said(["loading the model", "the kernel could not be compiled"]).failed
    assert not said(["the kernel could not be compiled", *["another line"] * 3]).failed
    assert not said(["the kernel could not be compiled", "step 3 loss 2.1"]).failed


def test_a_symptom_is_first_where_no_line_shows_a_cause() -> None:
    verdict = said(
        [
            "Traceback (most recent call last):",
            '  File "/srv/otter/test.py", line 20, in main',
            "RuntimeError: [gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.6.25.30]:30872",
        ]
    )
    assert isinstance(verdict, Verdict)
    assert verdict.failed
    assert verdict.first is not None
    assert (verdict.first.id, verdict.first.role) == ("died-peer-gone", "symptom")
    assert "at 10.6.25.30" in verdict.first.text


def test_an_out_of_memory_report_explains_a_kill_told_before_it() -> None:
    killed = "/var/spool/slurm_script: line 46: 2113061 Killed     python3 train.py"
    counted = (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=188.batch. Some of the step tasks have been "
        "OOM Killed."
    )
    verdict = said([killed, counted])
    assert [each.id for each in verdict.findings] == ["died-host-oom", "died-killed"]
    assert [each.id for each in verdict.victims] == ["died-killed"]


def test_a_gpu_out_of_memory_goes_before_the_worker_that_died_of_it() -> None:
    first = first_of(
        "(Actor pid=2815) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.84 GiB.",
        "(raylet) A worker died or was killed while executing a task by an unexpected system error.",
    )
    assert first.id == "died-cuda-oom"


def test_one_waiting_rank_accuses_nobody_that_the_log_does_not_name() -> None:
    watchdog = (
        "[rank2]:[E ProcessGroupNCCL.cpp:563] [Rank 2] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=7487, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800096 milliseconds before timing out."
    )
    first = first_of(watchdog)
    assert (first.ranks, "another rank did not join" in first.text) == ((), True)
    assert first_of(watchdog, watchdog.replace("ank2]", "ank1]").replace("Rank 2]", "Rank 1]")).ranks == (
        0,
    )


def test_the_root_cause_of_torchruns_table_is_the_rank() -> None:
    table = ("  host      : otter", "  rank      : {0} (local_rank: {0})", "  exitcode  : -7 (pid: {1})")
    rows = [line.format(1, 612) for line in table]
    root = ["Root Cause (first observed failure):", *(line.format(0, 611) for line in table)]
    first = first_of("Failures:", *rows, *root)
    assert (first.rank, first.ranks, first.host) == (0, (0, 1), "otter")


@for_each(
    ("lines", "host"),
    [
        (["me@otter-4:~$ dmesg -T", "[Sun Jul 28 09:15:27 2024] NVRM: Xid (PCI:0000:00:05): 43, pid=1"], "otter-4"),
        (["(env) me@otter-4:~/runs$ torchrun train.py", "ValueError: no batch"], "otter-4"),
        (["otter-4:78:79 [0] NCCL INFO [Service thread] Connection closed by localRank 1"], "otter-4"),
        (["WARNING:x:The node 'otter-4_3140_0' has failed to shutdown the rendezvous '3' due to an error."], "otter-4"),
        (["me@otter-4:~$ ssh otter-5", "me@otter-5:~$ torchrun train.py",
          "otter-5:78:79 [4] NCCL INFO Bootstrap : Using eth0:10.6.2.21<0>", "ValueError: no batch"], ""),
    ],
)  # fmt: skip
def test_the_only_host_that_a_log_names_is_that_of_the_cause(
    lines: list[str], host: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.log"
    path.write_text("\n".join([*lines, "ERROR the job failed"]))
    first = judge(read_all([("train.log", path)])).first
    assert first is not None
    assert first.host == host


def test_a_device_is_named_where_no_rank_is() -> None:
    first = first_of(
        "otter-3:78:79 [4] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-W to 9 bytes"
    )
    assert (first.rank, first.device, first.host) == (None, 4, "otter-3")


@for_each(
    ("lines", "words", "rank"),
    [
        (["[rank1]:        size mismatch for layers.21.mlp: copying a param with shape torch.Size([16])."],
         "does not fit the model: size mismatch for", 1),
        (["[rank14]:     assert layers % stages == 0, \\", "[rank14]: "], "assert layers % stages == 0", 14),
        (["[rank0]: All the files must have the same columns, but there are 3 new ones.", "[rank0]: ",
          BARRIER],
         "All the files must have the same columns", 0),
        (['(VllmWorker rank=3 pid=41) ERROR 08-06 22:23:09 [executor.py:487]   File "/srv/c10d.py", line 17, in helper',
          "(VllmWorker rank=3 pid=41) ERROR 08-06 22:23:09 [executor.py:487]     make(",
          "(VllmWorker rank=3 pid=41) ERROR 08-06 22:23:09 [executor.py:487] ValueError: no such group",
          "(VllmWorker rank=2 pid=40) ERROR 08-06 22:23:09 [executor.py:487] The worker failed to start."],
         "raised ValueError: no such group", 3),
        (['704.7s\t12\tTraceback (most recent call last):', '704.7s\t13\t  File "/kaggle/train.py", line 8, in <module>',
          "704.7s\t14\tValueError: no batch"], "ValueError: no batch at train.py:8", None),
    ],
)  # fmt: skip
def test_lines_that_torch_and_loggers_tag(lines: list[str], words: str, rank: int | None) -> None:
    first = first_of(*lines)
    assert words in first.text
    assert first.rank == rank


def test_a_chain_whose_second_traceback_is_cut_before_its_first_frame() -> None:
    first = first_of(
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "/srv/otter/load.py", line 40, in get',
        "[rank0]: errors.NoSuchFileError: the file is not in the cache",
        "[rank0]: ",
        "[rank0]: The above exception was the direct cause of the following exception:",
        "[rank0]: ",
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "/srv/ot',
    )
    assert "NoSuchFileError: the file is not in the cache at load.py:40" in first.text
    assert first.rank == 0


def test_of_the_tables_of_several_nodes_the_earliest_root_cause_counts() -> None:
    rows = (
        "Root Cause (first observed failure):|  time      : 2023-06-03_22:{0}|  host      : otter-{1}|"
        "  rank      : {1} (local_rank: 0)|  exitcode  : 1 (pid: 6{1})"
    )
    lines = [row for each in (rows.format("45:52", 0), rows.format("45:01", 4), rows.format("46:10", 8))
             for row in each.split("|")]  # fmt: skip
    first = first_of(*lines)
    assert (first.rank, first.host) == (4, "otter-4")


def test_words_after_a_symptom_are_no_cause() -> None:
    first = first_of(
        "[rank5]:[E207 19:37:09.98 ProcessGroupNCCL.cpp:1895] [Rank 5] Process group watchdog thread terminated with "
        "exception: NCCL error: remote process exited or there was a network error, NCCL version 2.21.5",
        "Last error:",
        "socketProgressOpt: Call to recv from 10.119.24.53<49901> failed : Broken pipe",
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x80 (0x7f in libc10.so)",
    )
    assert (first.id, first.role, first.rank) == ("pt-remote-error", "symptom", 5)


def test_a_rank_that_its_message_names() -> None:
    first = first_of(
        "Traceback (most recent call last):",
        '  File "/srv/otter/train.py", line 33, in <module>',
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
        "Parameter indices which did not receive grad for rank 6: 1",
    )
    assert (first.id, first.rank) == ("died-unused-parameters", 6)


def test_a_traceback_without_its_end_quotes_the_line_of_source() -> None:
    frames = (
        "Traceback (most recent call last):",
        '  File "/srv/otter/tune.py", line 97, in run',
        "    trainer.write_card(name)",
        '  File "/opt/env/lib/python3.11/site-packages/hub/cards.py", line 386, in write',
        "    info = model_info(self.base)",
        "           ^^^^^^^^^^^^^^^^^^^^^",
    )
    whole = first_of(*frames)
    assert "at tune.py:97, in write (hub/cards.py:386), at `info = model_info(self.base)`:" in whole.text
    cut = first_of(
        *frames, '  File "/opt/env/lib/python3.11/site-packages/hub/api.py", line 9, in get', "    ret"
    )
    assert "in get (hub/api.py:9), at `info = model_info(self.base)`:" in cut.text


def test_a_warning_names_the_reason_of_a_traceback_without_its_end() -> None:
    first = first_of(
        "/opt/env/pool.py:46: UserWarning: [Errno 28] No space left on device. Going on alone.", *LAUNCH
    )
    assert first.id == "died-disk-full"
    assert not said(
        ["/opt/env/pool.py:46: UserWarning: [Errno 28] No space left on device.", "step 3"]
    ).failed


def test_a_title_in_the_line_of_the_traceback_counts() -> None:
    first = first_of(f"tool: error: must run as root[rank5]: {LAUNCH[0]}", *LAUNCH[1:])
    assert "tool: error: must run as root" in first.text


def test_an_error_of_logging_is_no_cause() -> None:
    first = first_of(
        "Traceback (most recent call last):",
        '  File "/opt/env/lib/python3.11/logging/__init__.py", line 373, in getMessage',
        "    msg = msg % self.args",
        "TypeError: not all arguments converted during string formatting",
        "Call stack:",
        '  File "main.py", line 97, in <module>',
        "    log.error('caught: ', error)",
        "Message: 'caught: '",
        "Arguments: (RuntimeError('CUDA error: no kernel image is available for execution on the device'),)",
    )
    assert "no kernel image is available" in first.text


@for_each(
    ("line", "id_"),
    [
        ("[2023-09-10 11:45:59,207] [INFO] [launch.py:428:sigkill_handler] Killing subprocess 62", "deepspeed-kills"),
        ("subprocess.CalledProcessError: Command '['/opt/python', '-u', 'train.py', '--local_rank=1', '--ba", ""),
        (FLAT, "died-exception"),
        ("mpirun noticed that process rank 1 with PID xxxx on node yyyy exited on signal 9 (Killed).", "died-killed"),
    ],
)  # fmt: skip
def test_what_launchers_tell(line: str, id_: str) -> None:
    head = LAUNCH[:3] if not id_ else ()
    assert first_of(*head, line).id == (id_ or "launcher-reports")


def test_deepspeed_names_the_signal_after_it_killed_the_others() -> None:
    first = first_of(
        "[2023-07-10 04:26:05,876] [INFO] [launch.py:318:sigkill_handler] Killing subprocess 949",
        "[2023-07-10 04:26:35,999] [ERROR] [launch.py:324:sigkill_handler] ['python3', '-u', 'train.py', "
        "'--local_rank=1'] exits with return code = -11",
    )
    assert first.id == "died-segfault"


def test_a_rank_whose_traceback_has_no_end_goes_before_those_that_lost_it() -> None:
    lost = [
        "Traceback (most recent call last):",
        '  File "/srv/otter/train.py", line 20, in main',
        "RuntimeError: [gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.6.25.30]:30872",
    ]
    cut = [
        "Traceback (most recent call last):",
        '  File "/srv/otter/load.py", line 7, in batch',
        "    wait(worker)",
    ]
    for files, name in (((lost, cut), "1.log"), ((cut, lost), "0.log")):
        first = said(*files).first
        assert first is not None
        assert "ends within a traceback, at load.py:7" in first.text
        assert first.lines[0].file == name
    together = said([*lost, *cut]).first
    assert together is not None
    assert together.id == "died-peer-gone"


def test_an_exception_that_was_indented_where_it_was_pasted() -> None:
    first = first_of(
        "Traceback (most recent call last):",
        'File "/srv/otter/train.py", line 18, in <module>',
        "    from colours import paint",
        "        ImportError: cannot import name 'paint' from 'colours'",
    )
    assert "ImportError: cannot import name 'paint' from 'colours'" in first.text
    assert first.values["where"].endswith("train.py:18")


OF_HUB = "Cannot access gated repo for url https://hub.example/api/models/otter-70b/revision/main."


@for_each(
    ("lines", "words"),
    [
        # a message of several lines without a traceback
        (
            [
                "RuntimeError: Error(s) in loading state_dict for DistributedDataParallel:",
                "\tsize mismatch for module.neck.weight: copying a param with shape torch.Size([8, 4]) from checkpoint",
            ],
            "size mismatch for module.neck.weight",
        ),
        # a trainer that prints what it caught
        (
            [
                "0 :Error in Rewards.compute_loss: Detected mismatch between collectives on ranks. Rank 0 is running it",
                "0 :input_ids dtype: torch.int64",
            ],
            "calls another collective than the others: Rank 0 is running",
        ),
        # SkyPilot's log of a launch
        (
            [
                "I 11-26 17:45:57 backend.py:1356] Head VM is up. Waiting for workers.",
                "E 11-26 17:47:34 backend_utils.py:992] Timed out: no progress of new workers for 90 seconds.",
                "E 11-26 17:47:34 backend.py:1118] *** The cluster is not provisioned. ***",
            ],
            "Timed out: no progress of new workers",
        ),
        # NCCL before 2.4 has no name in its lines
        (
            [
                "hob-7:185:186 [0] INFO comm 0x7fa42c00a3b0 rank 0 nranks 2",
                "hob-7:185:187 [0] include/socket.h:360 WARN Call to connect failed : Connection timed out",
                "hob-7:185:186 [0] include/socket.h:371 WARN Connection closed by remote peer",
            ],
            "A TCP connection to a peer could not be made",
        ),
        (
            [
                "(Engine pid=23, ip=10.1.2.3) ncclInternalError: Internal check failed.",
                "(Engine pid=23, ip=10.1.2.3) Last error:",
                "(Engine pid=23, ip=10.1.2.3) Proxy Call to rank 7 failed (Connect)",
            ],
            "Connect with rank 7 failed",
        ),
        # a line that was wrapped where it was copied from
        (
            [
                "[rank3]:[E909 09:55:29.3 Process.cpp:607] [Rank 3] Watchdog caught collective operation timeout: ",
                "WorkNCCL(SeqNum=2070, OpType=REDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600034 ms",
            ],
            "Rank 3 timed out in a collective",
        ),
        ([OF_HUB, *LAUNCH], "may not download from the hub: Cannot access gated repo"),
        (
            [
                "RuntimeError:",
                "        The library's set-up failed despite GPU being there.",
            ],
            "RuntimeError: The library's set-up failed",
        ),
        # C++ that names its exception in the line below
        (
            [
                "terminate called after throwing an instance of 'gloo::IoException'",
                "  what():  [/w/gloo/gloo/transport/tcp/pair.cc:724] connect [127.0.1.1]:3210: Connection refused",
                "Aborted (core dumped)",
            ],
            "Connection refused",
        ),
        # a parent that kills the rank which failed
        (
            [
                "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147, limit: 101.",
                "[2025-07-29 15:06:51] Received sigquit from a child process. It usually means the child failed.",
                "./serve.sh: line 19: 8670 Killed                  python -m serve",
            ],
            "out of resource: shared memory",
        ),
        (
            [
                "ERROR 01-11 13:09:40 e.py:366]            ^^^^^^^^^^^^^^^^^",
                'ERROR 01-11 13:09:40 e.py:366]   File "/opt/env/lib/python3.12/serve/runner.py", line 152, in go',
                "ERROR 01-11 13:09:40 e.py:366]     raise type(err)(",
                "ERROR 01-11 13:09:40 e.py:366] RuntimeError: Error in a model: only newer GPUs are supported",
            ],
            "only newer GPUs are supported",
        ),
        (
            [
                "ray.tune.error.TuneError: ('Trials did not complete', [seed:5591])",
                "slurmstepd: error: Detected 8 oom-kill event(s) in step 5.batch cgroup.",
            ],
            "killed",
        ),
        (["0/2 nodes are available: 1 Insufficient memory, 1 node(s) taken."], "1 Insufficient memory"),
        (
            ["Tried to launch distributed communication on port `29500`, but another process is utilizing it."],
            "finds its port 29500 in use",
        ),
        (["HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://hub.example/api"], "got too many req"),
        (["Dataset does not exist: /data/subset-01"], "Dataset does not exist: /data/subset-01"),
    ],
)  # fmt: skip
def test_forms_in_which_a_failure_is_told(lines: list[str], words: str) -> None:
    assert words in first_of(*lines).text


def test_a_line_of_an_old_nccl_names_its_host() -> None:
    line = "hob-7:185:187 [0] include/socket.h:360 WARN Call to connect failed : Connection timed out"
    assert first_of(line).host == "hob-7"


def test_the_rank_of_which_a_launcher_says_that_it_crashed() -> None:
    first = first_of("Building trainer...", "ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.")
    assert first.rank == 2
    assert "SIGBUS" in first.text


def train(*losses: str) -> list[str]:
    return [f"epoch 1 step {step * 10} loss: {loss} lr: 0.01" for step, loss in enumerate(losses, 1)]


def test_a_loss_that_is_no_number_to_the_end_is_a_failure_and_a_step_of_it_none() -> None:
    first = first_of(*train("2.31", "2.30", *["nan"] * 100))
    assert "trains on with a loss or gradient that is not a number: epoch 1 step 30" in first.text
    assert first.lines[0].line == 3
    verdict = said(train("2.31", "nan", "2.29"))
    assert not verdict.failed
    assert said(train("2.31", "2.30", "2.29")).first is None


def test_a_loss_that_is_infinite_counts_where_it_stays_so() -> None:
    assert "train" in first_of(*train("2.31", "inf", "inf", "inf")).text
    assert not said(train("2.31", "inf", "inf")).failed
    assert not said(train("inf", "inf", "inf", "7.1")).failed


def megatron(*, skipped: int) -> list[str]:
    return [
        f" iteration     {step}/  250000 | consumed samples: {step * 8} | elapsed time per iteration (ms): 4247.9 | "
        f"loss scale: 1.0 | grad norm: nan | number of skipped iterations:   {skipped} | samples per second: 1.886 |"
        for step in (7426, 7427, 7428)
    ]


def test_gradients_that_stay_nan_are_a_failure_and_steps_that_a_loss_scaler_skips_are_none() -> None:
    assert "grad norm: nan" in first_of(*megatron(skipped=0)).text
    assert not said(megatron(skipped=1)).failed


NEWEST = "RuntimeError: Failed to import models.kite because of the following error (look up to see its traceback):"
NPU = "EE1002: 2024-10-02-04:11:39.027.115 Stream synchronize timeout. rtDeviceSynchronize failed, reason=[stream sync]"
QUOTA = (
    "W 02-27 08:19:10 cloud.py:520]   azure.core.exceptions.HttpResponseError: (InvalidTemplate) See inner errors.",
    "W 02-27 08:19:10 cloud.py:520]   (QuotaExceeded) Operation results in exceeding approved T4 Family Cores quota.",
)
SCALE = "2024-01-14 01:03:00,826 WARNING [train.py:1057] (2/4) Grad scale is small: 1.29e-26"
PASTED = " ".join(
    f"2025-10-31 03:11:02,475 - tuner - INFO - [rank7]: {text:<30}"
    for text in (
        '  File "/opt/env/lib/python3.11/site-packages/torch/state_dict_loader.py", line 250, in step',
        "    assert metadata is not None", "           ^^^^^^^^^^^^^^^^^^^^", "AssertionError",
    )
)  # fmt: skip
"""Lines of a terminal that somebody pasted as one."""
CURLY = (
    "/srv/launch.py:148: DeprecationWarning: setDaemon() is deprecated Traceback (most recent call last): "
    "File “node.py”, line 5, in import graphs ModuleNotFoundError: No module named ‘graphs’ Called process error"
)


@for_each(
    ("lines", "words"),
    [
        ([NEWEST, "/opt/flash.so: undefined symbol: _ZN2at4_ops5zeros4call"], "undefined symbol"),
        (["step 9 loss 2.1", NPU, "        wait for compute device to finish failed, runtime result = 507046."],
         "its NPU: Stream synchronize timeout"),
        ([*QUOTA, *LAUNCH[:1]], "a quota of the cloud is used up: (QuotaExceeded) Operation"),
        (["ResourceLimitExceeded: An error occurred: The account-level service limit 'ml.p3 training' is 0 Instances"],
         "quota of the cloud is used up: account-level"),
        (['    "message": "Quota failure for project finch. The request for 2 K80 exceeds the allowed maximum"'],
         "quota of the cloud is used up: Quota failure for project finch"),
        ([SCALE, *LAUNCH], "Grad scale is small: 1.29e-26"),
        ([PASTED], "AssertionError: assert metadata is not None at state_dict_loader.py:250"),
        ([CURLY], "no module named graphs"),
        (["/bin/bash: line 0: export: `=/usr/bin/sup': not a valid identifier",
          "Error: failed to run torchrun --nnodes=1 train.py on 127.0.0.1"], "not a valid identifier"),
        (["Error: failed to run torchrun --nnodes=1 train.py on 127.0.0.1"], "failed to run torchrun"),
        (["(Worker pid=70110) [Stage-0] ERROR 03-14 09:22:28 [x.py:8]     self.memory = take(snapshot)",
          "(Worker pid=70110) [Stage-0] ERROR 03-14 09:22:28 [x.py:8]   File \"/opt/use.py\", line 27, in take",
          "(Worker pid=70110) [Stage-0] ERROR 03-14 09:22:28 [x.py:8]     raise ValueError(",
          "(Worker pid=70110) [Stage-0] ERROR 03-14 09:22:28 [x.py:8] ValueError: Free memory is less",
          "[Stage-1] INFO 03-14 09:22:28 [runner.py:133] Model loading took 9 s"], "ValueError: Free memory is less"),
    ],
)  # fmt: skip
def test_more_forms_in_which_a_failure_is_told(lines: list[str], words: str) -> None:
    assert words in first_of(*lines).text


def test_a_command_over_ssh_that_fails_names_its_host_and_how_it_ended() -> None:
    command = (
        "subprocess.CalledProcessError: Command 'ssh -o Strict=no -p 2343 host1 'cd /srv/sage; %s' returned"
    )
    long = command % ("export A=b; " * 40 + "python3 -m torch.distributed.launch train.py'")
    first = first_of(f"{long} non-zero exit status 1.")
    assert (first.host, "exit code 1" in first.text) == ("host1", True)
    unreached = f"{command % 'hostname'} non-zero exit status 255."
    assert "ssh -o Strict=no" in first_of(*LAUNCH[:2], unreached).text


def test_the_tensor_parallel_rank_before_a_traceback_is_its_rank() -> None:
    first = first_of(
        "(WorkerDict pid=312) [2025-03-24 02:05:30 DP0 TP3] It hit an exception: Traceback (most recent call last):",
        '(WorkerDict pid=312)   File "/opt/scheduler.py", line 218, in __init__',
        "(WorkerDict pid=312) RuntimeError: no memory for the cache",
    )
    assert first.rank == 3


def test_what_nccl_reports_is_of_the_rank_whose_exception_says_so() -> None:
    first = first_of(
        "[rank10]: RuntimeError: NCCL Error 2: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "iv-k3:902:914 [2] misc/ibvwrap.cc:182 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Invalid argument",
    )
    assert (first.id, first.rank) == ("ib-register", None)
    first = first_of(
        "[rank10]: Traceback (most recent call last):",
        '[rank10]:   File "/srv/train.py", line 9, in <module>',
        "[rank10]: RuntimeError: NCCL Error 2: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "iv-k3:902:914 [2] misc/ibvwrap.cc:182 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Invalid argument",
    )
    assert (first.id, first.rank) == ("ib-register", 10)
