"""From what real ranks left behind to classes of failures: the texts are those of real runs."""

from __future__ import annotations

import sys
from typing import Any

from each import for_each

from distui.runners.inrank.failure_causes import Death, classify, first_of
from distui.runners.inrank.printed_traceback import last_raised
from distui.runners.inrank.tracebacks import note_of

GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp"


def raised(kind: str, text: str, **more: Any) -> dict[str, Any]:
    """What a hook notes."""
    where = {"where": "/job/train.py:88", "python": "/usr/bin/python", "step": 0, "time": 5.0}
    return {"type": kind, "text": text, **where, **more}


def of(kind: str, text: str, **more: Any) -> Any:
    return classify(Death(3, 1, raised(kind, text, **more)))


EXCEPTIONS = [
    ("XlaRuntimeError", ("INTERNAL: run time error: NCCL operation ncclCommInitRank(&comm, n, id, rank) "
      "failed: unhandled cuda error; current tracing scope: all-reduce-start.88"),
     "xla-collective", "maybe", "rank 3 failed in NCCL below XLA: ncclCommInitRank failed: unhandled cuda error"),
    ("XlaRuntimeError", "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 24.1G of 7.5G hbm.",
     "hbm", "no", "rank 3 ran out of memory when XLA compiled it: it needs 24.1G of HBM, and a chip has 7.5G"),
    ("RuntimeError", "HIP error: invalid device ordinal",
     "cuda-error", "no", "rank 3 cannot use a GPU: invalid device ordinal"),
    ("AssertionError", "{'id': 611, 'status': 'NOT_AVAILABLE', 'numel': 0}",
     "zero-gathered", "maybe", "rank 3 needs a parameter that ZeRO-3 has not gathered"),
    ("RuntimeError", "disagreement between rank0 and rank5: rank0: [0, 1], rank5: [0, 2]",
     "zero-order", "maybe", "rank 3 fetches the parameters of ZeRO-3 in another order than the others"),
    ("ValueError", "bad sample 17",
     "exception", "maybe", "rank 3 raised ValueError: bad sample 17 at train.py:88"),
    ("ModuleNotFoundError", "No module named 'flash_attn'",
     "import-missing", "no", "rank 3 finds no module named flash_attn in /usr/bin/python (train.py:88)"),
    ("ImportError", "cannot import name 'x' from 'y' (y.py)",
     "import-crash", "no", "rank 3 raised ImportError: cannot import name"),
    ("RuntimeError", ("[enforce fail at /__w/gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable "
      "to find address for: nope0"),
     "address", "no", "rank 3 finds no network interface or address nope0 (train.py:88)"),
    ("DistBackendError", ("NCCL error in: NCCLUtils.cpp:94, internal error\nLast error:\nBootstrap : no "
      "socket interface found"),
     "address", "no", "rank 3 finds no network interface that NCCL may use"),
    ("DistNetworkError", ("The server socket has failed to listen on any local network address. port: "
      "45609, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"),
     "port-in-use", "maybe", "rank 3 finds its port 45609 in use"),
    ("OSError", ("[Errno 98] Address already in use (while attempting to bind on address "
      "('127.0.0.1', 57677))"),
     "port-in-use", "maybe", "rank 3 finds its port 57677 in use"),
    ("OSError", "[Errno 98] Address already in use", "port-in-use", "maybe", "rank 3 finds its port in use"),
    ("PermissionError", "[Errno 13] Permission denied: '/ckpt/7'",
     "permission", "no", "rank 3 has no permission for /ckpt/7"),
    ("RuntimeError", ("[enforce fail at inline_container.cc:747] . open file failed with strerror: "
      "Permission denied"),
     "permission", "no", "rank 3 has no permission to open a file"),
    ("OSError", "[Errno 30] Read-only file system: '/ckpt'",
     "permission", "no", "rank 3 may not write to a read-only"),
    ("OSError", "[Errno 28] No space left on device",
     "disk-full", "maybe", "rank 3 finds the disk full: no space left on device (train.py:88)"),
    ("OSError", "[Errno 27] File too large", "file-limit", "maybe",
     "rank 3 has reached the limit on the size of a file (train.py:88)"),
    ("RuntimeError", "[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598",
     "disk-full", "maybe", "rank 3 could not write all of a file with torch.save"),
    ("FileNotFoundError", "[Errno 2] No such file or directory: '/data/x.bin'",
     "file-missing", "maybe", "rank 3 finds no such file or directory: /data/x.bin"),
    ("RuntimeError", "Parent directory /nope does not exist.",
     "file-missing", "maybe", "rank 3 finds no such file or dir"),
    ("OutOfMemoryError", ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
      "79.11 GiB"),
     "cuda-oom", "maybe", "rank 3 ran out of GPU memory"),
    ("MemoryError", "", "host-oom", "maybe", "rank 3 ran out of host memory"),
    ("RuntimeError", ("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
      "allocate memory: you tried to allocate 140737488355328 bytes. Error code 12 (Cannot allocate memory)"),
     "host-oom", "maybe", "rank 3 ran out of host memory"),
    ("RuntimeError", ("DataLoader worker (pid 18553) is killed by signal: Bus error. It is possible "
      "that dataloader's workers are out of shared memory. Please try to raise your shared memory limit."),
     "segfault", "maybe", "rank 3 lost a worker of its data loader to a bus error"),
    ("RuntimeError", "DataLoader worker (pid(s) 7, 8) is killed by signal: Killed. ",
     "killed", "maybe", "rank 3 lost"),
    ("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Aborted. ",
     "signal", "maybe", "rank 3 lost a worker of its data loader to a signal: Aborted"),
    ("RuntimeError", "DataLoader worker (pid(s) 7, 8) exited unexpectedly",
     "signal", "maybe", "rank 3 lost a worker process of its data loader"),
    ("AcceleratorError", ("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be\n"
      "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."),
     "cuda-error", "maybe", "rank 3 failed on its GPU: CUDA error: an illegal memory access"),
    ("RuntimeError", "CUDA error: uncorrectable ECC error encountered",
     "ecc", "yes", "rank 3 hit an uncorrectable"),
    ("AcceleratorError", ("CUDA error: device-side assert triggered\nCUDA kernel errors might be "
      "asynchronously reported"),
     "cuda-error", "maybe", "rank 3 failed on its GPU: device-side assert triggered"),
    ("RuntimeError", "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be",
     "cuda-error", "maybe",
     "rank 3 failed on its GPU: CUDA error: an illegal memory access was encountered (train.py:88)"),
    ("RuntimeError", "CUDA error: no kernel image is available for execution on the device",
     "cuda-error", "no", "rank 3 cannot use a GPU: no kernel image is available for execution"),
    ("AttributeError", "module 'torch._C' has no attribute '_cuda_setDevice'",
     "cuda-error", "no", "rank 3 cannot use a GPU: module 'torch._C' has no attribute '_cuda_setDevice'"),
    ("RuntimeError", "No CUDA GPUs are available", "cuda-error", "no", "rank 3 cannot use a GPU: No CUDA"),
    ("AssertionError", "Torch not compiled with CUDA enabled",
     "cuda-error", "no", "rank 3 cannot use a GPU: Torch not"),
    ("AssertionError", "loss is nan",
     "nan", "maybe", "rank 3 stopped at numbers that are not finite: AssertionError"),
    ("AssertionError", "shapes", "assertion", "maybe", "rank 3 raised AssertionError: shapes at train.py:88"),
    ("RuntimeError", ("Error building extension 'fused_adam': [1/3] nvcc -c adam.cu\nFAILED: adam.cuda.o\n"
      "/usr/include/c++/7/type_traits(1049): error: type name is not allowed\nninja: build stopped"),
     "build-failed", "maybe", "rank 3 could not build an extension in C++ or CUDA: /usr/include"),
    ("RuntimeError", "Error building extension 'cpu_adam'",
     "build-failed", "maybe", "rank 3 could not build an extension in C++ or CUDA: cpu_adam"),
    ("ImportError", "/env/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
     "library-unfit", "no", "rank 3 cannot load a library: /env/flash_attn"),
    ("InductorError", "CompilationError: at 1:0:\nValueError(\"type fp8e4nv not supported in this architecture.",
     "kernel-unfit", "maybe", "rank 3 cannot compile or start a kernel for its GPU: type fp8e4nv"),
    ("RuntimeError", "received 0 items of ancdata", "open-files", "maybe", "rank 3 has no file descriptor left"),
    ("OSError", "[Errno 122] Disk quota exceeded: '/data/u/x'",
     "disk-full", "maybe", "rank 3 has reached its disk quota at /data/u/x"),
    ("OSError", "You are trying to access a gated repo.\nMake sure to have access to it",
     "hub-refused", "no", "rank 3 may not download from the hub: OSError: You are trying"),
    ("ConnectionError", "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /m",
     "hub-unreached", "maybe", "rank 3 cannot connect to huggingface.co, which has"),
    ("UsageError", "api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
     "tracker", "no", "rank 3 cannot log in to its experiment tracker"),
    ("ValueError", ("Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
      "expected, but not set"),
     "launch-unset", "no", "rank 3 was started without the environment variable RANK"),
    ("RuntimeError", "PytorchStreamReader failed reading zip archive: failed finding central directory",
     "checkpoint-unreadable", "maybe", "rank 3 cannot read a saved file: RuntimeError: PytorchStreamReader"),
    ("RuntimeError", "Expected to have finished reduction in the prior iteration before starting a new one.",
     "unused-parameters", "maybe", "rank 3 has parameters that took no part in the loss"),
    ("RuntimeError", "Expected to mark a variable ready only once. This error is caused by",
     "ready-twice", "maybe", "rank 3 has a parameter whose gradient DDP got twice"),
    ("AssertionError", ("Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
      "gradient_acc_step * world_size 64 != 2 * 4 * 7"),
     "batch-sizes", "no", "rank 3 was given batch sizes that do not fit each other: train_batch_size"),
    ("Exception", "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
     "nan", "maybe", "rank 3 stopped at numbers that are not finite: Exception: Current"),
    ("ValueError", "Network outputs is NAN! Stop training", "nan", "maybe", "rank 3 stopped at numbers"),
    ("KeyboardInterrupt", "", "terminated", "yes", "rank 3 was interrupted"),
]  # fmt: skip


