"""The runner is killed: its ranks have no rendezvous any more, so they are ended, and the policy decides."""

from __future__ import annotations

import json

import pytest
from doubles.served import doubled

from distui.runners.run.model import RunPhase

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


@pytest.mark.real
def test_runner_and_agent_together(world: World) -> None:
    """As the out-of-memory killer may do it: the orphans are named, and a restart that is asked for ends them."""
    run = world.execute(COUNT, "--restarts", "1", "--grace", "1")
    assert run.wait("running") == 0
    (pid,) = run.pids()
    kill(run.agent_pid())
    plan = json.loads(run.file("plan.json"))
    plan["restart"] |= {"backoff_s": 600.0, "backoff_max_s": 600.0}
    (run.path / "plan.json").write_text(json.dumps(plan))
    kill(run.runner_pid())
    status = run.status()
    assert status["state"] == "lost"
    assert f"(pid {pid})" in status["text"]
    assert "distui stop" in status["text"]
    assert alive(pid), "nobody asked for its end"
    assert "attempt 2" in run.distui("restart", "--yes").fine().out
    run.eventually(lambda now: now["state"] == "running" and now["attempt"] == 2)
    assert not alive(pid)
    assert run.of("RestartDelayed") == []

    # The same after the agent has counted the accident: the restart that is asked for does not count it again.
    kill(run.runner_pid())
    assert until(lambda: run.file("journal.jsonl").count(b'"RestartDelayed"'))
    kill(run.agent_pid())
    assert run.status()["state"] == "lost"
    run.distui("restart", "--yes").fine()
    run.eventually(lambda now: now["state"] == "running" and now["attempt"] == 3)
    assert [one["failures"] for one in run.of("RestartDelayed")] == [1]
    told = run.events()
    assert [one["seq"] for one in told] == list(range(1, len(told) + 1))


async def test_over_the_limit() -> None:
    async with doubled(restart_limit=0) as (run, runners):
        await run.hooked()
        runner = runners.newest
        runner.dies()
        await run.until(lambda state: state.phase.ended)
        assert run.state.phase is RunPhase.FAILED
        assert run.state.end_text == f"the runner (pid {runner.pid}) died, and no restart is left"
        assert len(runners.started) == 1
