"""How a communicator came to be: its rings, and the time that each rank or node took. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from ...runners.diagnosis.facts import Communicator
from . import glyphs
from .cells import Cell, Row, fit, plural, wrap
from .matrix import host_of, hosts_in_order
from .statements import READY, STAGES, late_ranks, short, slowest

EACH = 16
"""Ranks of which each has a bar; more have one a node."""
BARS = 24
"""Most bars; then those that were the last to be ready."""
_RANKS_SHOWN = 8
"""Ranks of a node that are written out in a ring."""

# ---- rings


def ring_rows(one: Communicator, width: int) -> list[Row]:
    """The order of the ranks, folded by node; equal rings are told once."""
    at = host_of(one)
    orders: dict[tuple[int, ...], list[int]] = {}
    for number, ring in enumerate(one.rings):
        if ring:
            orders.setdefault(_begun(ring, at), []).append(number)
    if not orders:
        told = f"{plural(one.ring_count, 'ring')}: no line tells the order whole"
        return wrap(told if one.ring_count else "no line tells of rings", width, "dim")
    rows: list[Row] = []
    for order, numbers in orders.items():
        name = f"ring {','.join(map(str, numbers))}" if len(numbers) < 5 else plural(len(numbers), "ring")
        lines = wrap(_ring_text(order, at), width - 14)
        rows += [((fit(name if not row else "", 14), "dim"), *line) for row, line in enumerate(_cut(lines))]
        entered, least = crossings(order, at)
        if entered > least:
            text = f"enters nodes {entered} times a round; {least} would do"
            rows.append(((" " * 12 + f"{glyphs.WARN} ", "warn"), (text, "text")))
    more = one.ring_count - sum(map(len, orders.values()))
    return rows + ([((f"{plural(more, 'more ring')} not told in full", "dim"),)] if more > 0 else [])


def _cut(lines: list[Row], most: int = 3) -> list[Row]:
    return lines if len(lines) <= most else [*lines[: most - 1], (("…", "dim"),)]


def _begun(ring: Sequence[int], at: dict[int, str]) -> tuple[int, ...]:
    """The same ring, begun where it enters the node of its lowest rank; on one node at the lowest rank."""
    first = ring.index(min(ring))
    if len({at.get(rank) for rank in ring}) > 1:
        home = at.get(ring[first])
        while at.get(ring[first - 1]) == home:
            first = (first - 1) % len(ring)
    return (*ring[first:], *ring[:first])


def _ring_text(order: Sequence[int], at: dict[int, str]) -> str:
    if len({at.get(rank) for rank in order}) < 2:
        return " → ".join(map(str, (*order, order[0])))
    parts = []
    for host, ranks in groupby(order, lambda rank: at.get(rank, "")):
        own = list(ranks)
        inside = (
            " ".join(map(str, own)) if len(own) <= _RANKS_SHOWN and len(order) <= 128 else f"×{len(own)}"
        )
        parts.append(f"{short(host) or 'n/a'} [{inside}]")
    return " → ".join([*parts, parts[0].partition(" ")[0]])


def crossings(order: Sequence[int], at: dict[int, str]) -> tuple[int, int]:
    """How often a ring enters a node in one round, and how often it would have to."""
    hosts = [at.get(rank) for rank in order]
    if None in hosts or len(set(hosts)) < 2:
        return 0, 0
    return sum(here != before for here, before in zip(hosts, [hosts[-1], *hosts[:-1]], strict=True)), len(
        set(hosts)
    )


# ---- init


@dataclass(frozen=True, slots=True)
class Bar:
    """One rank or node: when it began and was ready, in seconds from the first line of all."""

    label: str
    began: float
    ended: float | None
    """None: not ready, or nobody says when."""
    phases: tuple[tuple[str, float], ...] = ()
    text: str = ""


def bars(one: Communicator) -> list[Bar]:
    """A bar a rank, or a node where there are many; times are relative to the first that is known."""
    first = min(one.began.values(), default=0.0)
    took = {init.rank: init for init in one.inits}
    ranks = sorted({*took, *one.began})
    late = {rank: stage for stage, late in late_ranks(one).items() for rank in late}
    late |= (
        {rank: stage for rank, stage in one.stages.items() if STAGES.index(stage) < READY}
        if not took
        else {}
    )
    at = host_of(one)
    if len(ranks) <= EACH:
        return [_bar(f"r{rank}", [rank], one, first, late) for rank in ranks]
    found = [
        _bar(
            short(host),
            [rank for rank in one.hosts[host] if rank in took or rank in one.began],
            one,
            first,
            late,
        )
        for host in hosts_in_order(one)
    ]
    found += [_bar(f"r{rank}", [rank], one, first, late) for rank in ranks if rank not in at]
    found = [bar for bar in found if bar.text]
    if len(found) <= BARS:
        return found
    last = sorted(found, key=lambda bar: (bar.ended is not None, -(bar.ended or 0.0)))[:BARS]
    return [bar for bar in found if bar in last]


def _bar(label: str, ranks: Sequence[int], one: Communicator, first: float, late: dict[int, str]) -> Bar:
    took = {init.rank: init for init in one.inits if init.rank in ranks}
    began = {rank: one.began.get(rank, first) - first for rank in ranks}
    ends = {rank: began[rank] + init.seconds for rank, init in took.items() if rank in began}
    waiting = [late[rank] for rank in ranks if rank in late]
    start = min(began.values(), default=0.0)
    if waiting:
        who = f"{len(waiting)} of {len(ranks)} " if len(ranks) > 1 else ""
        return Bar(label, start, None, (), f"{who}{waiting[0]}, not complete")
    if not ends:
        return Bar(label, start, None, (), "time n/a" if ranks else "")
    worst = max(ends, key=lambda rank: ends[rank])
    phases = tuple((name, value) for name, value in took[worst].phases.items() if value > 0)
    return Bar(label, start, ends[worst], phases, f"{ends[worst] - start:.2f} s")


def init_rows(one: Communicator, width: int) -> list[Row]:
    """The bars, each letter a phase, and the legend of the slowest rank."""
    found = bars(one)
    if not found:
        return wrap("no line tells how long init took: NCCL 2.19 and newer do at INFO", width, "dim")
    edge = min(16, max(len(bar.label) for bar in found)) + 1
    tail = max(len(bar.text) for bar in found) + 1
    room = max(10, min(100, width - edge - tail - 1))
    longest = max((bar.ended or bar.began for bar in found), default=0.0) or 1.0
    names = phase_letters(name for init in one.inits for name in init.phases)
    rows = [
        (
            (fit(bar.label, edge), "dim"),
            *_drawn(bar, room, longest, names),
            (
                " " + bar.text,
                "text" if bar.ended is not None else "warn",
            ),
        )
        for bar in found
    ]
    return [*rows, *_init_legend(one, names, width, len(found))]


def _drawn(bar: Bar, room: int, longest: float, names: dict[str, str]) -> list[Cell]:
    """Blanks until it begins, then a letter for each share of a phase."""
    start = min(room - 1, int(bar.began / longest * room))
    if bar.ended is None:
        return [(" " * start, "text"), ("░" * (room - start), "warn")]
    stop = max(start + 1, round(bar.ended / longest * room))
    length, total = stop - start, sum(value for _, value in bar.phases)
    text, passed = "", 0.0
    for name, value in bar.phases:
        passed += value
        text += names[name] * (round(passed / total * length) - len(text))
    return [(" " * start, "text"), (text or "█" * length, "ok"), (" " * (room - stop), "text")]


def phase_letters(phases: Iterable[str]) -> dict[str, str]:
    """Phase → a letter of its own: the first of its name that is free."""
    found: dict[str, str] = {}
    for name in phases:
        if name not in found:
            taken = set(found.values())
            free = (char for char in (*name, *name.upper(), *"0123456789") if char not in taken)
            found[name] = next(free, "█")
    return found


def _init_legend(one: Communicator, names: dict[str, str], width: int, shown: int) -> list[Row]:
    worst = slowest(one)
    if worst is None:
        return []
    parts = [f"{names[name]} {name} {value:.2f}" for name, value in worst.phases.items() if value > 0]
    each = (
        "a row a rank"
        if shown and len({*one.began, *(init.rank for init in one.inits)}) <= EACH
        else "a row a node"
    )
    from_ = "" if one.began else "; the lines carry no time, so all begin at the left"
    head = f"{each}, seconds of rank {worst.rank}, the slowest{from_}"
    return [*wrap("  ".join(parts), width, "text"), *wrap(head, width, "dim")]
