"""What a viewer may ask of a run, and how each is done; the answer says what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import TYPE_CHECKING

import msgspec

from ...presets.environ import refusal
from ...presets.secrets import mask
from ..model import (
    Action,
    CommandDone,
    CommandReceived,
    Down,
    Dump,
    Finding,
    FindingRaised,
    RankPhase,
    Restart,
    RunPhase,
    SetAutostop,
    SetNccl,
    Signal,
    Stop,
)
from ..wire.frames import MAX_LINE
from .hooks import HookError
from .processes import send_signal, sweep
from .pyspy import EVERY_S, spoken, stacks
from .runner import ask_once

if TYPE_CHECKING:
    from .agent import Agent

ENDED = "the run has ended: launch it again to change anything"
NO_CLUSTER = "this run has no cluster of SkyPilot's: there is nothing to take down"
RUNNER_SECONDS = 20.0
"""How long a restart waits for a runner that is being started anew, before it is refused."""
RESTART_SECONDS = 300.0
"""How long a restart may take before its command is answered with what is known then."""

DUMP_SECONDS = 15.0
"""How long a rank may take to tell: the first stacks of a flight recorder of 2,000 entries take some 2 s."""
DUMP_BYTES = MAX_LINE - (256 << 10)
"""Of the answers to one dump together: a longer line breaks the link."""

VERBS = {
    Restart: "restart", Stop: "stop", SetNccl: "nccl", Signal: "signal", Dump: "dump", Down: "down",
    SetAutostop: "autostop",
}  # fmt: skip


class Refused(Exception):
    """The command cannot be done; the text says why and what to do."""


class Commands:
    """Executes one command at a time of those that change the group; questions do not wait."""

    def __init__(self, agent: Agent) -> None:
        from .nccl import NcclSwitch

        self._agent = agent
        self._turn = asyncio.Lock()
        self.nccl = NcclSwitch(agent)

    def resume(self) -> None:
        """After an adoption: what the earlier agent had begun is finished."""
        self.nccl.resume()
        if self._agent.stopping():
            self._agent.spawn(asyncio.create_task(self._stop(Stop(""))))

    def warn(self, name: str, text: str) -> None:
        """A finding of the agent's own."""
        self._agent.emit(FindingRaised(Finding(name, "warn", text, node=self._agent.node)))

    async def execute(self, command: Action) -> CommandDone:
        """Do it, journal that it was asked and what came of it, and answer. The end of a run is its last word."""
        if self._agent.state.phase.ended:
            return CommandDone(command.id, False, ENDED)
        self._agent.emit(CommandReceived(command.id, describe(command), VERBS[type(command)]))
        data: dict[str, str] = {}
        try:
            if isinstance(command, Dump):
                text, data = await self._dump(command)
            elif isinstance(command, Stop):
                text = await self._stop(command)
            elif isinstance(command, Signal):
                text = self._signal(command)
            elif isinstance(command, Down | SetAutostop):
                raise Refused(NO_CLUSTER)
            else:
                async with self._turn:
                    text = await self._change(command)
            ok = True
        except (Refused, HookError, OSError, TimeoutError) as error:
            ok, text = False, str(error) or "the runner did not answer"
        self._agent.emit(CommandDone(command.id, ok, text))
        return CommandDone(command.id, ok, text, data)

    async def _change(self, command: Restart | SetNccl) -> str:
        if isinstance(command, SetNccl):
            return await self.nccl.switch(command)
        return await self.restart(dict(command.env), command.unset)

    async def restart(self, env: dict[str, str], unset: tuple[str, ...] = ()) -> str:
        """Restart the group in place and wait until every rank runs. Raises Refused."""
        agent = self._agent
        refused = refusal({**env, **dict.fromkeys(unset, "")})
        if refused:
            raise Refused(refused)
        if not await agent.until(
            lambda: (agent.runner is not None and agent.runner.listening) or agent.state.phase.ended,
            RUNNER_SECONDS,
        ):
            raise Refused("the runner is being started anew: try again in a few seconds")
        if agent.runner is None:
            raise Refused(ENDED)
        before, began = agent.state.attempt, time.monotonic()
        await self._ask_launcher("restart", self._diff(env, unset))
        ready = await agent.until(
            lambda: (
                agent.state.phase.ended
                or (agent.state.attempt > before and agent.state.phase is RunPhase.RUNNING)
            ),
            RESTART_SECONDS,
        )
        if agent.state.phase.ended:
            raise Refused(f"the run ended instead: {agent.state.end_text}")
        if not ready:
            raise Refused(
                f"attempt {agent.state.attempt} is not running after {RESTART_SECONDS:.0f} s: see its logs"
            )
        ranks = len(agent.state.ranks)
        return f"restarted: attempt {agent.state.attempt}, {ranks} ranks running after {time.monotonic() - began:.1f} s"

    async def set_for_next(self, env: dict[str, str]) -> None:
        """Change the environment of the next attempt without starting one."""
        if self._agent.runner is not None:
            await self._ask_launcher("env", self._diff(env, ()))

    async def _ask_launcher(self, op: str, fields: dict[str, dict[str, str | None]]) -> None:
        """Ask whoever steers the ranks: a torchrun inside a managed command restarts them in place.

        Without one, or when it is gone, it is the runner itself, which stops and starts. Raises Refused.
        """
        runner, nested = self._agent.runner, self._agent.state.runner_socket
        assert runner is not None
        answer = None
        if nested and nested != runner.who.socket:
            await runner.ask("env", **fields)  # for a start of the command itself
            with contextlib.suppress(OSError):
                answer = await ask_once(nested, op, **fields)
        if answer is None:
            answer = await runner.ask(op, **fields)
        if not answer.get("ok"):
            raise Refused(str(answer.get("text") or "the runner refused"))

    @staticmethod
    def _diff(env: dict[str, str], unset: tuple[str, ...]) -> dict[str, dict[str, str | None]]:
        """What the runner applies, and what it may write down of it."""
        change: dict[str, str | None] = {**env, **dict.fromkeys(unset)}
        shown = {name: None if value is None else mask(name, value) for name, value in change.items()}
        return {"env": change, "shown": shown}

    async def _stop(self, command: Stop) -> str:
        """The ladder: TERM by the launcher, grace, KILL, marker sweep."""
        agent = self._agent
        grace_s = agent.plan.grace_s if command.grace_s is None else command.grace_s
        runner = agent.runner
        if runner is not None:
            try:
                await runner.ask("stop", grace_s=grace_s)
            except (OSError, TimeoutError):
                send_signal(runner.who.pid, signal.SIGTERM)
        if not await agent.until(lambda: agent.state.phase.ended, grace_s + 3.0):
            await sweep(agent.entry.record.run, grace_s=0.5)
            if runner is not None:
                send_signal(runner.who.pid, signal.SIGKILL)
            await agent.until(lambda: agent.state.phase.ended, 10.0)
        keep = [runner.who.pid] if runner is not None and agent.relaying() else []
        left = await sweep(agent.entry.record.run, keep=keep, grace_s=1.0)
        if left:
            raise Refused(f"stopped, but these processes would not end: {', '.join(left)}")
        return "stopped: no process of the run is left"

    def _signal(self, command: Signal) -> str:
        """Signal the ranks themselves, never the launcher: that would end the job."""
        try:
            number = signal.Signals[
                command.signal if command.signal.startswith("SIG") else f"SIG{command.signal}"
            ]
        except KeyError:
            raise Refused(f"there is no signal {command.signal}") from None
        ranks = self._agent.state.ranks
        chosen = command.ranks or tuple(sorted(ranks))
        for rank in chosen:
            known = ranks.get(rank)
            if known is None or known.pid is None or known.phase is not RankPhase.RUNNING:
                raise Refused(f"there is no running rank {rank}")
        for rank in chosen:
            send_signal(ranks[rank].pid or 0, number)
        return f"{number.name} sent to {name_ranks(chosen)}"

    async def _dump(self, command: Dump) -> tuple[str, dict[str, str]]:
        """Ask every chosen rank at once; those that answer are kept, those that do not are named."""
        hooks = self._agent.hooks.chosen(command.ranks)
        if not hooks:
            raise Refused("no rank is running")
        old: dict[int, float] = {}
        if command.what == "stacks":
            asked = [stacks(hook, self._agent.pulses.spy, old) for hook in hooks]
        elif command.what in ("flight", "memory", "record"):
            asked = [_text(hook.ask(command.what, DUMP_SECONDS)) for hook in hooks]
        else:
            raise Refused(f"there is no dump {command.what!r}: stacks, flight, memory or record")
        answers = await asyncio.gather(*asked, return_exceptions=True)
        data, failed = {}, []
        for hook, answer in zip(hooks, answers, strict=True):
            if isinstance(answer, str):
                data[str(hook.rank)] = answer
            elif isinstance(answer, HookError):
                failed.append(answer)
            else:
                raise answer
        silent = spoken(failed)
        if old:
            which = f"the stack{'s' * (len(old) > 1)} of {name_ranks(tuple(old))}"
            age = f"{'is' if len(old) == 1 else 'are up to'} {max(old.values()):.0f} s old"
            silent.append(f"{which} {age}: py-spy looks at a rank every {EVERY_S:.0f} s at most")
        if not data:
            raise Refused("; ".join(silent))
        data, left = within(data, DUMP_BYTES)
        if left:
            silent.append(f"too long for one answer: ask for {name_ranks(left)} with --rank")
        text = f"{command.what} of {name_ranks(tuple(int(rank) for rank in data))}"
        return ("; ".join([text, *silent]), data)


