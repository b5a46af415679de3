"""The end of a run that somebody asks for: its ranks on every node, and, where that is wanted, its cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ..agent.commands import NO_CLUSTER, Refused
from ..model import CommandDone, Down, LinkState, Stop
from ..wire.client import new_id
from . import answers
from .answers import Answer
from .ending import patience
from .seam import CANCEL_SECONDS, Cloud, CloudError

if TYPE_CHECKING:
    from .hub import Hub

STOP_SECONDS = 30.0
"""Beyond the grace: how long a stop may take until it is answered with what is known then."""
SILENT_SECONDS = 5.0
"""How long a stop waits for nodes that do not answer, while it tries them at once, before it says so."""
END_SECONDS = 5.0
"""How long the run may take to end when all of it was read."""
LOOK_SECONDS = 0.1

Ask = Callable[[Stop, int], Awaitable[Answer]]
"""One node's answer to its part."""
Execute = Callable[[Stop], Awaitable[CommandDone]]
"""As if a viewer had asked: journaled and answered."""


class Stopping:
    """Stops the run, or takes its cluster down after that."""

    def __init__(self, hub: Hub, ask: Ask, execute: Execute) -> None:
        self._hub, self._ask, self._execute = hub, ask, execute

    async def stop(self, command: Stop) -> str:
        """End the parts of all nodes that answer; the others are told as soon as they do. Raises Refused."""
        hub, began = self._hub, time.monotonic()
        hub.begin_stop()
        grace_s = hub.plan.grace_s if command.grace_s is None else command.grace_s
        limit = began + grace_s + STOP_SECONDS
        told = await self._tell_all(command, limit)
        await self._given_up()
        limit = max(limit, time.monotonic() + END_SECONDS)
        await self._until(self._no_part_is_awaited, limit)
        await self._until(lambda: not hub.alive(), began + SILENT_SECONDS)
        if not hub.alive():
            await self._until(self._over, limit)
        return self._answer(told)

    async def _given_up(self) -> None:
        """A launch that is still on gives up by itself, in its own time."""
        deadline = time.monotonic() + CANCEL_SECONDS + END_SECONDS
        while self._hub.launching and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_SECONDS)

    async def _tell_all(self, command: Stop, limit: float) -> list[Answer]:
        """What the nodes say that answer now; whoever says nothing until then is not waited for."""
        hub = self._hub
        asked = [
            asyncio.ensure_future(self._ask(command, node))
            for node in hub.alive()
            if hub.links.up(node) is not None
        ]
        if len(asked) < len(hub.alive()) and hub.cloud is not None:
            hub.spawn(self._cancel(hub.cloud))
        if not asked:
            return []
        done, late = await asyncio.wait(asked, timeout=max(0.0, limit - time.monotonic()))
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return [task.result() for task in asked if task in done]

    async def _cancel(self, cloud: Cloud) -> None:
        """Nodes that cannot be asked are stopped by whoever started them."""
        try:
            await cloud.cancel()
        except CloudError as error:
            self._hub.say(str(error))

    async def _until(self, wanted: Callable[[], bool], deadline: float) -> None:
        hub = self._hub
        seconds = max(0.0, deadline - time.monotonic())
        await hub.chronicle.until(lambda: hub.state.phase.ended or wanted(), seconds)

    def _no_part_is_awaited(self) -> bool:
        """Every part has ended, or is on a node that does not answer; one that connects may do so yet."""
        hub = self._hub
        return all(hub.link(node) is LinkState.LOST for node in hub.alive())

    def _over(self) -> bool:
        """All is read; where the end is held back, that is all there is to wait for."""
        return self._hub.held and self._hub.all_read()

    def _answer(self, told: list[Answer]) -> str:
        """What came of it. Raises Refused unless nothing is left."""
        hub = self._hub
        problems = [answer for answer in told if answer.done is not None and not answer.ok]
        said = [answers.together(problems)] if problems else []
        left = hub.alive()
        mute = [hub.name(node) for node in left if hub.links.up(node) is not None]
        silent = [hub.name(node) for node in left if hub.links.up(node) is None]
        if silent:
            reached = bool(hub.node_numbers()) and len(silent) < len(hub.node_numbers())
            seconds = None if hub.state.phase.ended else patience(True, hub.some_ended(), False)
            said.append(answers.stopped_without(silent, reached, seconds))
        if mute:
            said.append(answers.not_stopped_yet(mute))
        if not said and not hub.state.phase.ended and not self._over():
            said.append("the run does not end: see agent.log of its hub")
        if said:
            raise Refused("; ".join(said))
        return "stopped: no process of the run is left"

    async def late(self, node: int) -> None:
        """A node that did not answer when the run was stopped answers now."""
        await self._ask(Stop(new_id()), node)

    # --- the cluster -----------------------------------------------------------------------------------------

    async def down(self, command: Down) -> str:
        """End the ranks in order, then take the cluster down; only then the run has ended.

        Raises Refused and CloudError.
        """
        hub, name = self._hub, command.cluster
        if hub.cloud is None:
            raise Refused(NO_CLUSTER)
        hub.cloud.check_down(name)
        if hub.state.phase.ended:
            return await hub.cloud.down(name)
        hub.held = True
        try:
            stopped = await self._execute(Stop(new_id()))
            first = f"{hub.record.name} was stopped first" if stopped.ok else f"before that: {stopped.text}"
            try:
                text = await hub.cloud.down(name)
            except CloudError as error:
                raise CloudError(f"cluster {name} was not taken down: {error}; {first}") from None
            hub.why_stopped = f"stopped: cluster {name} was taken down"
            return f"{text}; {first}"
        finally:
            hub.held = False
            hub.judge_again()
