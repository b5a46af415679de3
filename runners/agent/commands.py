"""The commands that an agent executes: restart, stop, signal, dump, NCCL."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ...presets.plurals import plural
from ..run import clock, saving
from ..run.command_executor import (
    ENDED,
    NO_CLUSTER,
    RESTART_SECONDS,
    CommandExecutor,
    CommandRefused,
    Handler,
    Reply,
    reply,
    shortened,
    until_running,
)
from ..run.commands import (
    Action,
    Destination,
    Dump,
    Profile,
    Restart,
    RunCommand,
    Save,
    SetNccl,
    Share,
    Signal,
    Stop,
    Unshare,
)
from ..run.environment import RESTART, refusal, shown
from ..run.errors import OUTCOME_UNKNOWN
from ..run.formatting import agreeing
from ..run.model import Clause, CommandDone, CommandReceived, RankPhase, sentence
from ..run.processes import disposition, marked, resume, send_signal, sweep, unmarked
from ..run.wire.frames import MAX_LINE
from .hook_clients import HookClient, HookError, Hooks
from .pyspy import EVERY_S, PySpy, alike, stacks
from .rank_environments import Environment
from .rank_profiles import RankProfiles
from .runner_process import Runner, ServedRun, ask_once
from .sharing import Sharing

RUNNER_SECONDS = 20.0
"""Seconds that a restart waits for a starting runner before it is refused."""

DUMP_SECONDS = 15.0
"""Seconds for a rank's answer: the first stacks of a flight recorder of 2,000 entries take about 2 s."""
DUMP_BYTES = MAX_LINE - (256 << 10)
"""Most bytes of all answers to one dump, because a longer line breaks the link."""


