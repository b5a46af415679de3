"""Supervise the runner: attempts, exits, and the ledger of attempts."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct, structs

from ...presets.finding import Finding
from ...presets.sanitize import clean_line, clean_text
from ..diagnosis import activity
from ..diagnosis.died import behind
from ..inrank.failure_causes import Death, Failure, classify, first_of, left_early
from ..inrank.restart_policy import after_failure
from ..logs.windows import read_window
from ..run import clock, file_io
from ..run.host_processes import StartMode
from ..run.log_files import LogError, command_id, file_id
from ..run.model import (
    AttemptEnded,
    AttemptStarted,
    EnvironmentRestored,
    FirstCause,
    HookChanged,
    Outcome,
    RankChanged,
    RankPhase,
    RankSample,
    ReadLog,
    RestartDelayed,
    RunEnded,
    RunnerLost,
    RunPhase,
    Site,
    Stamped,
    Wrapped,
)
from ..run.processes import sweep
from ..run.state import Rank
from ..telemetry.signal_names import Reported
from . import pulses
from .checkpoint_watch import CheckpointWatch
from .commands import Restarts
from .hook_clients import MOST_STACKS, Hooks
from .kernel_evidence import NOTHING, KernelEvidence, OomWatch
from .nccl_logs import NcclLogs
from .runner_process import ReportTail, Runner, ServedRun, SpawnRunner, reports
from .sampling import Sampling

LAST_LINES = 12
LONGEST = 400
"""Longest sentence about a failure, in characters."""

MOST_READ = 80
"""Lines of a rank's stderr that determine the kind of failure."""


_RANK = re.compile(r"\[rank(\d+)\]: ")
"""torch's prefix of each line of an exception."""


class Raised(Struct, frozen=True):
    """The hook's report of an uncaught exception: see inrank/tracebacks.py."""

    time: float
    type: str
    text: str
    where: str = ""
    importing: bool = False
    path: str | None = None
    python: str = ""
    before: tuple[str, ...] = ()
    step: int | None = None
    untrained: bool = False


class _Noted(Struct, frozen=True):
    """A part of the hook's report at the end of its rank."""

    step: int | None = None
    made: Wrapped | None = None
    optimizer: bool = False
    alone: bool = False
    """True if it imported torch and never had a process group."""
    signals: Reported | None = None
    """The script's last report to experiment trackers, or None."""

    @property
    def trained_nothing(self) -> bool:
        """Return True if 0 steps mean no steps, and not steps that were not counted."""
        return self.optimizer or self.alone


@dataclass(frozen=True, slots=True)
class Ended:
    """A rank that ended abnormally, with the content of its files."""

    change: RankChanged
    raised: Raised | None
    last_lines: tuple[str, ...]
    evidence: KernelEvidence = NOTHING
    node: int = 0
    finished: bool = False
    """True if its script had reached its end."""
    crash: tuple[Site, ...] = ()
    """The stack when a signal killed it, innermost first. Empty for SIGKILL and other signals without a dump."""

    @property
    def failure(self) -> Failure:
        """Classify the failure."""
        change = self.change
        raised = {} if self.raised is None else structs.asdict(self.raised)
        return classify(
            Death(
                change.rank,
                change.exit_code,
                raised,
                self.last_lines,
                change.pid,
                change.at or 0.0,
                self.evidence.oom,
                self.finished,
            )
        )


def gather(run_dir: Path, change: RankChanged, evidence: KernelEvidence = NOTHING, node: int = 0) -> Ended:
    """Read the files of an ended rank. A rank with exit code 0 wrote its progress to stdout."""
    file = file_id(node, change.attempt, change.rank, "err")
    log = run_dir / file
    lines, raised, finished = (
        last_lines(run_dir, file, MOST_READ),
        _raised(log),
        log.with_suffix(".end").exists(),
    )
    if not (lines or raised or finished):
        lines = _lines_of_command(run_dir, change, node)
    if change.state is RankPhase.SUCCEEDED:
        lines = last_lines(run_dir, file_id(node, change.attempt, change.rank, "out")) or lines
    crash = _crashed(log) if change.signal else ()
    return Ended(change, raised, lines, evidence, node, finished, crash)


