"""What follows the newest error of a log: a job that goes on or ends in good order has not failed."""

from __future__ import annotations

from pathlib import Path

from each import for_each

from distui.runners.diagnosis.first_cause import judge
from distui.runners.diagnosis.read_logs import read_all

LOGGED = (
    "ERROR 10:02:11 saver: upload of step_400 failed: RuntimeError: CUDA error: unspecified launch failure"
)
TRACEBACK = """\
Traceback (most recent call last):
  File "/srv/train.py", line 80, in main
    batch = next(batches)
ValueError: shard 7 has no samples
"""
CAUGHT = f"ERROR 10:02:11 loader: skipping a shard\n{TRACEBACK}"
STEPS = "train: global step 500, width 12\ntrain: global step 600, width 12\n"
REPEATED = "train: global step 500, width 12\n" * 4
RESULTS = "\n".join(
    ["validating", "reading 12 shards", "one more pass", "Saved the best checkpoint to /srv/out", "bye"]
)


TIME_LIMIT = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-13T15:27:25 DUE TO TIME LIMIT ***"


def of(prefix: str, lines: str) -> str:
    """The lines with a prefix."""
    return "".join(f"{prefix}{line}" for line in lines.splitlines(keepends=True))


def failed(tmp_path: Path, text: str) -> bool:
    path = tmp_path / "train.log"
    path.write_text("train: global step 400, width 12\n" + text, "utf-8")
    verdict = judge(read_all([(path.name, path)]))
    return verdict.failed or verdict.first is not None


@for_each(
    "text",
    [
        f"{LOGGED}\n{STEPS}",
        f"{CAUGHT}{STEPS}",
        f"{LOGGED}\n{RESULTS}\n",
        f"{TRACEBACK}{STEPS}cleaning up\nstopping the loader\nrun: exit 0\n",
        f"{TRACEBACK}{STEPS}train: global step 700, width 12\n",
        of("(T pid=7) ", TRACEBACK + STEPS),
    ],
)
def test_a_job_that_goes_on_after_an_error_has_not_failed(tmp_path: Path, text: str) -> None:
    assert not failed(tmp_path, text)


@for_each(
    "text",
    [
        LOGGED,
        f"{LOGGED}\n{REPEATED}",
        f"{STEPS}{LOGGED}\n",
        f"{LOGGED}\n{STEPS}{LOGGED}\n",
        f"{LOGGED}\n{STEPS}Killed\n",
        f"{TIME_LIMIT}\n{STEPS}",
        f"{TRACEBACK}{STEPS}",
        f"{TRACEBACK}{RESULTS}\n",
        f"{LOGGED}\nshutting down\n{RESULTS}\n",
        f"Fatal Python error: Segmentation fault\n{STEPS}",
        f"ERROR trainer: replica 3 lost: heartbeat timeout\n{of('waiting for it: ', STEPS)}",
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n{RESULTS}\n",
        f"{LOGGED}\nwriting an emergency checkpoint\n{RESULTS}\n",
        of("[rank3]: ", TRACEBACK) + of("[rank0]: ", STEPS + STEPS.replace("00,", "50,")),
    ],
)
def test_a_job_that_does_not_go_on_has_failed(tmp_path: Path, text: str) -> None:
    assert failed(tmp_path, text)