class Restarts:
    """Restarts the worker group, sets the environment of its next attempt, and waits for the result."""

    def __init__(self, run: ServedRun, environment: Environment) -> None:
        self._run, self.environment = run, environment
        self._revival = os.environ.pop(RESTART, "")
        """The command, as JSON, that a lost run is served for again, or ""."""

    async def restart(self, env: dict[str, str], unset: tuple[str, ...] = ()) -> Sequence[Clause]:
        """Restart the group in place and wait until every rank runs. Raises CommandRefused."""
        run = self._run
        changes: dict[str, str | None] = {**env, **dict.fromkeys(unset)}
        if refused := refusal(changes):
            raise CommandRefused(refused)
        await self._listening_runner()
        before, began = run.state.attempt, clock.monotonic()
        await self._ask_launcher("restart", self._diff(env, unset))
        text = await self._restarted(before, began)
        return [Clause(text), *await self.environment.compare(changes)]

    async def check_runner(self) -> str:
        """Check that the runner answers, before a hub restarts any node.

        Raises CommandRefused, OSError, TimeoutError.
        """
        await (await self._listening_runner()).ask("ping")
        return "the runner answers"

    async def _listening_runner(self) -> Runner:
        """Return the runner, after waiting for a starting one to listen. Raises CommandRefused."""
        run = self._run
        if not await run.until(lambda: self._runner_listens() or run.state.phase.ended, RUNNER_SECONDS):
            raise CommandRefused("the runner is being restarted: try again in a few seconds")
        if run.runner is None:
            raise CommandRefused(ENDED)
        return run.runner

    def revive(self) -> None:
        """Journal the restart before the next runner of a lost run starts. It is answered when its ranks run."""
        if not self._revival:
            return
        command = msgspec.json.decode(self._revival, type=Restart)
        fields = self._diff(dict(command.env), command.unset)
        self._run.emit(CommandReceived(command.id, shortened(command.requested()), command.verb))
        self.environment.note(fields["env"], fields["shown"])
        work = self._revived(command.id, fields["env"], self._run.state.attempt)
        self._run.parts.once("revival", work)

    async def _revived(self, asked: str, changes: dict[str, str | None], before: int) -> None:
        try:
            text = await self._restarted(before, clock.monotonic())
            ok, text = True, sentence([Clause(text), *await self.environment.compare(changes)])
        except CommandRefused as error:
            ok, text = False, str(error)
        self._run.emit(CommandDone(asked, ok, text))

    async def _restarted(self, before: int, began: float) -> str:
        """Wait until every rank of the attempt after `before` runs. Raises CommandRefused."""
        run = self._run
        if not await until_running(run, before, RESTART_SECONDS):
            raise CommandRefused(
                f"attempt {run.state.attempt} is not running after {RESTART_SECONDS:.0f} s: see its logs"
            )
        ranks, seconds = len(run.state.ranks), clock.monotonic() - began
        if self.environment.restored > before:
            raise CommandRefused(self.environment.why_restored)
        return (
            f"restarted: attempt {run.state.attempt}, {plural(ranks, 'rank')} running after {seconds:.1f} s"
        )

    async def set_for_next(self, env: dict[str, str]) -> None:
        """Change the environment of the next attempt without starting one."""
        if self._run.runner is not None:
            await self._ask_launcher("env", self._diff(env, ()))

    async def _ask_launcher(self, op: str, fields: dict[str, dict[str, str | None]]) -> None:
        """Send a request to the launcher of the ranks: a torchrun inside a managed command restarts them in place.

        Without such a torchrun it is the runner, which stops and starts the command. Raises CommandRefused.
        """
        with self.environment.asking():
            answer = await self._taken(op, fields)
            if not answer.get("ok"):
                raise CommandRefused(str(answer.get("text") or "the runner refused"))
            self.environment.note(fields["env"], fields["shown"])

    async def _taken(self, op: str, fields: dict[str, dict[str, str | None]]) -> dict[str, Any]:
        """Return the answer of the ranks' launcher. Raises OSError and TimeoutError."""
        runner, nested = self._run.runner, self._run.state.runner_socket
        assert runner is not None
        answer = None
        if nested and nested != runner.who.socket:
            with contextlib.suppress(OSError):
                answer = await ask_once(nested, op, **fields)
        if answer is None:
            return await runner.ask(op, **fields)
        if answer.get("ok"):
            await runner.ask("env", **fields)  # for a start of the command
        return answer

    @staticmethod
    def _diff(env: dict[str, str], unset: tuple[str, ...]) -> dict[str, dict[str, str | None]]:
        """Return the changes that the runner applies, and the form that it may write down."""
        change: dict[str, str | None] = {**env, **dict.fromkeys(unset)}
        return {"env": change, "shown": {name: shown(name, value) for name, value in change.items()}}

    async def outcome(self, before: int) -> str:
        """Return the result of a restart that an earlier agent began in attempt `before`. Raises CommandRefused."""
        run = self._run
        await run.until(lambda: self._runner_listens() or run.state.phase.ended, RUNNER_SECONDS)
        if run.state.attempt == before and not run.state.phase.ended:
            if run.runner is None or not run.runner.listening:
                raise CommandRefused(OUTCOME_UNKNOWN)
            answers = [await run.runner.ask("ping")]
            nested = run.state.runner_socket
            if nested and nested != run.runner.who.socket:
                with contextlib.suppress(OSError):
                    answers.append(await ask_once(nested, "ping"))
            if not any(answer.get("restarting") or answer.get("attempt", 0) > before for answer in answers):
                raise CommandRefused(
                    f"not done: the agent died before it made the request; attempt {before} goes on"
                )
        return await self._restarted(before, clock.monotonic())

    def _runner_listens(self) -> bool:
        return self._run.runner is not None and self._run.runner.listening


