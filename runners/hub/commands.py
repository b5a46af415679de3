"""Commands on several nodes: their routes, the merged answers, and the stop of a run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from ...presets.finding import sentence
from ...presets.plurals import plural
from ..node.agentless import forced_stop
from ..profile import profiling
from ..run import clock, run_directories, saving
from ..run.command_executor import (
    ENDED,
    NO_CLUSTER,
    RESTART_SECONDS,
    CommandExecutor,
    CommandRefused,
    Handler,
    Reply,
    reply,
)
from ..run.errors import RunError
from ..run.formatting import agreeing, duration_text
from ..run.model import (
    Action,
    Clause,
    CommandDone,
    Destination,
    Down,
    Dump,
    LinkState,
    Profile,
    ReadLog,
    Restart,
    RunCommand,
    Save,
    SetAutostop,
    SetNccl,
    Signal,
    Stop,
)
from ..run.wire.client import Link, LinkError, SilentError, new_id
from ..run.wire.ssh import HostError
from .links import Links, sub_id
from .merged_run import CANCEL, CANCEL_SECONDS, Cloud, CloudError, MergedRun, patience
from .on_hosts import Hosts


@dataclass(frozen=True, slots=True)
class Answer:
    """One node's answer to its part of a command."""

    node: int
    name: str
    """Name on screens: "node 1 (host)"."""
    done: CommandDone | None
    """The CommandDone; None if the link broke before the answer."""
    text: str
    """Text of the answer; without an answer the reason, which begins with the node's name."""
    mute: bool = False
    """True if the link is up but the agent does not answer."""

    @property
    def ok(self) -> bool:
        return self.done is not None and self.done.ok

    @property
    def clauses(self) -> tuple[Clause, ...]:
        """The statements of the answer."""
        return (self.done.clauses if self.done is not None else ()) or (Clause(self.text),)

    def named(self, text: str) -> str:
        """Prefix one of its statements with the node's name, unless the text already has it (no answer)."""
        return text if self.done is None else f"{self.name}: {text}"


def route(ranks: Sequence[int], node_of: Mapping[int, int]) -> dict[int, tuple[int, ...]] | str:
    """Return node → ranks that the command goes to, () for all of its ranks; a sentence if a rank does not exist."""
    if not ranks:
        return dict.fromkeys(sorted(set(node_of.values())), ())
    chosen: dict[int, tuple[int, ...]] = {}
    for rank in ranks:
        if rank not in node_of:
            return f"there is no running rank {rank}"
        chosen[node_of[rank]] = (*chosen.get(node_of[rank], ()), rank)
    return chosen


def together(answers: Sequence[Answer]) -> str:
    """Merge all answers into one sentence: a clause of several answers appears once, with all their ranks."""
    groups: dict[str, list[tuple[Answer, Clause]]] = {}
    for answer in answers:
        for clause in answer.clauses:
            groups.setdefault(clause.text, []).append((answer, clause))
    parts: list[str] = []
    for text, group in groups.items():
        ranks = tuple(rank for _, clause in group for rank in clause.ranks)
        if ranks or len(group) == len(answers):
            parts.append(Clause(text, ranks).words())
        else:
            parts += [answer.named(text) for answer, _ in group]
    return "; ".join(dict.fromkeys(parts))


def beside(answers: Sequence[Answer]) -> str:
    """Merge the clauses after the first of each answer into one sentence."""
    rest = [
        replace(answer, done=structs.replace(answer.done, clauses=answer.done.clauses[1:]))
        for answer in answers
        if answer.done is not None and len(answer.done.clauses) > 1
    ]
    return together(rest)


def needs_all(silent: Sequence[str]) -> str:
    """Reason why a restart is refused."""
    why = sentence(f"a restart needs every node, and nothing was restarted: {'; '.join(silent)}")
    return f"{why} Wait for it, or go on without it with --reachable"


def not_running(attempt: int, missing: Sequence[str]) -> str:
    """Reason why a restart is not complete."""
    return "; ".join([f"attempt {attempt} is not running yet: see its logs", *missing])


def stopped_without(silent: Sequence[str], any_reached: bool, seconds: float | None) -> str:
    """Text of a stop without some nodes. The hub retries for `seconds`; None: no more."""
    names, single = ", ".join(silent), len(silent) == 1
    begin = "stopped on the nodes that answer" if any_reached else "no node was reached"
    if seconds is None:
        return f"{begin}; {names} did not answer: what runs there goes on until it is ended there"
    does, ordered = ("does", "it is told") if single else ("do", "they are told")
    without = (
        f"after {duration_text(seconds)} the run counts as stopped without {'it' if single else 'them'}"
    )
    return f"{begin}; {names} {does} not answer: {ordered} to stop on the first answer, {without}"


def not_stopped_yet(names: Sequence[str]) -> str:
    """Text of a stop that is not complete: these nodes still run."""
    verb = agreeing(names, "has", "have")
    return f"{', '.join(names)} {verb} not stopped yet: see agent.log there"


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

    def __init__(self, run: MergedRun, links: Links) -> None:
        super().__init__(run)
        self._run, self._links = run, links
        self._profiles = profiling.Turn()
        self.stopping = Stopping(run, links, self.ask, self.execute)
        self._handlers: Mapping[type[RunCommand], Handler] = {
            Stop: self.stopping.stop,
            Down: self.stopping.down,
            SetAutostop: self._set_autostop,
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
        if not await run.until_running(-1, RESTART_SECONDS):
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
        if not await run.until_running(before, max(5.0, RESTART_SECONDS - (clock.monotonic() - began))):
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
        times, attempt = (
            saving.now_of(run.state.ranks),
            run.state.attempt,
        )  # by the hub's clock, as the checkpoints' times here
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
                command, len(command.ranks or self._run.state.ranks), self._routed
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