@for_each(("kind", "text", "named", "retry", "says"), EXCEPTIONS)
def test_what_an_exception_means(kind: str, text: str, named: str, retry: str, says: str) -> None:
    found = of(kind, text)
    assert (found.kind, found.retry, found.symptom) == (named, retry, False)
    assert found.text.startswith(says)
    assert found.remedy


@for_each(
    ("kind", "text", "named"),
    [
        ("RuntimeError", "Gloo connectFullMesh failed with [pair.cc:152] timed out connecting, remote=[::1]:4$0",
         "connect-timeout"),
        ("RuntimeError", f"{GLOO}/pair.cc:553] Connection closed by peer [127.0.0.1]:14724.", "peer-gone"),
        ("RuntimeError", f"{GLOO}/pair.cc:537] Read error [127.0.0.1]:738: Connection reset by peer.", "peer-gone"),
        ("DistBackendError", "NCCL error: remote process exited or there was a network error", "peer-gone"),
        ("RuntimeError", f"{GLOO}/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation", "timeout"),
        ("DistStoreError", "Timed out after 2 seconds waiting for clients. 1/2 clients joined.", "timeout"),
        ("DistNetworkError", "The client socket has timed out after 2000ms while trying to connect to (10.0.0.9, 1).",
         "connect-timeout"),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer", "connection"),
    ],
)  # fmt: skip
def test_what_only_says_that_another_is_gone(kind: str, text: str, named: str) -> None:
    found = of(kind, text)
    assert (found.kind, found.retry, found.symptom, found.key) == (named, "maybe", True, "")