class AgentCommands(CommandExecutor):
    failures = (HookError, OSError, TimeoutError)

    def __init__(
        self,
        run: ServedRun,
        hooks: Hooks,
        spy: PySpy,
        restarts: Restarts,
        switch: Handler,
        sharing: Sharing,
        relaying: Callable[[], bool],
    ) -> None:
        """`switch` changes NCCL's level. `relaying` returns True while the runner carries a viewer's stream."""
        super().__init__(run)
        self._run, self._hooks, self._spy = run, hooks, spy
        self._restarts, self._relaying = restarts, relaying
        self._handlers: Mapping[type[RunCommand], Handler] = {
            Restart: self._restart,
            Stop: self._stop,
            SetNccl: switch,
            Signal: self._signal,
            Save: self._save,
            Dump: self._dump,
            Profile: RankProfiles(run, hooks).profile,
            Share: sharing.share,
            Unshare: sharing.unshare,
        }

    def resume(self) -> None:
        """Finish the earlier agent's commands after an adoption."""
        if self._run.stopping() and not any(
            each.received.verb == Stop.verb for each in self._run.state.open_commands.values()
        ):
            self._run.parts.once("stop", self._go_on_stopping())
        for each in list(self._run.state.open_commands.values()):
            self._run.parts.once("open-command", self._close(each.received, each.attempt))

    async def _go_on_stopping(self) -> None:
        with contextlib.suppress(CommandRefused):  # the finding "unkillable" names the remaining processes
            await self._stop(Stop(""))

    async def _close(self, asked: CommandReceived, attempt: int) -> None:
        """Answer in the journal a command that an earlier agent did not answer."""
        try:
            if asked.verb == Stop.verb:
                ok, text = True, sentence((await self._stop(Stop(asked.id))).clauses)
            elif asked.verb == Restart.verb:
                ok, text = True, await self._restarts.outcome(attempt)
            else:
                ok, text = False, OUTCOME_UNKNOWN
        except (CommandRefused, HookError, OSError, TimeoutError) as error:
            ok, text = False, str(error) or OUTCOME_UNKNOWN
        self._run.emit(CommandDone(asked.id, ok, text))

    async def carry_out(self, command: Action) -> Reply:
        if command.goes_to is Destination.HUB:
            raise CommandRefused(NO_CLUSTER)
        handler = self._handlers[type(command)]
        if not command.changes_group:
            return await handler(command)
        async with self.turn:
            if self._run.stopping():
                raise CommandRefused("the run is being stopped: launch it again once it has ended")
            return await handler(command)

    async def _restart(self, command: Restart) -> Reply:
        return Reply(await self._restarts.restart(dict(command.env), command.unset))

    async def _stop(self, command: Stop) -> Reply:
        """Stop by escalation: SIGTERM from the launcher, grace period, SIGKILL, and a sweep by marker."""
        run = self._run
        grace_s = run.plan.grace_s if command.grace_s is None else command.grace_s
        runner, also = run.runner, unmarked(run.record.run)
        if runner is not None:
            resume([runner.who.pid])
            try:
                await runner.ask("stop", grace_s=grace_s)
            except (OSError, TimeoutError):
                send_signal(runner.who.pid, signal.SIGTERM)
        resume(marked(run.record.run))
        if not await run.until(lambda: run.state.phase.ended, grace_s + 3.0):
            await sweep(run.record.run, also=also, grace_s=0.5)
            if runner is not None:
                send_signal(runner.who.pid, signal.SIGKILL)
            await run.until(lambda: run.state.phase.ended, 10.0)
        keep = [runner.who.pid] if runner is not None and self._relaying() else []
        left = await sweep(run.record.run, keep=keep, also=also, grace_s=1.0)
        if left:
            raise CommandRefused(f"stopped, but these processes would not end: {', '.join(left)}")
        return reply("stopped: no process of the run is left")

    async def _signal(self, command: Signal) -> Reply:
        """Signal the ranks directly, and not the launcher, because that would end the job."""
        try:
            number = signal.Signals[
                command.signal if command.signal.startswith("SIG") else f"SIG{command.signal}"
            ]
        except KeyError:
            raise CommandRefused(f"there is no signal {command.signal}") from None
        ranks = self._run.state.ranks
        chosen = command.ranks or tuple(sorted(ranks))
        for rank in chosen:
            target = ranks.get(rank)
            if target is None or target.pid is None or target.phase is not RankPhase.RUNNING:
                raise CommandRefused(f"there is no running rank {rank}")
        for rank in chosen:
            send_signal(ranks[rank].pid or 0, number)
        return reply(f"{number.name} sent to {{ranks}}", chosen)

    async def _save(self, command: Save) -> Reply:
        """Request a checkpoint, and wait for it unless a hub does. Raises CommandRefused."""
        run = self._run
        asked = saving.way(run.state)
        if asked is None:
            raise CommandRefused(saving.NO_WAY)
        if refused := saving.refusal(run.state, asked, disposition):
            raise CommandRefused(refused)
        if command.only == "check":
            return reply("the ranks would save")
        times, attempt = saving.now_of(run.state.ranks), run.state.attempt
        if asked.file and (problem := saving.touch(run.plan.cwd, asked.file)):
            raise CommandRefused(problem)
        for rank in run.state.ranks.values() if asked.signal else ():
            send_signal(rank.pid or 0, signal.Signals[asked.signal])
        if command.only:
            return reply("asked for a save")
        came, text = await saving.awaited(run, asked, times, attempt, command.seconds)
        if not came:
            raise CommandRefused(text)
        return reply(text)

    async def _dump(self, command: Dump) -> Reply:
        """Ask all chosen ranks at once. Return the answers, and name the ranks without one. Raises CommandRefused."""
        if command.what == "runner":
            return reply(await self._restarts.check_runner())
        hooks = self._hooks.chosen(command.ranks)
        if not hooks:
            raise CommandRefused("no rank is running")
        old: dict[int, float] = {}
        before = {hook.rank: hook.sigusr2_sent for hook in hooks}
        answers = await asyncio.gather(*self._questions(command.what, hooks, old), return_exceptions=True)
        data, failed = _parted(hooks, answers)
        signalled = tuple(hook.rank for hook in hooks if hook.sigusr2_sent > before[hook.rank])
        also = [*alike(failed), *_remarks(old, signalled)]
        if not data:
            raise CommandRefused(sentence(also), also)
        data, left = within(data, DUMP_BYTES)
        if left:
            also.append(Clause("too long for one answer: ask for {ranks} with --rank", left))
        dumped = Clause(f"{command.what} of {{ranks}}", tuple(int(rank) for rank in data))
        return Reply([dumped, *also], data)

    def _questions(
        self, what: str, hooks: Sequence[HookClient], old: dict[int, float]
    ) -> list[Coroutine[Any, Any, str]]:
        """Return the requests. `old` receives the ages in seconds of stacks that py-spy has kept."""
        if what == "stacks":
            return [stacks(hook, self._spy, old) for hook in hooks]
        if what in ("flight", "memory", "record"):
            return [_text(hook.ask(what, DUMP_SECONDS)) for hook in hooks]
        raise CommandRefused(f"there is no dump {what!r}: stacks, flight, memory or record")


