"""Collect the training signals of this node's ranks, and emit a TrainingTick for changes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from msgspec import structs

from ...presets.finding import Finding
from ...presets.plan import Plan
from ..run import clock
from ..run.log_files import LogFile
from ..run.model import TrainingTick
from ..run.samples import TrainingSample
from ..telemetry import output_signals, step_totals
from ..telemetry.mfu import computed
from ..telemetry.output_tables import block_around
from ..telemetry.rank_signals import RankSignals
from ..telemetry.signal_names import Reported, ReportedValue
from .hook_clients import Hooks
from .pattern_process import SignalPatterns
from .runner_process import ServedRun

NEEDLES = (
    (b"oss", b"OSS"),
    (
        b"step",
        b"Step",
        b"STEP",
        b"iter",
        b"Iter",
        b"poch",
        b"tok",
        b"atch",
        b"/s",
        b"s/it",
    ),
)
"""Texts in lines with signals: those with a loss, and others."""
NOT_FINITE = (b"nan", b"NaN", b"NAN", b"inf", b"Inf")
"""Texts in lines with a value that is not finite. Their oldest lines show the beginning."""
MOST_LINES = 6
"""Newest lines with each text to read at a time, wherever they are."""
PATTERN_LINES = 64
"""Newest lines to match with a user's patterns at a time."""
ENOUGH = 2
"""Lines without new names, in a row, that end the reading of older lines."""
TRIES_S = 300.0
"""Seconds without a signal before output is read rarely."""
AGAIN_S = 60.0
"""Seconds between these reads."""


class Training:
    """The training signals of the current attempt."""

    def __init__(self, run: ServedRun, hooks: Hooks) -> None:
        self._run, self._hooks = run, hooks
        self._total = step_totals.of_command(_words(run.plan))
        self._attempt = 0
        self._ranks: dict[int, RankSignals] = {}
        self._emitted: dict[int, TrainingSample] = {}
        self._sources: dict[str, _Output] = {}
        self.patterns = SignalPatterns(run.plan.signals, self._matched, self._too_slow)

    def _matched(self, rank: int, signals: list[ReportedValue], at: float) -> None:
        if signals:
            self._of(rank).output(signals, at)

    def _too_slow(self) -> None:
        text = "a pattern of --signal takes more than 2 s for a few lines: none of them is read any more"
        remedy = "write it without nested repetition, as (a+)+ is"
        finding = Finding(
            "signal-pattern-slow", "warning", text, node=self._run.node, remedy=remedy, role="fact"
        )
        self._run.findings.raise_finding(finding)

    def heard(self, file: LogFile, tail: bytes, now: float | None = None) -> None:
        """Take the end of a rank's or command's output since the last call."""
        now = clock.now() if now is None else now
        self._follow_attempt()
        if file.attempt != self._attempt:
            return  # the rest of the previous attempt
        source = self._sources.setdefault(file.id, _Output(now))
        who = self._lead() if file.rank is None else file.rank
        if self._run.plan.signals:
            self.patterns.put(
                who, [line.decode("utf-8", "replace") for line in last_lines(tail, PATTERN_LINES)], now
            )
        signals = source.read(tail, now)
        if signals:
            self._of(who).output(signals, now)

    def take(self, rank: int, reported: Reported) -> None:
        """Take an ended rank's final reports to trackers, which replace earlier reports of its hook."""
        if rank in self._hooks.by_rank:
            self._hooks.by_rank[rank].reported = reported
        self._of(rank).trackers(reported)

    def collect(self) -> None:
        """Emit changed signals. Called once per second."""
        self._follow_attempt()
        for rank, hook in self._hooks.by_rank.items():
            if hook.reported is not None and hook.attempt == self._attempt:
                self._of(rank).trackers(hook.reported)
        fresh = []
        for rank, signals in self._ranks.items():
            sample = self._sample(rank, signals)
            if sample is not None and sample != self._emitted.get(rank):
                self._emitted[rank] = sample
                fresh.append(sample)
        if fresh:
            self._run.emit(TrainingTick(tuple(fresh)))

    @property
    def last(self) -> tuple[TrainingSample, ...]:
        """Return the newest sample of every rank of this node with any."""
        return tuple(sample for _, sample in sorted(self._emitted.items()))

    def _sample(self, rank: int, signals: RankSignals) -> TrainingSample | None:
        seen = self._run.state.ranks.get(rank)
        steps = None if seen is None or seen.sample is None else seen.sample.step
        sample = signals.sample(steps, self._total)
        if sample is None or sample.mfu is not None:
            return sample
        own = computed(self._run.state, sample)
        return (
            sample
            if own is None
            else structs.replace(sample, mfu=own[0], sources=sample.sources | {"mfu": own[1]})
        )

    def _follow_attempt(self) -> None:
        if self._run.state.attempt != self._attempt:
            self._attempt = self._run.state.attempt
            self._ranks, self._emitted, self._sources = {}, {}, {}
            self.patterns.forget()

    def _of(self, rank: int) -> RankSignals:
        there = self._ranks.get(rank)
        if there is None:
            there = self._ranks[rank] = RankSignals(rank, self._run.state.world_size or 1)
        return there

    def _lead(self) -> int:
        """Return the rank that gets the output of a managed command."""
        return min(self._run.state.ranks, default=0)


