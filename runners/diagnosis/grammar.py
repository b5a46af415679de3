"""A line of NCCL → who wrote it, at which level, and the message.

    [2025-06-01 12:00:00] host:pid:tid [dev] file:line (func) NCCL WARN message       each part but the message may lack

Launchers, log shippers and progress bars write before it. Whatever cannot be told apart is left unknown, and the message
is read all the same. Lines are said to be of NCCL where they hold `NCCL INFO` and its like, or are of the form that 2.3
had, without that word.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LEVELS = ("INFO", "WARN", "TRACE", "CALL", "ABORT")

MARK = re.compile(r"NCCL (?:(INFO|WARN|TRACE|CALL|ABORT) |version (?=\d))")
"""Where a head ends and the message begins; without a group: the line that says NCCL's version."""
OLD = re.compile(r"^.*?(?<![\w.-])[\w.-]+:\d+:\d+ \[-?\d+\] (INFO|WARN|TRACE) ")
"""The form of 2.3."""

_HEAD = re.compile(
    r"(?<![\w.-])(?!\d\d:\d\d:\d\d )(?P<host>[A-Za-z0-9_][\w.\-]*):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) "
    r"(?:\[(?P<dev>-?\d{1,10})\] )?(?P<place>.*)$"
)
_BARE = re.compile(r"(?:^|\s)\[(?P<dev>-?\d{1,10})\] (?P<place>.*)$")
_PLACE = re.compile(r"(?:\d+\.\d+ )?(?P<file>\S[^\r]{0,200}?):(?P<line>\d+) (?:\((?P<func>\w+)\) )?$")
_DEVICES = 1024
"""No host has as many GPUs: 2.14 to 2.22 write what lies in memory where CUDA fails."""

_RANK = re.compile(r"\[(?:rank(\d+)\]|\d+,(\d+)\]<std|PG .{0,80}?Rank (\d+)\]|Rank (\d+)\])")
"""torchrun and torch, mpirun, torch's process groups."""
_TASK = re.compile(r"(\d{1,7}): ")
"""srun -l: only before a head, since other texts begin like that too."""
_STAMP = re.compile(
    r"\[(?P<nccl>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)\] "
    r"|\[[EWIF](?P<glog>\d{3,4} \d\d:\d\d:\d\d(?:\.\d+)?)"
    r"|(?<!\d)(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?)"
)


Thread = tuple[str, int | None, int | None]


@dataclass(slots=True, eq=False)
class Head:
    """What stands before a message. None and "" are unknown."""

    host: str = ""
    pid: int | None = None
    tid: int | None = None
    dev: int | None = None
    """CUDA device; None also where NCCL wrote a number that is none."""
    file: str = ""
    line: int | None = None
    func: str = ""
    rank: int | None = None
    """As the launcher or torch writes it before the line, or the file's name says."""
    thread: Thread = ("", None, None)
    """Host, process and thread; the file in place of a host that is not known."""
    process: Thread = ("", None, None)
    """The same without the thread."""
    source: Thread = ("", None, None)
    """Host or file, process, rank: who counts as one."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line, taken apart."""

    head: Head
    level: str
    """One of LEVELS; "VERSION"; "" for what is no line of NCCL."""
    message: str


@dataclass(frozen=True, slots=True, order=True)
class Stamp:
    """When a line was written. Only stamps of one kind can be compared."""

    kind: str
    """"nccl": its own, the host's time; "glog": torch's, without a year; "iso": somebody's on the way."""
    text: str
    """Sorts as time."""

    @property
    def local(self) -> str | None:
        """Month, day and time of the host, which NCCL and torch both write; None for a shipper's."""
        if self.kind == "iso":
            return None
        return self.text if self.kind == "glog" else self.text[5:7] + self.text[8:]


def take_apart(text: str) -> Line:
    """Any line; never raises."""
    found = MARK.search(text)
    if found is not None:
        return Line(parse_head(text[: found.start()]), found[1] or "VERSION", text[found.end() :])
    old = OLD.match(text)
    if old is not None:
        return Line(parse_head(text[: old.start(1)]), old[1], text[old.end() :])
    return Line(Head(rank=rank_of(text)), "", text)


def parse_head(text: str, file: str = "", rank: int | None = None) -> Head:
    """What stands before `NCCL INFO`, in a file that is the log of `rank`."""
    found = _HEAD.search(text)
    bare = found or _BARE.search(text)
    after = bare["place"] if bare else text
    place = _PLACE.match(after) if after else None
    dev = int(bare["dev"]) if bare is not None and bare["dev"] else None
    before = text[: found.start()] if found else text
    said = rank_of(before) if before else None
    task = _TASK.match(before) if found and before and said is None else None
    said = said if said is not None else rank
    host, pid, tid = (found["host"], int(found["pid"]), int(found["tid"])) if found else ("", None, None)
    rank = int(task[1]) if task else said
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
    """The rank that a launcher or torch writes into a line; None where nobody does."""
    found = _RANK.search(text, 0, 400)
    return None if found is None else int(next(one for one in found.groups() if one)[:9])


def stamp_of(text: str) -> Stamp | None:
    """When the line was written, by NCCL's own stamp where it has one, else by the first that there is."""
    first: Stamp | None = None
    for found in _STAMP.finditer(text, 0, 400):
        kind = found.lastgroup or ""
        value = found[kind].replace("T", " ").replace(",", ".")
        if kind == "glog":  # E429 is April 29th
            day, _, rest = value.partition(" ")
            value = f"{day.zfill(4)} {rest}"
        if kind == "nccl":
            return Stamp(kind, value)
        first = first or Stamp(kind, value)
    return first
