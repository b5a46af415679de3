"""Parse NCCL's RAS reports: ranks missing in a communicator, and ranks with fewer launched collectives. Pure.

The format is the JSON of src/ras/client_support.cc since NCCL 2.28.7. RAS counts launches, not completions, and does
not know Send and Recv, so its reports are hints and no proof.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

SINCE = (2, 28, 7)
"""Earlier versions have no JSON or crash: 2.26 on a request (NCCL issues 1669, 1718), 2.27.7 without one (1996)."""

_NO_COMMA = re.compile(r'("nvml_dev": -?\d+)(\s+"status")')


@dataclass(frozen=True, slots=True)
class Missing:
    """A rank whose process does not answer RAS."""

    rank: int
    host: str = ""
    pid: int | None = None
    dead: bool | None = None
    """Whether RAS considers it dead; None if unknown."""


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    hash: str
    size: int | None = None
    missing: tuple[Missing, ...] = ()
    counts: dict[str, dict[int, int]] = field(default_factory=dict)
    """Launches by operation ("AllReduce") and rank."""
    usual: dict[str, int] = field(default_factory=dict)
    """Most common number of launches by operation."""


@dataclass(frozen=True, slots=True)
class RasReport:
    communicators: tuple[RasCommunicator, ...]


class RasError(ValueError):
    """The answer is not a RAS report."""


def parse(text: str) -> RasReport:
    """Parse an answer. Versions 2.28.7 and 2.28.9 omit a comma in a missing rank. Raises RasError."""
    try:
        document = json.loads(_NO_COMMA.sub(r"\1,\2", text))
        return RasReport(tuple(_communicator(entry) for entry in document["communicators"]))
    except Exception as error:  # noqa: BLE001 - another program wrote the answer
        raise RasError(f"RAS sent an invalid report: {error}") from None


def _communicator(entry: dict[str, Any]) -> RasCommunicator:
    counts: dict[str, dict[int, int]] = {}
    for rank in entry["ranks"]:
        for operation, number in rank.get("collective_counts", {}).items():
            counts.setdefault(operation, {})[int(rank["rank"])] = int(number)
    missing = tuple(
        Missing(int(rank["rank"]), str(rank.get("host", "")), rank.get("pid"), _dead(rank))
        for rank in entry.get("missing_ranks", ())
    )
    usual = {operation: _usual(by_rank.values()) for operation, by_rank in counts.items()}
    return RasCommunicator(str(entry["hash"]), int(entry["size"]), missing, counts, usual)


def _dead(rank: dict[str, Any]) -> bool | None:
    status = rank.get("status")
    return bool(status.get("considered_dead")) if isinstance(status, dict) else None


@dataclass(frozen=True, slots=True)
class Behind:
    """Ranks that launched fewer of one operation than most, in two reports without a launch between them."""

    operation: str
    ranks: tuple[int, ...]
    count: int
    most: int
    communicator: str


def stuck(before: RasReport, now: RasReport) -> list[Behind]:
    """Return ranks that are late and make no progress. Different counts in a single report are normal."""
    earlier = {comm.hash: comm for comm in before.communicators}
    stragglers = []
    for comm in now.communicators:
        previous = earlier.get(comm.hash)
        if previous is None:
            continue
        for operation, most in comm.usual.items():
            counts = comm.counts[operation]
            late = tuple(sorted(rank for rank, count in counts.items() if count < most))
            if late and previous.counts.get(operation) == counts:
                least = min(counts[rank] for rank in late)
                stragglers.append(Behind(operation, late, least, most, comm.hash))
    return stragglers


def _usual(counts: Iterable[int]) -> int:
    """Return the most common count; of equally common ones the largest."""
    tally = Counter(counts)
    return max(tally, key=lambda count: (tally[count], count))


def missing(report: RasReport) -> list[Missing]:
    """Return every rank that does not answer, without duplicates."""
    by_process = {(rank.rank, rank.pid): rank for comm in report.communicators for rank in comm.missing}
    return [by_process[at] for at in sorted(by_process, key=str)]
