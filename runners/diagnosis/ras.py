"""What NCCL's RAS answers, as values: who is missing in a communicator, and who has launched fewer collectives. Pure.

The formats are those of src/ras/client_support.cc: JSON from NCCL 2.28.7 on, text before. RAS counts launches, not
completions, and knows nothing of Send and Recv: what it says is a hint, never a proof.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

JSON_SINCE = (2, 28, 7)
TRUSTED_SINCE = (2, 28, 0)
"""Earlier ones crashed when they were asked: in 2.26 (#1669, #1718), in 2.27.7 even unasked (#1996)."""

_VERSION = re.compile(r"(?<!\d)(\d+)\.(\d+)\.(\d+)")
_NO_COMMA = re.compile(r'("nvml_dev": -?\d+)(\s+"status")')
_COMM = re.compile(r"^#\d+-\d+ \(([0-9a-f]+)\) ([A-Z,]+)")
_OPERATIONS = re.compile(r"different (\w+) operation counts")
_RANK = re.compile(
    r"^Rank (\d+)(?: has launched up to operation (\d+)| has not launched any operations)? --"
    r"(?: GPU \S+ managed by process (\d+) on node (\S+))?"
)
_GROUP = re.compile(r"^(\d+) ranks? have (?:launched up to operation (\d+)|not launched any operations)")


@dataclass(frozen=True, slots=True)
class Missing:
    """A rank whose process does not answer RAS."""

    rank: int
    host: str = ""
    pid: int | None = None
    dead: bool | None = None
    """Whether RAS takes it for dead; None where it does not say."""


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    hash: str
    size: int | None = None
    missing: tuple[Missing, ...] = ()
    counts: dict[str, dict[int, int]] = field(default_factory=dict)
    """Launches by operation ("AllReduce") and rank; of the text form only those of the outliers."""
    usual: dict[str, int] = field(default_factory=dict)
    """What most ranks have launched, by operation."""


@dataclass(frozen=True, slots=True)
class RasReport:
    communicators: tuple[RasCommunicator, ...]
    version: str = ""


class RasError(ValueError):
    """What came is no report of RAS."""


def parse_version(text: str) -> tuple[int, int, int] | None:
    """ "2.28.9+cuda12.4" → (2, 28, 9)."""
    match = _VERSION.search(text)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))


def parse(text: str) -> RasReport:
    """Either form. Raises RasError."""
    return parse_json(text) if text.lstrip().startswith("{") else parse_text(text)


def parse_json(text: str) -> RasReport:
    """The JSON form; 2.28.7 and 2.28.9 leave out a comma in a missing rank. Raises RasError."""
    try:
        document = json.loads(_NO_COMMA.sub(r"\1,\2", text))
        communicators = tuple(_communicator(entry) for entry in document["communicators"])
        return RasReport(communicators, str(document.get("nccl_version", "")))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise RasError(f"RAS sent what is no report: {error}") from None


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


def parse_text(text: str) -> RasReport:
    """The text form (2.24 to 2.28.6): only what it lists under Errors and Warnings. Raises RasError."""
    if "NCCL version" not in text and "Communicators" not in text:
        raise RasError("RAS sent what is no report")
    reader = _TextReader()
    for line in text.splitlines():
        reader.take(line.strip())
    version = re.search(r"NCCL version (\S+)", text)
    return RasReport(tuple(reader.communicators.values()), version[1] if version else "")


class _TextReader:
    """Line by line; what follows a headline belongs to it."""

    def __init__(self) -> None:
        self.communicators: dict[str, RasCommunicator] = {}
        self._hash = self._kind = self._operation = ""
        self._group: tuple[int, int] | None = None
        """Ranks and launches of the group whose outliers may follow."""
        self._largest: dict[tuple[str, str], int] = {}

    def take(self, line: str) -> None:
        if head := _COMM.match(line):
            self._hash, self._kind, self._operation, self._group = head[1], head[2], "", None
            self.communicators.setdefault(self._hash, RasCommunicator("0x" + self._hash.lstrip("0")))
        elif not self._hash:
            return
        elif operation := _OPERATIONS.search(line):
            self._operation, self._group = operation[1], None
        elif group := _GROUP.match(line):
            self._launched(int(group[1]), int(group[2] or 0))
        elif rank := _RANK.match(line):
            self._rank(rank)

    def _launched(self, ranks: int, count: int) -> None:
        """So many ranks have launched so many: the largest group is what is usual."""
        self._group = ranks, count
        at = self._hash, self._operation
        if self._operation and ranks > self._largest.get(at, 0):
            self._largest[at] = ranks
            self.communicators[self._hash].usual[self._operation] = count

    def _rank(self, match: re.Match[str]) -> None:
        number, comm = int(match[1]), self.communicators[self._hash]
        if self._operation:
            alone: int | None = None
            if match[2]:
                alone = int(match[2])
            elif "not launched" in match[0]:
                alone = 0
            count = alone
            if alone is None and self._group:
                count = self._group[1]
            if count is not None:
                comm.counts.setdefault(self._operation, {})[number] = count
                if alone is not None:
                    self._launched(1, alone)
        elif "INCOMPLETE" in self._kind:
            missing = Missing(number, match[4] or "", int(match[3]) if match[3] else None)
            self.communicators[self._hash] = replace(comm, missing=(*comm.missing, missing))


@dataclass(frozen=True, slots=True)
class Behind:
    """Ranks that launched fewer of one operation than most, in two reports, with no launch between them."""

    operation: str
    ranks: tuple[int, ...]
    count: int
    most: int
    communicator: str


def stuck(before: RasReport, now: RasReport) -> list[Behind]:
    """Who is behind and does not move: counts that differ in one report alone are normal."""
    earlier = {comm.hash: comm for comm in before.communicators}
    stragglers = []
    for comm in now.communicators:
        previous = earlier.get(comm.hash)
        for operation, counts in comm.counts.items():
            most = comm.usual.get(operation)
            late = [rank for rank, count in counts.items() if most is not None and count < most]
            if not late or previous is None or previous.counts.get(operation) != counts or most is None:
                continue
            if previous.usual.get(operation) == most:
                least = min(counts[rank] for rank in late)
                stragglers.append(Behind(operation, tuple(sorted(late)), least, most, comm.hash))
    return stragglers


def _usual(counts: Iterable[int]) -> int:
    """The count that most have; of equals the larger."""
    tally = Counter(counts)
    return max(tally, key=lambda count: (tally[count], count))


def missing(report: RasReport) -> list[Missing]:
    """Every rank that does not answer, once."""
    by_process = {(rank.rank, rank.pid): rank for comm in report.communicators for rank in comm.missing}
    return [by_process[at] for at in sorted(by_process, key=str)]