LINES = [
    (2, ["usage: t.py [-h] [--lr LR]", "t.py: error: unrecognized arguments: --nope"], "usage", "no",
     "rank 0 refused its arguments: unrecognized arguments: --nope"),
    (2, ["/usr/bin/python: can't open file '/x/t.py': [Errno 2] No such file or directory"], "file-missing", "no",
     "rank 0 finds no script /x/t.py"),
    (2, ["no words"], "exit-silent", "maybe", "rank 0 ended with exit code 2"),
    (127, ["train.sh: line 3: trainer: command not found"], "not-executable", "no",
     "rank 0 could not execute a command (exit code 127): train.sh: line 3: trainer: command not found"),
    (1, ["distui: torchrun refused the arguments: argument --nnodes: x"], "launcher-refused", "no",
     "rank 0 torchrun refused the arguments: argument --nnodes: x"),
    (1, ["/usr/bin/python: No module named trainer"], "import-missing", "no", "rank 0 finds no module named trainer"),
    (1, ["out of luck"], "exit-silent", "maybe", "rank 0 ended with exit code 1"),
    (137, [], "killed", "yes", "rank 0 was killed by SIGKILL from outside"),
    (-9, [], "killed", "yes", "rank 0 was killed by SIGKILL from outside"),
    (-15, [], "terminated", "yes", "rank 0 was killed by SIGTERM, not sent by distui"),
    (-11, [], "segfault", "maybe", "rank 0 was killed by SIGSEGV"),
    (-7, [], "segfault", "maybe", "rank 0 was killed by SIGBUS"),
    (-6, ["terminate called without an active exception"], "exit-abort", "maybe",
     "rank 0 crashed at interpreter exit (SIGABRT), after its script had ended"),
    (-6, ["[rank0]:[E12] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6)",
          "terminate called after throwing an instance of 'c10::DistBackendError'"], "timeout", "maybe",
     "rank 0 waited for a collective until the time limit (SIGABRT)"),
    (-6, ["[rank0]:[E11] WorkNCCL.cpp:192] [TC][rank=0][name=0] Operation timed out after 25986 ms",
          "[rank0]:[E11] [TC][rank=0][name=0] Aborting process on rank 0 - timeout watchdog detected operation timeout"],
     "timeout", "maybe", "rank 0 waited for a collective until the time limit (SIGABRT)"),
    (-6, ["[rank0]:[E12] Received a dump signal due to a collective timeout from  rank 3 and we will try",
          "[rank0]:[F12] Terminating the process after attempting to dump debug info, due to collective timeout"],
     "timeout", "maybe", "rank 0 was ended by torch: a rank waited for a collective until the time limit (SIGABRT)"),
    (-6, ["terminate called after throwing an instance of 'c10::AcceleratorError'",
          "  what():  CUDA error: an illegal memory access was encountered"], "cuda-error", "maybe",
     "rank 0 failed on its GPU: CUDA error: an illegal memory access was encountered (SIGABRT)"),
    (-6, ["terminate called after throwing an instance of 'gloo::EnforceNotMet'",
          "  what():  [enforce fail at /gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 6668 vs 2776."],
     "mismatch", "maybe", "rank 0 received data of another size than it requested"),
    (-6, [], "abort", "maybe", "rank 0 was killed by SIGABRT"),
    (-25, [], "file-limit", "maybe", "rank 0 was killed by SIGXFSZ: a file that it wrote has reached the limit"),
    (-25, ["cp: error writing '/ckpt/7': File too large"], "file-limit", "maybe",
     "rank 0 has reached the limit on the size of a file"),
    (None, [], "lost", "maybe", "rank 0 ended; exit status unknown"),
]  # fmt: skip


