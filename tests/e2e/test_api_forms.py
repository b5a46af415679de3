"""The Python interface as a whole: it has what the command line has, in two forms that cannot differ."""

from __future__ import annotations

import asyncio
import inspect
import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import distui
from distui import api
from distui.runners import api as home
from distui.runners.api import aio
from distui.runners.run.errors import RunError
from distui.runners.run.model import AttemptStarted, Outcome
from distui.runners.run.samples import Gpu
from distui.runners.telemetry.metrics import MetricsStore
from distui.runners.telemetry.metrics_files import FOLDER
from distui.tui.verb_table import VERBS

from .runs import Text, World
from .written import Attempt, write

CALLS = {
    "launch": aio.launch,
    "exec": aio.execute,
    "rerun": api.AsyncRun.rerun,
    "plan": aio.plan,
    "lint": aio.lint,
    "ls": aio.ls,
    "watch": aio.watch,
    "status": api.AsyncRun.status,
    "logs": api.AsyncRun.logs,
    "metrics": api.AsyncRun.metrics,
    "diff": aio.diff,
    "events": api.AsyncRun.events,
    "wait": api.AsyncRun.wait,
    "nccl": api.AsyncRun.nccl,
    "restart": api.AsyncRun.restart,
    "signal": api.AsyncRun.signal,
    "stop": api.AsyncRun.stop,
    "note": api.AsyncRun.note,
    "tag": api.AsyncRun.tag,
    "rm": api.AsyncRun.remove,
    "prune": aio.prune,
    "diagnose": api.AsyncRun.diagnose,
    "dump": api.AsyncRun.dump,
    "profile": api.AsyncRun.profile,
    "doctor": aio.doctor,
    "export": api.AsyncRun.export,
    "advise": aio.advise,
    "presets": aio.presets,
    "candidates": aio.candidates,
    "share": api.AsyncRun.share,
    "autostop": api.AsyncRun.autostop,
    "down": api.AsyncRun.down,
}
"""Verb → its call."""
WITHOUT = {
    **dict.fromkeys(("attach", "demo", "replay", "serve"), "opens a screen"),
    **dict.fromkeys(("completion", "man", "mcp"), "is for a shell or a client"),
    **dict.fromkeys(("settings", "trust", "notify"), "is about files of the user, not about runs"),
    "example": "writes a script to begin with",
    "uninstall": "removes distui from a machine",
}
"""Verbs that Python has no call for, and why."""
FUNCTIONS = {name: getattr(aio, name) for name in aio.__all__ if name != "AsyncRun"}
METHODS = {
    name: call
    for name, call in vars(api.AsyncRun).items()
    if inspect.isfunction(call) and not name.startswith("_")
}


def test_every_verb_has_a_call_or_a_reason() -> None:
    assert VERBS.keys() == CALLS.keys() | WITHOUT.keys()
    assert not CALLS.keys() & WITHOUT.keys()


def test_both_forms_have_the_same_calls_and_arguments() -> None:
    for calls, blocking in ((FUNCTIONS, api), (METHODS, api.Run)):
        for name, call in calls.items():
            form = getattr(blocking, name)
            assert inspect.signature(form).parameters == inspect.signature(call).parameters, name
            assert form.__doc__.splitlines()[0].endswith("."), name
    assert inspect.signature(api.launch).return_annotation == "Run"
    assert inspect.signature(api.Run.logs).return_annotation == "Generator[LogLine]"


def test_every_call_is_on_the_page_of_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs/python.md").read_text()
    for name in FUNCTIONS:
        assert f"`api.{name}(" in page, name
    for name in METHODS:
        assert f"`run.{name}(" in page, name


def test_the_package_has_a_version_and_the_short_name() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", distui.__version__)
    assert api.Run is home.Run
    assert api.aio is aio


# --- runs that have ended


@contextmanager
def ended(world: World, *, name: str = "job", out: str = "one\ntwo\n") -> Iterator[api.Run]:
    """A run whose one rank wrote `out`."""
    write(world, "exec", "--name", name, "--", "true", attempts=[Attempt(Outcome.SUCCEEDED, out=out)])
    with world.shell((), {}, world.work, Text()):
        yield api.attach(name)


def test_a_blocking_call_refuses_in_a_running_loop(world: World) -> None:
    """Each names its asynchronous form, and starts nothing."""

    async def in_a_loop(call: Any, sentence: str) -> None:
        with pytest.raises(RunError) as caught:
            call()
        assert str(caught.value) == sentence

    with ended(world) as run:
        for name in FUNCTIONS:
            why = f"api.{name} blocks, and an event loop is running here, as in a notebook: "
            asyncio.run(in_a_loop(getattr(api, name), f"{why}write `await api.aio.{name}(…)`"))
        for name, method in METHODS.items():
            way = "await" if inspect.iscoroutinefunction(inspect.unwrap(method)) else "async for … in"
            why = f"run.{name} blocks, and an event loop is running here, as in a notebook: "
            asyncio.run(in_a_loop(getattr(run, name), f"{why}write `{way} run.aio.{name}(…)`"))


def test_the_asynchronous_form_is_awaited_in_a_running_loop(world: World) -> None:
    async def read() -> tuple[str, list[str], list[str]]:
        run = await aio.attach("job")
        lines = [line.text async for line in run.logs()]
        events = [type(stamped.event).__name__ async for stamped in run.events(follow=True)]
        return (await run.status())["state"], lines, events

    with ended(world) as run:
        state, lines, events = asyncio.run(read())
        assert (state, lines) == ("succeeded", ["one", "two"])
        assert events[0] == "RunCreated"
        assert events[-1] == "RunEnded"
        assert [type(stamped.event).__name__ for stamped in run.events()] == events


