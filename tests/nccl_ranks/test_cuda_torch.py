"""Runs of distui's command line whose ranks are a CUDA build of torch on NCCL's own host code, without a GPU.

Without NCCL's source or such a torch (DISTUI_NCCL_SOURCES, DISTUI_CUDA_TORCH) these are skipped.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from e2e.runs import Run, World, until
from e2e.runs import world as world
from nccl_host.build import VERSIONS, MissingError, built
from nccl_host.cuda_torch import environment, fitting, interpreter

pytestmark = [pytest.mark.long, pytest.mark.torch]
LINE = re.compile(r"NCCL INFO AllReduce: opCount .* comm 0x\w+ \[nranks=2\]")

TRAINS = """
import datetime, os, time
import torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
limit = datetime.timedelta(seconds=float(os.environ.get("LIMIT", "600")))
dist.init_process_group(os.environ["BACKEND"], timeout=limit)
numbers = torch.zeros(1024, device="cpu" if os.environ["BACKEND"] == "gloo" else "cuda")

def step():
    dist.all_reduce(numbers)
    torch.cuda.synchronize()

def stays_away():
    time.sleep(3600)

while True:
    step()
    time.sleep(0.05)
    if rank == 1 and os.path.exists("stall"):
        stays_away()
"""
AWAY = TRAINS.splitlines().index("    time.sleep(3600)") + 1


class Ranks:
    """Starts two of them."""

    def __init__(self, world: World, version: str) -> None:
        try:
            self.python = interpreter()
            self.env = environment(built(version), world.root, 2)
            fitting(self.python, self.env)
        except MissingError as problem:
            pytest.skip(f"NCCL {version}: {problem}")
        self.world = world
        world.script("trains.py", TRAINS)

    def launch(self, backend: str = "nccl", **env: str) -> Run:
        """`distui launch ddp`, once collectives of both ranks have ended."""
        return calls(self.start(backend, **env))

    def start(self, backend: str, **env: str) -> Run:
        """`distui launch ddp`, and no waiting."""
        words = [f"--env={name}={value}" for name, value in {**self.env, "BACKEND": backend, **env}.items()]
        options = ("--nproc-per-node", "2", "--grace", "2", "--restarts", "0", "--python", str(self.python))
        return self.world.run("launch", "ddp", *options, *words, "--", "trains.py")

    def execute(self, backend: str = "nccl", **env: str) -> Run:
        """`distui exec -- torchrun`, with the environment that the user's shell has."""
        torchrun = str(self.python.with_name("torchrun"))
        words = ("--grace", "2", "--", torchrun, "--standalone", "--nproc-per-node", "2", "trains.py")
        run = self.world.run("exec", *words, env={**self.env, "BACKEND": backend, **env})
        return calls(run)


def calls(run: Run) -> Run:
    """The run, once both ranks have called collectives."""

    def called() -> bool:
        answer = run.distui("dump", "flight", "--json")
        groups = answer.json()["merged"] if answer.code == 0 else []
        return any(len([part for part in each["parts"] if part["completed"]]) == 2 for each in groups)

    assert until(called, every=2.0), run.describe()
    return run


@pytest.fixture(params=VERSIONS)
def ranks(request: pytest.FixtureRequest, world: World) -> Ranks:
    """On each version of NCCL."""
    return Ranks(world, request.param)


@pytest.fixture
def newest(world: World) -> Ranks:
    """On the newest alone."""
    return Ranks(world, VERSIONS[-1])


def nccl_lines(run: Run, rank: int) -> int:
    """Collectives that NCCL has logged on a rank."""
    logs = run.path.glob(f"node-0/attempt-*/rank-{rank}*.nccl")
    return sum(len(LINE.findall(log.read_text())) for log in logs)


def finding(run: Run, which: str) -> dict[str, Any]:
    """The first finding whose id begins so, once there is one."""

    def there(status: dict[str, Any]) -> list[dict[str, Any]]:
        return [each for each in status["findings"] if each["id"].startswith(which)]

    return there(run.eventually(there))[0]


