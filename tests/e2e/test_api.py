"""distui from Python: what the README and docs/python.md show, in a user's own process, and the calls one by one."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from patience import HANG_S

from distui.runners import api
from distui.runners.run.errors import NoSuchRunError, RunError

from .runs import EXAMPLES, Text, World

ROOT = Path(__file__).parents[2]


def shown(page: str) -> str:
    """The example of the page."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return str(block)


@pytest.mark.real
@pytest.mark.torch
def test_the_example_of_the_readme(world: World) -> None:
    """Exactly as printed; the run goes on when the program has ended."""
    world.script("train.py", (EXAMPLES / "plain_ddp.py").read_text())
    done = world.python(shown("README.md")).fine()
    assert done.out.startswith("restarted: attempt 2, 2 ranks running after")
    assert done.err == ""
    (run,) = world.distui("ls", "--json").json()
    assert (run["state"], run["attempt"]) == ("running", 2)


@pytest.mark.torch
@pytest.mark.long
def test_the_example_of_the_page(world: World) -> None:
    """Exactly as printed, but for the steps of its script."""
    world.script("train.py", (EXAMPLES / "plain_ddp.py").read_text())
    code = shown("docs/python.md")
    assert '"--steps", "200"' in code
    done = world.python(code.replace('"--steps", "200"', '"--steps", "0", "--step-delay", "0.02"')).fine()
    assert "restarted: attempt 2, 2 ranks running after" in done.out
    _, *lines, step, stopped = done.out.splitlines()
    assert lines, "no line of rank 0's log"
    assert int(step) > 0
    assert stopped == "stopped: no process of the run is left"
    assert done.err == ""
    (run,) = world.distui("ls", "--json").json()
    assert (run["state"], run["attempt"]) == ("stopped", 2)


@pytest.mark.real
def test_runs_are_found_waited_for_read_and_steered(world: World) -> None:
    with world.shell((), {}, world.work, Text()):
        run = api.execute("sh", "-c", "echo hello; sleep 600", name="job")
        assert run.wait("running", timeout=HANG_S) == "running"
        assert [each.id for each in api.runs()] == [run.id]
        assert api.attach("job").id == api.attach().id == run.id
        with pytest.raises(TimeoutError):
            run.wait(timeout=0.5)
        assert asyncio.run(read_in_a_notebook(run)) == ("running", ["hello"])
        assert run.restart(env={"A": "1"}).startswith("restarted: attempt 2, 1 rank running")
        with pytest.raises(RunError, match="RANK is computed for each rank"):
            run.restart(env={"RANK": "1"})
        with pytest.raises(NoSuchRunError):
            api.attach("none")
        with pytest.raises(RunError):
            api.execute("no-such-program")
        assert run.stop(grace_s=1) == "stopped: no process of the run is left"
        assert (run.phase, run.wait()) == ("stopped", "stopped")


async def read_in_a_notebook(run: api.Run) -> tuple[str, list[str]]:
    """State and output, where an event loop runs already."""
    while not list(run.logs(streams=["out"])):
        await asyncio.sleep(0.05)
    return run.status()["state"], list(run.logs(streams=["out"]))