@for_each(("code", "lines", "named", "retry", "says"), LINES)
def test_what_a_code_and_the_last_lines_mean(
    code: int | None, lines: list[str], named: str, retry: str, says: str
) -> None:
    found = classify(Death(0, code, {}, lines))
    assert (found.kind, found.retry) == (named, retry)
    assert found.text.startswith(says)


def test_a_crash_after_the_end_of_the_script_needs_no_restart() -> None:
    for code in (-6, -11):
        found = classify(Death(0, code, {}, (), finished=True))
        assert (found.kind, found.retry) == ("exit-abort", "no")
    assert classify(Death(0, 1, {}, (), finished=True)).kind == "exit-silent"


def test_the_kernel_has_the_last_word_on_memory() -> None:
    found = classify(Death(2, -9, {}, (), oom="kernel log: Killed process 7"))
    assert (found.kind, found.retry) == ("host-oom", "maybe")
    assert (
        found.text
        == "rank 2 ran out of host memory, and the kernel killed it (kernel log: Killed process 7)"
    )


def test_only_what_comes_at_once_and_again_is_hopeless_while_importing() -> None:
    assert of("NameError", "x", importing=True).retry == "no"
    assert of("RuntimeError", "x", importing=True).retry == "maybe"
    assert of("NameError", "x", importing=True, step=None).retry == "maybe", "whether it trained is unknown"
    later = of("NameError", "x", importing=True, step=7)
    assert (later.kind, later.retry) == ("exception", "maybe")


