"""A run without an agent: answer from its files, end its processes, and start its next attempt.

A stop needs no file of the run: missing or damaged files only reduce the recorded facts.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from ...presets.finding import Finding
from ..agent.runner_process import ReportTail
from ..diagnosis.status import DAMAGED
from ..logs.kept_pieces import all_sizes, ask_anywhere
from ..logs.windows import ask_window
from ..run import clock, file_io, file_locks, host_processes, run_directories
from ..run.answers import MetricsWindow
from ..run.chronicle import Chronicle
from ..run.command_executor import RESTART_SECONDS
from ..run.commands import Command, Hello, ReadLog, ReadMetrics, Restart, Stop, Via
from ..run.environment import RESTART, refusal
from ..run.errors import OUTCOME_UNKNOWN, RunError, UnreachableError
from ..run.history import History
from ..run.log_files import file_sizes
from ..run.model import (
    AttemptEnded,
    CaughtUp,
    CommandDone,
    CommandReceived,
    Event,
    FindingRaised,
    LogGrew,
    Outcome,
    RankChanged,
    RankPhase,
    RunCreated,
    RunEnded,
    RunPhase,
    Stamped,
)
from ..run.proc import pids
from ..run.processes import gone, marked, resume, send_signal, state_of, sweep, unmarked
from ..run.run_directories import AGENT_FILE, AGENT_LOCK, MANIFEST, RUNNER_FILE, Entry
from ..run.server_link import connect
from ..run.state import RunState
from ..run.wire.client import Link, LinkError, SocketLink, Window, new_id, sweep_sockets
from ..telemetry import curves

GRACE_S = 30.0
LOCK_S = 3.0
"""Maximum seconds to wait until a killed agent has ended and its lock is free."""


def daemons(run_dir: Path) -> list[int]:
    """Living agents or hubs of a run directory, by their arguments: even if agent.json is missing or wrong."""
    holders = file_locks.holders(run_dir / AGENT_LOCK)  # also if the directory was moved
    others = [pid for pid in pids() if pid != os.getpid()]
    return [pid for pid in others if host_processes.serves(pid, run_dir, "agent") or pid in holders]


async def forced_stop(
    run_dir: Path, *, node: int = 0, grace_s: float = GRACE_S, command: str = ""
) -> CommandDone:
    """End the agent, which would restart ranks, then runner and ranks: TERM, `grace_s`, KILL; record the end.

    `run_dir` may be damaged or missing: its name is the run's id. `command`: id of the stop. Raises UnreachableError for
    a run on another host or in another container.
    """
    entry = run_directories.served(run_dir)
    where = run_directories.elsewhere(entry) if entry is not None else ""
    if where:
        raise UnreachableError(f"{where} stop")
    for pid in daemons(run_dir):
        send_signal(pid, signal.SIGKILL)
        await gone(pid, LOCK_S)
    with _alone(run_dir):
        left = await _end_processes(run_dir, grace_s)
        written = await asyncio.to_thread(_record, run_dir, node, command, left)
    if entry is not None:
        sweep_sockets(entry.record.run8)
    if left:
        return CommandDone(command, False, f"stopped, but these processes would not end: {', '.join(left)}")
    text = f"stopped without its agent: no process of the run is left{written and f'; {written}'}"
    return CommandDone(command, True, text)


async def _end_processes(run_dir: Path, grace_s: float) -> list[str]:
    """End the runner first, which gives its ranks this grace period, then the rest. Return a text per living process."""
    run, runner = run_dir.name, host_processes.named(run_dir, RUNNER_FILE, "runner")
    also = unmarked(run)
    if runner is not None:
        send_signal(runner.pid, signal.SIGTERM)
        resume((runner.pid, *marked(run)))
        await gone(runner.pid, grace_s)
        grace_s = 1.0
        left = await sweep(run, also=also, grace_s=grace_s)
        if file_io.alive(runner):
            send_signal(runner.pid, signal.SIGKILL)
            if not await gone(runner.pid, 3.0):
                left = [*left, f"pid {runner.pid} (state {state_of(runner.pid)})"]
        return list(dict.fromkeys(left))
    return await sweep(run, also=also, grace_s=grace_s)


@contextlib.contextmanager
def _alone(run_dir: Path) -> Iterator[None]:
    """Hold the agents' lock if possible, so that no viewer starts an agent during the stop."""
    try:
        lock = os.open(run_dir / AGENT_LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield  # no folder, or no agent yet
        return
    try:
        deadline = clock.monotonic() + LOCK_S
        while clock.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.05)
        yield
    finally:
        os.close(lock)


def _record(run_dir: Path, node: int, command: str, left: list[str]) -> str:
    """Close the journal like the agent would; return "" or the reason of a failure."""
    try:
        chronicle = Chronicle(run_dir)
        chronicle.replay()
    except OSError as error:
        return f"its journal cannot be written ({error.strerror})"
    try:
        if not chronicle.state.phase.ended:
            _close(chronicle, run_dir, node, command, left)
        chronicle.journal.flush()
        return "its journal cannot be written: there is no room" if chronicle.journal.blocked else ""
    finally:
        chronicle.journal.close()


