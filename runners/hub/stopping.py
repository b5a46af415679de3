"""Stop a run on several nodes, or take its cluster down afterwards."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator

from ..node.agentless import forced_stop
from ..run import clock, run_directories
from ..run.command_executor import ENDED, NO_CLUSTER, CommandRefused, Reply, reply
from ..run.commands import Down, Stop
from ..run.errors import RunError
from ..run.model import CommandDone, LinkState
from ..run.wire.client import new_id
from ..run.wire.ssh import HostError
from .clouds import CANCEL, CANCEL_SECONDS, Cloud, CloudError
from .links import Links
from .merged_run import MergedRun
from .node_answers import Answer, not_stopped_yet, stopped_without, together
from .on_hosts import Hosts
from .run_ending import patience

STOP_SECONDS = 30.0
"""Seconds after the grace period before a stop is answered with its state at that time."""
SILENT_SECONDS = 5.0
"""Seconds that a stop retries nodes that do not answer, before it reports them."""
END_SECONDS = 5.0
"""Maximum seconds from the last read part to the end of the run."""
HEARD_SECONDS = 30.0
"""Maximum seconds until a node reports the end of a part that was ended without its agent."""
CONNECTING_SECONDS = 20.0
"""Seconds after the hub's start for it to reach its nodes, so that all nodes get a stop together. If the first node
ends before the others, the connection to them ends with it, and their launcher kills them."""
CHECK_SECONDS = 0.1

Ask = Callable[[Stop, int], Awaitable[Answer]]
"""Return one node's answer to its part of a stop."""


def _is_problem(answer: Answer) -> bool:
    """Return True if a node refused a stop. A node that was stopped as it connected may have ended before."""
    return answer.done is not None and not answer.ok and answer.done.text != ENDED


Execute = Callable[[Stop], Awaitable[CommandDone]]
"""Execute a stop like a viewer's: journaled and answered."""