async def _text(asked: asyncio.Future[dict[str, object]] | object) -> str:
    answer = await asked  # type: ignore[misc]
    return str(answer["text"])


def within(data: dict[str, str], most: int) -> tuple[dict[str, str], tuple[int, ...]]:
    """The first answers that fit into one line of `most` bytes, and the ranks of the others; one always stays."""
    kept: dict[str, str] = {}
    used = 0
    for rank, text in data.items():
        used += len(msgspec.json.encode(text)) + len(rank) + 4
        if kept and used > most:
            break
        kept[rank] = text
    return kept, tuple(int(rank) for rank in data if rank not in kept)


def name_ranks(ranks: tuple[int, ...]) -> str:
    """ "rank 3", "ranks 0, 2", "ranks 0 to 7"."""
    ordered = sorted(ranks)
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"ranks {ordered[0]} to {ordered[-1]}"
    return "ranks " + ", ".join(map(str, ordered))


def describe(command: Action) -> str:
    """One line for the journal, secrets masked."""
    if isinstance(command, Restart):
        changes = [f"{name}={mask(name, value)}" for name, value in command.env.items()]
        changes += [f"-{name}" for name in command.unset]
        return " ".join(["restart asked for", *changes])
    if isinstance(command, Stop):
        return "stop asked for"
    if isinstance(command, SetNccl):
        return f"NCCL_DEBUG={command.level} {command.subsys}".rstrip() + " asked for"
    if isinstance(command, Signal):
        return f"{command.signal} asked for"
    if isinstance(command, Down):
        return f"taking down {command.cluster} asked for"
    if isinstance(command, SetAutostop):
        return (
            f"autostop after {command.minutes} min asked for"
            if command.minutes
            else "no autostop asked for"
        )
    return f"dump of {command.what} asked for"
