"""NCCL's log lines: their prefix, their messages (NCCL 2.3 to 2.32), and the phrases that repeat."""

from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..errors import RunError

# -----------------------------------------------------------------------------------------------------------
# The informative messages of NCCL 2.3 to 2.32, as patterns at the beginning of a message.


COMM = re.compile(
    r"(?:\[Rank \d+\] )?(?:(?P<call>nccl\w+) )?comm (?P<pointer>0x[0-9a-f]+|\(nil\)) rank (?P<rank>\d{1,9}) "
    r"n[rR]anks (?P<nranks>\d{1,9})(?P<rest>.*)"
)
NODES = re.compile(r" nNodes (\d{1,9}) ")
COMM_ID = re.compile(r" commId (0x[0-9a-f]+)")
ENDING = re.compile(r"- (Init START|Init COMPLETE|Destroy COMPLETE|Abort COMPLETE)")
TIMINGS = re.compile(
    r"Init timings(?: - \w+)?: rank (\d{1,9}) nranks (\d{1,9}) total (\d{1,9}\.\d{1,9}) \((.*)\)"
)
PHASE = re.compile(r"(\w{1,40}) (\d{1,9}\.\d{1,9})")
LINK = re.compile(
    r"(?:Channel|Ring) (\d{1,6})(?:/\d+)? : (\d{1,9})(?:\[\w+\])? -> (\d{1,9})(?:\[\w+\])?"
    r"(?: \[(send|receive)\])? via (.+)"
)
RING = re.compile(r"Channel (\d{1,6})(?:/\d+)? :((?: +\d+)+)")
TREE = re.compile(r"(?:\[(\d{1,6})\] |Tree (\d{1,6}) : )-?\d+(?:/-?\d+)* ?->")
CHANNELS = re.compile(r"(\d{1,9}) (coll|collnet|nvls|p2p) channels( per peer)?")
HCA = re.compile(r"\[\d+\](\S+?:\d+)/(\S+)")
OOB = re.compile(r"; OOB ([^:\s]+):(\S+)")
INTERFACE = re.compile(r"(?:\[\d+\])?([^:\s\[\]]+):(\S+?)<\d+>")
BOOTSTRAP = re.compile(r"Bootstrap ?: Using (?:\[\d+\])?([^:\s]+):")
NETWORK = re.compile(r"Using (?:network|internal Network) (.+?)\s*$")
ASSIGNED = re.compile(r"Assigned NET plugin (.+) to comm")
PLUGIN = re.compile(
    r"(?:NET/Plugin ?: Loaded net plugin (?P<net>.+)|NET/OFI (?:Using|Initializing) (?P<ofi>aws-ofi-nccl \S+)"
    r"|P2P plugin (?P<p2p>\S+)|(?P<kind>TUNER|PROFILER)/Plugin: Using (?P<name>.+))"
)
VARIABLE = re.compile(r"(NCCL_[A-Z0-9_]+) set (?:by environment )?to (.+?)\.?\s*$")
COLLECTIVE = re.compile(r"(\w{1,40}): opCount [0-9a-f]+ .*?comm (0x[0-9a-f]+)")
TUNED = re.compile(r"(?:(\w+): )?\d+ Bytes -> Algo (\w+) proto (\w+)")
VERSION = re.compile(r"(?:NCCL version )?(\d+\.\d+(?:\.\d+)*)(\+cuda[\w.]+)?")

ALGORITHMS = {
    "0": "TREE",
    "1": "RING",
    "2": "COLLNET_DIRECT",
    "3": "COLLNET_CHAIN",
    "4": "NVLS",
    "5": "NVLS_TREE",
}
PROTOCOLS = {"0": "LL", "1": "LL128", "2": "SIMPLE"}
"""2.21 writes numbers, later ones names."""


@functools.lru_cache(4096)
def transport(via: str) -> str:
    """How two ranks are connected: "P2P/IPC", "SHM", "NET/IB/GDRDMA", "NET/AWS Libfabric", …"""
    via = via.partition(" comm ")[0].strip()
    if via.startswith(("direct shared", "SHM")):
        return "SHM"
    parts = via.split("/")
    if parts[0] == "NET" and len(parts) > 1:
        direct = any(part.startswith("GDRDMA") for part in parts[2:])
        return f"NET/{parts[1][:60]}" + "/GDRDMA" * direct
    if parts[0] == "P2P" and len(parts) > 1:
        return f"P2P/{parts[1].split('[')[0][:60]}"
    return parts[0][:60]