def _log(text: str) -> None:
    """Write a line to the hub's own log."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class Stopping:
    """Stops the run, or takes its cluster down afterwards."""

    def __init__(self, run: MergedRun, links: Links, ask: Ask, execute: Execute) -> None:
        self._run, self._links, self._ask, self._execute = run, links, ask, execute
        self._began = clock.monotonic()

    def begin(self) -> None:
        """Begin the stop: stop every node that answers from now on, and retry the other links at once."""
        if not self._run.stop_asked.is_set():
            self._run.stop_since = clock.now()
            self._run.stop_asked.set()
        self._links.hurry()

    async def stop(self, command: Stop) -> Reply:
        """End the parts of all nodes that answer, and of the others once they do. Raises CommandRefused."""
        run, began = self._run, clock.monotonic()
        self.begin()
        grace_s = run.plan.grace_s if command.grace_s is None else command.grace_s
        await self._until(self._none_connects, self._began + CONNECTING_SECONDS)
        await self._until(self._all_were_reached, clock.monotonic() + SILENT_SECONDS)
        limit = clock.monotonic() + grace_s + STOP_SECONDS
        answers = await self._send_all(command, limit)
        mute = [answer.node for answer in answers if answer.mute]
        if mute:
            await self._stop_there(mute, grace_s)
        answers = [answer for answer in answers if not answer.mute]
        await self._given_up()
        limit = max(limit, clock.monotonic() + END_SECONDS)
        await self._until(self._no_part_is_awaited, limit)
        await self._until(lambda: not run.nodes.alive(), began + SILENT_SECONDS)
        if here := self._stuck_here():
            await self._stop_there(here, grace_s)
        if not run.nodes.alive():
            await self._until(self._over, limit)
        return reply(self._answer(answers))

    async def _given_up(self) -> None:
        """Wait until a running launch has given up, which it does in its own time."""
        deadline = clock.monotonic() + CANCEL_SECONDS + END_SECONDS
        while self._run.launching and clock.monotonic() < deadline:
            await asyncio.sleep(CHECK_SECONDS)

    async def _send_all(self, command: Stop, limit: float) -> list[Answer]:
        """Answers of the linked nodes that come before `limit`."""
        run, silent = self._run, self._links.silent()
        linked = [node for node in run.nodes.alive() if node not in silent]
        asked = [asyncio.ensure_future(self._ask(command, node)) for node in linked]
        if silent and run.cloud is not None:
            run.parts.once(CANCEL, self._cancel(run.cloud))
        if not asked:
            return []
        done, late = await asyncio.wait(asked, timeout=max(0.0, limit - clock.monotonic()))
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return [task.result() for task in asked if task in done]

    def _here(self, nodes: Collection[int]) -> dict[int, run_directories.Entry]:
        """Return the parts of these nodes on this machine."""
        parts = {part.record.node: part for part in run_directories.parts(self._run.record.run)}
        return {
            node: parts[node]
            for node in nodes
            if node in parts and not run_directories.elsewhere(parts[node])
        }

    def _stuck_here(self) -> dict[int, run_directories.Entry]:
        """Parts on this machine with living agents that the hub cannot connect to."""
        unlinked = self._links.silent()
        routes = {node: self._links.by_node[node].route for node in unlinked}
        return {
            node: part
            for node, part in self._here(unlinked).items()
            if routes[node].target.endswith(f"/{part.record.run8}.sock") and part.agent() is not None
        }

    async def _stop_there(self, nodes: Collection[int], grace_s: float) -> None:
        """Stop nodes whose agents do not answer, by another channel if there is one.

        The run's end is held back while this takes.
        """
        with self._run.hold_end():
            await self._stop_without_agents(nodes, grace_s)
            heard = clock.monotonic() + HEARD_SECONDS

            def ended() -> bool:
                return self._run.state.phase.ended or not set(nodes) & set(self._run.nodes.alive())

            while not ended() and clock.monotonic() < heard:
                self._links.hurry()  # an agent does not wait to report its end
                await self._until(ended, clock.monotonic() + 1.0)

    async def _stop_without_agents(self, nodes: Collection[int], grace_s: float) -> None:
        run = self._run
        here = self._here(nodes)
        hosts = run.cloud if isinstance(run.cloud, Hosts) else None
        doing: list[Awaitable[object]] = []
        for node in nodes:
            if node in here:
                doing.append(forced_stop(here[node].path, node=node, grace_s=grace_s))
            elif hosts is not None:
                doing.append(hosts.stop(node, grace_s))
        await asyncio.gather(*map(self._report_failure, doing))
        if hosts is None and run.cloud is not None and any(node not in here for node in nodes):
            run.parts.once(CANCEL, self._cancel(run.cloud))

    async def _report_failure(self, doing: Awaitable[object]) -> None:
        try:
            await doing
        except (CloudError, HostError, RunError, OSError) as error:
            _log(str(error))

    async def _cancel(self, cloud: Cloud) -> None:
        """Let the cloud stop the nodes that do not answer."""
        await self._report_failure(cloud.cancel())

    async def _until(self, wanted: Callable[[], bool], deadline: float) -> None:
        run = self._run
        seconds = max(0.0, deadline - clock.monotonic())
        await run.until(lambda: run.state.phase.ended or wanted(), seconds)

    def _none_connects(self) -> bool:
        """Whether no node is connecting for the first time. Nodes of a launch are stopped when they connect."""
        nodes, coming = self._run.nodes, (None, LinkState.CONNECTING)
        return self._run.launching or not any(
            node in self._links.by_node and nodes.link(node) in coming for node in nodes.alive()
        )

    def _all_were_reached(self) -> bool:
        """Whether each node answered this hub once. Nodes of a launch are stopped when they connect."""
        links = self._links.by_node
        return self._run.launching or all(
            links[node].reached for node in self._run.nodes.alive() if node in links
        )

    def _no_part_is_awaited(self) -> bool:
        """Whether every part has ended or is on a lost node; a connecting node may still answer."""
        nodes = self._run.nodes
        return all(nodes.link(node) is LinkState.LOST for node in nodes.alive())

    def _over(self) -> bool:
        """Whether all parts are read while the run's end is held back: nothing else will come."""
        return self._run.held and self._run.nodes.all_read()

    def _answer(self, answers: list[Answer]) -> str:
        """Return the stop's answer; raise CommandRefused if a process may be left."""
        problems = [answer for answer in answers if _is_problem(answer)]
        reasons = [together(problems)] if problems else []
        reasons += self._running()
        if not reasons and not self._run.state.phase.ended and not self._over():
            reasons.append("the run does not end: see agent.log of its hub")
        if reasons:
            raise CommandRefused("; ".join(reasons))
        return "stopped: no process of the run is left"

    def _running(self) -> Iterator[str]:
        """Yield sentences on the nodes on which the run may continue."""
        nodes, silent = self._run.nodes, self._links.silent()
        if silent:
            ended = self._run.state.phase.ended
            seconds = None if ended else patience(True, nodes.some_ended(), False)
            reached = len(silent) < len(nodes.numbers())
            yield stopped_without([nodes.name(node) for node in silent], reached, seconds)
        mute = [nodes.name(node) for node in nodes.alive() if node not in silent]
        if mute:
            yield not_stopped_yet(mute)

    async def late(self, node: int) -> None:
        """Stop a node that did not answer at the time of the stop."""
        await self._ask(Stop(new_id()), node)

    async def down(self, command: Down) -> Reply:
        """Stop the ranks, then take the cluster down; the run ends after that.

        Raises CommandRefused and CloudError.
        """
        run, name = self._run, command.cluster
        if run.cloud is None:
            raise CommandRefused(NO_CLUSTER)
        run.cloud.check_down(name)
        if run.state.phase.ended:
            return reply(await run.cloud.down(name))
        with run.hold_end():
            stopped = await self._execute(Stop(new_id()))
            first = f"{run.record.name} was stopped first" if stopped.ok else f"before that: {stopped.text}"
            try:
                text = await run.cloud.down(name)
            except CloudError as error:
                raise CloudError(f"cluster {name} was not taken down: {error}; {first}") from None
            run.why_stopped = f"stopped: cluster {name} was taken down"
            return reply(f"{text}; {first}")