class _Output:
    def __init__(self, now: float) -> None:
        self._useful, self._next = now, now
        self._before = b""

    def read(self, tail: bytes, now: float) -> list[ReportedValue]:
        """Return the signals in the last lines, oldest first."""
        if now < self._next or tail == self._before:
            return []
        self._before = tail
        signals = lines_signals(tail)
        if signals:
            self._useful = now
        elif now - self._useful > TRIES_S:
            self._next = now + AGAIN_S
        return signals


def last_lines(tail: bytes, most: int) -> list[bytes]:
    return tail.rstrip(b"\n").rsplit(b"\n", most)[-most:]


def candidates(tail: bytes) -> list[bytes]:
    """Return the newest lines that may have a signal, and the first non-finite ones, oldest first.

    The search starts at the ends, so that other output costs little.
    """
    lines: dict[int, bytes] = {}
    for needle in itertools.chain.from_iterable(NEEDLES):
        lines.update(itertools.islice(_newest_lines(tail, needle), MOST_LINES))
    for needle in NOT_FINITE:
        lines.update(itertools.islice(_oldest_lines(tail, needle), MOST_LINES))
    return [line for _, line in sorted(lines.items())]


def _newest_lines(tail: bytes, needle: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with a text, newest first, each after its place."""
    at = tail.rfind(needle)
    while at >= 0:
        begin, line = _line_at(tail, at)
        yield begin, line
        at = tail.rfind(needle, 0, begin)


def _oldest_lines(tail: bytes, needle: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with a text, oldest first, each after its place."""
    at = tail.find(needle)
    while at >= 0:
        begin, line = _line_at(tail, at)
        yield begin, line
        at = tail.find(needle, begin + len(line))


def _line_at(tail: bytes, at: int) -> tuple[int, bytes]:
    """Return the begin and the text of the line, or of the table, around a place."""
    begin, end = tail.rfind(b"\n", 0, at) + 1, tail.find(b"\n", at)
    begin, end = block_around(tail, begin, end if end >= 0 else len(tail))
    return begin, tail[begin:end]


def lines_signals(tail: bytes) -> list[ReportedValue]:
    """Return the signals of the newest lines of an output, oldest first.

    After ENOUGH lines without new names, older lines are skipped.
    """
    read: list[list[ReportedValue]] = []
    fields: set[str] = set()
    repeated = 0
    texts = [line.decode("utf-8", "replace") for line in candidates(tail)]
    for text, before in reversed(list(zip(texts, ["", *texts], strict=False))):
        signals = output_signals.signals(text, before) if output_signals.is_candidate(text) else []
        read.append(signals)
        names = {each.field or each.name for each in signals}
        bad = any(not math.isfinite(each.value) for each in signals)  # the first such line is needed
        repeated = repeated + 1 if signals and names <= fields and not bad else 0
        fields |= names
        if repeated == ENOUGH:
            break
    return [each for signals in reversed(read) for each in signals]


def _words(plan: Plan) -> tuple[str, ...]:
    return tuple(plan.command)
