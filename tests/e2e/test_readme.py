"""README.md's commands, each run exactly as printed by a shell in a fresh folder, and judged by what they did.

A command that is not in the tables below fails the first test: whoever writes one says here what it does. Not run:
`make demo` (test_demo.py), `make test`, `pip install .` (test_packaging.py), verbs that have a file of tests
(test_notify, test_diff, test_rerun, test_mcp, test_completion, test_run_filter), and the launch on SkyPilot's nodes and
on hosts `a` and `b`, which the command line parses and, where it can without them, plans
(tests/cluster, tests/runners/hub).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from patience import HANG_S

from distui.runners.model import Restart
from distui.tui.cli import parser, split_rest
from distui.tui.rows import command_line as colon

from .runs import Done, Run, World, alive, until
from .screen import Screen

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()

ADVISE = "distui advise --params 7B --gpus 8xA100-80GB"
DOCTOR = "distui doctor"
LINT = "distui lint ddp --nproc-per-node 2 -- train.py"
PLAN = "distui plan ddp --nproc-per-node 2 -- train.py --lr 3e-4"
LAUNCH = "distui launch ddp --nproc-per-node 2 -- train.py --lr 3e-4"
ADOPT = "distui launch zero1 --adopt -- train.py"
DIAGNOSE = "distui diagnose"
RESTART = "distui restart --env OMP_NUM_THREADS=4"
NCCL = "distui nccl INFO --subsys COLL --for 10"
ATTACH = "distui attach"
SLURM = "distui diagnose slurm-4711.out"
WATCH = "distui watch"
EXEC = "distui exec -- bash train.sh"
EXPORT = "distui export RUN FILE"
REPLAY = "distui replay FILE"
STATUS = "distui status --json"
LOGS, EVENTS, WAIT = "distui logs -f", "distui events -f", "distui wait"
SKY = "distui launch ddp --on sky --gpus H100:8 --nnodes 2 -- train.py"
HOSTS = "distui launch ddp --hosts a,b --nproc-per-node 8 -- train.py"
NOTIFY, LS, DIFF = "distui notify test", "distui ls state:failed", "distui diff A B"
RERUN, MCP, COMPLETION = "distui rerun RUN", "distui mcp", "distui completion bash"
DEMO = "distui demo"
DEMO_HANGS = "distui demo --hang"

RUN_HERE = {
    ADVISE, DOCTOR, LINT, PLAN, LAUNCH, ADOPT, DIAGNOSE, RESTART, NCCL, ATTACH, SLURM, WATCH, EXEC, EXPORT, REPLAY,
    STATUS, LOGS, EVENTS, WAIT,
}  # fmt: skip
PARSED_HERE = {SKY, HOSTS, DEMO, DEMO_HANGS, NOTIFY, LS, DIFF, RERUN, MCP, COMPLETION}
MAKE = {"make demo", "make test"}
ELSEWHERE = {"pip install .", "make pictures", "torchrun"}

TRAIN = """
import argparse, os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-3)
lr = parser.parse_args().lr
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
print("omp", os.environ["OMP_NUM_THREADS"], "threads", torch.get_num_threads(), "lr", lr, flush=True)
ended, step = torch.zeros(1), 0
while not ended.item():
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    step += 1
    if step % 20 == 0:
        print("step", step, flush=True)
    ended[0] = float(os.path.exists("done"))
    dist.all_reduce(ended, op=dist.ReduceOp.MAX)
    time.sleep(0.05)
dist.destroy_process_group()
"""

LOG = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/job/train.py", line 12, in <module>
[rank0]:     loss = 1 / 0
[rank0]: ZeroDivisionError: division by zero
[rank1]:[E1122 10:00:05.000 ProcessGroupGloo.cpp:143] Rank 1 failed: Connection closed by peer [10.0.0.1]:5000
"""