# -----------------------------------------------------------------------------------------------------------
# A line of NCCL → who wrote it, at which level, and the message.
#     [2025-06-01 12:00:00] host:pid:tid [dev] file:line (func) NCCL WARN message
# Each part but the message may lack. Launchers, log shippers and progress bars write before it. Whatever cannot be
# told apart is left unknown, and the message is read all the same. Lines are said to be of NCCL where they hold
# `NCCL INFO` and its like, or are of the form that 2.3 had, without that word.


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


def parse_head(text: str, file: str = "", rank: int | None = None) -> Head:
    """What stands before `NCCL INFO`, in a file that is the log of `rank`."""
    match = _HEAD.search(text)
    bare = match or _BARE.search(text)
    after = bare["place"] if bare else text
    place = _PLACE.match(after) if after else None
    dev = int(bare["dev"]) if bare is not None and bare["dev"] else None
    before = text[: match.start()] if match else text
    written = rank_of(before) if before else None
    task = _TASK.match(before) if match and before and written is None else None
    host, pid, tid = (match["host"], int(match["pid"]), int(match["tid"])) if match else ("", None, None)
    rank = int(task[1]) if task else rank if written is None else written
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
    match = _RANK.search(text, 0, 400)
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


# -----------------------------------------------------------------------------------------------------------
# Text files as lines, block by block, however long they are.


BLOCK = 1 << 20
LONGEST = 1 << 16
"""Bytes of a line that are looked at."""

_ELSE = bytes(range(9)) + bytes(range(14, 27)) + bytes(range(28, 32))
"""Bytes that no text holds."""


def lines_of(path: Path, refuse: bool = True) -> Iterator[list[str]]:
    """Lines of a text file, some at a time; of a long one its beginning. Raises RunError.

    `refuse`: what begins as no text does; else its bytes that are none are replaced.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise RunError(_why(path, error)) from None
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise RunError(f"{path} is a directory: name the log files in it, as in {path}/*.log")
        yield from lines_in(partial(os.read, descriptor, BLOCK), _Text(path, refuse).check)
    except OSError as error:
        raise RunError(_why(path, error)) from None
    finally:
        os.close(descriptor)


def lines_in(read: Callable[[], bytes], check: Callable[[bytes], None]) -> Iterator[list[str]]:
    """Lines of a text that `read` gives in blocks, b"" at its end; `check` sees each block before it is used."""
    rest, skipping = b"", False
    while block := read():
        check(block)
        if skipping:  # the rest of a line whose beginning is in `rest`
            if (at := block.find(b"\n")) < 0:
                continue
            block, skipping = block[at:], False
        whole, newline, tail = block.rpartition(b"\n")
        if newline:
            yield decoded(rest + whole)
            rest = tail
        else:
            rest += tail
        if len(rest) > LONGEST:
            rest, skipping = rest[:LONGEST], True
    if rest:
        yield decoded(rest)


def decoded(data: bytes) -> list[str]:
    """Whole lines, each cut where it is too long."""
    lines = data.replace(b"\r\n", b"\n").decode("utf-8", "replace").split("\n")
    if len(data) > LONGEST and max(map(len, lines)) > LONGEST:
        return [line[:LONGEST] for line in lines]
    return lines


class _Text:
    """Whether a file is one, by how it begins."""

    def __init__(self, path: Path, refuse: bool) -> None:
        self._path, self._begun = path, not refuse

    def check(self, block: bytes) -> None:
        if not self._begun and _binary(block[:8192]):
            raise RunError(f"{self._path} is no text: give the logs themselves, unpacked")
        self._begun = True


def _binary(sample: bytes) -> bool:
    """Whether more than a few bytes are none of a text."""
    return len(sample) - len(sample.translate(None, _ELSE)) > len(sample) // 20


def _why(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path} does not exist: name log files, or a run (`distui ls` lists them)"
    return f"{path} cannot be read ({(error.strerror or str(error)).lower()}): name log files that you may read"
