"""Pasted pieces in which only everyday words tell of trouble, and what is no trouble all the same."""

from __future__ import annotations

from each import for_each

from distui.runners.diagnosis.first_cause import Verdict, judge
from distui.runners.diagnosis.reading import Reading

SHADERS = "[23340.220490] otterdrm: sq_intr: error, detail 0x00000000, type 1, sh 1, priv 1, wave_id 4"


def verdict(*lines: str, pasted: bool = True) -> Verdict:
    reading = Reading(pasted=pasted)
    reading.open("0.log")
    reading.feed(lines)
    return judge(reading)


@for_each(
    "line",
    [
        SHADERS,
        "monitor.cc:116: /scratch/session_9 is over 95% full, available space: 2.03 GB; capacity: 69.9 GB",
        "    message: 'the gang is unschedulable: job is not ready, 3 minAvailable.'",
        "2021-06-12 00:14:33 10.174.0.13 [3] coredump_hook.cc:250] RAW: Remote crash gathering disabled for SIGTERM.",
        "12s  FailedMounting  pod/otter-0  volume otter",
    ],
)
def test_a_word_of_trouble_is_quoted_where_nothing_else_tells_of_a_failure(line: str) -> None:
    first = verdict("Loading the configuration of the job", line, *["a line"] * 20).first
    assert first is not None
    assert first.id == "unexplained"
    assert first.text.startswith("No rule knows this: ")
    assert first.text.split()[-1] == line.split()[-1]
    assert (first.severity, first.lines[0].line) == ("error", 2)


@for_each(
    "line",
    [
        "validation error 0.31", "mean squared error: 2.5e-3", "failed: 0", "0 errors, 0 failed", "errors=[]",
        "NCCL_ASYNC_ERROR_HANDLING=1", "dist_timeout=1800", "checkpoint not found, training from scratch",
        "2024-01-01 10:00:00.1: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT: Could not find TensorRT",
        "[W1126 10:00:00.1 socket.cpp:697] [c10d] The client socket has failed to connect to [localhost]:29500",
        "Failed to load flash_otter, using the slow path", "Trials: 4/4 (3 TERMINATED, 1 RUNNING)",
        "mesg: ttyname failed: Inappropriate ioctl for device",
    ],
)  # fmt: skip
def test_everyday_words_are_no_trouble(line: str) -> None:
    assert not verdict("Loading the configuration of the job", line, "and a line below", "and one").failed


def test_once_training_is_seen_or_the_log_is_longer_such_words_count_for_nothing() -> None:
    assert verdict(SHADERS, *["a line"] * 20).failed
    assert not verdict(SHADERS, *["a line"] * 20, "step 12 loss 2.31").failed
    assert not verdict(SHADERS, *["a line"] * 250).failed


def test_the_logs_of_a_run_are_not_judged_by_words() -> None:
    """Of a run distui knows whether it failed."""
    assert not verdict(SHADERS, *["a line"] * 20, pasted=False).failed
