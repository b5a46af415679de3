"""Who wrote a line of NCCL's, and when: its own prefix, and the ranks and times that others write before it."""

from __future__ import annotations

import re
from dataclasses import dataclass

LEVELS = ("INFO", "WARN", "ATTN", "TRACE", "CALL", "ABORT")

MARK = re.compile(r"NCCL (?:(INFO|WARN|ATTN|TRACE|CALL|ABORT) |version (?=\d))")
"""Where a head ends and the message begins; without a group: the line with NCCL's version."""
_OLD = re.compile(r"(?<![\w.-])[\w.-]+:\d+:\d+ \[-?\d+\] (?:\S+:\d+ )?(INFO|WARN|TRACE) ")
_LEVEL = re.compile(r"(INFO|WARN|TRACE) ")


def old_mark(line: str) -> re.Match[str] | None:
    """The same of NCCL before 2.4, which does not write its name."""
    old = _OLD.search(line)
    return None if old is None else _LEVEL.match(line, old.start(1))


_HEAD = re.compile(
    r"(?<![\w.-])(?!\d\d:\d\d:\d\d )(?P<host>[A-Za-z0-9_][\w.\-]*):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) "
    r"(?:\[(?P<dev>-?\d{1,10})\] )?(?P<place>.*)$"
)
_BARE = re.compile(r"(?:^|\s)\[(?P<dev>-?\d{1,10})\] (?P<place>.*)$")
_PLACE = re.compile(r"(?:\d+\.\d+ )?(?P<file>\S[^\r]{0,200}?):(?P<line>\d+) (?:\((?P<func>\w+)\) )?$")
_DEVICES = 1024
"""No host has as many GPUs: 2.14 to 2.22 write uninitialised memory where CUDA fails."""

_RANK = re.compile(
    r"\[(?:rank[:=]? ?(\d+)\]|(?:[\w.-]{0,80}@)?\d+,(?:mpirank:)?(\d+)(?:,[\w.-]+)?\]<std"
    r"|PG .{0,80}?Rank (\d+)\]|R(?:ank|ANK)[: ](\d+)\])"
)
"""torch, Lightning; mpirun and SageMaker; torch's process groups."""
_OF_RECORD = re.compile(r"⟨[^⟨⟩]{0,200}\brank (\d+)⟩")
"""Of records of JSON, as they are written here."""
_TASK = re.compile(r"(\d{1,7}): ")
"""srun -l: only before a head, since other texts begin like that too."""
_STAMP = re.compile(
    r"\[(?P<nccl>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)\] "
    r"|(?:\[|^)[EWIF](?P<glog>\d{3,4} \d\d:\d\d:\d\d(?:\.\d+)?)"
    r"|(?<!\d)(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?)"
)


Thread = tuple[str, int | None, int | None]


@dataclass(slots=True, eq=False)
class Head:
    """The prefix of a message. None and "" are unknown."""

    host: str = ""
    pid: int | None = None
    tid: int | None = None
    dev: int | None = None
    """CUDA device; None also where NCCL wrote a number that is none."""
    file: str = ""
    line: int | None = None
    func: str = ""
    rank: int | None = None
    """From the prefix of launcher or torch, or from the file's name."""
    thread: Thread = ("", None, None)
    """Host, process and thread; the file in place of an unknown host."""
    process: Thread = ("", None, None)
    """The same without the thread."""
    source: Thread = ("", None, None)
    """Host or file, process, rank: one source of lines."""
    node: str = ""
    """Where `rank` is a local rank: what stands for its node; see file_names.LocalRanks."""


@dataclass(frozen=True, slots=True, order=True)
class Stamp:
    """When a line was written. Only stamps of one kind can be compared."""

    kind: str
    """"nccl": its own, the host's time; "glog": torch's, without a year; "iso": somebody's on the way."""
    text: str
    """Sorts as time."""

    @property
    def clock(self) -> str:
        """Hours, minutes and seconds, of whatever day and zone."""
        return self.text.partition(" ")[2][:8]

    @property
    def local(self) -> str | None:
        """Month, day and time of the host, which NCCL and torch both write; None for a shipper's."""
        if self.kind == "iso":
            return None
        return self.text if self.kind == "glog" else self.text[5:7] + self.text[8:]


def parse_head(text: str, file: str = "", rank: int | None = None) -> Head:
    """The prefix before `NCCL INFO`, in a file that is the log of `rank`."""
    match = _HEAD.search(text)
    bare = match or _BARE.search(text)
    after = bare["place"] if bare else text
    place = _PLACE.match(after) if after else None
    dev = int(bare["dev"]) if bare is not None and bare["dev"] else None
    before = text[: match.start()] if match else text
    written = rank_of(before) if before else None
    task = _TASK.match(before) if match and before and written is None else None
    host, pid, tid = (match["host"], int(match["pid"]), int(match["tid"])) if match else ("", None, None)
    if task:
        rank = int(task[1])
    elif written is not None:
        rank = written
    return Head(
        host,
        pid,
        tid,
        dev if dev is not None and 0 <= dev < _DEVICES else None,
        place["file"] if place else "",
        int(place["line"][:9]) if place else None,
        (place["func"] or "") if place else "",
        rank,
        (host or file, pid, tid),
        (host or file, pid, None),
        (host or file, pid, rank),
    )


def rank_of(text: str) -> int | None:
    """The rank that a launcher or torch writes into a line; None where there is none."""
    match = _RANK.search(text, 0, 400) or (_OF_RECORD.search(text, 0, 400) if "⟨" in text else None)
    return None if match is None else int(next(digits for digits in match.groups() if digits)[:9])


def stamp_of(text: str) -> Stamp | None:
    """When the line was written, by NCCL's own stamp where it has one, else by the first that there is."""
    first: Stamp | None = None
    for match in _STAMP.finditer(text, 0, 400):
        kind = match.lastgroup or ""
        value = match[kind].replace("T", " ").replace(",", ".")
        if kind == "glog":  # E429 is April 29th
            day, _, rest = value.partition(" ")
            value = f"{day.zfill(4)} {rest}"
        if kind == "nccl":
            return Stamp(kind, value)
        first = first or Stamp(kind, value)
    return first


SOURCES = 4096
"""Hosts, and ranks, that are kept of one thing that is told."""