def _lines_of_command(run_dir: Path, change: RankChanged, node: int) -> tuple[str, ...]:
    """Return the lines of a launcher in the command, without lines that other ranks prefixed."""
    lines = last_lines(run_dir, command_id(change.attempt, "err", node), MOST_READ)
    return tuple(line for line in lines if (own := _RANK.match(line)) is None or int(own[1]) == change.rank)


def _crashed(error_log: Path) -> tuple[Site, ...]:
    """Return the thread that received the signal, from faulthandler's output before the process died."""
    try:
        data = file_io.piece(error_log.with_suffix(".stacks"), -MOST_STACKS, MOST_STACKS)
    except file_io.FileError:
        return ()
    _, fatal, stacks = data.decode("utf-8", "replace").rpartition("Fatal Python error")
    return pulses.crash_sites(stacks) if fatal else ()


def _raised(error_log: Path) -> Raised | None:
    return file_io.document_or_none(error_log.with_suffix(".exc"), Raised)


def last_samples(
    run_dir: Path,
    node: int,
    attempt: int,
    ranks: Mapping[int, Rank],
    pace: Callable[[int, int | None], float | None],
) -> tuple[RankSample, ...]:
    """Return the last state of a closed attempt's ranks, from the newest sample or the hook's final report.

    A rank that ends no longer answers, so that its step time is the last known one.
    """
    samples = []
    for number, rank in sorted(ranks.items()):
        seen = rank.sample or RankSample(number, rank.pid)
        log = run_dir / file_id(node, attempt, number, "err")
        counts = (seen.step, _steps(log, "end"), _steps(log, "exc"))
        step = max((count for count in counts if count is not None), default=None)
        last = RankSample(
            number,
            rank.pid,
            rss_bytes=seen.rss_bytes,
            gpu=seen.gpu,
            gpu_source=seen.gpu_source,
            gpu_mem=seen.gpu_mem,
            step=step,
            step_s=seen.step_s if seen.step_s is not None else pace(number, rank.pid),
        )
        if (last.step, last.rss_bytes, last.gpu) != (None, None, None):
            samples.append(last)
    return tuple(samples)


def _steps(error_log: Path, ending: str) -> int | None:
    """Return the steps, or None if 0 may mean uncounted steps, for example in a loop without torch's optimizers."""
    note = _noted(error_log, ending)
    return note.step or (0 if note.step == 0 and note.trained_nothing else None)


def _noted(error_log: Path, ending: str) -> _Noted:
    return file_io.document_or_none(error_log.with_suffix(f".{ending}"), _Noted) or _Noted()


def last_reported(
    run_dir: Path, node: int, attempt: int, ranks: Iterable[int]
) -> Iterator[tuple[int, Reported]]:
    """Yield the last tracker reports of ended ranks, by rank."""
    for number in sorted(ranks):
        log = run_dir / file_id(node, attempt, number, "err")
        signals = _noted(log, "end").signals or _noted(log, "exc").signals
        if signals is not None:
            yield number, signals


def unseen(run_dir: Path, node: int, attempt: int, ranks: Mapping[int, Rank]) -> Iterator[HookChanged]:
    """Yield how the models of ranks were wrapped that ended before their hooks reported it."""
    for number, rank in sorted(ranks.items()):
        made = _noted(run_dir / file_id(node, attempt, number, "err"), "end").made
        if rank.made is None and made is not None:
            yield HookChanged(attempt, number, "gone", rank.pid, made=made)