def test_an_import_error_may_come_from_anything() -> None:
    """A library says by it what it lacks, long after its own import."""
    lacks = of("ImportError", "to use it, install extras", importing=False)
    assert lacks.text == "rank 3 raised ImportError: to use it, install extras at train.py:88 (exit code 1)"
    nested = of("ImportError", "cannot import name 'x' from 'y' (y.py)", importing=True)
    assert nested.text.endswith("at train.py:88 while a module was imported (exit code 1)")


def test_a_worker_of_a_data_loader_is_quoted() -> None:
    carried = (
        "Caught FileNotFoundError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "/env/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", line 54, in fetch\n'
        "    data = [self.dataset[idx]]\n"
        '  File "/job/data.py", line 5, in __getitem__\n'
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/nope.bin'\n"
    )
    found = of("FileNotFoundError", carried)
    assert found.text == "rank 3 finds no such file or directory: /data/nope.bin (data.py:5)"
    assert found.where == "/job/data.py:5"


def test_the_signal_that_ended_a_worker_is_in_the_exception_before() -> None:
    before = ["RuntimeError: DataLoader worker (pid 7025) is killed by signal: Killed. "]
    found = of("RuntimeError", "DataLoader worker (pid(s) 7025) exited unexpectedly", before=before)
    assert (found.kind, found.text) == (
        "killed",
        "rank 3 lost a worker of its data loader to SIGKILL (train.py:88)",
    )
    assert "fewer workers" in found.remedy


def test_a_batch_that_cannot_be_taken_over_has_lost_its_worker() -> None:
    """Where the read fails before torch's handler of SIGCHLD runs."""
    raised = {"type": "ConnectionResetError", "text": "[Errno 104] Connection reset by peer"}
    inside = '  File "/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1291, in _try_get_data'
    found = classify(Death(3, 1, raised, [inside]))
    assert (found.kind, found.symptom) == ("signal", False)
    assert found.text.startswith("rank 3 lost a worker process of its data loader")
    assert "num_workers=0" in found.remedy
    assert classify(Death(3, 1, raised, [])).symptom


def test_an_exception_that_led_to_it_is_believed_of_few_things_only() -> None:
    full = of("RuntimeError", "saving failed", before=["OSError: [Errno 28] No space left on device"])
    assert full.kind == "disk-full"
    tried = of("RuntimeError", "no attention", before=["ModuleNotFoundError: No module named 'flash_attn'"])
    assert tried.kind == "exception", "scripts go on without a module that they can do without"


