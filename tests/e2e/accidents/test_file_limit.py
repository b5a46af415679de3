"""A log reaches the limit on the size of a file (`ulimit -f`): the rank is named, with what to do."""

from __future__ import annotations

import resource
import sys

import pytest

from ..runs import Run, World

LIMIT = 300_000
WRITES = """
import os, signal, sys, time
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    while sys.argv[1] == "on" or os.fstat(1).st_size < 200_000:
        os.write(1, b"x" * 999 + b"\\n")
except OSError:
    pass
time.sleep(600)
"""


def limited(world: World, writes: str) -> Run:
    script = world.script("job.py", WRITES)
    about = world.distui(
        "exec", "--name", f"limited-{writes}", "--detach", "--json", "--no-hook", "--",
        sys.executable, script, writes,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT)),
    ).fine().json()  # fmt: skip
    return Run(world, about["run"], about["name"], world.runs / about["run"])


@pytest.mark.real
def test_a_rank_that_writes_on_is_named_and_one_below_the_limit_is_not(world: World) -> None:
    runs = [limited(world, writes) for writes in ("on", "off")]
    status = runs[0].eventually(lambda now: now["findings"])
    (finding,) = status["findings"]
    assert (finding["id"], finding["severity"], finding["rank"]) == ("file-limit", "error", 0)
    assert "the log of rank 0 has reached the limit on the size of a file (293.0 KiB)" in finding["text"]
    assert "`ulimit -f unlimited`" in finding["remedy"]
    assert finding["evidence"] == ["node-0/attempt-001/rank-0.out has 300,000 bytes"]
    assert status["state"] == "running"
    runs[1].eventually(lambda now: len(runs[1].file("node-0/attempt-001/rank-0.out")) >= 200_000)
    assert runs[1].status()["findings"] == []
    for run in runs:
        run.stop("--grace", "1").fine()
    assert "file-limit" in runs[0].distui("diagnose").out
