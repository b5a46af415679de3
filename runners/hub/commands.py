"""What a viewer asks of the whole run: which nodes are asked, how their answers become one."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from msgspec import structs

from ..agent.commands import ENDED, NO_CLUSTER, RESTART_SECONDS, VERBS, Refused, describe
from ..model import (
    Action,
    CommandDone,
    CommandReceived,
    Down,
    Dump,
    LinkState,
    Restart,
    RunPhase,
    SetAutostop,
    SetNccl,
    Signal,
    Stop,
)
from ..wire.link import LinkError
from . import answers
from .answers import Answer
from .merge import sub_id
from .on_hosts import Hosts
from .seam import Cloud, CloudError
from .stopping import Stopping

if TYPE_CHECKING:
    from .hub import Hub

REACH_SECONDS = 40.0
"""How long a command waits for nodes that are being reached for the first time, at a launch or by a hub made anew."""


class Commands:
    """Executes one command at a time of those that change the group; the others do not wait."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._turn = asyncio.Lock()
        self.stopping = Stopping(hub, self.ask, self.execute)

    async def execute(self, command: Action) -> CommandDone:
        """Do it, journal that it was asked and what came of it, and answer."""
        hub = self._hub
        if hub.state.phase.ended and not isinstance(command, Down | SetAutostop):
            return CommandDone(command.id, False, ENDED)
        hub.emit(CommandReceived(command.id, describe(command), VERBS[type(command)]))
        if not isinstance(command, Down | SetAutostop | Stop):
            await hub.chronicle.until(self._settled, REACH_SECONDS)
        data: dict[str, str] = {}
        try:
            text, data = await self._do(command)
            ok = True
        except (Refused, CloudError) as error:
            ok, text = False, str(error)
        hub.emit(CommandDone(command.id, ok, text))
        return CommandDone(command.id, ok, text, data)

    async def _do(self, command: Action) -> tuple[str, dict[str, str]]:
        """What came of it, in a sentence, and what a dump brought. Raises Refused and CloudError."""
        if isinstance(command, Stop):
            return await self.stopping.stop(command), {}
        if isinstance(command, Down):
            return await self.stopping.down(command), {}
        if isinstance(command, SetAutostop):
            return await self._cloud().set_autostop(command.minutes), {}
        if isinstance(command, Restart) or (isinstance(command, SetNccl) and command.restart):
            async with self._turn:
                return await self._restart(command), {}
        return await self._routed(command)

    def _settled(self) -> bool:
        return all(node.link is not LinkState.CONNECTING for node in self._hub.state.nodes.values())

    def _cloud(self) -> Cloud:
        if self._hub.cloud is None:
            raise Refused(NO_CLUSTER)
        return self._hub.cloud

    # --- asking nodes ----------------------------------------------------------------------------------------

    async def ask(self, command: Action, node: int) -> Answer:
        """One node's answer to its part of a command; a broken link is an answer, too."""
        name, link = self._hub.name(node), self._hub.links.up(node)
        if link is None:
            return Answer(node, name, None, f"{name} does not answer")
        try:
            done = await link.send(structs.replace(command, id=sub_id(command.id, node)))
        except (LinkError, OSError) as error:
            return Answer(node, name, None, f"{name} did not answer: {error}")
        return Answer(node, name, done, done.text)

    async def _ask_all(self, command: Action, nodes: list[int]) -> list[Answer]:
        return list(await asyncio.gather(*(self.ask(command, node) for node in nodes)))

    def _silent(self) -> list[int]:
        """Nodes whose parts go on and that do not answer."""
        hub = self._hub
        return [node for node in hub.node_numbers() if not hub.ended(node) and hub.links.up(node) is None]

    # --- restart ---------------------------------------------------------------------------------------------

    async def _restart(self, command: Restart | SetNccl) -> str:
        """All nodes at once; done when every rank of the new attempt runs. Raises Refused."""
        hub = self._hub
        silent = self._silent()
        if silent and isinstance(hub.cloud, Hosts):
            await hub.cloud.revive(silent)
            silent = self._silent()
        if silent and not command.reachable:
            raise Refused(answers.needs_all([hub.describe_link(node) for node in silent]))
        return await self._restarted(command, [node for node in hub.alive() if node not in silent])

    async def _restarted(self, command: Restart | SetNccl, nodes: list[int]) -> str:
        hub = self._hub
        if not nodes:
            why = "no node is linked to yet, the launch goes on" if hub.launching else "no node answers"
            raise Refused(f"{why}: nothing was restarted")
        before, began = hub.state.attempt, time.monotonic()
        told = await self._ask_all(command, nodes)
        refused = [answer for answer in told if answer.done is not None and not answer.done.ok]
        if refused:
            raise Refused(answers.together(refused))
        wanted = time.monotonic() - began
        ready = await hub.chronicle.until(
            lambda: (
                hub.state.phase.ended
                or (hub.state.attempt > before and hub.state.phase is RunPhase.RUNNING)
            ),
            max(5.0, RESTART_SECONDS - wanted),
        )
        if hub.state.phase.ended:
            raise Refused(f"the run ended instead: {hub.state.end_text}")
        if not ready:
            missing = [answer.text for answer in told if answer.done is None]
            raise Refused(answers.not_running(hub.state.attempt, missing))
        ranks, seconds = len(hub.state.ranks), time.monotonic() - began
        text = f"restarted: attempt {hub.state.attempt}, {ranks} ranks on {answers.count(nodes)} running"
        return f"{text} after {seconds:.1f} s"

    # --- by rank ---------------------------------------------------------------------------------------------

    async def _routed(self, command: SetNccl | Signal | Dump) -> tuple[str, dict[str, str]]:
        """Ask the nodes that have the ranks. Raises Refused."""
        hub = self._hub
        nodes = answers.route(command.ranks, {rank: at.place.node for rank, at in hub.state.ranks.items()})
        if isinstance(nodes, str):
            raise Refused(nodes)
        asked = [
            self.ask(structs.replace(command, ranks=ranks), node)
            for node, ranks in nodes.items()
            if not hub.ended(node)
        ]
        told = list(await asyncio.gather(*asked))
        if not told:
            raise Refused("no rank is running")
        good = [answer for answer in told if answer.ok]
        text = answers.together(good + [answer for answer in told if not answer.ok])
        if len(good) < len(told) and not (isinstance(command, Dump) and good):
            raise Refused(text)
        data: dict[str, str] = {}
        for answer in good:
            data |= answer.done.data if answer.done is not None else {}
        return text, data
