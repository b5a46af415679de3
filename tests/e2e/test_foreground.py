"""A launch without a terminal prints what its ranks write, whole and in order, whoever reads it, and harms nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from patience import HANG_S

from .runs import DISTUI, World, until

pytestmark = pytest.mark.torch

FAILS = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), os.environ["DISTUI_ATTEMPT"]

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)

for step in range(4):
    print(f"step {step} \\x1b[31mred", "x" * 9000, flush=True)
    print(f"aside {step}", file=sys.stderr, flush=True)
    wait_for(f"seen-{attempt}-{step}")
sys.stdout.write(f"last words of {rank}")
sys.stdout.flush()
if rank == 1:
    open(f"through-{attempt}", "w").close()
wait_for(f"through-{attempt}")
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


def read_in_turn(world: World, pipe: int, lines: list[str]) -> None:
    """Read a pipe to its end. Ranks go on to the next step only after both lines of a step were printed."""
    with os.fdopen(pipe) as printed:
        for line in printed:
            lines.append(line.rstrip("\n"))
            numbers = re.findall(r"step (\d)", "\n".join(lines))
            attempt, number = divmod(len(numbers), 8)
            if " red " in lines[-1] and len(numbers) % 2 == 0:
                step = (number or 8) // 2 - 1
                (world.work / f"seen-{attempt + bool(number)}-{step}").touch()


@pytest.mark.real
def test_the_output_of_all_ranks_and_attempts_is_whole_when_it_fails(world: World) -> None:
    """As `torchrun --tee 3` prints it: stdout to stdout, stderr to stderr, whose it is before each line."""
    script = world.script("fails.py", FAILS)
    words = ("launch", "ddp", "--nproc-per-node", "2", "--restarts", "1", "--", script)
    lines: list[str] = []
    read, write = os.pipe()
    reader = threading.Thread(target=read_in_turn, args=(world, read, lines))
    reader.start()
    with os.fdopen(write, "w") as out:
        done = world.distui(*words, out=out)
    reader.join()
    assert done.code == 1
    err = done.err
    for rank in (0, 1):
        own = [line for line in lines if line.startswith(f"[default{rank}]:")]
        steps = [f"[default{rank}]:step {step} red {'x' * 9000}" for step in range(4)]
        assert own == [*steps, f"[default{rank}]:last words of {rank}"] * 2, lines
    assert len(lines) == 20, "nothing but what ranks wrote"
    order = [int(step) for step in re.findall(r"step (\d)", "\n".join(lines))]
    assert order == [step for step in range(4) for _ in (0, 1)] * 2, "in order of time, not by file"
    for rank in (0, 1):
        assert err.count(f"[default{rank}]:aside 3\n") == 2
    assert err.count("[default0]:[rank0]: ValueError: no such luck\n") == 2
    assert re.search(r"^\d\d:\d\d:\d\d  attempt 1 failed: rank 0 raised ValueError", err, re.MULTILINE)
    assert err.rstrip().endswith("gave up: failed in the same way twice")
    assert "attempt 0" not in err
    assert "0 ranks" not in err


@pytest.mark.long
def test_quiet_prints_what_happens_and_json_one_object(world: World) -> None:
    words = ("--", "sh", "-c", "printf 'a b'; echo oops >&2")
    done = world.distui("exec", "--quiet", *words).fine()
    assert done.out == ""
    assert "\noops\n" not in done.err
    assert "the command ended with exit code 0" in done.err
    done = world.distui("exec", "--json", *words).fine()
    assert (done.json()["state"], done.err) == ("succeeded", "")
    done = world.distui("exec", *words).fine()
    assert done.out == "a b\n", "a command's lines are its own"
    assert "\noops\n" in done.err


@pytest.mark.long
def test_a_reader_that_does_not_read_holds_up_no_rank_and_misses_no_line(world: World) -> None:
    """66 MB, of which nobody reads a byte until the ranks have ended."""
    script = world.script("flood.py", FLOOD)
    process = world.start("launch", "ddp", "--nproc-per-node", "2", "--", script, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        assert until(lambda: all((world.work / f"done-{rank}").exists() for rank in (0, 1)))
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak = int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])
        assert process.poll() is None, "it waits for its reader"
        assert peak < 160 << 10, f"{peak} kB"
        out, _ = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    for rank in (0, 1):
        numbers = re.findall(rf"^\[default{rank}\]:(\d+) x{{100}}$", out.decode(), re.MULTILINE)
        assert numbers == [f"{number:09}" for number in range(300_000)]
        assert f"[default{rank}]:the end\n" in out.decode()


@pytest.mark.real
def test_a_pipe_that_closes_or_a_full_disk_ends_no_run_nor_the_wait_for_its_outcome(world: World) -> None:
    text = "import sys\nfor n in range(30):\n    print(n, 'x' * 5000, flush=True)\nsys.exit(3)\n"
    script = world.script("job.py", text)
    words = f"exec --name job --restarts 0 -- {sys.executable} {script}"
    done = subprocess.run(
        ["bash", "-c", f"{DISTUI} {words} | head -n 2; echo ${{PIPESTATUS[0]}}"], cwd=world.work, env=world.env,
        capture_output=True, text=True, timeout=HANG_S, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert [one.split()[0] for one in lines] == ["0", "1", "1"], "the last is the outcome of the command"
    assert "Traceback" not in done.stderr
    assert "exit code 3" in done.stderr
    ran = world.distui("logs", "job", "--stream", "out").fine().out.splitlines()
    assert [one.split()[0] for one in ran] == [str(number) for number in range(30)]
    with open("/dev/full", "w") as full:
        ended = world.distui("exec", "--name", "short", "--", "echo", "hello", out=full)
    assert ended.code == 1
    assert "the command ended with exit code 0" in ended.err
    assert f"cannot write to standard output: {os.strerror(28)}; `distui logs short` has it" in ended.err