def test_a_live_run_from_nccls_lines_to_a_rank_that_stays_away(ranks: Ranks) -> None:
    run = ranks.launch()
    told = run.distui("nccl", "INFO", "--for", "1").fine().out
    assert "NCCL_DEBUG=INFO live on ranks 0, 1 for 1 s; INIT,BOOTSTRAP,ENV log little after init" in told
    assert until(lambda: "back at WARN" in run.distui("events").out)
    told = run.distui("nccl", "INFO", "--subsys", "COLL", "--for", "2").fine().out
    assert told == "NCCL_DEBUG=INFO COLL live on ranks 0, 1 for 2 s\n"
    assert until(lambda: nccl_lines(run, 0) and nccl_lines(run, 1)), run.describe()
    assert until(lambda: run.distui("events").out.count("back at WARN") == 2)
    before = nccl_lines(run, 0), nccl_lines(run, 1)
    flight = run.distui("dump", "flight").fine().out
    assert flight.startswith("Group 0 (default_pg): 2 ranks")
    assert "all_reduce Float[1024]" in flight
    assert (nccl_lines(run, 0), nccl_lines(run, 1)) == before, "they stop"

    ranks.world.script("stall", "")
    hang = finding(run, "hang-")
    assert (hang["id"], hang["rank"]) == ("hang-not-joined", 1), hang
    assert f"trains.py:{AWAY} stays_away" in hang["text"]
    assert "in all_reduce #" in hang["text"]
    flight = run.distui("dump", "flight").fine().out
    assert re.search(r"Rank 0 waits in #\d+ all_reduce Float\[1024\] \(.*trains\.py:\d+ step\)", flight), (
        flight
    )
    assert "rank 1 has not called it." in flight


def test_torchs_watchdog_ends_a_job_and_the_rank_that_stayed_away_is_the_first_cause(newest: Ranks) -> None:
    run = newest.execute(LIMIT="45", TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC="1000")
    newest.world.script("stall", "")
    assert finding(run, "hang-")["rank"] == 1
    assert run.wait(timeout=120) == 1, run.describe()
    (end,) = run.of("AttemptEnded")
    assert end["first_cause"]["rank"] == 1, end
    report = run.distui("diagnose").out
    (cause,) = (line for line in report.splitlines() if "died-timeout (" in line)
    assert re.search(
        r"rank 1 .*stays_away.*; rank 0 waits for it in all_reduce #\d+, until the time limit", cause
    ), report
    assert "Rank 1 did not come: rank 0 timed out in ALLREDUCE" in report


def test_a_gloo_run_of_a_cuda_build_is_no_nccl_run(newest: Ranks) -> None:
    """The library is loaded with torch, and obeys; nothing calls it."""
    run = newest.launch(backend="gloo")
    assert any("libnccl" in Path(f"/proc/{pid}/maps").read_text() for pid in run.pids())
    told = run.distui("nccl", "INFO", "--subsys", "COLL", "--for", "1").fine().out
    assert "backend is gloo" in told
    assert "live: TORCH_DISTRIBUTED_DEBUG=INFO, c10d logging INFO for 1 s" in told
    assert "NCCL_DEBUG=INFO COLL live" not in told
    assert nccl_lines(run, 0) == 0


def test_a_rank_that_stays_away_on_nccl2_which_torch_2_14_only_counts(newest: Ranks) -> None:
    run = newest.start("nccl2")
    told = "NCCL_DEBUG=INFO COLL live on ranks 0, 1 for 60 s\n"
    switch = ("nccl", "INFO", "--subsys", "COLL", "--for", "60")
    assert until(lambda: run.distui(*switch).out == told, every=2.0), run.describe()
    assert until(lambda: nccl_lines(run, 0) and nccl_lines(run, 1)), run.describe()
    assert "backend gloo planned, NCCL in use" in run.distui("status").fine().out
    flight = run.distui("dump", "flight").fine().out
    assert flight.startswith("Group 0 (default_pg): this torch only counts what its backend nccl2 does")
    assert "hang-" not in str(run.status()["findings"])

    newest.world.script("stall", "")
    hang = finding(run, "hang-")
    assert (hang["id"], hang["rank"]) == ("hang-not-joined", 1), hang
    assert re.search(r"trains\.py:\d+ stays_away; rank 0 waits for it in collective #\d+$", hang["text"]), (
        hang
    )
    assert len(re.findall(r"^    [01] +\d+$", run.distui("dump", "flight").out, re.MULTILINE)) == 2


def test_where_the_plan_has_gloo_and_the_script_takes_nccl_a_level_can_be_set_by_a_restart(
    newest: Ranks,
) -> None:
    """distui sees no GPU on this machine."""
    run = newest.launch()
    assert "backend gloo planned, NCCL in use" in run.distui("status").fine().out
    run.distui("nccl", "INFO", "--subsys", "COLL", "--restart").fine()
    calls(run)
    assert until(lambda: nccl_lines(run, 0) and nccl_lines(run, 1)), run.describe()
