"""Which of two errors is the cause: the process's own before a launcher's report of it, a logged one before timeouts."""

from __future__ import annotations

from pathlib import Path

from each import for_each

from distui.runners.diagnosis.first_cause import Verdict, judge
from distui.runners.diagnosis.read_logs import read_all

TIMEOUT = (
    "[rank{0}]:[E201 10:32:30.1 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=88, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800020 milliseconds "
    "before timing out."
)
TIMEOUTS = [TIMEOUT.format(rank) for rank in (0, 1, 3)]
TRACE = ["Traceback (most recent call last):", '  File "/w/train.py", line 9, in <module>', "    step()"]
STEPS = [f"step {number} loss 2.{number} lr 1e-4" for number in range(100, 106)]
ACTOR = "(Actor pid=71) "
SERVER = [
    "(EngineCore pid=43) INFO 07-15 09:14:30 [core.py:1210] Shutdown initiated (timeout=0)",
    "(APIServer pid=41) ERROR 07-15 09:14:30 [a.py:7] vllm.exceptions.EngineDeadError: EngineCore encountered an issue.",
]
RETRIED = [
    "(TrainController pid=31) The actor died because its node has died. Node Id: b157c93d",
    "(TrainController pid=31) [State Transition] RUNNING -> RESTARTING.",
    "(TrainController pid=31) [State Transition] SHUTTING_DOWN -> FINISHED.",
]


def verdict_of(path: Path, lines: list[str], name: str = "a.log") -> Verdict:
    file = path / name
    file.write_text("\n".join(lines) + "\n")
    return judge(read_all([(name, file)]))


def text_of(path: Path, lines: list[str]) -> str:
    verdict = verdict_of(path, lines)
    assert verdict.failed
    assert verdict.first is not None
    return verdict.first.text


@for_each(
    ("lines", "words"),
    [
        (  # a C++ check of Ray, then Ray's report of the worker
            [f"{ACTOR}[2026-02-06 07:14:27,052 C 71 71] receiver.cc:19:  Check failed: is_valid",
             "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR"],
            "Check failed: is_valid",
        ),
        (["HW Exception by GPU node-2 (Agent handle: 0x63) reason :GPU Hang", "Aborted (core dumped)"], "GPU Hang"),
        (
            ["me@n-7: Permission denied (publickey,password).", "ORTE was unable to reliably start one or more daemons"],
            "Permission denied (publickey,password)",
        ),
        (  # another rank's traceback below a logged error is no title of it
            ["(Worker rank=1 pid=44) ERROR 08-20 09:48:31 [wrapper.py:9] Failed to load library /opt/libx.so",
             *TRACE, "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /x"],
            "Failed to load library /opt/libx.so",
        ),
        (["09:15:46   ERROR Error: Trainer failed with exit code 1", "09:15:46   ERROR Terminating all processes..."],
         "exit code 1"),
        (
            ["thread '<unnamed>' panicked at src/lib.rs:41:9:", "index out of bounds: the len is 4",
             "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -6) local_rank: 0 (pid: 8)"],
            "panicked at src/lib.rs:41:9: index out of bounds",
        ),
        (
            ["slurmstepd: error: pyxis:     [ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1",
             "slurmstepd: error: pyxis:     enroot-mount: failed to mount: /raid at /x: No such file or directory"],
            "failed to mount: /raid",
        ),
        (  # the exception within a task of Ray that cannot be sent
            [*TRACE, "ray.exceptions.UnserializableException: Failed to deserialize exception.", "Original exception:",
             "ray.exceptions.RayTaskError: ray::Engine.run() (pid=8, ip=10.0.0.1)",
             '  File "/w/engine.py", line 5, in run', "ValueError: no shard 7"],
            "ValueError: no shard 7",
        ),
        (  # of data that is read in two ways the first one counts
            ["Traceback (most recent call last):", '  File "/w/a.py", line 9, in read', "    parse()",
             "pyarrow.lib.ArrowInvalid: JSON parse error: Invalid value. in row 0", "",
             "During handling of the above exception, another exception occurred:", "", *TRACE,
             "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"],
            "ArrowInvalid: JSON parse error",
        ),
        (  # a rendezvous whose inner exception says why
            ["Traceback (most recent call last):", '  File "/w/backend.py", line 156, in _create', "    host, port",
             "ValueError: host not found: Name or service not known", "",
             "The above exception was the direct cause of the following exception:", "", *TRACE,
             "torch.api.RendezvousConnectionError: The connection to the C10d store has failed."],
            "Name or service not known",
        ),
        (  # CANN's own line before the exception that passes it on
            ["EI0002: The wait execution of the Notify register times out. Reason: no record from remote rank", *TRACE,
             "RuntimeError: ACL stream synchronize failed, error code:107020"],
            "Notify register times out",
        ),
        (
            [f"[E compiler_depend.ts:421] {TIMEOUT.format(11).partition('] ')[2].replace('WorkNCCL', 'WorkHCCL')}"],
            "Rank 11 timed out in ALLREDUCE 88",
        ),
        (
            ["pyxis: importing docker image: trainer-2.sqsh",
             "slurmstepd: error: pyxis: child 22 failed with error code: 1",
             "slurmstepd: error: pyxis: failed to import docker image"],
            "takes the file trainer-2.sqsh for an image",
        ),
        (["RuntimeErrorRuntimeError: RuntimeError/fsx/a: not there"], "RuntimeError: /fsx/a: not there"),
        (  # the end of a long line is shown
            ["ERROR could not start: " + "a long value " * 40 + "the map lacks layers.31"],
            "the map lacks layers.31",
        ),
        ([*TRACE, f"RuntimeError: {'a long value ' * 40}the map lacks layers.31"], "the map lacks layers.31"),
    ],
)  # fmt: skip
def test_a_processs_own_error_explains_more_than_a_report_of_it(
    tmp_path: Path, lines: list[str], words: str
) -> None:
    assert words in text_of(tmp_path, lines)


