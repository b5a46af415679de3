"""The clock is set while runs live: no duration that is shown is negative, and the run goes on."""

from __future__ import annotations

import asyncio
import re
import time

import pytest
from doubles.served import doubled

from distui.runners.run import clock, journal
from distui.runners.run.commands import Restart
from distui.runners.run.model import Outcome
from distui.tui.verbs.status import describe

from ..runs import World
from ..written import Attempt, write

HOUR, DAY = 3600, 86400
NEGATIVE = re.compile(r"(?<![\w.-])-\d[\d.]*\s*(?:ms|s|min|h|d)\b")


def check_durations(world: World, run: str) -> None:
    """No verb that prints times or durations prints a negative one."""
    done = [world.distui("ls"), *(world.distui(verb, run) for verb in ("status", "events", "diagnose"))]
    assert not any("Traceback" in each.err for each in done), [each.err for each in done]
    text = "\n".join(each.out + each.err for each in done)
    assert not NEGATIVE.search(text), text


def test_a_viewer_whose_clock_is_late(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three hours behind the run's, which is lost, or has ended."""
    real = time.time
    for name, outcome, state in (("ended", Outcome.SUCCEEDED, "succeeded"), ("lost", None, "lost")):
        monkeypatch.setattr(time, "time", real)
        run = write(world, "exec", "--name", name, "--", "true", attempts=[Attempt(outcome)])
        monkeypatch.setattr(time, "time", lambda: real() - 3 * HOUR)
        row = world.distui("ls").fine().out.splitlines()[1]
        assert row.split()[:2] == [name, state]
        assert " n/a " in row, row
        check_durations(world, run.id)
        assert all((each["lasted_s"] or 0) >= 0 for each in run.status()["attempts"])


async def test_the_clock_is_set_back_under_a_live_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a day, in the first attempt: it is measured by a clock that nobody sets."""
    async with doubled() as (run, _):
        await run.hooked()
        await asyncio.sleep(60.0)
        real = clock.now
        monkeypatch.setattr(clock, "now", lambda: real() - DAY)
        assert (await run.send(Restart("r"))).ok
        first, second = run.state.attempts
        assert second.began < first.began - HOUR
        lasted = first.lasted()
        assert lasted is not None
        assert 60.0 < lasted < 90.0
        await asyncio.sleep(60.0)
        text = describe(run.state, clock.now())
        assert not NEGATIVE.search(text), text
        numbers = [stamped.seq for stamped in journal.read(run.path)]
        assert numbers == list(range(1, len(numbers) + 1)), "the order is that of numbers"