def printed() -> set[str]:
    """Every command of the README: lines of its blocks, and what stands between backquotes in its text."""
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    lines = [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]
    text = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", text)
    verbs = {"logs", "events", "wait", "status"}
    words = [
        f"distui {span}" if span.split()[0] in verbs else span
        for span in spans
        if span.split()[0] in verbs | {"distui", "make", "pip", "torchrun"}
    ]
    return {line for line in (*lines, *words) if line}


def test_every_command_is_tried_by_a_test() -> None:
    assert printed() == RUN_HERE | PARSED_HERE | MAKE | ELSEWHERE


def test_every_option_exists() -> None:
    for text in sorted(RUN_HERE | PARSED_HERE):
        words, rest = split_rest(text.split()[1:])
        options = parser().parse_args(words)
        assert rest is None or options.takes_rest, text


def check_make() -> None:
    """make has its targets."""
    for command in sorted(MAKE | {"make pictures"}):
        done = subprocess.run(
            [*command.split(), "-n"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_the_cockpits_own_command_is_what_the_shells_does() -> None:
    (typed,) = re.findall(r"`:(restart [^`]+)`", README)
    asked = colon.parse(typed, lambda: "1").command
    assert isinstance(asked, Restart)
    assert asked.env == {"OMP_NUM_THREADS": "4"}


class Desk:
    """A newcomer's folder and shell."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.script("train.py", TRAIN)
        world.script("train.sh", "torchrun --nproc-per-node 2 train.py\n")
        world.script("slurm-4711.out", LOG)
        world.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        world.env.pop("OMP_NUM_THREADS", None)

    def start(self, text: str) -> subprocess.Popen[str]:
        """The line in a shell; the caller ends it."""
        return subprocess.Popen(
            ["bash", "-c", f"exec {text}"], cwd=self.world.work, env=self.world.env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def sh(self, text: str) -> Done:
        """The line in a shell, to its end."""
        process = self.start(text)
        try:
            out, err = process.communicate(timeout=HANG_S)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        assert "Traceback" not in err, err
        return Done(process.returncode, out, err)

    @contextmanager
    def terminal(self, text: str) -> Iterator[Screen]:
        """The line in a shell on a terminal."""
        screen = Screen(["bash", "-c", f"exec {text}"], self.world.env, self.world.work)
        try:
            yield screen
        finally:
            screen.close()

    def newest(self) -> Run:
        """The run that was started last."""
        one = self.world.distui("ls", "--json").fine().json()[0]
        return Run(self.world, one["run"], one["name"], Path(one["path"]))

    def written(self) -> set[str]:
        """Every file below this user's folders, but what Python caches."""
        return {str(path) for path in self.world.root.rglob("*") if "__pycache__" not in path.parts}


@pytest.fixture
def desk(world: World) -> Desk:
    return Desk(world)


@pytest.mark.real
def test_before_anything_costs(desk: Desk) -> None:
    before = desk.written()
    advice = desk.sh(ADVISE).fine().out
    assert "launch zero1" in advice
    assert desk.sh(DOCTOR).code in (0, 1), "1 where this machine has an error"
    assert "error" not in desk.sh(LINT).fine().out
    plan = desk.sh(PLAN).fine().out
    for words in (
        "--nproc-per-node 2",
        "train.py --lr 3e-4",
        "OMP_NUM_THREADS=1",
        "DistributedDataParallel",
    ):
        assert words in plan, plan
    assert desk.written() == before, "looking writes nothing"
    assert "preset" in desk.sh(SKY.replace("launch", "plan")).fine().out

    # Logs of a job that distui never saw:
    told = desk.sh(SLURM)
    assert told.code == 1
    assert "ZeroDivisionError" in told.out
    document = desk.sh(f"{SLURM} --json").json()
    cause = next(one for one in document["findings"] if one["id"] == document["first_cause"]["id"])
    assert cause["rank"] == 0
    check_make()


@pytest.mark.torch
@pytest.mark.long
def test_the_first_five_minutes(desk: Desk) -> None:
    launching = desk.start(LAUNCH)
    assert until(lambda: desk.world.distui("ls", "--json").json())
    run = desk.newest().healthy()
    launched(run)
    assert desk.sh(STATUS).fine().json()["run"] == run.id
    assert "No findings" in desk.sh(DIAGNOSE).fine().out
    switched(desk, run)
    restarted(desk, run)
    looked_at(desk, run)
    followed(desk)
    watched(desk, run)
    exported(desk, run)
    waiting = desk.start(WAIT)
    assert alive(waiting.pid)
    (desk.world.work / "done").touch()
    waiting.communicate(timeout=HANG_S)
    assert waiting.returncode == 0
    out, _ = launching.communicate(timeout=HANG_S)
    assert launching.returncode == 0, out
    assert [one["state"] for one in run.status()["ranks"]] == ["succeeded"] * 2
    assert all(one["step"] > 0 for one in run.status()["ranks"]), "what was reached stays"


def environment(pid: int) -> dict[str, str]:
    raw = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in raw if "=" in entry)


def launched(run: Run) -> None:
    """Two ranks of the script, with its own argument."""
    for pid in run.pids():
        assert Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"train.py\0--lr\x003e-4\0")
        assert environment(pid)["WORLD_SIZE"] == "2"
    assert b"omp 1 threads 1 lr 0.0003" in run.file("node-0/attempt-001/rank-0.out")


