"""distui from Python: what the README and docs/python.md show, done for real in a user's own process."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from .runs import EXAMPLES, World

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


STEERED = """
import asyncio
from distui.runners import api
from distui.runners.errors import NoSuchRunError, RunError

run = api.execute("sh", "-c", "echo hello; sleep 600", name="job")
assert run.wait("running", timeout=60) == "running", run.phase
assert [each.id for each in api.runs()] == [run.id]
assert api.attach("job").id == api.attach().id == run.id
try:
    run.wait(timeout=0.5)
    raise SystemExit("it cannot have ended")
except TimeoutError:
    pass

async def in_a_notebook():
    while not list(run.logs(streams=["out"])):
        await asyncio.sleep(0.05)
    return run.status()["state"], list(run.logs(streams=["out"]))

assert asyncio.run(in_a_notebook()) == ("running", ["hello"])
assert run.restart(env={"A": "1"}).startswith("restarted: attempt 2, 1 rank running")
for call, kind in ((lambda: run.restart(env={"RANK": "1"}), RunError), (lambda: api.attach("none"), NoSuchRunError),
                   (lambda: api.execute("no-such-program"), RunError)):
    try:
        call()
        raise SystemExit("it should have been refused")
    except kind as error:
        print(error)
print(run.stop(grace_s=1), run.phase, run.wait())
"""


@pytest.mark.real
def test_runs_are_found_waited_for_read_and_steered(world: World) -> None:
    done = world.python(textwrap.dedent(STEERED)).fine()
    assert "stopped: no process of the run is left stopped stopped" in done.out
    assert "RANK is computed for each rank" in done.out