def idle_text(run_dir: Path, node: int, attempt: int, ranks: Mapping[int, Rank]) -> str:
    """Return a sentence with the last line if no rank of a successful attempt made a step, or "" if unknown.

    Without an optimizer step counts are unknown, unless the ranks had no process group either.
    """
    files = [file_id(node, attempt, number, "err") for number in sorted(ranks)]
    noted = [_noted(run_dir / file, "end") for file in files]
    if not noted or not all(note.step == 0 and note.trained_nothing for note in noted):
        return ""
    for file in files:
        for name in (str(Path(file).with_suffix(".out")), file):
            lines = last_lines(run_dir, name, 1)
            if lines:
                return f"no training step was seen: last line: {lines[0][:LONGEST]}"
    return "no training step was seen, and nothing was printed"


def last_lines(run_dir: Path, file: str, count: int = LAST_LINES) -> tuple[str, ...]:
    """Return the last non-empty lines of a log."""
    try:
        window = read_window(run_dir, ReadLog(file, -16384))
    except LogError:
        return ()
    lines = [clean_line(line) for line in window.data.rstrip(b"\0").splitlines()]
    return tuple([line for line in lines if line.strip()][-count:])


def first_cause(
    ended: list[Ended],
    done: Iterable[RankChanged] = (),
    gathered: Callable[[RankChanged], Ended] | None = None,
) -> FirstCause | None:
    """Return the earliest rank that failed on its own. Ranks that failed because of it are its victims.

    `done`: ranks that ended with exit code 0. If the other ranks only lost their connections, the first of these is the
    cause, and `gathered` reads its last lines.
    """
    if not ended:
        return None
    failures = {end.change.rank: end.failure for end in ended}
    failure = first_of(list(failures.values()))
    assert failure is not None
    through = {change.rank: change for change in done}
    leaver = left_early(failure, {rank: (change.at or 0.0, None) for rank, change in through.items()})
    if leaver is not None:
        change = through[leaver.rank]
        return FirstCause(
            rank=change.rank,
            local_rank=change.local_rank,
            node=ended[0].node,
            pid=change.pid,
            exit_code=0,
            text=leaver.text,
            victims=tuple(sorted(failures)),
            at=change.at,
            kind=leaver.kind,
            remedy=leaver.remedy,
            retry=leaver.retry,
            last_lines=gathered(change).last_lines[-LAST_LINES:] if gathered is not None else (),
        )
    first = next(end for end in ended if end.change.rank == failure.rank)
    change = first.change
    return FirstCause(
        rank=change.rank,
        local_rank=change.local_rank,
        node=first.node,
        pid=change.pid,
        exit_code=change.exit_code if change.signal is None else None,
        signal=change.signal,
        oom=first.evidence.oom,
        text=describe(failure),
        last_lines=first.last_lines[-LAST_LINES:],
        victims=tuple(sorted(rank for rank in failures if rank != failure.rank)),
        at=failure.at or None,
        symptom=failure.symptom,
        kind=failure.kind,
        remedy=clean_text(failure.remedy),
        retry=failure.retry,
        where=clean_text(failure.where or _own_line(first.crash)),
        evidence=(*_stack_at(first.crash), *_led_to(first.raised), *first.evidence.lines),
    )


def _led_to(raised: Raised | None) -> tuple[str, ...]:
    """Return the exception that led to the last one, and that may explain it."""
    before = raised.before if raised is not None else ()
    return tuple(f"it came of {clean_text(earlier.strip())}" for earlier in before[:1])


def _own_line(crash: tuple[Site, ...]) -> str:
    own = next((site for site in crash if activity.own_code(site)), None)
    return "" if own is None else f"{own.file}:{own.line}"


def _stack_at(crash: tuple[Site, ...]) -> tuple[str, ...]:
    return (clean_text(f"its stack at that moment: {activity.stack_text(crash[:6])}"),) if crash else ()


def _succeeded(changes: Mapping[int, RankChanged]) -> list[RankChanged]:
    return [change for change in changes.values() if change.state is RankPhase.SUCCEEDED]


def describe(failure: Failure) -> str:
    """Return one printable sentence on how and why a rank ended."""
    return clean_line(failure.text.encode("utf-8", "replace"), LONGEST)


