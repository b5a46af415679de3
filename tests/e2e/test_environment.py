"""The environment of a run is that of its launch plus its changes, whatever dies, and whoever looks."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from pathlib import Path

import pytest

from .runs import Run, World, contents, gone, kill, until
from .written import without_agent

WAITS = "import time\nprint('up', flush=True)\nwhile True:\n    time.sleep(0.1)\n"
LAUNCH = {
    "CUDA_VISIBLE_DEVICES": "0,1",
    "DATASET": "/data/A",
    "LD_LIBRARY_PATH": "/opt/x",
    "HF_TOKEN": "hf_launch",
    "BYTES": os.fsdecode(b"caf\xe9"),
}
STRANGE = {
    "CUDA_VISIBLE_DEVICES": "7",
    "DATASET": "/data/B",
    "HF_TOKEN": "hf_strange",
    "STRANGE": "1",
    "LD_LIBRARY_PATH": "/opt/strange",
}
"""The shell of whoever looks."""


def environ(pid: int) -> dict[str, str]:
    """What a process was started with."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(entry).split("=", 1) for entry in entries if b"=" in entry)


def waiting(world: World, *options: str, env: dict[str, str]) -> Run:
    """A run of a command that goes on, also after its runner's death."""
    script = world.script("waits.py", WAITS)
    words = ("exec", "--restarts", "5", "--grace", "1", *options, "--", sys.executable, script)
    run = world.run(*words, env=env)
    assert run.wait("running") == 0
    return run


def rank(run: Run, attempt: int) -> dict[str, str]:
    """The environment of the only rank, once that attempt runs."""
    status = run.eventually(lambda now: now["attempt"] == attempt and now["state"] == "running")
    return environ(status["ranks"][0]["pid"])


def of(found: dict[str, str], names: dict[str, str]) -> dict[str, str | None]:
    return {name: found.get(name) for name in names}


@pytest.mark.real
def test_who_looks_changes_nothing(world: World) -> None:
    """An agent that somebody's look started starts the next runner with the environment of the launch."""
    run = waiting(world, "--env", "GIVEN=1", env=LAUNCH)
    before = rank(run, 1)
    assert of(before, LAUNCH) == LAUNCH
    kill(run.agent_pid())
    run.distui("status", env=STRANGE).fine()
    kill(run.runner_pid())
    after = rank(run, 2)
    assert of(after, LAUNCH) == LAUNCH, "secrets come from what of the run lived when the agent came"
    assert after["GIVEN"] == "1"
    assert "STRANGE" not in after
    own = {name for name in before if name.startswith("DISTUI_")} | {"NCCL_DEBUG_FILE"}
    assert {name: value for name, value in before.items() if name not in own} == {
        name: value for name, value in after.items() if name not in own
    }
    assert "secrets-missing" not in {finding["id"] for finding in run.status()["findings"]}


@pytest.mark.real
def test_changes_last(world: World) -> None:
    """A new runner has what restarts have set and unset, in order; secrets from the agent's memory."""
    run = waiting(world, env=LAUNCH)
    pids = run.pids()
    for words, env in (("--env-from-shell BIG", {"BIG": os.fsdecode(b"caf\xe9")}), ("--env RANK=0", {})):
        name = words.split()[1].partition("=")[0]
        run.distui("restart", "--yes", *words.split(), env=env).refused(2, name)
    run.distui("restart", "--yes", "--env", "A=1", "--unset", "A").refused(2, "--unset A")
    run.distui("restart", "--yes", "--env-from-shell", "NOT_THERE").refused(2, "NOT_THERE", "export it")
    assert run.pids() == pids, "nothing is done where something is refused"
    run.distui("restart", "--yes", "--env", "PLAIN=1", "--env", "MY_TOKEN=one", "--unset", "DATASET").fine()
    run.distui("restart", "--yes", "--env", "PLAIN=2", "--env", "MY_TOKEN=two", "--env", "AT=3").fine()
    run.distui("restart", "--yes", "--unset", "AT").fine()
    assert rank(run, 4)["PLAIN"] == "2"
    for attempt in (5, 6):
        kill(run.runner_pid())
        found = rank(run, attempt)
        assert (found["PLAIN"], found["MY_TOKEN"]) == ("2", "two")
        assert found["HF_TOKEN"] == "hf_launch"
        assert not {"AT", "DATASET"} & set(found)
    run.distui("restart", "--yes", "--env-from-shell", "HF_TOKEN", env={"HF_TOKEN": "hf_typed"}).fine()
    assert rank(run, 7)["HF_TOKEN"] == "hf_typed"
    assert b"hf_typed" not in contents(run.path)


@pytest.mark.long
def test_secrets_that_nobody_remembers_are_named_first(world: World) -> None:
    run = waiting(world, env=LAUNCH)
    run.distui("restart", "--yes", "--env", "MY_TOKEN=one", "--env", "PLAIN=1").fine()
    assert b"hf_launch" not in contents(world.root)
    assert (run.path / "environ").stat().st_mode & 0o777 == 0o600
    (pid,) = run.pids()
    kill(run.agent_pid())
    kill(run.runner_pid())
    os.killpg(pid, 9)
    assert gone(pid)
    run.distui("status", env=STRANGE)
    run.distui("restart", "--yes", env=STRANGE)
    status = run.eventually(lambda now: now["state"] == "running" and now["attempt"] > 2)
    found = environ(status["ranks"][0]["pid"])
    assert found["PLAIN"] == "1"
    assert found["DATASET"] == "/data/A"
    assert not {"HF_TOKEN", "MY_TOKEN", "STRANGE"} & set(found)
    (finding,) = [one for one in status["findings"] if one["id"] == "secrets-missing"]
    assert "HF_TOKEN, MY_TOKEN" in finding["text"]
    assert "--env-from-shell HF_TOKEN" in finding["remedy"]
    told = [one["event"]["type"] + one["event"].get("finding", {}).get("id", "") for one in run.events()]
    assert told.index("FindingRaisedsecrets-missing") < len(told) - 1 - told[::-1].index("AttemptStarted")


