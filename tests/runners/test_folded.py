"""A long history comes as the state that it makes: what is read so is what its events make, for who asks alone."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from owner import owner

from distui.runners.agent.server import AgentServer
from distui.runners.node import run_following
from distui.runners.run import snapshot
from distui.runners.run.chronicle import Chronicle
from distui.runners.run.commands import Action
from distui.runners.run.model import TELEMETRY, CommandDone, Folded, Stamped
from distui.runners.run.run_record import RunRecord
from distui.runners.run.state import RunState
from distui.runners.run.wire.client import SocketLink

sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))
import scripted as play
import several

FEW = 5
STORIES = {
    "running": play.stamped(play.running()),
    "failed": play.stamped(play.failed()),
    "hub": several.stamped(several.running()),
    "hub, lost": several.stamped(several.lost()),
    "hub, launching": several.stamped(several.launching()),
}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short histories come folded, too."""
    monkeypatch.setattr(snapshot, "EVERY", FEW)


@asynccontextmanager
async def serving(story: list[Stamped]) -> AsyncIterator[tuple[Chronicle, Path]]:
    """A server of what a story's events made, which goes on with it."""
    folder = Path(tempfile.mkdtemp(prefix="df-"))
    chronicle = Chronicle(folder)
    record = RunRecord("r", "0" * 8, "r", 0.0, "here")

    async def execute(action: Action) -> CommandDone:
        raise AssertionError

    async def window(*asked: object) -> object:
        raise AssertionError

    server = AgentServer(
        folder / "s", record, chronicle, owner(), execute, window, window  # type: ignore[arg-type]
    )  # fmt: skip
    emit(chronicle, story)
    await server.start("0")
    try:
        yield chronicle, folder / "s"
    finally:
        await server.close()
        chronicle.journal.close()
        shutil.rmtree(folder)


def emit(chronicle: Chronicle, story: list[Stamped]) -> None:
    """Journal, fold and tell them."""
    for told in story:
        if not isinstance(told.event, TELEMETRY):  # of which who comes later has another sample
            chronicle.emit(told.event, node=told.node, source=told.source, at=told.time)


def plain(state: RunState) -> dict[str, object]:
    """What a state says, without how often it changed."""
    unsaid = ("version", "telemetry_version", "_by_node")
    fields = dataclasses.fields(state)
    return {field.name: getattr(state, field.name) for field in fields if field.name not in unsaid}


async def read(path: Path, seq: int, state: RunState, fold: bool) -> list[Stamped]:
    """Follow a link from what `state` has up to an event; all that came."""
    link = await SocketLink.connect(path)
    came: list[Stamped] = []
    events = run_following.folded_events(link, state) if fold else link.events(state.seq)
    try:
        async for stamped in events:
            came.append(stamped)
            if not fold:
                state.apply(stamped)
            if state.live and state.seq >= seq:
                break
    finally:
        await link.close()
    return came


@pytest.mark.parametrize("name", STORIES)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_state_is_that_of_all_events(name: str, data: st.DataObject) -> None:
    story = STORIES[name]
    begun = data.draw(st.integers(0, len(story)))
    more = data.draw(st.integers(begun, len(story)))

    async def compare() -> None:
        async with serving(story[:begun]) as (chronicle, path):
            ours, theirs = RunState(), RunState()
            for end in (begun, more):
                emit(chronicle, story[begun:end])
                seq = chronicle.journal.seq
                came = await read(path, seq, ours, fold=True)
                behind = seq - theirs.seq
                await read(path, seq, theirs, fold=False)
                assert any(isinstance(one.event, Folded) for one in came) == (behind >= FEW)
                assert plain(ours) == plain(theirs)

    asyncio.run(compare())


async def test_who_does_not_ask_or_folds_otherwise_gets_the_events() -> None:
    story = STORIES["failed"]
    async with serving(story) as (chronicle, path):
        for fold in ("", "another version"):
            link = await SocketLink.connect(path)
            events = [stamped async for batch in link.batches(fold=fold) for stamped in batch]
            await link.close()
            assert [one.seq for one in events if one.seq] == list(range(1, chronicle.journal.seq + 1))
            assert not any(isinstance(one.event, Folded) for one in events)


async def test_a_run_that_has_ended_is_followed_to_its_end() -> None:
    async with serving(STORIES["failed"]) as (_, path):
        link, state = await SocketLink.connect(path), RunState()
        came = [stamped async for stamped in run_following.folded_events(link, state)]
        await link.close()
        assert state.phase.ended
        assert isinstance(came[0].event, Folded)
