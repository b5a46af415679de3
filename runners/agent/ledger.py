"""Who failed first: closes an attempt in the ledger. Pure, apart from reading the files of the ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from ..inrank.classes import Death, Failure, classify, first_of
from ..logs.clean import clean_line, clean_text
from ..logs.files import LogError, file_id
from ..logs.window import read_window
from ..model import AttemptEnded, FirstCause, Outcome, RankChanged, RankPhase
from .oom import NOTHING, Evidence

LAST_LINES = 12
LONGEST = 400
"""Characters of the sentence about a failure."""

LOOKED_AT = 80
"""Lines of a rank's stderr that its class may be read from."""


class Raised(Struct, frozen=True):
    """What the hook wrote when an exception was not caught: see inrank/traces.py."""

    time: float
    type: str
    text: str
    where: str = ""
    importing: bool = False
    path: str | None = None
    python: str = ""
    before: tuple[str, ...] = ()
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A rank that ended abnormally, and what its files say."""

    change: RankChanged
    raised: Raised | None
    last_lines: tuple[str, ...]
    evidence: Evidence = NOTHING
    node: int = 0
    finished: bool = False
    """Whether its script had reached its end."""

    @property
    def failure(self) -> Failure:
        """Its class."""
        change = self.change
        said = {} if self.raised is None else structs.asdict(self.raised)
        return classify(
            Death(
                change.rank,
                change.exit_code,
                said,
                self.last_lines,
                change.pid,
                change.at or 0.0,
                self.evidence.oom,
                self.finished,
            )
        )


def gather(run_dir: Path, change: RankChanged, evidence: Evidence = NOTHING, node: int = 0) -> Ended:
    """Read what a failed rank left behind."""
    file = file_id(node, change.attempt, change.rank, "err")
    log = run_dir / file
    lines = last_lines(run_dir, file, LOOKED_AT)
    return Ended(change, _raised(log), lines, evidence, node, log.with_suffix(".end").exists())


def _raised(error_log: Path) -> Raised | None:
    try:
        return msgspec.json.decode(error_log.with_suffix(".exc").read_bytes(), type=Raised)
    except (OSError, msgspec.MsgspecError):
        return None


def last_lines(run_dir: Path, file: str, count: int = LAST_LINES) -> tuple[str, ...]:
    """The last lines of a log that say something."""
    try:
        window = read_window(run_dir, file, -16384)
    except LogError:
        return ()
    lines = [clean_line(line) for line in window.data.splitlines()]
    return tuple([line for line in lines if line.strip()][-count:])


def first_cause(ended: list[Ended]) -> FirstCause | None:
    """The earliest rank that failed of itself; those that failed because of it are its victims."""
    if not ended:
        return None
    failures = {one.change.rank: one.failure for one in ended}
    failure = first_of(list(failures.values()))
    assert failure is not None
    first = next(one for one in ended if one.change.rank == failure.rank)
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
        where=clean_text(failure.where),
        evidence=first.evidence.lines,
    )


def describe(failure: Failure) -> str:
    """One sentence, safe to show: how a rank ended and why."""
    return clean_line(failure.text.encode("utf-8", "replace"), LONGEST)


def close_attempt(
    attempt: int,
    changes: Mapping[int, RankChanged],
    *,
    asked: Outcome | None,
    gathered: Callable[[RankChanged], Ended],
) -> AttemptEnded:
    """The ledger's line for an attempt whose ranks have all ended, or are about to.

    `asked` is RESTARTED or STOPPED when somebody wanted it; `changes` the last change of each rank.
    """
    failed = [change for change in changes.values() if change.state in (RankPhase.FAILED, RankPhase.KILLED)]
    cause = first_cause([gathered(change) for change in failed])
    if asked is not None:
        return AttemptEnded(attempt, asked, None, f"attempt {attempt} {asked}")
    if cause is not None:
        more = f"; {len(cause.victims)} more followed" if cause.victims else ""
        return AttemptEnded(attempt, Outcome.FAILED, cause, f"attempt {attempt} failed: {cause.text}{more}")
    if changes and all(change.state is RankPhase.SUCCEEDED for change in changes.values()):
        return AttemptEnded(attempt, Outcome.SUCCEEDED, None, f"attempt {attempt} succeeded")
    return AttemptEnded(attempt, Outcome.LOST, None, f"attempt {attempt} ended, and nobody saw how")