def test_the_same_failure_has_the_same_key_whatever_its_numbers() -> None:
    one = of("ValueError", "bad object at 0x7f00 in batch 17")
    other = of("ValueError", "bad object at 0x7eff in batch 4")
    elsewhere = of("ValueError", "bad object at 0x7f00 in batch 17", where="/job/train.py:90")
    assert one.key == other.key != ""
    assert one.key != elsewhere.key


def test_the_first_is_the_earliest_that_failed_of_itself() -> None:
    victim = of("RuntimeError", f"{GLOO}/pair.cc:553] Connection closed by peer", time=1.0)
    culprit, later = of("ValueError", "x", time=2.0), of("KeyError", "y", time=3.0)
    assert first_of([later, victim, culprit]) is culprit
    assert first_of([]) is None


MERGED = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/job/me.py", line 6, in <module>
[rank1]:     main()
[rank1]:   File "/env/lib/python3.11/site-packages/torch/x.py", line 9, in step
[rank1]: torch.distributed.DistNetworkError: no way
W1120 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 7 closing signal SIGTERM
Traceback (most recent call last):
  File "/env/bin/torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""


def test_an_exception_is_found_in_the_merged_output_of_a_launcher() -> None:
    found = last_raised(MERGED.splitlines())
    assert found == {
        "type": "DistNetworkError",
        "text": "no way",
        "where": "/job/me.py:6",
        "importing": False,
    }
    assert last_raised(["ValueError: only a word"]) == {}


@for_each(
    "lines",
    [
        [
            "╭─────────── Traceback (most recent call last) ────────────╮",
            "│ /job/me.py:33 in <module>                                │",
            "│ ❱ 33     main()                                          │",
            "╰──────────────────────────────────────────────────────────╯",
            "KeyError: 'labels'",
        ],
        [
            "  + Exception Group Traceback (most recent call last):",
            '  |   File "/job/run.py", line 3, in <module>',
            "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
            "  +-+---------------- 1 ----------------",
            "    | Traceback (most recent call last):",
            '    |   File "/job/me.py", line 33, in <module>',
            "    | KeyError: 'labels'",
            "    +------------------------------------",
        ],
    ],
)
def test_the_last_lines_of_a_rank_are_read_like_a_log(lines: list[str]) -> None:
    found = classify(Death(1, 1, {}, lines))
    assert found.text == "rank 1 raised KeyError: 'labels' at me.py:33 (exit code 1)"


def test_a_note_names_the_users_own_line() -> None:
    code = compile("import json\ndef f():\n    json.loads('{')\nf()\n", "/job/train.py", "exec")
    try:
        exec(code, {})
    except ValueError as error:
        noted = note_of(type(error), error, error.__traceback__)
    assert noted["where"] == "/job/train.py:3"
    assert (noted["type"], noted["importing"], noted["python"]) == (
        "JSONDecodeError",
        False,
        sys.executable,
    )


def test_a_note_of_a_syntax_error_names_its_own_file() -> None:
    try:
        compile("def f(:\n", "/job/broken.py", "exec")
    except SyntaxError as error:
        noted = note_of(type(error), error, error.__traceback__)
    assert (noted["where"], noted["importing"]) == ("/job/broken.py:1", True)


def test_a_long_text_keeps_both_ends() -> None:
    noted = note_of(ValueError, ValueError("a" * 5000 + "the end"), None)
    assert len(noted["text"]) < 2100
    assert noted["text"].endswith("the end")


SIZES = [
    ("RuntimeError", "shape '[8, 64, -1, 3, 32]' is invalid for input of size 73728"),
    ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (8x4 and 5x4)"),
    (
        "RuntimeError",
        "The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 1",
    ),
    ("AssertionError", "hidden size 10 is not divisible by 3 heads"),
    ("ValueError", "embed_dim must be divisible by num_heads"),
]


