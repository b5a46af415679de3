"""Identify the writer and time of an NCCL line from its own prefix and from the prefixes of launchers and torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from .line_formats import PHRASES, RANKS, TIMES, by_first_character, joined

MARK = re.compile(r"NCCL (?:(INFO|WARN|ATTN|TRACE|CALL|ABORT) |version (?=\d))")
"""The end of the prefix. Without a group: the line with NCCL's version."""


def old_mark(line: str) -> re.Match[str] | None:
    """Return the end of the prefix in lines of NCCL before 2.4, which does not write its name."""
    old = PHRASES["old_head"].search(line)
    return None if old is None else PHRASES["old_level"].match(line, old.start(1))


_DEVICES = 1024
"""More GPUs than any host has. NCCL 2.14 to 2.22 write uninitialised memory as the device if CUDA fails."""

_RANKS, _STAMP = by_first_character(RANKS), joined(TIMES)


Thread = tuple[str, int | None, int | None]


@dataclass(slots=True, eq=False)
class Head:
    """The prefix of a message. None and "" mean unknown."""

    host: str = ""
    pid: int | None = None
    dev: int | None = None
    """CUDA device; None also if NCCL wrote an impossible number."""
    rank: int | None = None
    """Rank in the prefix of the launcher or torch, or in the file's name."""
    thread: Thread = ("", None, None)
    """Host, process and thread, with the file instead of an unknown host."""
    process: Thread = ("", None, None)
    """Host, process and None."""
    source: Thread = ("", None, None)
    """Host or file, process and rank: identifies one writer of lines."""
    node: str = ""
    """If `rank` is a local rank: an identifier of its node, see file_names.LocalRanks."""


@dataclass(frozen=True, slots=True, order=True)
class Stamp:
    """Time of a line. Only stamps of one kind can be compared."""

    kind: str
    """ "nccl": NCCL's, in the host's time. "glog": torch's, without a year. "iso": from a log shipper or launcher."""
    text: str
    """The timestamp; its string order is its time order."""

    @property
    def clock(self) -> str:
        """Hours, minutes and seconds, whatever the day and time zone."""
        return self.text.partition(" ")[2][:8]

    @property
    def local(self) -> str | None:
        """Month, day and time of the host, for stamps of NCCL and torch; None for "iso"."""
        if self.kind == "iso":
            return None
        return self.text if self.kind == "glog" else self.text[5:7] + self.text[8:]


SOURCES = 4096
"""Maximum number of hosts or ranks kept per fact."""


def heads_of(ranks: Iterable[int]) -> dict[Thread, Head]:
    """Return a head by source for each of these ranks, whose lines are unknown."""
    return {("", None, rank): Head(rank=rank) for rank in islice(ranks, SOURCES)}


def parse_head(text: str, file: str = "", rank: int | None = None) -> Head:
    """Parse the prefix before `NCCL INFO`. `rank`: rank of the file, used if the line has none."""
    match = PHRASES["nccl_head"].search(text)
    head = Head(rank=_rank_before(text, match, rank))
    thread = None
    if match:
        head.host, head.pid, thread = match["host"], int(match["pid"]), int(match["tid"])
    bare = match or PHRASES["device"].search(text)
    if bare and bare["dev"] and 0 <= int(bare["dev"]) < _DEVICES:
        head.dev = int(bare["dev"])
    writer = head.host or file
    head.thread = (writer, head.pid, thread)
    head.process = (writer, head.pid, None)
    head.source = (writer, head.pid, head.rank)
    return head


def _rank_before(text: str, match: re.Match[str] | None, rank: int | None) -> int | None:
    """Return the rank that a launcher or torch writes before NCCL's prefix, else `rank`."""
    before = text[: match.start()] if match else text
    written = rank_of(before)
    if written is not None:
        return written
    task = PHRASES["srun_task"].match(before) if match else None
    return int(task[1]) if task else rank


def rank_of(text: str) -> int | None:
    """Return the rank that a launcher or torch writes into a line; None without one."""
    for character, pattern in _RANKS.items():
        if character in text and (match := pattern.search(text, 0, 400)) is not None:
            return int(match[match.lastindex or 0][:9])
    return None


def stamp_of(text: str) -> Stamp | None:
    """Return NCCL's own timestamp in a line, else the first timestamp."""
    first: Stamp | None = None
    for match in _STAMP.finditer(text, 0, 400):
        number = (match.lastindex or 1) - 1
        kind = TIMES[number].name
        value = match[number + 1].replace("T", " ").replace(",", ".")
        if kind == "glog":  # E429 is April 29th
            day, _, rest = value.partition(" ")
            value = f"{day.zfill(4)} {rest}"
        if kind == "nccl":
            return Stamp(kind, value)
        first = first or Stamp(kind, value)
    return first
