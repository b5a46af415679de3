"""The time of a communicator's init, as one bar per rank or node. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ...runners.diagnosis.nccl_facts import STAGES, Communicator
from .communicators import READY, host_of, hosts_in_order, late_ranks
from .frame import short_host
from .glyphs import Cell, Row, fit, wrap

EACH = 16
"""Maximum number of ranks with separate bars; more have one bar per node."""

BARS = 24
"""Maximum number of bars; the last to be ready are kept."""


class Bar(Struct, frozen=True):
    """One rank or node: when it began and was ready, in seconds from the earliest line."""

    label: str
    began: float
    ended: float | None
    """None if it is not ready, or at an unknown time."""
    text: str

    @property
    def last_time(self) -> float:
        return self.ended or self.began


def bars(comm: Communicator) -> list[Bar]:
    """Return one bar per rank, or per node if there are many; times are relative to the earliest."""
    first = min(comm.began.values(), default=0.0)
    late = _unready(comm)
    every = [_bar(label, ranks, comm, first, late) for label, ranks in _subjects(comm)]
    shown = [bar for bar in every if bar.text]
    last = sorted(shown, key=_readiness)[:BARS]
    return [bar for bar in shown if bar in last]


def _subjects(comm: Communicator) -> list[tuple[str, list[int]]]:
    """Return label and ranks of each bar."""
    ranks = _initialized(comm)
    each = [(f"r{rank}", [rank]) for rank in ranks]
    if len(ranks) <= EACH:
        return each
    at, subjects = host_of(comm), []
    for host in hosts_in_order(comm):
        own = set(comm.hosts[host]).intersection(ranks)
        subjects.append((short_host(host), sorted(own)))
    return subjects + [(label, own) for label, own in each if own[0] not in at]


def _initialized(comm: Communicator) -> list[int]:
    """Return the ranks with known times of their init."""
    return sorted({*comm.began, *(init.rank for init in comm.inits)})


def _unready(comm: Communicator) -> dict[int, str]:
    """Map ranks that others wait for to their stage; without any init, all ranks that are not ready."""
    unready = {rank: stage for stage, ranks in late_ranks(comm).items() for rank in ranks}
    if not comm.inits:
        unready |= {rank: stage for rank, stage in comm.stages.items() if STAGES.index(stage) < READY}
    return unready


def _readiness(bar: Bar) -> tuple[bool, float]:
    """Sort bars that are not ready first, then the last to be ready."""
    return bar.ended is not None, -(bar.ended or 0.0)


def _bar(label: str, ranks: Sequence[int], comm: Communicator, first: float, late: dict[int, str]) -> Bar:
    start = min((comm.began.get(rank, first) - first for rank in ranks), default=0.0)
    waiting = [late[rank] for rank in ranks if rank in late]
    if waiting:
        who = f"{len(waiting)} of {len(ranks)} " if len(ranks) > 1 else ""
        return Bar(label, start, None, f"{who}{waiting[0]}, not complete")
    own = [init for init in comm.inits if init.rank in ranks]
    if not own:
        return Bar(label, start, None, "time n/a" if ranks else "")
    end = max(comm.began.get(init.rank, first) - first + init.seconds for init in own)
    return Bar(label, start, end, f"{end - start:.2f} s")


def init_rows(comm: Communicator, width: int) -> list[Row]:
    """Return the bars, from the start of init until a rank is ready, and what a row is."""
    shown = bars(comm)
    if not shown:
        return wrap(
            "no log line shows how long init took: NCCL 2.19 and newer print it at INFO", width, "dim"
        )
    edge = min(16, max(len(bar.label) for bar in shown)) + 1
    tail = max(len(bar.text) for bar in shown) + 1
    room = max(10, min(100, width - edge - tail - 1))
    longest = max(bar.last_time for bar in shown) or 1.0
    rows: list[Row] = []
    for bar in shown:
        text = (" " + bar.text, "warn" if bar.ended is None else "text")
        rows.append(((fit(bar.label, edge), "dim"), *_drawn(bar, room, longest), text))
    each = "rank" if len(_initialized(comm)) <= EACH else "node"
    untimed = "" if comm.began else "; no timestamps in the log: bars start at 0"
    return [*rows, *wrap(f"one row per {each}, until it is ready{untimed}", width, "dim")]


def _drawn(bar: Bar, room: int, longest: float) -> list[Cell]:
    """Return blanks until the start, then a bar until the end."""
    start = min(room - 1, int(bar.began / longest * room))
    if bar.ended is None:
        return [(" " * start, "text"), ("░" * (room - start), "warn")]
    stop = max(start + 1, round(bar.ended / longest * room))
    return [(" " * start, "text"), ("█" * (stop - start), "ok"), (" " * (room - stop), "text")]