UNFIT = [
    *(("sizes", *each) for each in SIZES),
    ("types", "RuntimeError", "mat1 and mat2 must have the same dtype, but got Float and BFloat16"),
    (
        "checkpoint-unfit",
        "RuntimeError",
        "Error(s) in loading state_dict for Linear:\n\tsize mismatch for weight: copying a param",
    ),
]


@for_each(("name", "kind", "text"), UNFIT)
def test_what_does_not_fit_is_certain_before_the_first_step_alone(name: str, kind: str, text: str) -> None:
    first = of(kind, text, untrained=True)
    assert (first.kind, first.retry) == (name, "no")
    assert text.splitlines()[0].rstrip(":") in first.text
    assert of(kind, text, untrained=False).retry == "maybe", (
        "no optimizer of torch's: how far it was is unknown"
    )
    assert of(kind, text, step=4000).retry == "maybe", (
        "a batch may do that, and a checkpoint goes on elsewhere"
    )


@for_each(
    "text",
    [
        "stack expects each tensor to be equal size, but got [3] at entry 0",
        "Sizes of tensors must match except in dimension 0",
    ],
)
def test_what_data_decide_is_never_certain(text: str) -> None:
    assert of("RuntimeError", text, untrained=True).retry == "maybe"


def test_settings_that_a_script_refuses() -> None:
    refused = of("ParallelizeError", "tp is 4, which does not divide the 6 of head")
    assert (refused.kind, refused.retry) == ("settings", "no")
    by_code = classify(Death(0, 78, {}, ("chargpt: 3 heads cannot be divided by tp 2",)))
    assert (by_code.kind, by_code.retry) == ("settings", "no")
    assert "3 heads cannot be divided by tp 2" in by_code.text
    assert classify(Death(0, 78, {}, ())).retry == "maybe", "it said nothing"


@for_each(
    ("kind", "text", "name", "words"),
    [
        ("TypeError", "fit() got an unexpected keyword argument 'steps'", "exception", "remove steps from the call"),
        ("AttributeError", "module 'wandb' has no attribute 'init'", "exception", "import wandb; print(wandb)"),
        ("ImportError", "cannot import name 'Fast' from 'quick.ops' (ops.py)", "import-crash", "quick.ops has no Fast"),
        ("KeyError", "'qwen9'", "exception", "/usr/bin/python -m pip install -U transformers"),
        ("KeyError", "'labels'", "exception", "labels is missing"),
    ],
)  # fmt: skip
def test_advice_changes_only_the_remedy(kind: str, text: str, name: str, words: str) -> None:
    found = of(kind, text)
    assert (found.kind, words in found.remedy) == (name, True)
    assert f"{kind}: {text}" in found.text


def test_a_variable_that_is_missing_at_the_start_is_missing_in_each_attempt() -> None:
    first = of("KeyError", "'LOCAL_RANK'", untrained=True)
    assert (first.kind, first.retry) == ("launch-unset", "no")
    assert of("KeyError", "'LOCAL_RANK'", step=4000).retry == "maybe"


@for_each(
    ("kind", "text", "remedy"),
    [
        ("RuntimeError", "No backend type associated with device type xpu", "xpu:xccl"),
        ("RuntimeError", "No backend type associated with device type npu", "npu:hccl"),
        ("RuntimeError", "No backend type associated with device type cuda", "cuda:nccl"),
        ("RuntimeError", "store based barrier on rank: 3 (world_size=2, worker_count=4)", "4 ranks came"),
        ("RuntimeError", "Distributed package doesn't have NCCL built in", 'backend="gloo"'),
        ("KeyError", "'head.dense.weight/shard_0_4'", "the checkpoint has no head.dense.weight/shard_0_4"),
        (
            "AssertionError",
            "fp8 does not yet support tensor parallelism",
            "the option that the message names",
        ),
    ],
)
def test_a_remedy_is_of_the_device_and_the_message(kind: str, text: str, remedy: str) -> None:
    assert remedy in of(kind, text).remedy
