"""Commands on several nodes: their routes, and the merged answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from msgspec import structs

from ...presets.plurals import plural
from ..agent.sharing import Sharing
from ..profile import profiling
from ..run import clock, saving
from ..run.command_executor import (
    NO_CLUSTER,
    RESTART_SECONDS,
    CommandExecutor,
    CommandRefused,
    Handler,
    Reply,
    reply,
    until_running,
)
from ..run.commands import (
    Action,
    Destination,
    Down,
    Dump,
    Profile,
    ReadLog,
    Restart,
    RunCommand,
    Save,
    SetAutostop,
    SetNccl,
    Share,
    Signal,
    Stop,
    Unshare,
)
from ..run.model import Clause, LinkState
from ..run.wire.client import Link, LinkError, SilentError, new_id
from .clouds import CloudError
from .links import Links, sub_id
from .merged_run import MergedRun
from .node_answers import Answer, beside, needs_all, not_running, route, together
from .on_hosts import Hosts
from .stopping import Stopping

REACH_SECONDS = 40.0
"""Maximum wait of a command for the first links to the nodes, at a launch or after the hub's restart."""


ALIVE_S = 10.0
"""Maximum seconds for an agent's answer to a cheap request, before the hub sends it a command."""
MUTE = (
    f"its agent has been silent for {ALIVE_S:.0f} s, so no command was sent to it: on that node, send its process "
    "(agent.json has the pid) SIGCONT or, the ranks do not notice, SIGKILL"
)


async def _silence(link: Link) -> str:
    """Why an agent with an intact link does not answer; "" if it does. Raises LinkError if the link breaks."""
    try:
        async with asyncio.timeout(ALIVE_S):
            await link.read_log(ReadLog("agent.log", limit=1))
    except TimeoutError:
        return MUTE
    except SilentError as error:
        return f"{error}; nothing was asked of it"
    return ""


def _in_parts(command: RunCommand) -> bool:
    """Whether the answers of some nodes are useful without the others."""
    return isinstance(command, Dump) or (isinstance(command, Profile) and command.part == "wait")


