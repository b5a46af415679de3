"""The order of a communicator's ranks in each ring. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ...presets.plurals import plural
from ...runners.diagnosis.nccl_facts import Communicator
from . import glyphs
from .communicators import host_of
from .frame import short_host
from .glyphs import Row, fit, wrap

RING_ROWS = 3
_RANKS_SHOWN = 8
"""Maximum number of a node's ranks that a ring lists."""


def ring_rows(comm: Communicator, width: int) -> list[Row]:
    """Return the order of the ranks in each ring, folded by node; equal rings share a row."""
    at = host_of(comm)
    orders = _distinct_orders(comm, at)
    if not orders:
        summary = f"{plural(comm.ring_count, 'ring')}: no log line has the complete order"
        return wrap(summary if comm.ring_count else "no line shows rings", width, "dim")
    rows: list[Row] = []
    for order, numbers in orders.items():
        name = f"ring {','.join(map(str, numbers))}" if len(numbers) < 5 else plural(len(numbers), "ring")
        lines = wrap(_ring_text(order, at), width - 14)
        lines = lines if len(lines) <= RING_ROWS else [*lines[: RING_ROWS - 1], (("…", "dim"),)]
        rows += [((fit(name if not row else "", 14), "dim"), *line) for row, line in enumerate(lines)]
        entered, least = crossings(order, at)
        if entered > least:
            text = f"enters nodes {entered} times a round; {least} would do"
            rows.append(((" " * 12 + f"{glyphs.WARN} ", "warn"), (text, "text")))
    more = comm.ring_count - sum(map(len, orders.values()))
    return rows + ([((f"{plural(more, 'more ring')} not logged in full", "dim"),)] if more > 0 else [])


def _distinct_orders(comm: Communicator, at: dict[int, str]) -> dict[tuple[int, ...], list[int]]:
    """Map each order to the numbers of its rings."""
    orders: dict[tuple[int, ...], list[int]] = {}
    for number, ring in enumerate(comm.rings):
        if ring:
            orders.setdefault(_begun(ring, at), []).append(number)
    return orders


def _begun(ring: Sequence[int], at: dict[int, str]) -> tuple[int, ...]:
    """Rotate a ring so that it begins where it enters the node of its lowest rank; on one node at that rank."""
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
        parts.append(f"{short_host(host) or 'n/a'} [{inside}]")
    return " → ".join([*parts, parts[0].partition(" ")[0]])


def crossings(order: Sequence[int], at: dict[int, str]) -> tuple[int, int]:
    """Return how often a ring enters a node in one round, and the minimum."""
    hosts = [at.get(rank) for rank in order]
    if None in hosts or len(set(hosts)) < 2:
        return 0, 0
    return sum(here != before for here, before in zip(hosts, [hosts[-1], *hosts[:-1]], strict=True)), len(
        set(hosts)
    )
