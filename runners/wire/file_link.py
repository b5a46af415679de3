"""Links that need no agent: an ended run is read from its files."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec

from ...presets.finding import Finding
from ..environment import RESTART, refusal
from ..errors import RunError
from ..forced_stop import without_agent
from ..history import History
from ..host_processes import connect
from ..logs.follow import all_sizes, ask_anywhere, ask_window
from ..logs.log_files import file_sizes
from ..model import (
    CaughtUp,
    Command,
    CommandDone,
    Event,
    FindingRaised,
    Hello,
    LogGrew,
    ReadLog,
    Restart,
    RunCreated,
    RunEnded,
    RunPhase,
    Stamped,
    Stop,
    Via,
)
from ..run_directories import MANIFEST, Entry
from ..state import RunState
from ..status import DAMAGED
from .client import SocketLink
from .link import LinkError, Window

# -----------------------------------------------------------------------------------------------------------
# The link to a run that has ended: its directory answers what its agent would have.


def damage(entry: Entry, history: History) -> list[Event]:
    """That files of a run are damaged, and which."""
    if not history.problems:
        return []
    text = f"not all of {entry.record.name} can be read: {'; '.join(history.problems)}"
    opened = os.path.exists(entry.path / MANIFEST)  # a bundle, and its folder goes when it is closed
    remedy = "what the other files say is shown" + ("" if opened else f"; they are in {entry.path}")
    return [FindingRaised(Finding(DAMAGED, "warning", text, node=entry.record.node, remedy=remedy))]


class DiskLink:
    """Read-only, and complete at once."""

    readonly = True

    def __init__(self, entry: Entry) -> None:
        self._entry, self._run_dir = entry, entry.path
        merged = entry.record.kind == "hub"  # of a run on several nodes
        self._ask, self._sizes = (ask_anywhere, all_sizes) if merged else (ask_window, file_sizes)

    async def events(self, after: int = 0) -> AsyncIterator[Stamped]:
        """See Link.events: the history, and then the end. What no journal holds has no number."""
        history = self._entry.history()
        for stamped in history.events:
            if stamped.seq > after or not (
                stamped.seq or (after and isinstance(stamped.event, RunCreated))
            ):
                yield stamped
        now = time.time()
        for event in self.closing(history):
            yield Stamped(self.heard(history), event, node=history.events[0].node)
        yield Stamped(now, LogGrew(self._sizes(self._run_dir)))
        yield Stamped(now, CaughtUp(max(after, history.state.seq)))

    def closing(self, history: History) -> list[Event]:
        """What follows the history: that files are damaged."""
        return damage(self._entry, history)

    def heard(self, history: History) -> float:
        """Unix time of the last sign of life."""
        return max(stamped.time for stamped in history.events)

    async def send(self, command: Command) -> CommandDone:
        """Nothing can be changed any more."""
        assert not isinstance(command, Hello | Via | ReadLog)
        again = f"`distui relaunch {self._entry.record.name}` starts it anew"
        return CommandDone(command.id, False, f"the run has ended: {again}")

    async def read_log(self, file: str, offset: int, limit: int = 65536, grep: str = "") -> Window:
        """See Link.read_log."""
        return await self._ask(self._run_dir, file, offset, limit, grep)

    async def close(self) -> None:
        return


# -----------------------------------------------------------------------------------------------------------
# The link to a run that no agent serves though it has not ended: its files answer, and its end can be asked for.
# Such a run is lost (neither agent nor runner lives), or its agent cannot start (a damaged plan, a full disk).
# Reading changes nothing; only the two commands that say so do: stop ends its processes, restart starts the next
# attempt.


Start = Callable[[Mapping[str, str]], None]
"""Starts an agent with these variables on top of what it needs."""
RESTART_SECONDS = 300.0
"""How long the next attempt may take until all its ranks run."""


class FilesLink(DiskLink):
    """Answers from files; `why` no agent does is part of what it says."""

    readonly = False

    def __init__(self, entry: Entry, why: str, readonly: bool = False, start: Start | None = None) -> None:
        """`start`: of a lost run, starts an agent that starts the next attempt. Raises RunError."""
        super().__init__(entry)
        self.why, self.readonly, self._start = why, readonly, start

    def closing(self, history: History) -> list[Event]:
        """See DiskLink.closing."""
        if self._start is not None:
            return [*super().closing(history), RunEnded(RunPhase.LOST, None, self.why)]
        text = f"no agent serves {self._entry.record.name}, this is what its files say: {self.why}"
        remedy = f"`distui stop {self._entry.record.name}` ends its processes all the same"
        finding = Finding("no-agent", "error", text, node=self._entry.record.node, remedy=remedy)
        return [*super().closing(history), FindingRaised(finding)]

    async def send(self, command: Command) -> CommandDone:
        """Stop and restart, the only commands that need no agent."""
        assert not isinstance(command, Hello | Via | ReadLog)
        if self.readonly and isinstance(command, Stop | Restart):
            return CommandDone(command.id, False, "this connection is read-only")
        try:
            if isinstance(command, Stop):
                return await without_agent(self._entry, command)
            if isinstance(command, Restart) and self._start is not None:
                return await restart(self._entry, command, self._start)
        except (RunError, LinkError, OSError) as error:
            return CommandDone(command.id, False, str(error))
        return CommandDone(command.id, False, self.why)


async def restart(entry: Entry, command: Restart, start: Start) -> CommandDone:
    """Start the next attempt of a lost run, with the changes asked for. Raises RunError and LinkError."""
    name = entry.record.name
    changes: dict[str, str | None] = {**command.env, **dict.fromkeys(command.unset)}
    if refused := refusal(changes):
        raise RunError(refused)
    if entry.history().state.phase is RunPhase.STOPPING:
        raise RunError(
            f"{name} was being stopped when it was lost: `distui stop {name}` closes it, "
            f"`distui relaunch {name}` starts it anew"
        )
    await asyncio.to_thread(start, {RESTART: msgspec.json.encode(command).decode()})
    who = entry.agent()
    if who is None:
        raise RunError(f"the agent did not stay: see {entry.path / 'agent.log'}")
    link = await connect(who)
    try:
        return await asyncio.wait_for(_answer(link, command), RESTART_SECONDS)
    except TimeoutError:
        raise RunError(f"no attempt is running after {RESTART_SECONDS:.0f} s: see its logs") from None
    finally:
        await link.close()


async def _answer(link: SocketLink, command: Restart) -> CommandDone:
    """The agent's answer, or that the run has ended before it began. Raises LinkError."""
    state = RunState()
    async for stamped in link.events():
        state.apply(stamped)
        if isinstance(stamped.event, CommandDone) and stamped.event.id == command.id:
            return stamped.event
        if state.live and state.phase.ended and command.id not in state.open_commands:
            break
    if state.phase.ended:
        raise RunError(f"the run ended instead: {state.end_text}")
    raise RunError("another agent serves the run, and was not asked: type it again")