@for_each("head", ["ERROR rank=2 ", "ERROR [rank 2] ", "ERROR "])
def test_an_error_logged_before_timeouts_is_their_cause(tmp_path: Path, head: str) -> None:
    logged = f"2026-02-01 10:02:11 {head}checkpoint: save failed: SlowDown"
    first = verdict_of(tmp_path, ["2026-02-01 10:00:01 INFO starting", logged, *TIMEOUTS]).first
    assert first is not None
    assert "save failed: SlowDown" in first.text
    assert first.rank == (2 if "2" in head else None)


def test_an_error_that_training_survived_or_that_names_a_waiting_rank_is_no_cause_of_timeouts(
    tmp_path: Path,
) -> None:
    for logged in ("ERROR the tracker failed", "ERROR rank=1 the tracker failed"):
        first = verdict_of(tmp_path, [logged, *STEPS, *TIMEOUTS]).first
        assert first is not None
        assert first.id == "rank-absent"
        assert "no timeout of it was read" in first.text


def test_a_loopback_address_explains_lost_connections_but_no_healthy_job(tmp_path: Path) -> None:
    warning = (
        "[W ProcessGroupGloo.cpp:724] Warning: Unable to resolve hostname to a (local) address. Using the loopback "
        "address as fallback. Manually set the network interface to bind to with GLOO_SOCKET_IFNAME."
    )
    lost = "RuntimeError: [pair.cc:534] Connection closed by peer [127.0.0.1]:4711"
    first = verdict_of(tmp_path, [warning, *TRACE, lost]).first
    assert first is not None
    assert (first.id, "GLOO_SOCKET_IFNAME" in first.remedy) == ("gloo-loopback", True)
    assert verdict_of(tmp_path, [warning, *STEPS]).first is None


def test_a_handled_exception_of_a_job_that_trains_is_only_counted(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, [*TRACE, "ImportError: no fast path", *STEPS])
    assert [(each.role, each.severity) for each in verdict.findings] == [("fact", "note")]


def test_ranks_are_read_from_lines_without_errors(tmp_path: Path) -> None:
    ray, step = "(Worker pid={0}, ip=10.0.0.{0}) ", "09:12:0{0}   DEBUG [trainer rank {0}] waiting"
    lines = [ray.format(rank) + f"[rank {rank + 4}] saves" for rank in (1, 2)]
    first = verdict_of(
        tmp_path, [*lines, *(ray.format(2) + line for line in [*TRACE, "ValueError: no batch"])]
    ).first
    assert first is not None
    assert (first.rank, first.host) == (6, "10.0.0.2")
    first = verdict_of(tmp_path, [step.format(2), *TIMEOUTS[:2]]).first
    assert first is not None
    assert first.text.startswith("Rank 2 did not come: ranks 0, 1 timed out")


def test_ranks_that_wait_in_a_smaller_group_accuse_no_rank_of_the_world(tmp_path: Path) -> None:
    lines = [TIMEOUT.format(rank).replace(f"[Rank {rank}]", "[Rank 1]") for rank in (10, 14)]
    text = text_of(tmp_path, lines)
    assert text.startswith("Ranks 10, 14 timed out in ALLREDUCE 88, in a group of fewer ranks")


