"""distui from Python: what the README and docs/python.md show, in a user's own process, and the calls one by one."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from patience import HANG_S

from distui.runners import api
from distui.runners.run.errors import NoSuchRunError, RunError
from distui.runners.run.model import AttemptStarted

from .runs import EXAMPLES, Text, World

ROOT = Path(__file__).parents[2]


def shown(page: str) -> list[str]:
    """The examples of the page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.real
@pytest.mark.torch
def test_the_example_of_the_readme(world: World) -> None:
    """Exactly as printed; the run goes on when the program has ended."""
    world.script("train.py", (EXAMPLES / "plain_ddp.py").read_text())
    done = world.python(*shown("README.md")).fine()
    assert done.out.startswith("restarted: attempt 2, 2 ranks running after")
    assert done.err == ""
    (run,) = world.distui("ls", "--json").json()
    assert (run["state"], run["attempt"]) == ("running", 2)


AS_A_NOTEBOOK = """
import ast, asyncio, sys
code = compile(sys.argv[1], "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
asyncio.run(eval(code, {"api": __import__("distui.api").api}))
"""


@pytest.mark.torch
@pytest.mark.long
def test_the_examples_of_the_page(world: World) -> None:
    """Exactly as printed, but for the steps of its script."""
    world.script("train.py", (EXAMPLES / "plain_ddp.py").read_text())
    first, events, notebook = (
        code.replace('"--steps", "200"', '"--steps", "0", "--step-delay", "0.02"')
        for code in shown("docs/python.md")
    )
    done = world.python(f"{first}\nprint('---')\n{events}").fine()
    out, _, journal = done.out.partition("---\n")
    assert "restarted: attempt 2, 2 ranks running after" in out
    _, *lines, step, stopped = out.splitlines()
    assert lines, "no line of rank 0's log"
    assert int(step) > 0
    assert stopped == "stopped: no process of the run is left"
    assert journal.splitlines()[0].endswith("RunCreated")
    assert done.err == ""
    done = world.python(AS_A_NOTEBOOK, notebook).fine()
    assert {line.split()[0] for line in done.out.splitlines()} <= {"0", "1"}
    assert done.err == ""
    runs = world.distui("ls", "--json").json()
    assert [(run["state"], run["attempt"]) for run in runs] == [("stopped", 1), ("stopped", 2)]


@pytest.mark.real
def test_runs_are_found_waited_for_read_and_steered(world: World) -> None:
    with world.shell((), {}, world.work, Text()):
        run = api.execute("sh", "-c", "echo hello; sleep 600", name="job")
        assert run.wait("running", timeout=HANG_S) == "running"
        assert [each.id for each in api.runs()] == [run.id]
        assert api.attach("job").id == api.attach().id == run.id
        with pytest.raises(TimeoutError):
            run.wait(timeout=0.5)
        assert asyncio.run(read_in_a_notebook(run.aio)) == ("running", ["hello"])
        assert [line.text for line in run.logs(grep="l+o")] == ["hello"]
        live = run.events(follow=True)
        assert any(isinstance(stamped.event, AttemptStarted) for stamped in live), (
            "it may be left while it lives"
        )
        live.close()
        assert [curve.metric for curve in run.metrics("host").series if curve.last is not None]
        with pytest.raises(RunError, match="there is no rank 7"):
            run.signal("USR1", ranks=[7])
        assert run.signal("CONT").startswith("SIGCONT")
        assert run.rerun("again", env={"A": "1"}).stop(grace_s=1)
        assert run.restart(env={"A": "1"}).startswith("restarted: attempt 2, 1 rank running")
        with pytest.raises(RunError, match="RANK is computed for each rank"):
            run.restart(env={"RANK": "1"})
        with pytest.raises(NoSuchRunError):
            api.attach("none")
        with pytest.raises(RunError):
            api.execute("no-such-program")
        assert run.stop(grace_s=1) == "stopped: no process of the run is left"
        assert (run.phase, run.wait()) == ("stopped", "stopped")


async def read_in_a_notebook(run: api.AsyncRun) -> tuple[str, list[str]]:
    """State and output, where an event loop runs already; it runs on while a call waits."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    beside = asyncio.create_task(tick())
    with pytest.raises(TimeoutError):
        await run.wait(timeout=0.5)
    assert ticks > 5, "the loop was blocked"
    beside.cancel()
    while not (lines := [line.text async for line in run.logs(streams=["out"])]):
        await asyncio.sleep(0.05)
    return (await run.status())["state"], lines