def close_attempt(
    attempt: int,
    changes: Mapping[int, RankChanged],
    *,
    asked: Outcome | None,
    gathered: Callable[[RankChanged], Ended],
    reported: str = "",
    hangs: Iterable[Finding] = (),
) -> AttemptEnded:
    """Return the ledger's entry for an attempt whose ranks have all ended, or will end now.

    `asked` is RESTARTED or STOPPED on request. `changes`: last change of each rank. `reported`: the launcher's reason
    to give up, if it reported one. `hangs`: findings at the first rank's failure.
    """
    failed = [change for change in changes.values() if change.state in (RankPhase.FAILED, RankPhase.KILLED)]
    cause = first_cause([gathered(change) for change in failed], _succeeded(changes), gathered)
    if asked is not None:
        return AttemptEnded(attempt, asked, None, f"attempt {attempt} {asked}")
    if cause is not None:
        cause = behind(cause, hangs, changes)
        more = f"; {len(cause.victims)} more followed" if cause.victims else ""
        return AttemptEnded(attempt, Outcome.FAILED, cause, f"attempt {attempt} failed: {cause.text}{more}")
    if reported:
        return AttemptEnded(attempt, Outcome.FAILED, None, f"attempt {attempt} failed: {reported}")
    if changes and all(change.state is RankPhase.SUCCEEDED for change in changes.values()):
        return AttemptEnded(attempt, Outcome.SUCCEEDED, None, f"attempt {attempt} succeeded")
    return AttemptEnded(attempt, Outcome.LOST, None, f"attempt {attempt} ended; exit status unknown")


def _before(attempt: str | None, number: int) -> bool:
    """Return True if a rank's attempt came before `number`. An agent that catches up reads later attempts next."""
    return attempt is not None and attempt.isdecimal() and int(attempt) < number


FRESH_S = 10.0
"""Largest age, in seconds, of a report that was read when it was written, if late on a busy machine."""


