"""The NCCL_DEBUG switch: live where the ranks' NCCL can, for the next attempt where it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...presets.nccl import DEFAULT_SUBSYS, NcclError, parse_level, parse_subsys
from ..model import FindingCleared, NcclChanged, SetNccl
from ..state import Attempt
from .flood import FLOOD_ID
from .hooks import HookError

if TYPE_CHECKING:
    from .agent import Agent

STANDARD = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": DEFAULT_SUBSYS}
"""What holds where neither the plan nor a restart says anything else."""

C10D = {"INFO": "INFO", "TRACE": "DETAIL"}
"""c10d's level for one of NCCL's; OFF for the others."""

Answers = dict[int, dict[str, Any]]


def standing(plan: Mapping[str, str], attempts: Sequence[Attempt]) -> dict[str, str]:
    """Level and subsystems in the environment that the newest attempt started with."""
    env = {name: plan.get(name, value) for name, value in STANDARD.items()}
    for attempt in attempts:
        env |= {name: attempt.env_diff[name] or STANDARD[name] for name in env if name in attempt.env_diff}
    return env


class NcclSwitch:
    """Sets the level of all or some ranks, and takes a limited one back."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._back: asyncio.Task[None] | None = None

    def resume(self) -> None:
        """After an adoption: a level whose time is not over yet still goes back."""
        last = self._agent.state.nccl
        if last is not None and last.until is not None:
            self._go_back_after(max(0.0, last.until - time.time()), last.ranks)

    async def switch(self, command: SetNccl) -> str:
        """Do it and say in one sentence what came of it. Raises Refused or HookError."""
        from .commands import Refused

        try:
            level, subsys = parse_level(command.level), parse_subsys(command.subsys)
        except NcclError as error:
            raise Refused(str(error)) from None
        env = {"NCCL_DEBUG": level, "NCCL_DEBUG_SUBSYS": subsys}
        flood = self._agent.state.findings.get((FLOOD_ID, None, self._agent.node))
        if flood is not None:  # of a level that somebody has changed now
            self._agent.emit(FindingCleared(flood.id, flood.rank, flood.node))
        if command.restart:
            return await self._restart(command, env)
        lasting = command.seconds is None
        answers, silent = await self._ask(command.ranks, "nccl", env=env, lasting=lasting)
        if lasting and not command.ranks:
            await self._agent.commands.set_for_next(env)
        text = await self._conclude(command, level, answers)
        return "; ".join([text, *silent])

    async def lower(self, why: str) -> tuple[bool, str]:
        """Take a level back that somebody set while the run was going; whether it was, and a sentence that says so."""
        from .commands import Refused

        agent, last = self._agent, self._agent.state.nccl
        env = standing(agent.plan.env, agent.state.attempts)
        if last is not None and _same(last, env):  # set by a restart, and so it stands
            env = standing(agent.plan.env, ())
        now = "" if last is None else f" at {last.level} {last.subsys}".rstrip()
        if last is None or _same(last, env):
            level = f"{env['NCCL_DEBUG']} {env['NCCL_DEBUG_SUBSYS']}"
            return False, f"{why}: the launch itself asks for {level}, which is left as it is"
        try:
            ranks = tuple(sorted(agent.hooks.by_rank))
            answers, silent = await self._ask(ranks, "nccl", env=env, lasting=True)
        except (HookError, Refused) as error:
            return False, f"{why}{now}, and cannot be told to stop: {error}"
        if not all(answer.get("changed") for answer in answers.values()):
            version = next(iter(answers.values())).get("version") or "here"
            return False, f"{why}{now}, and NCCL {version} cannot change that live: only a restart can"
        self._go_back_after(None, ())
        if last.until is None:
            with contextlib.suppress(Refused, OSError, TimeoutError):
                await agent.commands.set_for_next(env)
        text = "; ".join([f"{why}{now}: NCCL_DEBUG is back at {env['NCCL_DEBUG']}", *silent])
        agent.emit(NcclChanged(env["NCCL_DEBUG"], "", ranks, True, text, None))
        return True, text

    async def _restart(self, command: SetNccl, env: dict[str, str]) -> str:
        """Through the environment, which is one for all ranks; a limited level is none for later attempts."""
        before = standing(self._agent.plan.env, self._agent.state.attempts)
        done = await self._agent.commands.restart(env)
        state, level = self._agent.state, env["NCCL_DEBUG"]
        if command.seconds is not None:
            await self._agent.commands.set_for_next(before)
        text = f"NCCL_DEBUG={level} since attempt {state.attempt}{_span(command)}"
        self._tell(command, level, tuple(state.ranks), True, text)
        self._go_back_after(command.seconds, tuple(state.ranks), before)
        return done

    async def _conclude(self, command: SetNccl, level: str, answers: Answers) -> str:
        """Say what the ranks answered, and act on it where NCCL is not in use. Raises Refused."""
        from .commands import Refused, name_ranks

        ranks = tuple(rank for rank, answer in answers.items() if answer.get("changed"))
        answer = next(iter(answers.values()))
        backend = answer.get("backend") or ""
        lasts = command.seconds is None and not command.ranks
        kept = f"{level} is set for the next start; " if lasts else ""
        if ranks:
            subsys = f" {parse_subsys(command.subsys)}" if command.subsys else ""
            text = f"NCCL_DEBUG={level}{subsys} live on {name_ranks(ranks)}{_span(command)}"
        elif answer.get("loaded"):
            raise Refused(
                f"NCCL {answer.get('version') or 'here'} cannot change NCCL_DEBUG live (2.24 or newer can): "
                f"{kept}add --restart to restart now"
            )
        elif "nccl" in backend and self._agent.plan.backend != "gloo":
            raise Refused(
                "NCCL is built into this torch, where NCCL_DEBUG cannot be changed live: "
                f"{kept}add --restart to restart now"
            )
        elif backend or self._agent.plan.backend == "gloo":
            ranks, text = tuple(answers), await self._gloo(command, level, tuple(answers))
        else:
            ranks = tuple(answers)
            text = f"NCCL is not loaded yet: NCCL_DEBUG={level} is set, and counts from its first use"
        self._tell(command, level, ranks, bool(answer.get("changed")), text)
        self._go_back_after(command.seconds, ranks)
        return text

    async def _gloo(self, command: SetNccl, level: str, ranks: tuple[int, ...]) -> str:
        """NCCL is not in use; c10d's own logging can be changed live instead."""
        c10d, lasting = C10D.get(level, "OFF"), command.seconds is None
        hooks = self._agent.hooks.chosen(ranks)
        said = await asyncio.gather(
            *(hook.ask("c10d", level=c10d, lasting=lasting) for hook in hooks), return_exceptions=True
        )
        changed = next((str(one["text"]) for one in said if isinstance(one, dict) and one.get("text")), "")
        parts = [f"NCCL_DEBUG={level} is set for the next start"] if lasting and not command.ranks else []
        parts += [f"live: {changed}{_span(command)}"] if changed else []
        return "NCCL is not in use (gloo): " + ("; ".join(parts) or "nothing was changed")

    async def _ask(self, ranks: tuple[int, ...], op: str, **fields: Any) -> tuple[Answers, list[str]]:
        """The ranks' answers, and a text for each that gave none. Raises Refused or HookError."""
        from .commands import Refused

        hooks = self._agent.hooks.chosen(ranks)
        if not hooks:
            raise Refused("no rank is running")
        said = await asyncio.gather(*(hook.change(op, **fields) for hook in hooks), return_exceptions=True)
        good = {hook.rank: one for hook, one in zip(hooks, said, strict=True) if isinstance(one, dict)}
        silent = [str(one) for one in said if isinstance(one, HookError)]
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
            self._back = asyncio.create_task(self._go_back(seconds, ranks, env))

    async def _go_back(self, seconds: float, ranks: tuple[int, ...], env: dict[str, str] | None) -> None:
        """Each rank knows what it goes back to; `env` where its own start was the limited level's."""
        await asyncio.sleep(seconds)
        still = tuple(rank for rank in ranks if rank in self._agent.hooks.by_rank)
        standard = env or standing(self._agent.plan.env, self._agent.state.attempts)
        level, text = standard["NCCL_DEBUG"], ""
        if still:
            asked = self._ask(still, "nccl", env=env) if env else self._ask(still, "back")
            try:
                answers, silent = await asked
                level = next(iter(answers.values())).get("debug") or level
                text = "; ".join(["", *silent])
            except HookError as error:
                text = f" at the next start only: {error}"
        self._agent.emit(NcclChanged(level, "", still, True, f"NCCL_DEBUG is back at {level}{text}", None))

    def _tell(self, command: SetNccl, level: str, ranks: tuple[int, ...], live: bool, text: str) -> None:
        until = None if command.seconds is None else time.time() + command.seconds
        subsys = parse_subsys(command.subsys)
        self._agent.emit(NcclChanged(level, subsys, ranks, live, text, until))


def _same(last: NcclChanged, env: Mapping[str, str]) -> bool:
    """Whether that is the level that the environment has; one that was taken back names no subsystems."""
    return last.level == env["NCCL_DEBUG"] and last.subsys in ("", env["NCCL_DEBUG_SUBSYS"])


def _span(command: SetNccl) -> str:
    return "" if command.seconds is None else f" for {command.seconds:g} s"