class HubCommands(CommandExecutor):
    """Executes the commands of the whole run, in the hub or through the nodes' agents."""

    failures = (CloudError,)

    def __init__(self, run: MergedRun, links: Links, sharing: Sharing) -> None:
        super().__init__(run)
        self._run, self._links = run, links
        self._profiles = profiling.Turn()
        self.stopping = Stopping(run, links, self.ask, self.execute)
        self._handlers: Mapping[type[RunCommand], Handler] = {
            Stop: self.stopping.stop,
            Down: self.stopping.down,
            SetAutostop: self._set_autostop,
            Share: sharing.share,
            Unshare: sharing.unshare,
        }

    async def carry_out(self, command: Action) -> Reply:
        return await self._handler(command)(command)

    def _handler(self, command: Action) -> Handler:
        if command.restarts:
            return self._restart
        if isinstance(command, Save):
            return self._save
        if isinstance(command, Profile) and not command.part:
            return self._profile
        return self._routed if command.goes_to is Destination.RANKS else self._handlers[type(command)]

    async def _links_settled(self) -> None:
        """Wait until no node is connecting for the first time."""
        run = self._run
        if not run.interrupted:
            states = run.state.nodes
            await run.until(
                lambda: all(node.link is not LinkState.CONNECTING for node in states.values()),
                REACH_SECONDS,
            )

    async def _set_autostop(self, command: SetAutostop) -> Reply:
        if self._run.cloud is None:
            raise CommandRefused(NO_CLUSTER)
        return reply(await self._run.cloud.set_autostop(command.minutes))

    async def ask(self, command: Action, node: int) -> Answer:
        """Return one node's answer to its part of a command; a broken link is an answer, too."""
        name, link = self._run.nodes.name(node), self._links.up(node)
        if link is None:
            return Answer(node, name, None, f"{name} does not answer")
        try:
            why = await _silence(link)
            if why:
                return Answer(node, name, None, f"{name}: {why}", mute=True)
            done = await link.send(structs.replace(command, id=sub_id(command.id, node)))
        except (LinkError, OSError) as error:
            return Answer(node, name, None, f"{name} did not answer: {error}")
        return Answer(node, name, done, done.text)

    async def _ask_all(self, command: Action, nodes: list[int]) -> list[Answer]:
        return list(await asyncio.gather(*(self.ask(command, node) for node in nodes)))

    async def _restart(self, command: Restart | SetNccl) -> Reply:
        """Restart all nodes together, and wait until every rank of the new attempt runs. Raises CommandRefused."""
        run = self._run
        await self._links_settled()
        async with self.turn:
            if run.interrupted:
                return reply(await self._launched())
            silent = self._links.silent()
            if silent and isinstance(run.cloud, Hosts):
                await run.cloud.revive(silent)
                silent = self._links.silent()
            if silent and not command.reachable:
                raise CommandRefused(needs_all([run.nodes.describe_link(node) for node in silent]))
            nodes = [node for node in run.nodes.alive() if node not in silent]
            return reply(await self._restarted(command, nodes))

    async def _launched(self) -> str:
        """Resume a launch that was cut off, and wait until all ranks run. Raises CommandRefused."""
        run, began = self._run, clock.monotonic()
        run.go_on.set()
        if not await until_running(run, -1, RESTART_SECONDS):
            return "the launch goes on: `distui status` shows how far it is"
        return f"launched: {plural(len(run.state.ranks), 'rank')} running after {clock.monotonic() - began:.1f} s"

    async def _restarted(self, command: Restart | SetNccl, nodes: list[int]) -> str:
        run = self._run
        if not nodes:
            why = "no node is linked to yet, the launch goes on" if run.launching else "no node answers"
            raise CommandRefused(f"{why}: nothing was restarted")
        await self._all_ready(nodes)
        before, began = run.state.attempt, clock.monotonic()
        answers = await self._ask_all(command, nodes)
        refused = [answer for answer in answers if answer.done is not None and not answer.done.ok]
        if refused:
            raise CommandRefused(together(refused))
        if not await until_running(run, before, max(5.0, RESTART_SECONDS - (clock.monotonic() - began))):
            missing = [answer.text for answer in answers if answer.done is None]
            raise CommandRefused(not_running(run.state.attempt, missing))
        ranks, seconds = len(run.state.ranks), clock.monotonic() - began
        text = f"restarted: attempt {run.state.attempt}, {plural(ranks, 'rank')} on {plural(len(nodes), 'node')} running"
        return "; ".join(filter(None, [f"{text} after {seconds:.1f} s", beside(answers)]))

    async def _all_ready(self, nodes: list[int]) -> None:
        """Check that every node can restart its ranks. Raises CommandRefused if one cannot."""
        answers = await self._ask_all(Dump(new_id(), "runner"), nodes)
        unable = [answer for answer in answers if not answer.ok]
        if unable:
            raise CommandRefused(needs_all([answer.named(answer.text) for answer in unable]))

    async def _save(self, command: Save) -> Reply:
        """Ask every rank to save if all would accept, and wait for the checkpoint. Raises CommandRefused."""
        run = self._run
        asked = saving.way(run.state)
        if asked is None:
            raise CommandRefused(saving.NO_WAY)
        await self._routed(Save(new_id(), only="check"))
        times = saving.now_of(run.state.ranks)  # by the hub's clock, as the checkpoints' times here
        attempt = run.state.attempt
        await self._routed(Save(new_id(), only="ask"))
        came, text = await saving.awaited(run, asked, times, attempt, command.seconds)
        if not came:
            raise CommandRefused(text)
        return reply(text)

    async def _profile(self, command: Profile) -> Reply:
        """Profile the same steps of ranks on all nodes. Raises CommandRefused."""
        await self._links_settled()
        with self._profiles.taken():
            return await profiling.coordinated(
                command, len(command.ranks or self._run.state.ranks), self._routed, self._run.emit
            )

    async def _routed(self, command: SetNccl | Signal | Save | Dump | Profile) -> Reply:
        """Send a command to the nodes of its ranks. Raises CommandRefused."""
        await self._links_settled()
        run = self._run
        nodes = route(command.ranks, {rank: at.place.node for rank, at in run.state.ranks.items()})
        if isinstance(nodes, str):
            raise CommandRefused(nodes)
        asked = [
            self.ask(structs.replace(command, ranks=ranks), node)
            for node, ranks in nodes.items()
            if not run.nodes.ended(node)
        ]
        return _joined(command, list(await asyncio.gather(*asked)))


def _joined(command: SetNccl | Signal | Save | Dump | Profile, answers: list[Answer]) -> Reply:
    """Join the answers of the nodes, the good ones first. Raises CommandRefused."""
    if not answers:
        raise CommandRefused("no rank is running")
    good = [answer for answer in answers if answer.ok]
    text = together(sorted(answers, key=lambda answer: not answer.ok))
    if len(good) < len(answers) and not (_in_parts(command) and good):
        raise CommandRefused(text)
    data: dict[str, str] = {}
    for answer in good:
        data |= answer.done.data if answer.done is not None else {}
    return Reply([Clause(text)], data)
