"""Take a command of a viewer from its request to its answer, in an agent or a hub."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from msgspec import structs

from .commands import Action
from .model import Clause, CommandDone, CommandReceived, RunPhase, sentence

if TYPE_CHECKING:
    from .daemon_run import DaemonRun

ENDED = "the run has ended: launch it again to change anything"
NO_CLUSTER = "this run has no cluster of SkyPilot's: there is nothing to take down"
RESTART_SECONDS = 300.0
"""Maximum seconds of a restart before its command is answered with the state at that time."""
MOST_TEXT = 16384
"""Maximum characters of a sentence in the journal."""


class CommandRefused(Exception):
    """The command is refused; the text has the reason and a remedy."""

    def __init__(self, text: str, clauses: Sequence[Clause] = ()) -> None:
        """`clauses`: the statements of the text, if it has several."""
        super().__init__(text)
        self.clauses = tuple(clauses) or (Clause(text),)


async def until_running(run: DaemonRun, before: int, seconds: float) -> bool:
    """Wait until every rank of an attempt after `before` runs; False after `seconds`. Raises CommandRefused."""
    state = run.state
    running = await run.until(
        lambda: state.phase.ended or (state.attempt > before and state.phase is RunPhase.RUNNING),
        seconds,
    )
    if state.phase.ended:
        raise CommandRefused(f"the run ended instead: {state.end_text}")
    return running


class Reply(NamedTuple):
    """Result of a command; `data`: see CommandDone."""

    clauses: Sequence[Clause]
    data: Mapping[str, str] = MappingProxyType({})


def reply(text: str, ranks: tuple[int, ...] = ()) -> Reply:
    return Reply([Clause(text, ranks)])


def shortened(text: str) -> str:
    """Shorten a text that quotes a request, because a journal line must stay short enough for reading."""
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"


Handler = Callable[[Any], Awaitable[Reply]]
"""Execute a command of one class. Raises CommandRefused, and the `failures` of its executor."""


class CommandExecutor(ABC):
    """Takes a command from its request to its answer."""

    failures: ClassVar[tuple[type[Exception], ...]]
    """Exceptions other than CommandRefused that `carry_out` raises for a failed command."""

    def __init__(self, run: DaemonRun) -> None:
        self.run = run
        self.turn = asyncio.Lock()
        """Held during each command that changes the worker group."""

    @abstractmethod
    async def carry_out(self, command: Action) -> Reply:
        """Execute the command. Raises CommandRefused and `failures`."""

    async def _read(self, command: Action) -> CommandDone:
        """Execute a read-only command: not journaled, and possible after the end."""
        try:
            answer, data = await self.carry_out(command)
        except CommandRefused as error:
            return CommandDone(command.id, False, str(error))
        return CommandDone(command.id, True, sentence(answer), dict(data))

    async def execute(self, command: Action) -> CommandDone:
        """Execute and answer a command, and journal request and answer, unless the run has ended."""
        if command.reads:
            return await self._read(command)
        if self.run.state.phase.ended and not command.after_end:
            return CommandDone(command.id, False, ENDED)
        plan = self.run.state.plan
        grace_s = None if plan is None else command.grace(plan.grace_s)
        self.run.emit(CommandReceived(command.id, shortened(command.requested()), command.verb, grace_s))
        data: Mapping[str, str] = {}
        answer: Sequence[Clause]
        try:
            answer, data = await self.carry_out(command)
            ok = True
        except CommandRefused as error:
            ok, answer = False, error.clauses
        except self.failures as error:
            ok, answer = False, [Clause(str(error) or "the runner did not answer")]
        clauses = tuple(Clause(shortened(clause.text), clause.ranks) for clause in answer)
        done = CommandDone(command.id, ok, sentence(clauses), clauses=clauses)
        if clauses == (Clause(done.text),):
            done = structs.replace(done, clauses=())
        self.run.emit(done)
        return structs.replace(done, data=dict(data))
