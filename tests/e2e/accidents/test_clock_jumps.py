"""The clock is set while runs live: nothing that is shown lasted less than nothing, and the run goes on.

Nobody may set the clock of a test machine, and no namespace has a clock of its own: Python itself, in every process of
the user, tells a time that a file moves.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pytest

from distui.runners.model import Outcome

from ..runs import World, kill, until
from ..written import Attempt, write

HOUR, DAY = 3600, 86400
SITE = """
import time
real = time.time
def moved():
    try:
        with open({path!r}) as file:
            return real() + float(file.read() or 0)
    except OSError:
        return real()
time.time = moved
"""
SECONDS = "import time\nfor n in range(100000):\n    print(n, int(time.time()), flush=True)\n    time.sleep(0.05)\n"
NEGATIVE = re.compile(r"(?<![\w.-])-\d[\d.]*\s*(?:ms|s|min|h|d)\b")


@pytest.fixture
def clock(world: World) -> Path:
    """The file that says by how many seconds the clock is moved."""
    (world.root / "site").mkdir()
    path = world.root / "moved"
    (world.root / "site/sitecustomize.py").write_text(SITE.format(path=str(path)))
    world.env["PYTHONPATH"] = str(world.root / "site")
    return path


def move(clock: Path, seconds: float) -> None:
    """Set the clock at once: nobody reads half a number."""
    fresh = clock.with_name("fresh")
    fresh.write_text(str(seconds))
    fresh.replace(clock)


def shown(world: World, run: str) -> str:
    """What all verbs print that show times or durations; none of it is negative."""
    done = [world.distui("ls"), *(world.distui(verb, run) for verb in ("status", "events", "diagnose"))]
    assert not any("Traceback" in each.err for each in done), [each.err for each in done]
    text = "\n".join(each.out + each.err for each in done)
    assert not NEGATIVE.search(text), text
    return text


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
        shown(world, run.id)
        assert all((each["lasted_s"] or 0) >= 0 for each in run.status()["attempts"])


@pytest.mark.long
def test_the_clock_is_set_back_under_a_live_run(world: World, clock: Path) -> None:
    """By a day: in the first attempt, which ends then; and in the second, whose agent dies, too."""
    run = world.execute(SECONDS, "--restarts", "3", "--grace", "1")
    assert run.wait("running") == 0
    began = run.status()["attempts"][0]["began"]
    move(clock, -DAY)
    assert until(lambda: _told(run.file("node-0/attempt-001/rank-0.out")) < began - HOUR), "ranks hear it"
    run.distui("restart", "--yes").fine()
    first, second = run.status()["attempts"]
    assert second["began"] < first["began"] - HOUR, "the agent heard it"
    assert 0 <= first["lasted_s"] < HOUR, "measured by a clock that nobody sets"
    shown(world, run.id)
    move(clock, -2 * DAY)
    kill(run.agent_pid())
    run.status()
    run.distui("restart", "--yes").fine()
    _, second, third = run.status()["attempts"]
    assert third["began"] < second["began"] - HOUR
    assert second["lasted_s"] is None, "nobody has measured it"
    text = shown(world, run.id)
    ledger = [line.split() for line in text.splitlines() if re.match(r" +[123]  \d\d:\d\d:\d\d", line)]
    assert [words[3] for words in ledger if words[0] == "2" and "restart" in words] == ["n/a"], text
    run.stop().fine()
    assert run.status()["state"] == "stopped"
    shown(world, run.id)
    told = [json.loads(line) for line in run.file("journal.jsonl").splitlines()]
    assert [one["seq"] for one in told] == list(range(1, len(told) + 1)), "the order is that of numbers"


def _told(log: bytes) -> int:
    """The last whole second that the rank has printed; of none, one that is yet to come."""
    words = log.rpartition(b"\n")[0].split()
    return int(words[-1]) if words else sys.maxsize
