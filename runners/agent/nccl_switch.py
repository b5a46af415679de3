"""The NCCL_DEBUG switch, live or for the next attempt."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence, Set
from typing import Any

from ...presets.nccl import DEFAULT_SUBSYS, NcclError, parse_level, parse_subsys
from ..run import clock
from ..run.command_executor import CommandRefused, Reply
from ..run.commands import SetNccl
from ..run.model import Clause, NcclChanged
from ..run.nccl_reach import USES_GLOO, calls_nccl, levels_at_start, used_backends
from ..run.nccl_reach import refusal as nothing_to_do
from .commands import Restarts
from .hook_clients import HookError, Hooks
from .nccl_flood import FLOOD_ID
from .runner_process import ServedRun

C10D = {"INFO": "INFO", "TRACE": "DETAIL"}
"""c10d's level for an NCCL level. OFF for other levels."""
QUIET = f"; {DEFAULT_SUBSYS} log little after init: COLL has a line for each collective"
"""Hint for users who name no subsystems, and would wait for lines."""

Answers = dict[int, dict[str, Any]]


def unused(backend: str, planned: str | None, used: Set[str] = frozenset()) -> bool:
    """Return True if ranks with a torch backend ("gloo", "cpu:gloo,cuda:nccl"; "": unknown) do not use NCCL.

    `used`: known backends of their collectives.
    """
    if calls_nccl(used) or (used and planned != "nccl"):
        return not calls_nccl(used)
    names = [part.rpartition(":")[2] for part in backend.split(",") if part]
    through = [name for name in names if calls_nccl([name])]
    return len(through) < len(names) and (planned == "gloo" or not through)


