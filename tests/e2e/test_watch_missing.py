"""A job that distui did not start: what cannot be known of it is said, not passed over, and so is its end."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from patience import HANG_S

from .runs import DISTUI, World, until
from .screen import Screen

RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "7"}
LACKS = "no hook answers in rank 0: no stack, no flight recorder"


@pytest.fixture
def pid(world: World) -> Iterator[str]:
    """A rank of somebody's own."""
    words = [sys.executable, "-c", "print('up', flush=True); input()"]
    with subprocess.Popen(
        words, env={**world.env, **RANK}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == b"up\n"
        yield str(rank.pid)


@pytest.mark.real
def test_watch_and_diagnose_say_what_is_missing(world: World, pid: str) -> None:
    said = world.distui("watch", pid).fine()
    assert said.out.rstrip().endswith(f"\n\nMissing: {LACKS}.")
    assert world.distui("watch", pid, "--json").fine().json()["missing"] == [LACKS]
    sentence = f"Process {pid} is of a job that distui did not start"
    world.distui("diagnose", pid).refused(3, sentence, "distui watch")


TRAINS = """
import time
for step in range(100_000):
    print("step", step, flush=True)
    time.sleep(0.1)
"""


SEVERAL = """
{distui} launch ddp --nproc-per-node 2 --name own --detach -- train.py > out 2>&1
{distui} wait own --until running --timeout 60 > out 2>&1
{foreign} {python} train.py > foreign.log &
until [ -s foreign.log ]; do sleep 0.1; done
{distui} watch
{distui} stop own --yes --grace 1
"""


@pytest.mark.long
@pytest.mark.torch
def test_the_only_foreign_job_is_opened_beside_runs_of_distuis_own(world: World) -> None:
    """Where no other process of this user is seen, that of another test for example."""
    kind = ["--pid", "--fork", "--mount-proc"]
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", *kind, "true"], check=False).returncode
    ):
        pytest.skip("no namespaces of this user's own here")
    world.script("train.py", TRAINS)
    foreign = shlex.join(["env", *(f"{name}={value}" for name, value in RANK.items())])
    text = SEVERAL.format(distui=DISTUI, python=sys.executable, foreign=foreign)
    screen = Screen(("unshare", *kind, "bash", "-c", text), world.env, world.work, 120, 40)
    try:
        text = screen.until(lambda text: "RUNNING" in text and "r0" in text)
        assert "read-only" in text.splitlines()[0]
        assert "1 rank" in text.splitlines()[0], "distui's own has two"
        screen.press("q")
        said = screen.until("shows it again")
        assert re.search(r"train goes on; `\S*distui watch \d+` shows it again", said), said
        screen.until("stopped: no process of the run is left")
        assert screen.ended() == 0
    finally:
        screen.close()


def ranks_of(world: World, job: subprocess.Popen[bytes]) -> list[int]:
    """Pids of the ranks that are seen of a job; none before it has any."""
    done = world.distui("watch", str(job.pid), "--json")
    return [rank["pid"] for rank in done.json()["ranks"] if rank["pid"]] if done.code == 0 else []


def log_title(text: str) -> str:
    """What stands above the log."""
    return next((line.strip("╭─╮ ") for line in text.splitlines() if line.startswith("╭─ log ·")), "")


@pytest.mark.torch
@pytest.mark.long
@pytest.mark.parametrize("ending", ["told to end", "killed"])
def test_the_cockpit_says_that_a_watched_job_has_ended(world: World, ending: str) -> None:
    """Within seconds, in the header and of each rank; and what was never written is no error of the log's."""
    words = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2"]
    words.append(world.script("train.py", TRAINS))
    written = ending == "told to end"
    log = world.work / "log" if written else Path(os.devnull)
    with log.open("wb") as out:
        job = subprocess.Popen(words, env=world.env, cwd=world.work, stdout=out, stderr=out)
    screen = None
    try:
        assert until(lambda: len(ranks_of(world, job)) == 2, every=0.5)
        pids = ranks_of(world, job)
        screen = Screen((DISTUI, "watch", str(job.pid)), world.env, world.work, 120, 40)
        screen.until(lambda text: "RUNNING" in text and "cpu " in text.splitlines()[1])
        if written:
            screen.until(lambda text: re.search(r"command ~[\d:]+ step ", text))
        title = f"log · all ranks · {'' if written else 'nothing written yet · '}FOLLOW"
        screen.until(lambda text: len(re.findall("● running +", text)) == 2 and log_title(text) == title)

        os.kill(job.pid, signal.SIGTERM if written else signal.SIGKILL)
        for pid in pids if not written else []:
            os.kill(pid, signal.SIGKILL)
        job.wait(HANG_S)
        text = screen.until(
            lambda text: (
                "how the ranks ended" in text
                and "ENDED" in text.splitlines()[0]
                and "the job has ended: its processes are gone" in text
                and "RUNNING" not in text
                and "● running" not in text
                and log_title(text) == title
            ),
        )
        assert "lost" not in text.lower()
        screen.press("2")
        text = screen.until(lambda text: all(str(pid) in text for pid in pids))
        rows = [line for line in text.splitlines() if any(str(pid) in line for pid in pids)]
        assert [re.findall(r"(\d) .*◌ ended ", row)[0] for row in rows] == ["0", "1"], text
        screen.press("q")
        assert screen.ended() == 0
    finally:
        if screen is not None:
            screen.close()
        with suppress(ProcessLookupError):
            os.kill(job.pid, signal.SIGTERM)
        job.wait(HANG_S)
