"""A launch without a terminal prints what its ranks write, whole and in order, whoever reads it, and harms nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from patience import slowness

from .runs import DISTUI, World, until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

FAILS = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(4):
    dist.all_reduce(torch.ones(1))
    print(f"step {step} \\x1b[31mred", "x" * 9000, flush=True)
    print(f"aside {step}", file=sys.stderr, flush=True)
    time.sleep(float(os.environ["PAUSE_S"]))
sys.stdout.write(f"last words of {rank}")
sys.stdout.flush()
through = f"through-{os.environ['DISTUI_ATTEMPT']}"
if rank == 1:
    open(through, "w").close()
while not os.path.exists(through):
    time.sleep(0.01)
if rank == 0:
    raise ValueError("no such luck")
time.sleep(600)
"""

FLOOD = """
import os, sys
for number in range(300_000):
    sys.stdout.write(f"{number:09} {'x' * 100}\\n")
print("the end", flush=True)
open(f"done-{os.environ['RANK']}", "w").close()
"""

CHATTY = """
import itertools, time
for number in itertools.count():
    print("line", number, "x" * 3000, flush=True)
    time.sleep(0.002)
"""


@pytest.mark.real
def test_the_output_of_all_ranks_and_attempts_is_whole_when_it_fails(world: World) -> None:
    """As `torchrun --tee 3` prints it: stdout to stdout, stderr to stderr, whose it is before each line."""
    script = world.script("fails.py", FAILS)
    pause = ("--env", f"PAUSE_S={1.2 * slowness():g}")  # what is written within a look's time has no order
    done = world.distui("launch", "ddp", "--nproc-per-node", "2", "--restarts", "1", *pause, "--", script)
    assert done.code == 1
    lines = done.out.splitlines()
    for rank in (0, 1):
        own = [line for line in lines if line.startswith(f"[default{rank}]:")]
        steps = [f"[default{rank}]:step {step} red {'x' * 9000}" for step in range(4)]
        assert own == [*steps, f"[default{rank}]:last words of {rank}"] * 2, done.out
    assert len(lines) == 20, "nothing but what ranks wrote"
    order = [int(step) for step in re.findall(r"step (\d)", done.out)]
    assert order == [step for step in range(4) for _ in (0, 1)] * 2, "in order of time, not by file"
    for rank in (0, 1):
        assert done.err.count(f"[default{rank}]:aside 3\n") == 2
    assert done.err.count("[default0]:[rank0]: ValueError: no such luck\n") == 2
    assert re.search(r"^\d\d:\d\d:\d\d  attempt 1 failed: rank 0 raised ValueError", done.err, re.MULTILINE)
    assert done.err.rstrip().endswith("gave up: failed in the same way twice")
    assert "attempt 0" not in done.err
    assert "0 ranks" not in done.err


@pytest.mark.long
def test_quiet_prints_what_happens_and_json_one_object(world: World) -> None:
    script = world.script("short.py", "print('hello')\n")
    done = world.distui("launch", "ddp", "--nproc-per-node", "2", "--quiet", "--", script).fine()
    assert done.out == ""
    assert "hello" not in done.err
    assert "every rank ended with exit code 0" in done.err
    done = world.distui("launch", "ddp", "--nproc-per-node", "2", "--json", "--", script).fine()
    assert done.json()["state"] == "succeeded"
    assert done.err == ""
    command = world.distui("exec", "--", "sh", "-c", "printf 'a b'; echo oops >&2").fine()
    assert command.out == "a b\n", "a command's lines are its own"
    assert "\noops\n" in command.err


@pytest.mark.long
def test_a_reader_that_does_not_read_holds_up_no_rank_and_misses_no_line(world: World) -> None:
    """66 MB, of which nobody reads a byte until the ranks have ended."""
    script = world.script("flood.py", FLOOD)
    process = world.start("launch", "ddp", "--nproc-per-node", "2", "--", script, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        assert until(lambda: all((world.work / f"done-{rank}").exists() for rank in (0, 1)), 90)
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak = int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])
        assert process.poll() is None, "it waits for its reader"
        assert peak < 160 << 10, f"{peak} kB"
        out, _ = process.communicate(timeout=200 * slowness())
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    for rank in (0, 1):
        numbers = re.findall(rf"^\[default{rank}\]:(\d+) x{{100}}$", out.decode(), re.MULTILINE)
        assert numbers == [f"{number:09}" for number in range(300_000)]
        assert f"[default{rank}]:the end\n" in out.decode()


@pytest.mark.real
def test_a_pipe_that_closes_ends_neither_the_run_nor_the_wait_for_its_outcome(world: World) -> None:
    script = world.script(
        "job.py",
        "import time, sys\nfor n in range(30):\n    print(n, 'x' * 5000, flush=True); time.sleep(0.1)\nsys.exit(3)\n",
    )
    line = f"{DISTUI} launch ddp --nproc-per-node 1 --restarts 0 -- {script} | head -n 2; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=world.work, env=world.env, capture_output=True, text=True,
        timeout=120 * slowness(), check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert [one[:13] for one in lines[:2]] == ["[default0]:0 ", "[default0]:1 "]
    assert lines[2:] == ["1"], "the outcome of the training"
    assert "Traceback" not in done.stderr
    assert "exit code 3" in done.stderr
    ran = world.distui("logs", "job", "--stream", "out").fine().out.splitlines()
    assert [one.split()[0] for one in ran] == [str(number) for number in range(30)]


@pytest.mark.real
def test_ctrl_c_leaves_at_once_though_nobody_reads_and_the_run_goes_on(world: World) -> None:
    script = world.script("chatty.py", CHATTY)
    process = world.start("exec", "--name", "chatty", "--", sys.executable, "-u", script)
    try:
        assert until(lambda: "line 100 " in world.distui("logs", "chatty").out, 60), (
            "far more than a pipe holds"
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(20 * slowness()) == 130
    finally:
        process.kill()
        process.communicate()
    assert world.distui("status", "chatty", "--json").fine().json()["state"] == "running"


def test_a_full_disk_ends_no_run_and_is_reported(world: World) -> None:
    script = world.script("short.py", "print('hello')\n")
    words = [DISTUI, "launch", "ddp", "--nproc-per-node", "1", "--", script]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            words, cwd=world.work, env=world.env, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE,
            text=True, timeout=120 * slowness(), check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "every rank ended with exit code 0" in done.stderr
    assert f"cannot write to standard output: {os.strerror(28)}; `distui logs short` has it" in done.stderr
