"""The NCCL_DEBUG switch: live where the ranks' NCCL can, for the next attempt where it cannot."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from ...presets.nccl import NcclError, parse_level, parse_subsys
from ..logs.files import file_id
from ..model import NcclChanged, SetNccl
from .hooks import Hook, HookError

if TYPE_CHECKING:
    from .agent import Agent

DEFAULT = ("WARN", "INIT,BOOTSTRAP,ENV")
"""Level and subsystems that a level of limited duration goes back to when none was set before."""


class NcclSwitch:
    """Sets the level of all or some ranks, and takes a limited one back."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._back: asyncio.Task[None] | None = None
        self._before = DEFAULT

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
        env = {"NCCL_DEBUG": level, "NCCL_DEBUG_SUBSYS": subsys or DEFAULT[1]}
        self._remember()
        if command.restart:
            await self._agent.commands.set_for_next(env)
            done = await self._agent.commands.restart(env)
            self._tell(
                level,
                subsys,
                tuple(self._agent.state.ranks),
                True,
                f"NCCL_DEBUG={level} since attempt {self._agent.state.attempt}",
                None,
            )
            return done
        answers = await self._ask(self._agent.hooks.chosen(command.ranks), env)
        await self._agent.commands.set_for_next(env)
        return await self._conclude(command, level, subsys, answers)

    async def _conclude(
        self, command: SetNccl, level: str, subsys: str, answers: dict[int, dict[str, Any]]
    ) -> str:
        from .commands import Refused, name_ranks

        changed = tuple(rank for rank, answer in answers.items() if answer.get("changed"))
        if changed:
            until = None if command.seconds is None else time.time() + command.seconds
            span = "" if command.seconds is None else f" for {command.seconds:g} s"
            text = f"NCCL_DEBUG={level}{f' {subsys}' if subsys else ''} live on {name_ranks(changed)}{span}"
            self._tell(level, subsys, changed, True, text, until)
            self._go_back_after(command.seconds, changed)
            return text
        answer = next(iter(answers.values()), {})
        if answer.get("loaded"):
            raise Refused(
                f"NCCL {answer.get('version') or 'here'} cannot change NCCL_DEBUG live (2.24 or newer can): "
                f"{level} is set for the next start; add --restart to restart now"
            )
        if answer.get("backend") == "gloo" or self._agent.plan.backend == "gloo":
            return await self._gloo(level, subsys, answers)
        text = f"NCCL is not loaded yet: NCCL_DEBUG={level} is set, and counts from its first use"
        self._tell(level, subsys, tuple(answers), False, text, None)
        return text

    async def _gloo(self, level: str, subsys: str, answers: dict[int, dict[str, Any]]) -> str:
        """NCCL is not in use; c10d's own logging can be raised live instead."""
        c10d = {"INFO": "INFO", "TRACE": "DETAIL"}.get(level, "OFF")
        said = await asyncio.gather(
            *(hook.ask("c10d", level=c10d) for hook in self._agent.hooks.chosen(tuple(answers))),
            return_exceptions=True,
        )
        raised = next((str(one["text"]) for one in said if isinstance(one, dict) and one.get("text")), "")
        text = f"NCCL is not in use (gloo): NCCL_DEBUG={level} is set for the next start"
        text += f"; live: {raised}" if raised else ""
        self._tell(level, subsys, tuple(answers), False, text, None)
        return text

    async def _ask(self, hooks: list[Hook], env: dict[str, str]) -> dict[int, dict[str, Any]]:
        """Each rank gets a file name that is new: NCCL truncates what it opens."""
        from .commands import Refused

        if not hooks:
            raise Refused("no rank is running")
        asked = [hook.ask("nccl", env={**env, "NCCL_DEBUG_FILE": self._new_file(hook)}) for hook in hooks]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        good = {hook.rank: one for hook, one in zip(hooks, answers, strict=True) if isinstance(one, dict)}
        if not good:
            failed = next(one for one in answers if isinstance(one, BaseException))
            raise HookError(f"{failed}; `--restart` sets the level through the environment instead")
        return good

    def _new_file(self, hook: Hook) -> str:
        part = 1
        while (path := self._agent.run_dir / file_id(0, hook.attempt, hook.rank, "nccl", part)).exists():
            part += 1
        return str(path)

    def _remember(self) -> None:
        last = self._agent.state.nccl
        if last is None or last.until is None:
            self._before = (last.level, last.subsys or DEFAULT[1]) if last else DEFAULT

    def _go_back_after(self, seconds: float | None, ranks: tuple[int, ...]) -> None:
        if self._back is not None:
            self._back.cancel()
            self._back = None
        if seconds is not None:
            self._back = asyncio.create_task(self._go_back(seconds, ranks))

    async def _go_back(self, seconds: float, ranks: tuple[int, ...]) -> None:
        await asyncio.sleep(seconds)
        level, subsys = self._before
        env = {"NCCL_DEBUG": level, "NCCL_DEBUG_SUBSYS": subsys}
        hooks = [hook for rank, hook in self._agent.hooks.by_rank.items() if rank in ranks]
        if hooks:
            await self._ask(hooks, env)
        await self._agent.commands.set_for_next(env)
        self._tell(level, subsys, ranks, True, f"NCCL_DEBUG is back at {level}", None)

    def _tell(
        self, level: str, subsys: str, ranks: tuple[int, ...], live: bool, text: str, until: float | None
    ) -> None:
        self._agent.emit(NcclChanged(level, subsys, ranks, live, text, until))