def _close(chronicle: Chronicle, run_dir: Path, node: int, command: str, left: list[str]) -> None:
    state = chronicle.state
    chronicle.emit(CommandReceived(command, "stop requested, without an agent", "stop"), node=node)
    for offset, stamped in ReportTail(run_dir, state.source).read():
        if not isinstance(stamped.event, RunEnded):
            chronicle.emit(stamped.event, node=node, source=offset, at=stamped.time)
    for number, rank in state.ranks.items():
        if rank.phase in (RankPhase.STARTING, RankPhase.RUNNING):
            change = RankChanged(state.attempt, number, RankPhase.STOPPED, rank.place.local_rank, rank.pid)
            chronicle.emit(change, node=node)
    if state.attempts and state.attempts[-1].ended is None:
        number = state.attempt
        chronicle.emit(AttemptEnded(number, Outcome.STOPPED, None, f"attempt {number} stopped"), node=node)
    for asked in [*state.open_commands]:
        if asked != command:
            chronicle.emit(CommandDone(asked, False, OUTCOME_UNKNOWN), node=node)
    text = f"stopped, but these processes would not end: {', '.join(left)}" if left else "stopped"
    chronicle.emit(RunEnded(RunPhase.STOPPED, 1, text), node=node)
    chronicle.emit(CommandDone(command, not left, f"{text} without its agent"), node=node)


async def stop_run(
    entry: Entry, command: Stop, say: Callable[[str], None], open_link: Callable[[Entry], Awaitable[Link]]
) -> CommandDone:
    """Stop a run through its agent or hub; if that fails, without it, after a call of `say` with the reason.

    A hub that does not answer is replaced: the ranks are on other nodes, where agents end them. Raises LinkError and
    RunError.
    """
    if run_directories.phase(entry) is RunPhase.LOST:
        return await without_agent(entry, command)
    try:
        return await _ask(entry, command, open_link)
    except LinkError as error:
        if entry.record.kind == "local":
            say(f"{error}; ending its processes without the agent")
            return await without_agent(entry, command)
        await _end_hub(entry, error, say)
    return await _ask(entry, Stop(new_id(), command.grace_s), open_link)


async def _ask(entry: Entry, command: Stop, open_link: Callable[[Entry], Awaitable[Link]]) -> CommandDone:
    link = await open_link(entry)
    try:
        return await link.send(command)
    finally:
        await link.close()


async def _end_hub(entry: Entry, error: LinkError, say: Callable[[str], None]) -> None:
    """End the hub of a run on this host, so that the next link starts another. Raises `error` if it is elsewhere."""
    path = run_directories.runs_dir() / entry.record.whole if entry.record.kind == "node" else entry.path
    who = file_io.read(path / AGENT_FILE)
    pids = daemons(path)
    if (who is None and not pids) or (who is not None and file_io.elsewhere(who)):
        raise error
    ended = f"ending it (pid {', '.join(map(str, pids))})" if pids else "it is gone"
    say(f"{error}; {ended}, and another hub stops the nodes")
    for pid in pids:
        send_signal(pid, signal.SIGKILL)
        await gone(pid, LOCK_S)


async def without_agent(entry: Entry, command: Stop) -> CommandDone:
    """End the processes of a run without an agent. Raises RunError, also for a run with nodes elsewhere."""
    if entry.record.kind == "hub":
        raise RunError(
            f"no hub can be started for {entry.record.name} here, and only one ends its nodes: "
            f"ssh to one of them and type `distui stop {entry.record.run}`"
        )
    grace_s = command.grace_s
    if grace_s is None:
        plan = entry.state().plan
        grace_s = plan.grace_s if plan is not None and plan.launcher else GRACE_S
    return await forced_stop(entry.path, node=entry.record.node, grace_s=grace_s, command=command.id)


def damage(entry: Entry, history: History) -> list[Event]:
    """Return a finding about the damaged files of a run, if any."""
    if not history.problems:
        return []
    text = f"not all of {entry.record.name} can be read: {'; '.join(history.problems)}"
    opened = os.path.exists(entry.path / MANIFEST)  # an opened bundle's folder is temporary
    remedy = "what the other files say is shown" + ("" if opened else f"; they are in {entry.path}")
    return [FindingRaised(Finding(DAMAGED, "warning", text, node=entry.record.node, remedy=remedy))]


