"""The runner is killed: its ranks have no rendezvous any more, so they are ended, and the policy decides."""

from __future__ import annotations

import pytest

from ..runs import World, alive, gone, kill, until

COUNT = "import time\nfor n in range(100000):\n    print(n, flush=True)\n    time.sleep(0.05)\n"


@pytest.mark.real
def test_within_the_limit(world: World) -> None:
    run = world.execute(COUNT, "--restarts", "2", "--grace", "1")
    assert run.wait("running") == 0
    (pid,), runner = run.pids(), run.runner_pid()
    kill(runner)
    assert gone(pid), "an orphan is ended"
    status = run.eventually(lambda now: now["state"] == "running" and now["attempt"] == 2)
    assert run.runner_pid() != runner
    first, second = status["attempts"]
    assert first["ended"] is not None
    assert second["cause"] == "failure"
    (lost,) = run.of("RunnerLost")
    assert lost["pid"] == runner
    assert str(runner) in lost["text"]
    assert run.of("RestartDelayed")[0]["failures"] == 1
    assert (run.path / "node-0" / "attempt-001").is_dir()
    assert (run.path / "node-0" / "attempt-002").is_dir()


@pytest.mark.long
def test_over_the_limit(world: World) -> None:
    run = world.execute(COUNT, "--grace", "1")  # a command is restarted only if asked
    assert run.wait("running") == 0
    (pid,), runner = run.pids(), run.runner_pid()
    kill(runner)
    assert run.wait() == 1
    assert not alive(pid)
    status = run.status()
    assert status["state"] == "failed"
    assert str(runner) in status["text"]
    assert "allowed" in status["text"]
    assert not run.marked()


@pytest.mark.real
def test_runner_and_agent_together(world: World) -> None:
    """As the out-of-memory killer may do it: the orphans are named, and a restart that is asked for ends them."""
    run = world.execute(COUNT, "--restarts", "1", "--grace", "1")
    assert run.wait("running") == 0
    (pid,) = run.pids()
    kill(run.agent_pid())
    kill(run.runner_pid())
    status = run.status()
    assert status["state"] == "lost"
    assert f"(pid {pid})" in status["text"]
    assert "distui stop" in status["text"]
    assert alive(pid), "nobody asked for its end"
    assert "attempt 2" in run.distui("restart", "--yes").fine().out
    run.eventually(lambda now: now["state"] == "running" and now["attempt"] == 2)
    assert not alive(pid)
    told = run.events()
    assert [one["seq"] for one in told] == list(range(1, len(told) + 1))


@pytest.mark.long
@pytest.mark.torch
def test_under_torchrun(world: World) -> None:
    run = world.ddp("--grace", "2", "--restarts", "1", "--set", "restart.backoff_s=0.1").healthy()
    pids = run.pids()
    kill(run.runner_pid())
    assert all(gone(pid) for pid in pids)
    run.eventually(lambda now: now["attempt"] == 2)
    run.healthy()
    kill(run.runner_pid())
    assert run.wait() == 1
    assert run.status()["state"] == "failed"
    assert not run.marked()


@pytest.mark.long
@pytest.mark.torch
def test_the_agent_dies_while_it_waits_to_replace_the_runner(world: World) -> None:
    """It is lost then; an accident that was counted is not counted again by the restart that is asked for."""
    words = (
        "--restarts",
        "1",
        "--grace",
        "1",
        "--set",
        "restart.backoff_s=600",
        "--set",
        "restart.backoff_max_s=600",
    )
    run = world.run("launch", "ddp", "--nproc-per-node", "1", *words, "--", world.script("count.py", COUNT))
    assert run.wait("running") == 0
    kill(run.runner_pid())
    assert until(lambda: run.file("journal.jsonl").count(b'"RestartDelayed"'))
    kill(run.agent_pid())
    assert run.status()["state"] == "lost"
    run.distui("restart", "--yes").fine()
    run.eventually(lambda now: now["state"] == "running" and now["attempt"] == 2)
    assert [one["failures"] for one in run.of("RestartDelayed")] == [1]