class NcclSwitch:
    """Sets the level of all or some ranks, and resets a limited one."""

    def __init__(self, run: ServedRun, hooks: Hooks, restarts: Restarts) -> None:
        self._run, self._hooks, self._restarts = run, hooks, restarts
        self._back: asyncio.Task[None] | None = None

    def resume(self) -> None:
        """Schedule the reset of a limited level after an adoption."""
        last = self._run.state.nccl
        if last is not None and last.until is not None:
            self._go_back_after(max(0.0, last.until - clock.now()), last.ranks)

    async def switch(self, command: SetNccl) -> Reply:
        """Execute the command, and return its result. Raises CommandRefused or HookError."""
        try:
            level, subsys = parse_level(command.level), parse_subsys(command.subsys)
        except NcclError as error:
            raise CommandRefused(str(error)) from None
        env = {"NCCL_DEBUG": level, "NCCL_DEBUG_SUBSYS": subsys}
        self._run.findings.clear(FLOOD_ID, node=self._run.node)  # the finding was about the previous level
        if command.restart:
            if why := nothing_to_do(self._run.state, command, self._run.plan.env):
                raise CommandRefused(why)
            return Reply(await self._restart(command, env))
        lasting = command.seconds is None
        answers, silent = await self._ask(command.ranks, "nccl", env=env, lasting=lasting)
        if lasting and not command.ranks:
            await self._restarts.set_for_next(env)
        return Reply([await self._conclude(command, level, answers), *map(Clause, silent)])

    async def lower(self, why: str) -> tuple[bool, str]:
        """Reset a level that was set during the run. Return True if it was reset, and a sentence."""
        run, last = self._run, self._run.state.nccl
        env = levels_at_start(run.plan.env, run.state.attempts)
        if last is not None and _same(last, env):  # set by a restart, so it is in effect
            env = levels_at_start(run.plan.env, ())
        now = "" if last is None else f" at {last.level} {last.subsys}".rstrip()
        if last is None or _same(last, env):
            level = f"{env['NCCL_DEBUG']} {env['NCCL_DEBUG_SUBSYS']}"
            return False, f"{why}: the launch itself asks for {level}, which is left as it is"
        try:
            ranks = tuple(sorted(self._hooks.by_rank))
            answers, silent = await self._ask(ranks, "nccl", env=env, lasting=True)
        except (HookError, CommandRefused) as error:
            return False, f"{why}{now}, and cannot be stopped: {error}"
        if not all(answer.get("changed") for answer in answers.values()):
            version = next(iter(answers.values())).get("version") or "here"
            return False, f"{why}{now}, and NCCL {version} cannot change that live: only a restart can"
        self._go_back_after(None, ())
        if last.until is None:
            with contextlib.suppress(CommandRefused, OSError, TimeoutError):
                await self._restarts.set_for_next(env)
        text = "; ".join([f"{why}{now}: NCCL_DEBUG is back at {env['NCCL_DEBUG']}", *silent])
        run.emit(NcclChanged(env["NCCL_DEBUG"], "", ranks, True, text, None))
        return True, text

    async def _restart(self, command: SetNccl, env: dict[str, str]) -> Sequence[Clause]:
        """Set the level of all ranks through a restart. A limited level does not apply to later attempts."""
        before = levels_at_start(self._run.plan.env, self._run.state.attempts)
        done = await self._restarts.restart(env)
        state, level = self._run.state, env["NCCL_DEBUG"]
        if command.seconds is not None:
            await self._restarts.set_for_next(before)
        text = f"NCCL_DEBUG={level} since attempt {state.attempt}{_span(command)}"
        self._report(command, level, tuple(state.ranks), True, text)
        self._go_back_after(command.seconds, tuple(state.ranks), before)
        return done

    async def _conclude(self, command: SetNccl, level: str, answers: Answers) -> Clause:
        """Report the ranks' answers, and set c10d's level if NCCL is not in use. Raises CommandRefused."""
        changed = tuple(rank for rank, answer in answers.items() if answer.get("changed"))
        answer, ranks = next(iter(answers.values())), tuple(answers)
        gloo = self._uses_gloo(answer, changed)
        if gloo:  # a CUDA build of torch contains NCCL, which accepts the level
            clause = Clause(await self._gloo(command, level, ranks))
        elif changed:
            ranks, clause = changed, _changed(command, level, changed)
        elif answer.get("loaded") or answer.get("backend"):
            lasts = command.seconds is None and not command.ranks
            kept = f"{level} is set for the next start; " if lasts else ""
            raise CommandRefused(f"{_fixed(answer)}: {kept}add --restart to restart now")
        else:
            text = f"NCCL is not loaded yet: NCCL_DEBUG={level} is set, and counts from its first use"
            clause = Clause(text)
        self._report(command, level, ranks, bool(answer.get("changed")) and not gloo, clause.words())
        self._go_back_after(command.seconds, ranks)
        return clause

    def _uses_gloo(self, answer: Mapping[str, Any], changed: tuple[int, ...]) -> bool:
        """Return True if NCCL is not in use, by a rank's answer. `changed`: ranks with the new level."""
        backend, planned = answer.get("backend") or "", self._run.plan.backend
        if unused(backend, planned, used_backends(self._run.state)):
            return True
        return planned == "gloo" and not (changed or backend or answer.get("loaded"))

    async def _gloo(self, command: SetNccl, level: str, ranks: tuple[int, ...]) -> str:
        """Set c10d's log level live, because NCCL is not in use."""
        c10d, lasting = C10D.get(level, "OFF"), command.seconds is None
        hooks = self._hooks.chosen(ranks)
        acks = await asyncio.gather(
            *(hook.ask("c10d", level=c10d, lasting=lasting) for hook in hooks), return_exceptions=True
        )
        changed = next((str(ack["text"]) for ack in acks if isinstance(ack, dict) and ack.get("text")), "")
        parts = [f"NCCL_DEBUG={level} is set for the next start"] if lasting and not command.ranks else []
        parts += [f"live: {changed}{_span(command)}"] if changed else []
        return f"{USES_GLOO}: " + ("; ".join(parts) or "nothing was changed")

    async def _ask(self, ranks: tuple[int, ...], op: str, **fields: Any) -> tuple[Answers, list[str]]:
        """Return the ranks' answers, and a text per rank without one. Raises CommandRefused or HookError."""
        hooks = self._hooks.chosen(ranks)
        if not hooks:
            raise CommandRefused("no rank is running")
        if self._run.plan.hook and self._run.plan.launcher == "torchrun":  # otherwise no hook will connect
            await asyncio.gather(*(hook.heard() for hook in hooks))
        acks = await asyncio.gather(*(hook.change(op, **fields) for hook in hooks), return_exceptions=True)
        good = {hook.rank: ack for hook, ack in zip(hooks, acks, strict=True) if isinstance(ack, dict)}
        silent = [str(ack) for ack in acks if isinstance(ack, HookError)]
        if not good:
            raise HookError(f"{silent[0]}; --restart sets the level through the environment instead")
        return good, silent

    def _go_back_after(
        self, seconds: float | None, ranks: tuple[int, ...], env: dict[str, str] | None = None
    ) -> None:
        if self._back is not None:
            self._back.cancel()
            self._back = None
        if seconds is not None:
            self._back = self._run.parts.once("nccl-level", self._go_back(seconds, ranks, env))

    async def _go_back(self, seconds: float, ranks: tuple[int, ...], env: dict[str, str] | None) -> None:
        """Reset the level after some seconds.

        Ranks know their previous level, unless they started with the limited one (`env`).
        """
        await asyncio.sleep(seconds)
        still = tuple(rank for rank in ranks if rank in self._hooks.by_rank)
        standard = env or levels_at_start(self._run.plan.env, self._run.state.attempts)
        level, text = standard["NCCL_DEBUG"], ""
        if still:
            asked = self._ask(still, "nccl", env=env) if env else self._ask(still, "back")
            try:
                answers, silent = await asked
                level = next(iter(answers.values())).get("debug") or level
                text = "; ".join(["", *silent])
            except HookError as error:
                text = f" at the next start only: {error}"
        last = self._run.state.nccl
        if last is not None and last.text.startswith(USES_GLOO):
            back = f"{USES_GLOO}: c10d's logging is as before"
        else:
            back = f"NCCL_DEBUG is back at {level}"
        self._run.emit(NcclChanged(level, "", still, True, f"{back}{text}", None))

    def _report(self, command: SetNccl, level: str, ranks: tuple[int, ...], live: bool, text: str) -> None:
        until = None if command.seconds is None else clock.now() + command.seconds
        subsys = parse_subsys(command.subsys)
        self._run.emit(NcclChanged(level, subsys, ranks, live, text, until))


def _same(last: NcclChanged, env: Mapping[str, str]) -> bool:
    """Return True if the environment has this level. A level that was reset names no subsystems."""
    return last.level == env["NCCL_DEBUG"] and last.subsys in ("", env["NCCL_DEBUG_SUBSYS"])


def _changed(command: SetNccl, level: str, ranks: tuple[int, ...]) -> Clause:
    subsys = f" {parse_subsys(command.subsys)}" if command.subsys else ""
    quiet = QUIET if level == "INFO" and not command.subsys else ""
    return Clause(f"NCCL_DEBUG={level}{subsys} live on {{ranks}}{_span(command)}{quiet}", ranks)


def _fixed(answer: Mapping[str, Any]) -> str:
    """Return why the level cannot be changed live."""
    if answer.get("loaded"):
        return f"NCCL {answer.get('version') or 'here'} cannot change NCCL_DEBUG live (2.24 or newer can)"
    return "NCCL is built into this torch, where NCCL_DEBUG cannot be changed live"


def _span(command: SetNccl) -> str:
    return "" if command.seconds is None else f" for {command.seconds:g} s"
