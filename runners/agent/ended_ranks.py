"""Files of ended ranks: last lines, exceptions, steps and the hook's last reports."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct, structs

from ...presets.sanitize import clean_line
from ..diagnosis.stack_text import crash_sites
from ..inrank.failure_causes import Death, Failure, classify
from ..logs.windows import read_window
from ..run import file_io
from ..run.commands import ReadLog
from ..run.log_files import command_id, file_id
from ..run.model import HookChanged, RankChanged, RankPhase, Wrapped
from ..run.opened_logs import LogError
from ..run.pulse import Site
from ..run.samples import RankSample
from ..run.state import Rank
from ..telemetry.signal_names import Reported
from .hook_clients import MOST_STACKS
from .kernel_evidence import NOTHING, KernelEvidence

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


SAID = 2
"""Lines of stdout of a rank that ended with an exit code, but without an exception: it may have printed the reason."""


def gather(run_dir: Path, change: RankChanged, evidence: KernelEvidence = NOTHING, node: int = 0) -> Ended:
    """Read the files of an ended rank. A rank with exit code 0 wrote its progress to stdout."""
    file = file_id(node, change.attempt, change.rank, "err")
    log = run_dir / file
    lines, raised = last_lines(run_dir, file, MOST_READ), _raised(log)
    finished = log.with_suffix(".end").exists()
    if not (lines or raised or finished):
        lines = _lines_of_command(run_dir, change, node)
    if change.state is RankPhase.FAILED and not raised and not change.signal:
        lines = (*lines, *last_lines(run_dir, file_id(node, change.attempt, change.rank, "out"), SAID))
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
    return crash_sites(stacks) if fatal else ()


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
