"""What /proc tells of a rank without its help."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..diagnosis.stacks import main_frames
from ..model import Site
from ..telemetry.proc import read_io, read_once, read_stat
from .processes import environ_of

MOST = 256
"""Processes of one rank that are looked at."""
_FRAME = re.compile(r"(.*):(\d+|\?\?\?) (.*)")


@dataclass(frozen=True, slots=True)
class Outside:
    """One look; None where the process is gone or does not let itself be read."""

    state: str | None
    cpu_s: float | None
    """Processor seconds of the main thread so far."""
    process_s: float | None
    read_bytes: int | None
    written_bytes: int | None


def look(pid: int, proc: str = "/proc") -> Outside:
    """A process now; what it read and wrote is told with its children's."""
    stat, main = read_stat(pid, proc), read_stat(pid, f"{proc}/{pid}/task")
    told = [read_io(one, proc) for one in tree(pid, proc)] if stat is not None else [None]
    known = [one for one in told if one is not None]
    return Outside(
        None if stat is None else stat.state,
        None if main is None else main.cpu_s,
        None if stat is None else stat.cpu_s,
        sum(one[0] for one in known) if told[0] is not None else None,
        sum(one[1] for one in known) if told[0] is not None else None,
    )


def tree(pid: int, proc: str = "/proc") -> list[int]:
    """The process and what was forked below it by main threads, as data loaders' workers are."""
    found = [pid]
    for one in found:
        listed = read_once(f"{proc}/{one}/task/{one}/children") or b""
        found += [int(word) for word in listed.split()]
        if len(found) > MOST:
            break
    return found


def meeting(pid: int) -> tuple[str | None, str | None]:
    """WORLD_SIZE and MASTER_ADDR:MASTER_PORT that the process was started with."""
    env = environ_of(pid)
    master = env.get("MASTER_ADDR")
    return env.get("WORLD_SIZE"), None if master is None else f"{master}:{env.get('MASTER_PORT', '')}"


def sites(text: str) -> tuple[Site, ...]:
    """The main thread in a text that faulthandler wrote, innermost first; () when it does not hold it."""
    found = (_FRAME.fullmatch(frame) for frame in main_frames(text))
    return tuple(
        Site(one[1], int(one[2]) if one[2].isdigit() else 0, one[3]) for one in found if one is not None
    )