SHOWS = """
import json, os, sys, time, torch
names = sys.argv[1].split(",")
print(json.dumps({"threads": torch.get_num_threads(), **{n: os.environ.get(n) for n in names}}), flush=True)
while True:
    time.sleep(0.1)
"""
COPIED = ("OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "FOO", "PYTHONPATH", "LD_PRELOAD")
"""torch gives the first two to the ranks before any plug-in of ours is asked."""


def shown(run: Run, attempt: int, ranks: int = 2) -> list[dict[str, object]]:
    """What each rank of an attempt has printed."""
    files = [f"node-0/attempt-{attempt:03d}/rank-{rank}.out" for rank in range(ranks)]
    run.eventually(lambda now: all(b"}" in run.file(file) for file in files))
    return [json.loads(run.file(file).splitlines()[0]) for file in files]


@pytest.mark.torch
@pytest.mark.long
def test_a_change_acts_at_once(world: World) -> None:
    """The README's own example: what a rank computes with, not what its launcher was told."""
    script = world.script("shows.py", SHOWS)
    run = world.run("launch", "ddp", "--nproc-per-node", "2", "--", script, ",".join(COPIED))
    assert [one["threads"] for one in shown(run, 1)] == [1, 1]
    changes = {
        "OMP_NUM_THREADS": "4",
        "FOO": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "PYTHONPATH": str(world.work),
        "LD_PRELOAD": "libm.so.6",
    }
    words = [word for name, value in changes.items() for word in ("--env", f"{name}={value}")]
    done = run.distui("restart", *words, "--yes").fine()
    assert "not" not in done.out
    for one in shown(run, 2):
        most = min(4, len(os.sched_getaffinity(0)))  # OpenMP takes no more threads than there are cores
        assert (one["threads"], one["OMP_NUM_THREADS"]) == (most, "4")
        assert (one["FOO"], one["TORCH_NCCL_ASYNC_ERROR_HANDLING"]) == ("1", "0")
        hook, _, users = str(one["PYTHONPATH"]).partition(os.pathsep)
        assert hook.endswith("inrank/site")
        assert users == str(world.work)
        assert one["LD_PRELOAD"] == "libm.so.6"
    (reported,) = run.of("EnvironmentReported")
    assert (reported["source"], reported["ranks"], reported.get("differs", {})) == ("hook", [0, 1], {})
    assert reported["env"] == changes
    second = run.status()["attempts"][1]
    assert second["env_diff"] == second["env_seen"] == changes
    run.distui("restart", "--unset", "OMP_NUM_THREADS", "--unset", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
               "--unset", "PYTHONPATH", "--yes").fine()  # fmt: skip
    for one in shown(run, 3):
        assert (one["OMP_NUM_THREADS"], one["TORCH_NCCL_ASYNC_ERROR_HANDLING"]) == (None, None)
        assert str(one["PYTHONPATH"]).endswith("inrank/site")
        assert one["FOO"] == "1"
    kill(run.runner_pid())
    for one in shown(run, 4):
        assert (one["OMP_NUM_THREADS"], one["TORCH_NCCL_ASYNC_ERROR_HANDLING"], one["FOO"]) == (
            None,
            None,
            "1",
        )


@pytest.mark.real
def test_a_change_that_cannot_start_is_taken_back(world: World) -> None:
    """Whatever no check has foreseen: the ranks start as they were, and the answer, a finding and the ledger say so."""
    program = world.work / "prog"
    program.write_text("#!/bin/sh\nwhile :; do sleep 0.1; done\n")
    program.chmod(0o755)
    run = world.run("exec", "--restarts", "5", "--grace", "1", "--", str(program))
    assert run.wait("running") == 0
    run.distui("restart", "--yes", "--env", "A=1", "--env", "MY_TOKEN=old").fine()
    program.chmod(0o644)

    def mend() -> None:
        if until(lambda: b"EnvironmentRestored" in run.file("runner.jsonl")):
            program.chmod(0o755)

    mending = threading.Thread(target=mend)
    mending.start()
    restarted = run.distui("restart", "--yes", "--env", "A=2", "--env", "MY_TOKEN=new", "--env", "B=1")
    mending.join()
    assert restarted.code == 1, restarted.err
    assert "the change of A, B, MY_TOKEN is taken back" in restarted.err
    status = run.eventually(lambda now: now["state"] == "running")
    found = environ(status["ranks"][0]["pid"])
    assert (found["A"], found["MY_TOKEN"], found.get("B")) == ("1", "old", None)
    assert "environment-restored" in {finding["id"] for finding in status["findings"]}
    assert status["attempts"][2]["outcome"] == "failed"
    kill(run.runner_pid())
    found = rank(run, status["attempt"] + 1)
    assert (found["A"], found["MY_TOKEN"], found.get("B")) == ("1", "old", None)


def test_too_few_files_are_said_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (24, 24))
    with without_agent():
        world.distui("exec", "--detach", "--", "true").refused(2, "ulimit -n 1024")
    assert not list(world.runs.glob("*/run.json"))
