"""Who failed first: closes an attempt in the ledger. Pure, apart from reading the files of the ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from ..logs.clean import clean_line
from ..logs.files import LogError, file_id
from ..logs.window import read_window
from ..model import AttemptEnded, FirstCause, Outcome, RankChanged, RankPhase

LAST_LINES = 12

_SYMPTOM = re.compile(
    r"Connection (closed|reset) by peer|Connection refused|connectFullMesh|Broken pipe|remote process exited"
    r"|ncclRemoteError|NCCL communicator was aborted|Socket Timeout|DistNetworkError|Read error|Timed out waiting"
)
"""Texts of exceptions that a rank raises because another one is gone."""


class Raised(Struct, frozen=True):
    """What the hook wrote when an exception was not caught."""

    time: float
    type: str
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A rank that ended abnormally, and what its files say."""

    change: RankChanged
    raised: Raised | None
    last_lines: tuple[str, ...]
    oom: str | None = None
    node: int = 0

    @property
    def symptom(self) -> bool:
        """Whether it only says that somebody else was gone."""
        text = f"{self.raised.type}: {self.raised.text}" if self.raised else " ".join(self.last_lines)
        return self.oom is None and bool(_SYMPTOM.search(text))

    @property
    def when(self) -> float:
        """An exception is older than the exit it leads to."""
        times = [self.change.at or 0.0]
        if self.raised is not None:
            times.append(self.raised.time)
        return min(times)


def gather(run_dir: Path, change: RankChanged, oom: str | None, node: int = 0) -> Ended:
    """Read what a failed rank left behind."""
    error_log = file_id(node, change.attempt, change.rank, "err")
    return Ended(change, _raised(run_dir / error_log), last_lines(run_dir, error_log), oom, node)


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
    ordered = sorted(ended, key=lambda one: (one.symptom, one.when))
    first, victims = ordered[0], tuple(sorted(one.change.rank for one in ordered[1:]))
    change = first.change
    return FirstCause(
        rank=change.rank,
        local_rank=change.local_rank,
        node=first.node,
        pid=change.pid,
        exit_code=change.exit_code if change.signal is None else None,
        signal=change.signal,
        oom=first.oom,
        text=describe(first),
        last_lines=first.last_lines,
        victims=victims,
        at=first.when or None,
        symptom=first.symptom,
    )


def describe(ended: Ended) -> str:
    """One sentence: how a rank ended and why."""
    change = ended.change
    if ended.oom:
        return f"rank {change.rank} was killed for memory by the kernel ({ended.oom})"
    if change.signal:
        return f"rank {change.rank} (pid {change.pid}) was ended by {change.signal}"
    if ended.raised:
        reason = clean_line(f"{ended.raised.type}: {ended.raised.text}".splitlines()[0].encode(), 200)
        return f"rank {change.rank} raised {reason} (exit code {change.exit_code})"
    return f"rank {change.rank} ended with exit code {change.exit_code}"


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