def _parted(
    hooks: Sequence[HookClient], answers: Sequence[str | BaseException]
) -> tuple[dict[str, str], list[HookError]]:
    """Return the answers by rank, and the errors of ranks without one. Raises any other exception."""
    data: dict[str, str] = {}
    failed: list[HookError] = []
    for hook, answer in zip(hooks, answers, strict=True):
        if isinstance(answer, str):
            data[str(hook.rank)] = answer
        elif isinstance(answer, HookError):
            failed.append(answer)
        else:
            raise answer
    return data, failed


def _remarks(old: Mapping[int, float], signalled: tuple[int, ...]) -> Iterator[Clause]:
    """Yield how stacks were taken. `old`: ages in seconds. `signalled`: ranks that got SIGUSR2."""
    if old:
        which = agreeing(old, "the stack of {ranks} is", "the stacks of {ranks} are up to")
        age = f"{max(old.values()):.0f} s old: py-spy samples a rank every {EVERY_S:.0f} s at most"
        yield Clause(f"{which} {age}", tuple(old))
    if signalled:
        yield Clause("{ranks} by SIGUSR2 to the hook's own thread, which interrupts no call", signalled)


async def _text(asked: Awaitable[Mapping[str, Any]]) -> str:
    return str((await asked)["text"])


def within(data: dict[str, str], most: int) -> tuple[dict[str, str], tuple[int, ...]]:
    """Return the first answers that fit into one line of `most` bytes, at least one, and the ranks of the others."""
    kept: dict[str, str] = {}
    used = 0
    for rank, text in data.items():
        used += len(msgspec.json.encode(text)) + len(rank) + 4
        if kept and used > most:
            break
        kept[rank] = text
    return kept, tuple(int(rank) for rank in data if rank not in kept)