class DiskLink:
    """Read-only link to files; its events end with the history."""

    readonly = True

    def __init__(self, entry: Entry) -> None:
        self._entry, self._run_dir = entry, entry.path
        merged = entry.record.kind == "hub"  # run on several nodes
        self._ask, self._sizes = (ask_anywhere, all_sizes) if merged else (ask_window, file_sizes)

    async def events(self, after: int = 0) -> AsyncIterator[Stamped]:
        """See Link.events: the history and its end. Events that are in no journal have no number."""
        history = self._entry.history()
        for stamped in history.events:
            if stamped.seq > after or not (
                stamped.seq or (after and isinstance(stamped.event, RunCreated))
            ):
                yield stamped
        now = clock.now()
        for event in self.closing(history):
            yield Stamped(self.heard(history), event, node=history.events[0].node)
        yield Stamped(now, LogGrew(self._sizes(self._run_dir)))
        yield Stamped(now, CaughtUp(max(after, history.state.seq)))

    def closing(self, history: History) -> list[Event]:
        """Events after the history: a finding about damaged files."""
        return damage(self._entry, history)

    def heard(self, history: History) -> float:
        """Unix time of the newest event."""
        return max(stamped.time for stamped in history.events)

    async def send(self, command: Command) -> CommandDone:
        """Refuse the command, because the run has ended."""
        assert not isinstance(command, Hello | Via | ReadLog | ReadMetrics)
        again = f"`distui rerun {self._entry.record.name}` starts it again"
        return CommandDone(command.id, False, f"the run has ended: {again}")

    async def read_log(self, ask: ReadLog) -> Window:
        """See Link.read_log."""
        return await self._ask(self._run_dir, ask)

    async def read_metrics(self, ask: ReadMetrics) -> MetricsWindow:
        """See Link.read_metrics."""
        return await curves.ask_curves(curves.kept(self._entry), ask)

    async def close(self) -> None:
        return


# Link to a run without an agent that has not ended: its files answer, and it can be stopped. Such a run is lost
# (neither agent nor runner lives), or its agent cannot start (a damaged plan, a full disk). Reading changes nothing.
# Only two commands do: stop ends its processes, restart starts the next attempt.


Start = Callable[[Mapping[str, str]], None]
"""Start an agent with additional variables."""


class FilesLink(DiskLink):
    """Answers from files; its messages contain `why` there is no agent."""

    readonly = False

    def __init__(self, entry: Entry, why: str, readonly: bool = False, start: Start | None = None) -> None:
        """`start`: for a lost run, starts an agent that starts the next attempt. Raises RunError."""
        super().__init__(entry)
        self.why, self.readonly, self._start = why, readonly, start

    def closing(self, history: History) -> list[Event]:
        """See DiskLink.closing."""
        if self._start is not None:
            return [*super().closing(history), RunEnded(RunPhase.LOST, None, self.why)]
        text = f"no agent serves {self._entry.record.name}, its files show: {self.why}"
        remedy = f"`distui stop {self._entry.record.name}` ends its processes all the same"
        finding = Finding("no-agent", "error", text, node=self._entry.record.node, remedy=remedy)
        return [*super().closing(history), FindingRaised(finding)]

    async def send(self, command: Command) -> CommandDone:
        """Execute stop and restart, the only commands that need no agent."""
        assert not isinstance(command, Hello | Via | ReadLog | ReadMetrics)
        if self.readonly and isinstance(command, Stop | Restart):
            return CommandDone(command.id, False, "this connection is read-only")
        try:
            if isinstance(command, Stop):
                return await without_agent(self._entry, command)
            if isinstance(command, Restart) and self._start is not None:
                return await restart(self._entry, command, self._start)
        except (RunError, LinkError, OSError) as error:
            return CommandDone(command.id, False, str(error))
        return CommandDone(command.id, False, self.why)


async def restart(entry: Entry, command: Restart, start: Start) -> CommandDone:
    """Start the next attempt of a lost run, with the requested changes. Raises RunError and LinkError."""
    name = entry.record.name
    changes: dict[str, str | None] = {**command.env, **dict.fromkeys(command.unset)}
    if refused := refusal(changes):
        raise RunError(refused)
    if entry.history().state.phase is RunPhase.STOPPING:
        raise RunError(
            f"{name} was being stopped when it was lost: `distui stop {name}` closes it, "
            f"`distui rerun {name}` starts it again"
        )
    await asyncio.to_thread(start, {RESTART: msgspec.json.encode(command).decode()})
    who = entry.agent()
    if who is None:
        raise RunError(f"the agent did not stay: see {entry.path / 'agent.log'}")
    link = await connect(who)
    try:
        return await asyncio.wait_for(_answer(link, command), RESTART_SECONDS)
    except TimeoutError:
        raise RunError(f"no attempt is running after {RESTART_SECONDS:.0f} s: see its logs") from None
    finally:
        await link.close()


async def _answer(link: SocketLink, command: Restart) -> CommandDone:
    """Wait for the agent's answer. Raises RunError if the run ends before it, and LinkError."""
    state = RunState()
    async for stamped in link.events():
        state.apply(stamped)
        if isinstance(stamped.event, CommandDone) and stamped.event.id == command.id:
            return stamped.event
        if state.live and state.phase.ended and command.id not in state.open_commands:
            break
    if state.phase.ended:
        raise RunError(f"the run ended instead: {state.end_text}")
    raise RunError("another agent serves the run, and was not asked: type it again")