def switched(desk: Desk, run: Run) -> None:
    """On gloo: c10d's level for ten seconds, and that NCCL is not in use is said."""
    pids = run.pids()
    assert "NCCL is not in use (gloo)" in desk.sh(NCCL).fine().out
    assert run.pids() == pids, "live"
    (change,) = run.of("NcclChanged")
    assert (change["level"], change["subsys"]) == ("INFO", "COLL")
    assert until(lambda: len(run.of("NcclChanged")) == 2, every=1.0), "and back"


def restarted(desk: Desk, run: Run) -> None:
    """It asks, and the ranks of the very next attempt compute with four threads."""
    runner = run.runner_pid()
    with desk.terminal(RESTART) as screen:
        screen.until("Really?")
        screen.press("y", "enter")
        assert screen.ended() == 0, screen.text
    after = run.eventually(lambda status: status["attempt"] == 2 and status["state"] == "running")
    run.healthy()
    for rank in range(2):
        assert environment(after["ranks"][rank]["pid"])["OMP_NUM_THREADS"] == "4"
        said = run.file(f"node-0/attempt-002/rank-{rank}.out").split()
        assert said[1] == b"4"
        assert int(said[3]) == min(4, os.cpu_count() or 1), "torch starts no more than there are cores"
    assert after["attempts"][1]["env_diff"] == {"OMP_NUM_THREADS": "4"}
    assert run.runner_pid() == runner, "in place"


def looked_at(desk: Desk, run: Run) -> None:
    """`q` leaves, the run goes on, and what was missed is there."""
    with desk.terminal(ATTACH) as screen:
        screen.until(lambda text: "RUNNING" in text and "attempt 2" in text)
        screen.press("q")
        assert screen.ended() == 0
    assert all(alive(pid) for pid in run.pids())


def followed(desk: Desk) -> None:
    """They print what there is and go on."""
    for line, words in ((LOGS, "step 20"), (EVENTS, "AttemptEnded")):
        process = desk.start(line)
        assert process.stdout is not None
        try:
            assert any(words in text for text in process.stdout)
            assert process.poll() is None, "it follows"
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=HANG_S)
        assert process.returncode == 130


