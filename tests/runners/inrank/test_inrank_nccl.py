"""The NCCL switch through the real agent: live, per rank, for a time, for an old library and without NCCL."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from doubles.fake_hook import FakeHook
from doubles.fake_runner import LiveNccl, OldNccl
from doubles.served import doubled
from each import for_each

from distui.presets.nccl import DEFAULT_SUBSYS
from distui.runners.agent.nccl_switch import unused
from distui.runners.run.commands import Restart, SetNccl
from distui.runners.run.model import NcclChanged
from distui.runners.run.nccl_reach import levels_at_start
from distui.runners.run.state import Attempt

from .inrank_rig import driven, launch

sys.path.insert(0, str(Path(__file__).parents[2] / "rigs" / "nccl"))
from build_nccl import build_nccl, compiler

RIGS = Path(__file__).parents[2] / "rigs" / "nccl"
CALLS = RIGS / "calls_nccl.py"
REAL = RIGS / "real_nccl.py"

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C compiler to build the fake NCCL")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], str]:
    """The path of the fake NCCL, old or new, built once."""

    @functools.cache
    def built(old: bool) -> str:
        return str(build_nccl(tmp_path_factory.mktemp("nccl"), old))

    return built


@pytest.mark.real
@pytest.mark.torch
@needs_compiler
async def test_a_level_is_raised_on_running_ranks_and_goes_back_by_itself(
    library: Callable[[bool], str],
) -> None:
    async with driven(launch(CALLS, library(False))) as run:
        await run.hooked()
        done = await run.nccl("info", "coll", seconds=3.0)
        assert (done.ok, done.text) == (True, "NCCL_DEBUG=INFO COLL live on ranks 0, 1 for 3 s")
        *_, until = [
            e.event.until for e in run.events if isinstance(e.event, NcclChanged) and e.event.until
        ]
        for rank in (0, 1):
            await run.wrote(f"rank-{rank}.1.nccl", "NCCL INFO AllReduce")
        assert [(r.nccl_live, r.nccl_version) for r in run.state.ranks.values()] == [(True, "2.28.9")] * 2
        await run.until(lambda s: s.nccl and s.nccl.text == "NCCL_DEBUG is back at WARN")
        assert {rank.nccl_debug for rank in run.state.ranks.values()} == {"WARN"}
        (back,) = [e for e in run.events if isinstance(e.event, NcclChanged) and not e.event.until]
        assert back.time > until - 0.1
        kept = run.log("rank-0.1.nccl")

        # One rank alone, twice: each time a new file, and nothing that was written is touched.
        assert (await run.nccl("INFO", "COLL", ranks=(1,))).text.endswith("live on rank 1")
        await run.wrote("rank-1.3.nccl", "AllReduce")
        assert (await run.nccl("INFO", "ALL", ranks=(1,))).ok
        await run.wrote("rank-1.4.nccl", "AllReduce")
        assert run.log("rank-0.1.nccl") == kept
        assert run.log("rank-0.3.nccl") == ""
        assert [run.state.ranks[rank].nccl_debug for rank in (0, 1)] == ["WARN", "INFO"]
        assert run.state.attempt == 1

        # Limited on all: rank 1 goes back to the INFO that it had, rank 0 to WARN; neither lasts beyond a restart.
        assert (await run.nccl("TRACE", "ALL", seconds=0.2)).ok
        await run.until(lambda s: s.nccl and s.nccl.level == "WARN" and s.nccl.until is None)
        await run.wrote("rank-1.6.nccl", "AllReduce")
        assert run.log("rank-0.4.nccl") == ""
        assert (await run.restart()).ok
        await run.hooked()
        assert run.state.attempts[-1].env_diff == {}
        assert {rank.nccl_debug for rank in run.state.ranks.values()} == {"WARN"}


@pytest.mark.real
@needs_compiler
@for_each("preloaded_is_old", [False, True])
def test_of_two_libraries_the_preloaded_one_counts(
    library: Callable[[bool], str], preloaded_is_old: bool
) -> None:
    """torch 2.14 loads the one of its wheel beside it."""
    script = (
        "import ctypes, sys; ctypes.CDLL(sys.argv[1]); from distui.runners.inrank.debug_levels import nccl_state; "
        "state = nccl_state(); print(state['version'], state['live'])"
    )
    words = [sys.executable, "-c", script, library(not preloaded_is_old)]
    env = {**os.environ, "LD_PRELOAD": library(preloaded_is_old)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == (["2.21.5", "False"] if preloaded_is_old else ["2.28.9", "True"])


async def test_an_old_library_says_so_and_a_restart_does_it() -> None:
    async with doubled(OldNccl) as (run, _):
        await run.hooked()
        done = await run.send(SetNccl("limited", "INFO", "COLL", seconds=5.0))
        assert (done.ok, done.text) == (
            False,
            "NCCL 2.21.5 cannot change NCCL_DEBUG live (2.24 or newer can): add --restart to restart now",
        )
        assert run.state.nccl is None
        assert [rank.nccl_live for rank in run.state.ranks.values()] == [False, False]
        done = await run.send(SetNccl("n", "INFO", ""))
        assert not done.ok
        assert done.text == (
            "NCCL 2.21.5 cannot change NCCL_DEBUG live (2.24 or newer can): INFO is set for the next start; "
            "add --restart to restart now"
        )
        assert (await run.send(SetNccl("again", "INFO", "COLL", restart=True))).ok
        assert run.state.attempts[-1].env_diff == {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL"}


async def test_a_level_lasts_beyond_a_restart_unless_it_is_limited() -> None:
    async with doubled(LiveNccl) as (run, _):
        await run.hooked()
        assert (await run.send(SetNccl("n", "INFO", "COLL"))).ok
        assert (await run.send(Restart("r"))).ok
        assert run.state.attempts[-1].env_diff == {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL"}
    async with doubled(LiveNccl) as (run, _):
        await run.hooked()
        assert (await run.send(SetNccl("n", "INFO", "COLL", seconds=4.0, restart=True))).ok
        await run.until(lambda s: s.nccl and s.nccl.text == "NCCL_DEBUG is back at WARN")
        assert (await run.send(Restart("r"))).ok
        assert run.state.attempts[-1].env_diff == {
            "NCCL_DEBUG": "WARN",
            "NCCL_DEBUG_SUBSYS": DEFAULT_SUBSYS,
        }


async def test_what_nccl_does_not_know_is_refused_in_one_sentence() -> None:
    async with doubled(LiveNccl) as (run, runners):
        await run.hooked()
        for command, words in (
            (SetNccl("1", "LOUD", ""), "'LOUD' is not a level of NCCL_DEBUG"),
            (SetNccl("2", "INFO", "CPU"), "CPU"),
            (SetNccl("3", "INFO", "", ranks=(7,)), "there is no running rank 7"),
        ):
            done = await run.send(command)
            assert not done.ok
            assert words in done.text
        assert not [asked for asked in runners.newest.hooks[0].asked if asked["op"] == "nccl"]


async def test_a_rank_that_is_only_starting_is_waited_for_and_one_without_a_hook_is_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin, starting = FakeHook.start, list[asyncio.Task[None]]()

    async def late(hook: FakeHook) -> None:
        await asyncio.sleep(2.0)
        await begin(hook)

    async def start_later(hook: FakeHook) -> None:
        starting.append(asyncio.create_task(late(hook)))

    async def never(hook: FakeHook) -> None:
        pass

    monkeypatch.setattr(FakeHook, "start", start_later)
    async with doubled(LiveNccl) as (run, _):
        await run.until(lambda s: str(s.phase) == "running")
        done = await run.send(SetNccl("n", "INFO", "COLL"))
        assert (done.ok, done.text) == (True, "NCCL_DEBUG=INFO COLL live on ranks 0, 1")
    monkeypatch.setattr(FakeHook, "start", never)
    async with doubled(hook=False) as (run, _):
        await run.until(lambda s: str(s.phase) == "running")
        done = await run.send(SetNccl("n", "INFO", ""))
        assert not done.ok
        assert done.text == (
            "rank 0 has no hook (it is a launcher, runs with --no-hook or python -I, or does not import torch); "
            "--restart sets the level through the environment instead"
        )


def test_what_stands_is_the_plan_and_then_each_attempts_changes() -> None:
    diffs: list[dict[str, str | None]] = [
        {},
        {"NCCL_DEBUG": "TRACE", "OTHER": "1"},
        {"NCCL_DEBUG": None, "NCCL_DEBUG_SUBSYS": "NET"},
    ]
    attempts = [Attempt(number, 0.0, "restart", 2, diff, ()) for number, diff in enumerate(diffs)]
    assert levels_at_start({"NCCL_DEBUG": "INFO"}, attempts[:1]) == {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": DEFAULT_SUBSYS,
    }
    assert levels_at_start({"NCCL_DEBUG": "INFO"}, attempts[:2])["NCCL_DEBUG"] == "TRACE"
    assert levels_at_start({}, attempts) == {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "NET"}


def real_library() -> str | None:
    """libnccl of the nvidia-nccl-cu12 wheel."""
    try:
        found = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return None
    places = list(found.submodule_search_locations or []) if found else []
    paths = [Path(place) / "lib" / "libnccl.so.2" for place in places]
    return next((str(path) for path in paths if path.exists()), None)


@pytest.mark.long
@pytest.mark.torch
async def test_the_real_library_follows_on_a_running_rank() -> None:
    path = real_library()
    if path is None:
        pytest.skip("nvidia-nccl-cu12 is not installed: dependency group nccl")
    async with driven(launch(REAL, path, nproc_per_node=1, nccl={"NCCL_DEBUG": "VERSION"})) as run:
        await run.hooked(1)
        # At VERSION a failure is silent, and NCCL opens no file.
        await asyncio.sleep(1.0)
        assert run.log("rank-0.nccl") == ""
        assert "NCCL WARN" not in run.log("rank-0.out") + run.log("rank-0.err")
        done = await run.nccl("WARN", seconds=2.0)
        assert done.ok, done.text
        assert "live on rank 0" in done.text
        await run.wrote("rank-0.1.nccl", "NCCL WARN", seconds=10.0)
        assert run.state.ranks[0].nccl_live
        await run.until(lambda s: s.nccl and s.nccl.text == "NCCL_DEBUG is back at VERSION")
        await asyncio.sleep(0.5)
        size = len(run.log("rank-0.1.nccl"))
        await asyncio.sleep(1.0)
        assert len(run.log("rank-0.1.nccl")) == size, "silent again"
        assert (await run.nccl("INFO", "ALL")).ok
        await run.wrote("rank-0.3.nccl", "NCCL INFO", seconds=10.0)


@for_each(
    ("backend", "planned", "used", "no"),
    [("cpu:gloo,cuda:nccl", "gloo", {"nccl"}, False), ("cpu:gloo,cuda:nccl", None, {"gloo"}, True),
     ("cpu:gloo,cuda:nccl", "nccl", {"gloo"}, False), ("cpu:gloo,cuda:nccl2", "gloo", {"gloo", "nccl2"}, False)],
)  # fmt: skip
def test_whether_collectives_have_gone_through_nccl(
    backend: str, planned: str | None, used: set[str], no: bool
) -> None:
    """One that names both has NCCL where tensors are on GPUs: what has been called tells it, whatever was planned."""
    assert unused(backend, planned, used) is no


@for_each(
    ("backend", "planned", "no"),
    [("gloo", "gloo", True), ("gloo", "nccl", True), ("", "gloo", False), ("cpu:gloo,cuda:nccl", "gloo", True),
     ("cpu:gloo,cuda:nccl", "nccl", False), ("nccl", "gloo", False), ("nccl", "nccl", False), ("", "nccl", False),
     ("", None, False), ("gloo", None, True), ("nccl2", "gloo", False), ("nccl-legacy", "gloo", False),
     ("cpu:gloo,cuda:nccl2", "gloo", True), ("cpu:gloo,cuda:nccl2", "nccl", False)],
)  # fmt: skip
def test_whether_nccl_is_in_use(backend: str, planned: str | None, no: bool) -> None:
    """Not whether it is there: every CUDA build of torch has it, also where all ranks use gloo."""
    assert unused(backend, planned) is no