class Supervision:
    """Follows one runner after another until the run has ended."""

    def __init__(
        self,
        run: ServedRun,
        hooks: Hooks,
        restarts: Restarts,
        sampling: Sampling,
        nccl_logs: NcclLogs,
        checkpoints: CheckpointWatch,
        judge: Callable[[], Awaitable[None]],
        relaying: Callable[[], bool],
        spawn_runner: SpawnRunner = Runner.start,
    ) -> None:
        """`judge` runs all detectors once more. `relaying` returns True while the runner carries a viewer's stream."""
        self._spawn_runner, self._relaying = spawn_runner, relaying
        self._run, self._hooks, self._restarts = run, hooks, restarts
        self._sampling, self._nccl_logs, self._judge = sampling, nccl_logs, judge
        self._checkpoints = checkpoints
        self._environment, self._mode = restarts.environment, StartMode.READ
        self._changes: dict[int, RankChanged] = {}
        """Last change of each rank of the open attempt."""
        self._evidence: dict[int, KernelEvidence] = {}
        """The kernel's log on the ranks that exited."""
        self._hangs: tuple[Finding, ...] = ()
        """Hang findings when the first rank of the attempt failed."""
        self._oom_watch = OomWatch()
        self._began = (0, 0.0)
        """Number of the attempt whose start this agent saw, and its monotonic time."""
        self._last_word: tuple[int, Stamped] | None = None
        self._tail = ReportTail(run.run_dir, 0)
        self._fresh = False
        """True if the runner has begun no attempt yet."""

    async def begin(self, mode: StartMode, resumed: bool) -> bool:
        """Adopt the living runner, or start the first runner of a new run. Return True if adopted."""
        run, self._mode = self._run, mode
        fresh = self._mode is StartMode.START and not resumed
        run.runner = None if fresh else Runner.adopt(run.entry)
        self._tail = ReportTail(run.run_dir, None if fresh else run.state.source)
        if not fresh:
            self._environment.recall()
        if fresh:
            await self._start_runner()
        elif run.runner is not None:
            self._mode = StartMode.START  # this agent sees the runner's end itself
        return not fresh and run.runner is not None

    def resume_ranks(self) -> None:
        """Restore open ranks after an adoption."""
        for number, rank in self._run.state.ranks.items():
            change = RankChanged(
                self._run.state.attempt,
                number,
                rank.phase,
                rank.place.local_rank,
                rank.pid,
                rank.exit_code,
                rank.signal,
            )
            self._changes[number] = change
            if rank.phase is RankPhase.RUNNING and rank.pid is not None:
                self._hooks.follow(change)

    async def _start_runner(self, cause: str = "") -> None:
        forgotten = self._environment.forgotten()
        if forgotten:
            await self._end(RunPhase.FAILED, 2, forgotten)
            return
        try:
            self._run.runner = self._spawn_runner(self._run, self._environment.for_runner(), cause)
            self._fresh = True
        except (OSError, ValueError) as error:
            python = self._run.plan.python or self._run.plan.argv[0]
            why = getattr(error, "strerror", None) or error
            await self._end(RunPhase.FAILED, 127, f"cannot execute {python}: {why}")

    async def run(self) -> None:
        """Follow one runner after another until the run has ended."""
        while not self._run.state.phase.ended:
            if self._run.runner is None:
                for offset, stamped in self._tail.read():
                    self._hear(offset, stamped)
                if self._mode is not StartMode.START and self._last_word is None:
                    if self._mode is StartMode.READ or not await self._revive():
                        return  # reading starts nothing
                    continue
            else:
                async with contextlib.aclosing(reports(self._run.runner, self._tail)) as events:
                    async for offset, stamped in events:
                        await self._environment.noted()
                        self._hear(offset, stamped)
                        if self._last_word is not None and self._relaying():
                            break  # the runner still relays the end to other viewers
            await self._finish()
            if self._waits_for_runner():
                await self._start_runner()
            elif not self._run.state.phase.ended:
                await self._runner_lost()

    def _waits_for_runner(self) -> bool:
        """Return True if an earlier agent had counted this failure, and died while it waited."""
        state = self._run.state
        return self._run.runner is None and state.delay is not None and not self._run.stopping()

    async def _finish(self) -> None:
        """Clean up the runner's remaining processes after its report of the end, and emit the end."""
        last_word = self._last_word
        if last_word is None:
            return
        runner = self._run.runner
        if runner is not None:  # otherwise it exited long ago, and a stop cleans up
            left = await sweep(self._run.record.run, keep=[runner.who.pid], grace_s=2.0)
            if left:
                text = f"these processes would not end: {', '.join(left)}"
                self._run.findings.raise_finding(
                    Finding("unkillable", "warning", text, node=self._run.node)
                )
        offset, stamped = last_word
        assert isinstance(stamped.event, RunEnded)
        event = stamped.event
        await self._read_logs()
        await self._end(event.phase, event.exit_code, event.text, source=offset, at=stamped.time)
        self._last_word = None

    async def _read_logs(self) -> None:
        """Read the rest of the logs before the end is reported."""
        await self._run.parts.guard("logs", self._nccl_logs.finish())

    async def dismiss(self) -> None:
        """End a runner that stayed for the relay after its report of the end."""
        if self._run.runner is not None:
            await sweep(self._run.record.run, grace_s=2.0)

    def _hear(self, offset: int, stamped: Stamped) -> None:
        event = stamped.event
        if isinstance(event, AttemptStarted):
            if event.attempt > self._run.state.attempt:
                restarted = event.cause in ("restart", "membership")
                self._close_attempt(Outcome.RESTARTED if restarted else None, at=stamped.time)
            event = self._environment.begun(event, self._fresh)
            self._fresh = False
        elif isinstance(event, RestartDelayed):
            self._close_attempt(None, at=stamped.time)
        elif isinstance(event, RunEnded):
            self._last_word = (offset, stamped)
            return
        elif isinstance(event, RankChanged):
            event = self._rank_changed(event)
        self._run.emit(event, source=offset, at=stamped.time)
        if isinstance(event, AttemptStarted):
            self._attempt_started(event, stamped.time)
        elif isinstance(event, EnvironmentRestored):
            self._environment.heard(event)
        elif isinstance(event, RankChanged) and event.state is RankPhase.RUNNING:
            self._hooks.follow(event)

    def _attempt_started(self, event: AttemptStarted, at: float) -> None:
        age = clock.now() - at
        self._began = (event.attempt, clock.monotonic() - age) if 0.0 <= age < FRESH_S else (0, 0.0)
        self._changes, self._evidence, self._hangs = {}, {}, ()
        self._hooks.keep({place.rank for place in event.ranks})
        if self._run.runner is None:
            return  # a report of the past
        job = sweep(
            self._run.record.run,
            keep=[self._run.runner.who.pid],
            wanted=lambda env: (
                "DISTUI_RUNNER_PID" in env and _before(env.get("DISTUI_ATTEMPT"), event.attempt)
            ),
        )
        self._run.parts.once("sweep", job)

    def _rank_changed(self, event: RankChanged) -> RankChanged:
        if event.state is not RankPhase.RUNNING:
            self._hooks.forget(event.rank)
            if event.state in (RankPhase.FAILED, RankPhase.KILLED):
                if not self._evidence:
                    raised = self._run.state.findings.values()
                    self._hangs = tuple(each for each in raised if each.id.startswith("hang-"))
                self._evidence[event.rank] = self._oom_watch.evidence(event.pid, event.signal)
            if self._run.stopping() and event.state is not RankPhase.SUCCEEDED:
                event = structs.replace(event, state=RankPhase.STOPPED)
            elif event.state in (RankPhase.FAILED, RankPhase.KILLED):
                cause = first_cause([self._gathered(event)], _succeeded(self._changes), self._gathered)
                if cause is not None and not cause.symptom:
                    event = structs.replace(event, cause=cause)
        else:
            self._oom_watch.follow(event.pid)
        self._changes[event.rank] = event
        return event

    def _close_attempt(self, asked: Outcome | None, reported: str = "", at: float | None = None) -> None:
        """Close the attempt. `at`: Unix time of the runner's report, which an agent may read much later."""
        current = self._run.state.attempts[-1] if self._run.state.attempts else None
        if current is None or current.ended is not None:
            return
        closed = close_attempt(
            current.number,
            self._changes,
            asked=asked,
            gathered=self._gathered,
            reported=reported,
            hangs=self._hangs,
        )
        self._emit_end(closed, at)

    def _gathered(self, change: RankChanged) -> Ended:
        return gather(self._run.run_dir, change, self._evidence.get(change.rank, NOTHING), self._run.node)

    def _emit_end(self, event: AttemptEnded, at: float | None = None) -> None:
        run = self._run
        about = (run.run_dir, run.node, event.attempt, run.state.ranks)
        for change in list(unseen(*about)):
            run.emit(change)
        self._checkpoints.close(event.attempt)
        number, began = self._began
        lasted_s = clock.monotonic() - began if number == event.attempt else None
        if event.attempt == run.state.attempt:
            for rank, reported in last_reported(*about):
                self._sampling.training.take(rank, reported)
        training = self._sampling.collect_last()
        event = structs.replace(
            event,
            last=last_samples(*about, self._sampling.paces.last),
            lasted_s=lasted_s,
            training=training if event.attempt == run.state.attempt else (),
        )
        if event.outcome is Outcome.SUCCEEDED and (idle := idle_text(*about)):
            event = structs.replace(event, idle=idle, text=f"{event.text}, but {idle}")
        run.emit(event, at=at)

    async def _end(
        self, phase: RunPhase, code: int | None, text: str, *, source: int = 0, at: float | None = None
    ) -> None:
        if self._run.stopping() and phase is not RunPhase.SUCCEEDED:
            phase, text = RunPhase.STOPPED, "stopped"
        reported = clean_text(text) if phase is RunPhase.FAILED else ""
        self._close_attempt(Outcome.STOPPED if phase is RunPhase.STOPPED else None, reported, at)
        for rank in list(self._hooks.by_rank):
            self._hooks.forget(rank)
        cause = self._run.state.attempts[-1].first_cause if self._run.state.attempts else None
        if (
            phase is RunPhase.FAILED
            and cause is not None
            and cause.text not in text
            and text not in cause.text
        ):
            text = f"{cause.text}; {text}"
        self._sampling.conclude()
        await self._judge()
        if phase is RunPhase.SUCCEEDED and self._run.state.attempts and self._run.state.attempts[-1].idle:
            text = f"{text}, but {self._run.state.attempts[-1].idle}"
        self._run.emit(RunEnded(phase, code, clean_text(text)), source=source, at=at)

    async def _revive(self) -> bool:
        """Start the next attempt of a lost run on request. Return False if the run has ended instead."""
        run = self._run
        left = await sweep(run.record.run, grace_s=run.plan.grace_s)
        for change in list(self._changes.values()):
            if change.state is RankPhase.RUNNING:
                self._changes[change.rank] = structs.replace(change, state=RankPhase.LOST)
                run.emit(self._changes[change.rank])
        last = run.state.attempts[-1] if run.state.attempts else None
        if last is not None and last.ended is None:
            run.emit(AttemptEnded(last.number, Outcome.LOST, None, f"attempt {last.number} was lost"))
        if left:
            await self._end(RunPhase.FAILED, 1, f"lost, and {', '.join(left)} would not end")
            return False
        self._mode = StartMode.START
        self._restarts.revive()
        await self._start_runner("restart")
        return self._run.runner is not None

    async def _runner_lost(self) -> None:
        """End the ranks of a runner that died without a report, because they have no rendezvous any more."""
        run = self._run
        pid = run.runner.who.pid if run.runner else run.state.runner_pid or 0
        run.runner = None
        if not run.stopping():
            text = f"the runner (pid {pid}) died: its ranks are ended, their files are kept"
            run.emit(RunnerLost(pid, text))
        left = await sweep(run.record.run, grace_s=run.plan.grace_s)
        await self._read_logs()
        for change in list(self._changes.values()):
            if change.state is RankPhase.RUNNING:
                self._changes[change.rank] = structs.replace(change, state=RankPhase.STOPPED)
                run.emit(self._changes[change.rank])
        if run.stopping():
            await self._end(RunPhase.STOPPED, 1, "stopped")
        elif not run.state.attempts:
            lines = last_lines(run.run_dir, "runner.log", 1)
            why = " ".join(lines) or "see runner.log"
            await self._end(RunPhase.FAILED, 1, f"the runner died before the first attempt: {why}")
        elif left:
            await self._end(
                RunPhase.FAILED, 1, f"the runner (pid {pid}) died, and {', '.join(left)} would not end"
            )
        else:
            await self._replace_runner(pid)

    async def _replace_runner(self, pid: int) -> None:
        """Count a dead runner as a failure. The restart policy decides if and when another one starts."""
        run = self._run
        last = run.state.attempts[-1]
        policy = dataclasses.asdict(run.plan.restart)
        verdict = after_failure(policy, run.state.failures, last.lasted(clock.now()) or 0.0)
        if last.ended is None:
            text = f"attempt {last.number} lost its runner (pid {pid})"
            self._emit_end(AttemptEnded(last.number, Outcome.LOST, None, text))
        if not verdict.restart:
            limit = run.plan.restart.limit
            await self._end(
                RunPhase.FAILED, 1, f"the runner (pid {pid}) died: failure {limit + 1} of {limit} allowed"
            )
            return
        run.emit(RestartDelayed(verdict.wait_s, verdict.failures, run.plan.restart.limit))
        await run.until(run.stopping, verdict.wait_s)
        if run.stopping():
            await self._end(RunPhase.STOPPED, 1, "stopped")
        else:
            await self._start_runner()