@for_each(
    "lines",
    [
        ["[rank0]:E0210 10:01:02.1 9 select_algorithm.py:1756] [0/0] Exception out of resource: shared memory, 9",
         *(f"[rank0]: {step}" for step in STEPS)],
        ["[eval] run completed successfully.", "Exception ignored in: <function Engine.__del__ at 0x7e>", *TRACE,
         "TypeError: 'NoneType' object is not callable", "exit code: 0"],
        ["[launcher] trainer finished with exit code 0, stopping the server", *SERVER,
         "[launcher] server exited with code 0"],
        RETRIED,
        [f"{ACTOR}{line}" for line in [*TRACE, "TimeoutException: too slow"]]
        + [f"{ACTOR}step:19 - actor/loss:0.1", "Training Progress:   9%|▉   | 19/210 [1:05:02<10:44:11, 202.4s/it]",
           f"{ACTOR}step:20 - actor/loss:0.1"],
        [f"[rank0]:V1029 11:07:00.365000 41 symbolic_convert.py:617] [0/0] [__graph_breaks] {line}"
         for line in [*TRACE, "torch._dynamo.exc.Unsupported: skip function f"]] + STEPS,
        ["ERROR:root:x.py:198: Async mode is only supported elsewhere, disabling async mode", *STEPS],
    ],
)  # fmt: skip
def test_what_the_job_survived_is_no_failure(tmp_path: Path, lines: list[str]) -> None:
    verdict = verdict_of(tmp_path, lines)
    assert (verdict.failed, verdict.first) == (False, None)
    assert [each for each in verdict.findings if each.id == "unexplained"] == []


def test_a_failure_after_a_good_end_is_a_failure(tmp_path: Path) -> None:
    lines = [
        "Job finished successfully",
        "[launcher] trainer exited with code 0",
        *TRACE,
        "ValueError: no batch",
    ]
    assert "ValueError: no batch" in text_of(tmp_path, lines)
    ends = ["Training completed", "train.py failed (exitcode: 1) local_rank: 1 (pid: 8) of binary: python"]
    assert "ValueError: no batch" in text_of(tmp_path, [*TRACE, "ValueError: no batch", *ends])
    uncaught = [f"[rank1]: {line}" for line in [*TRACE, "ValueError: no batch"]]
    assert "ValueError: no batch" in text_of(tmp_path, [*uncaught, "[launcher] trainer exited with code 0"])
    assert "ValueError: no batch" in text_of(
        tmp_path, [*TRACE, "ValueError: no batch", "Training completed"]
    )
    assert not verdict_of(tmp_path, RETRIED).failed
    assert verdict_of(tmp_path, RETRIED[:2]).failed


def test_waiting_for_ever_is_a_failure_if_the_log_ends_with_it(tmp_path: Path) -> None:
    waits = (
        "2026-07-23 15:49:42,000\tWARNING manager.py:163 -- due to the cluster not having enough resources. "
        "You asked for 113.0 CPUs and 16.0 GPUs, but the cluster only has 4.0 CPUs and 0 GPUs available."
    )
    assert "You asked for 113.0 CPUs and 16.0 GPUs" in text_of(tmp_path, [waits] * 3)
    assert not verdict_of(tmp_path, [waits, *STEPS]).failed


def test_a_pod_without_a_node_has_failed_until_it_is_scheduled(tmp_path: Path) -> None:
    waits = "  Warning  FailedScheduling  2m  scheduler  0/12 nodes are available: 4 Insufficient nvidia.com/gpu."
    placed = "  Normal  Scheduled  1m  default-scheduler  Successfully assigned ml/train-0 to gpu-7"
    assert "0/12 nodes are available" in text_of(tmp_path, ["Events:", waits])
    assert not verdict_of(tmp_path, ["Events:", waits, placed]).failed


@for_each("before", [b"step 1 loss 3.2\n", b""])
def test_zero_bytes_of_a_crashed_node_are_skipped_with_a_note(tmp_path: Path, before: bytes) -> None:
    trace = "\n".join([*TRACE, "ValueError: no batch", ""]).encode()
    for data in (
        before + trace + bytes(4096),
        before + bytes(300) + trace,
        before + bytes(9000) + b"\n" + trace,
    ):
        file = tmp_path / "a.log"
        file.write_bytes(data)
        reading = read_all([("a.log", file)])
        first = judge(reading).first
        assert first is not None
        assert "ValueError: no batch" in first.text
        if before:
            assert "zero bytes in place of lines" in " ".join(reading.unread)


def test_a_remedy_names_what_the_line_names(tmp_path: Path) -> None:
    for line, remedy in (
        ("me@node-7: Permission denied (publickey).", "ssh -o BatchMode=yes node-7 true"),
        ("  Rank 5 -- GPU 1 managed by process 902 on node gpu-4", "`py-spy dump --pid 902` on gpu-4"),
        ("AttributeError: module 'wandb' has no attribute 'init'", "import wandb; print(wandb)"),
        ("TypeError: fit() got an unexpected keyword argument 'steps'", "remove steps from the call"),
        ("KeyError: 'RANK'", "`export RANK=…`"),
        ("OSError: [Errno 116] Stale file handle: '/nfs/.triton/cache/x.so'", "export TRITON_CACHE_DIR="),
        ("huggingface_hub.errors.HfHubHTTPError: Client error '429 Too Many Requests' for url 'https://huggingface.co/x'",
         "HF_HUB_OFFLINE=1"),
        ("ValueError: DP world size of 8 but the current world size is 4.", "ds_to_universal"),
    ):  # fmt: skip
        first = verdict_of(tmp_path, [*TRACE, line] if "Error" in line else [line]).first
        assert first is not None
        assert remedy in first.remedy, line