def test_a_blocking_iterator_may_be_left_early(world: World) -> None:
    with ended(world, out="one\ntwo\nthree\n") as run:
        for line in run.logs():
            assert (line.rank, line.stream, str(line)) == (0, "out", "one")
            break
        assert [line.text for line in run.logs(tail=1)] == ["three"]
        attempts = [each.event for each in run.events() if isinstance(each.event, AttemptStarted)]
        assert [each.attempt for each in attempts] == [1]


def test_what_has_ended_is_diagnosed_noted_compared_exported_and_removed(world: World) -> None:
    with ended(world, name="a"):
        pass
    with ended(world, name="b") as b:
        assert b.diagnose()["live"]["state"] == "succeeded"
        b.note("baseline")
        assert b.tag("good", "keep", remove=["bad"]) == ("good", "keep")
        marks = b.notes()
        assert (marks.note, marks.tags) == ("baseline", ("good", "keep"))
        status = b.status()
        assert (status["note"], status["tags"]) == ("baseline", ["good", "keep"])
        assert b.clear_notes() == 1
        assert [line["name"] for line in api.ls()] == ["b", "a"]
        compared = api.diff("a", b)
        assert (compared.a.run, compared.b.run) == (api.attach("a").id, b.id)
        assert b.export("b.tar.gz").name == "b"
        with pytest.raises(RunError, match=r"b\.tar\.gz"):
            b.export("b.tar.gz")
        with pytest.raises(RunError, match="which runs"):
            api.prune()
        assert [run.name for run in api.prunable(keep=0).would_remove] == ["a"], "b has the tag keep"
        assert [run.name for run in api.prune(keep=0).removed] == ["a"]
        assert [run.name for run in b.remove().removed] == ["b"]
        assert api.runs() == []


def test_a_command_to_a_run_that_has_ended_is_refused(world: World) -> None:
    with ended(world) as run:
        for call in (run.restart, lambda: run.nccl("INFO"), lambda: run.signal("USR1"), run.dump):
            with pytest.raises(api.RefusedError, match="the run has ended"):
                call()
        with pytest.raises(RunError, match="there is no signal FOO"):
            run.signal("FOO")
        with pytest.raises(RunError, match="--reachable is for a restart"):
            run.nccl("INFO", reachable=True)
        with pytest.raises(RunError, match="only live runs are shared"):
            run.share(user="0")
        with pytest.raises(RunError, match="has no cluster"):
            run.down("night")
        with pytest.raises(api.RefusedError, match="no metrics of this run"):
            run.metrics()
        with pytest.raises(RunError, match=r"did you mean train\.loss"):
            run.metrics("loss")


def test_what_would_start_is_planned_and_checked(world: World) -> None:
    world.script("train.py", "print('hello')\n")
    with world.shell((), {}, world.work, Text()):
        found = api.plan("train.py", "--lr", "1e-3", preset="ddp", nproc_per_node=2)
        assert found.plan.command == ("train.py", "--lr", "1e-3")
        assert found.document["nproc_per_node"] == 2
        assert "train.py --lr 1e-3" in found.text
        assert {each.id for each in found.findings} <= {each.id for each in api.lint("train.py")}
        (world.work / "bad.json").write_text("{")
        assert api.lint_files("bad.json")[0].severity == "error"
        assert api.lint_command("torchrun", "--nproc-per-node", "2", "nothing.py")
        assert "ddp" in {each["name"] for each in api.presets()}
        assert api.preset("ddp", ["batch.micro=3"])["values"]["batch.micro"] == 3
        with pytest.raises(RunError, match="no preset 'nope'"):
            api.preset("nope")
        fits = api.advise("8xA100-80GB", params="7B", nodes=2)
        assert fits["ranks"] == 16
        with pytest.raises(TypeError, match="there is no argument parms"):
            api.advise("8xA100-80GB", parms="7B")
        with pytest.raises(RunError, match="give one of --params and --script"):
            api.advise("8xA100-80GB")
        assert api.runs() == []


# --- how a notebook shows a run


def test_a_run_is_one_line_and_in_a_notebook_a_table(world: World) -> None:
    with ended(world, name="job") as run:
        assert repr(run) == f"<Run job ({run.id}): succeeded>"
        assert repr(run.aio) == f"<AsyncRun job ({run.id}): succeeded>"
        page = run._repr_html_()
        assert "<table>" in page
        assert "succeeded" in page
        assert page == run.aio._repr_html_()
        assert "<svg" not in page, "no values, no picture"


def test_a_notebook_draws_the_curve_and_escapes_what_scripts_wrote(world: World) -> None:
    text = "<script>alert('x')</script>"
    write(world, "exec", "--name", "job", "--", "false", attempts=[Attempt(Outcome.FAILED, text=text)])
    with world.shell((), {}, world.work, Text()):
        run = api.attach("job")
        store = MetricsStore(run.path / FOLDER)
        for second in range(60):
            store.append(time.time() - 60 + second, [Gpu(0, "u", "n", util=float(second))])
        store.flush()
        page = run._repr_html_()
        assert "<polyline" in page
        assert "gpu.util: 59.0 %" in page
        assert "<script>" not in page
        assert "&lt;script&gt;" in page
        ET.fromstring(page)