def watched(desk: Desk, run: Run) -> None:
    """The one job that something else started is opened, not the run of distui's own; and nothing happens to it."""
    pids = run.pids()
    plain = {name: value for name, value in desk.world.env.items() if not name.startswith("DISTUI_")}
    words = ["torchrun", "--nproc-per-node", "1", "--master-port", "0", "train.py", "--lr", "0.5"]
    with subprocess.Popen(words, cwd=desk.world.work, env={**plain, "OMP_NUM_THREADS": "1"},
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as foreign:  # fmt: skip
        try:
            assert until(lambda: _there(desk), every=0.5)
            with desk.terminal(WATCH) as screen:
                if _there(desk) == "alone":  # else other jobs of this user's run here, and it prints a list
                    screen.until(lambda text: "read-only" in text.lower() and "1 rank" in text)
                    screen.press("q")
                assert screen.ended() == 0
            assert foreign.poll() is None
        finally:
            with suppress(ProcessLookupError):
                os.kill(foreign.pid, signal.SIGTERM)
            foreign.wait(HANG_S)
    assert run.pids() == pids


def _there(desk: Desk) -> str:
    """Whether the foreign job's rank is there: "alone", "listed" beside those of other jobs, or not yet ("")."""
    done = desk.world.distui("watch", "--json")
    found = done.json() if done.code == 0 else None
    if isinstance(found, dict):
        return "alone" if "--lr 0.5" in found["plan"]["command"] else ""
    foreign = [one for one in found or [] if one["run"] is None]
    return "listed" if any("--lr 0.5" in _command(one["pid"]) for one in foreign) else ""


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    return ""


def exported(desk: Desk, run: Run) -> None:
    """RUN and FILE are the reader's: a live run goes into the file, and comes out of it as it was."""
    desk.sh(EXPORT.replace("RUN", run.name).replace("FILE", "run.tar.gz")).fine()
    with desk.terminal(REPLAY.replace("FILE", "run.tar.gz")) as screen:
        text = screen.until("LIVE WHEN EXPORTED")
        assert "lost" not in text.lower()
        screen.press("q")
        assert screen.ended() == 0
    said = desk.world.distui("status", "run.tar.gz", "--json").fine().json()
    assert [one["state"] for one in said["ranks"]] == ["running"] * 2
    assert said["run"] == run.id
    assert all(alive(pid) for pid in run.pids())


@pytest.mark.real
@pytest.mark.torch
def test_a_preset_acts_on_a_script_that_nobody_edited(desk: Desk) -> None:
    line = TRAIN.splitlines().index("model = DistributedDataParallel(torch.nn.Linear(4, 4))") + 1
    plan = desk.sh(ADOPT.replace("launch", "plan")).fine().out
    assert f"calls DistributedDataParallel in line {line}: --adopt applies zero1 there" in plan
    launching = desk.start(ADOPT)
    assert until(lambda: desk.world.distui("ls", "--json").json())
    run = desk.newest()
    status = run.eventually(lambda status: (status["applied"] or {}).get("state") == "applied")
    assert f"zero1 applied at train.py:{line}" in status["applied"]["text"]
    (desk.world.work / "done").touch()
    out, _ = launching.communicate(timeout=HANG_S)
    assert launching.returncode == 0, out


@pytest.mark.real
@pytest.mark.torch
def test_a_torchrun_inside_a_command_is_steered_like_a_launch(desk: Desk) -> None:
    executing = desk.start(EXEC)
    assert until(lambda: desk.world.distui("ls", "--json").json())
    run = desk.newest()
    before = run.eventually(lambda status: len(status["ranks"]) == 2 and status["state"] == "running")
    assert [one["kind"] for one in run.of("RunnerStarted")] == ["command", "torchrun"]
    run.distui("restart", "--env", "OMP_NUM_THREADS=3", "--yes").fine()
    after = run.eventually(lambda status: status["attempt"] == 2 and status["state"] == "running")
    assert environment(after["ranks"][1]["pid"])["OMP_NUM_THREADS"] == "3"
    assert after["runner_pid"] == before["runner_pid"]
    (desk.world.work / "done").touch()
    out, _ = executing.communicate(timeout=HANG_S)
    assert executing.returncode == 0, out
