"""Memory that is nearly full or grows steadily while ranks run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from ...presets.finding import Finding
from ..run.formatting import duration_text, size_text
from ..run.model import RankPhase
from ..run.state import Node
from .memory_curve import MemoryPoint, sizes
from .view import View

NEAR, FAR = 0.95, 0.90
"""Shares of the limit above which a cgroup becomes nearly full, and below which the finding ends."""
WINDOW_S = 900.0
GOES_ON_S = 60.0


class Pace(NamedTuple):
    """The evidence that a growth needs: less if it is fast."""

    warm_up_s: float
    """Seconds after the start of an attempt during which growth is not reported."""
    least_s: float
    """Minimum seconds of growth for a finding."""
    ahead_s: float
    """Only memory that runs out within this many seconds is reported."""
    much: float
    """Minimum growth as a share of the limit."""


SLOW, FAST = Pace(180.0, 300.0, 1800.0, 0.05), Pace(30.0, 100.0, 600.0, 0.1)


def near(view: View) -> Iterable[Finding]:
    """Report nodes whose cgroup is nearly full of memory that the kernel cannot reclaim."""
    for number, node in view.state.nodes.items():
        room = memory_limit(node)
        if room is None or not room.cgroup:
            continue
        before = view.state.findings.get(("oom-near", None, number))
        if room.used < room.limit * (NEAR if before is None else FAR):
            continue
        where = f" on {view.host(number)}" if view.has_several_nodes() else ""
        yield before or Finding(
            id="oom-near",
            severity="warning",
            text=f"the cgroup{where} is nearly full: more than {NEAR:.0%} of its "
            f"{size_text(room.limit)} are in use, page cache left out",
            node=number,
            remedy="when it is full the kernel kills a rank: fewer data-loader workers, or more memory for the job",
            evidence=_held(view, number),
            since=view.now,
        )


def _held(view: View, node: int) -> tuple[str, ...]:
    """Return the three ranks with the most memory on the node."""
    held = [
        (rank.sample.rss_bytes, number)
        for number, rank in view.state.ranks.items()
        if rank.place.node == node and rank.sample is not None and rank.sample.rss_bytes
    ]
    return tuple(
        f"rank {number} holds {size_text(size)}" for size, number in sorted(held, reverse=True)[:3]
    )


def rising(view: View) -> Iterable[Finding]:
    """Report ranks whose memory grows steadily and reaches the limit soon. Host memory has one finding per node."""
    found = list(_rising(view, SLOW)) or list(_rising(view, FAST))
    named = {finding.rank for finding in found}
    before = [each for each in view.state.findings.values() if each.id == "mem-creep"]
    return [*found, *(each for each in before if each.rank not in named and _goes_on(view, each))]


def _goes_on(view: View, finding: Finding) -> bool:
    """Whether the memory of a raised finding has grown since a minute ago: growth is seldom even."""
    points = view.memory.get(finding.rank or 0, ())
    recent = sizes(
        (each for each in points if each.at >= view.now - GOES_ON_S), gpu="GPU memory" in finding.text
    )
    return len(recent) > 1 and recent[-1][1] > recent[0][1]


def _rising(view: View, pace: Pace) -> Iterable[Finding]:
    attempt = view.attempt
    if attempt is None or view.now - attempt.began < pace.warm_up_s + pace.least_s:
        return
    since = max(attempt.began + pace.warm_up_s, view.now - WINDOW_S)
    short = {
        node: growth for node in view.state.nodes if (growth := _short(view, node, since, pace)) is not None
    }
    growing: dict[int, dict[int, Growth]] = {}
    for number, rank in view.state.ranks.items():
        if rank.phase is not RankPhase.RUNNING:
            continue
        points = view.memory.get(number, ())
        if rank.place.node in short and (own := _growth(points, since, pace, gpu=False)):
            growing.setdefault(rank.place.node, {})[number] = own
        if (gpu := _gpu(view, number, points, since, pace)) is not None:
            yield gpu
    for node, ranks in growing.items():
        yield from _host_growth(view, node, ranks, *short[node], pace)


def _short(view: View, node: int, since: float, pace: Pace) -> tuple[Room, Growth] | None:
    """Return the limit of a node and its growth; None if the limit is not reached soon.

    File pages that ranks map do not count as memory in use.
    """
    room, points = memory_limit(view.state.nodes[node]), view.node_memory.get(node, ())
    if room is None or not _nears(points, room.limit - room.used, pace, gpu=False):
        return None
    whole = _growth(points, since, pace, gpu=False)
    if whole is None or room.limit - room.used > whole.a_second * pace.ahead_s:
        return None
    return room, whole


def _growth(points: Sequence[MemoryPoint], since: float, pace: Pace, *, gpu: bool) -> Growth | None:
    """Return the steady growth since a time; None without one, or if the newest size is unknown."""
    if not sizes(points[-1:], gpu=gpu):
        return None
    return steady(sizes((point for point in points if point.at >= since), gpu=gpu), pace.least_s)


def _host_growth(
    view: View, node: int, ranks: dict[int, Growth], room: Room, whole: Growth, pace: Pace
) -> Iterable[Finding]:
    """Report growth only if the ranks cause most of the node's growth."""
    of_ranks = sum(growth.a_second for growth in ranks.values())
    grown = sum(growth.a_second * (view.now - growth.since) for growth in ranks.values())
    if not whole.a_second / 2 <= of_ranks <= 2 * whole.a_second or grown < pace.much * room.limit:
        return
    worst = max(ranks, key=lambda rank: ranks[rank].a_second)
    limit = f"{size_text(room.limit)} of {'the cgroup' if room.cgroup else 'the node'}"
    yield _finding(view, worst, node, tuple(sorted(ranks)), "host memory", limit, ranks[worst])


def _gpu(
    view: View, number: int, points: Sequence[MemoryPoint], since: float, pace: Pace
) -> Finding | None:
    gpu = view.gpu(number)
    if gpu is None or gpu.mem_total is None or gpu.mem_used is None:
        return None
    free = gpu.mem_total - gpu.mem_used
    growth = _growth(points, since, pace, gpu=True) if _nears(points, free, pace, gpu=True) else None
    if growth is None or free > growth.a_second * pace.ahead_s:
        return None
    if growth.a_second * (view.now - growth.since) < pace.much * gpu.mem_total:
        return None
    limit = f"{size_text(gpu.mem_total)} of its GPU"
    return _finding(view, number, view.state.ranks[number].place.node, (), "GPU memory", limit, growth)


def _nears(points: Sequence[MemoryPoint], free: int, pace: Pace, *, gpu: bool) -> bool:
    """Whether the first and last size suggest that memory runs out. A cheap test before `_growth`."""
    known = sizes((*points[:1], *points[-1:]), gpu=gpu)
    if len(known) < 2:
        return False
    (began, before), (ended, after) = known
    return 3 * pace.ahead_s * (after - before) > free * (ended - began)


def _finding(
    view: View, rank: int, node: int, ranks: tuple[int, ...], what: str, limit: str, growth: Growth
) -> Finding:
    before = view.state.findings.get(("mem-creep", rank, node))
    if before is not None and what in before.text:
        return before
    gone, who = duration_text(view.now - growth.since), view.ranks_text((rank,))
    grown = growth.a_second * (view.now - growth.since)
    return Finding(
        id="mem-creep",
        severity="warning",
        text=f"the {what} of {who} grows steadily and reaches the {limit} within half an hour",
        rank=rank,
        node=node,
        remedy="check for tensors or losses that are kept from step to step (take .item() or .detach()), and for caches "
        "without a bound; `distui dump RUN memory` shows what is held",
        evidence=(f"{size_text(grown)} more within {gone}, {size_text(growth.now)} now",),
        ranks=ranks if len(ranks) > 1 else (),
        since=growth.since,
    )


PARTS = 6
"""Number of equal parts of a curve that must all grow."""


class Room(NamedTuple):
    """The lowest memory limit of a node."""

    limit: int
    """Bytes."""
    used: int
    """Bytes in use under this limit."""
    cgroup: bool
    """Whether it is the cgroup's limit instead of the machine's."""


def memory_limit(node: Node | None) -> Room | None:
    """Return the lowest memory limit of a node; None if unknown."""
    host = None if node is None else node.metrics
    if host is None:
        return None
    limit, used = host.cgroup_mem_max, host.cgroup_mem_used
    if limit is not None and (host.mem_total is None or limit < host.mem_total):
        return None if used is None else Room(limit, used, True)
    if host.mem_total is None or host.mem_used is None:
        return None
    return Room(host.mem_total, host.mem_used, False)


class Growth(NamedTuple):
    """The growth of a steadily growing curve."""

    since: float
    """Unix time of its first point."""
    a_second: float
    now: int
    """Bytes of the newest point."""


def steady(values: Sequence[tuple[float, int]], least_s: float) -> Growth | None:
    """Return the growth of a curve; None if it is too short or its parts do not all grow at a similar rate.

    The minimum of each part counts, so memory that each step takes and returns is no growth.
    """
    if len(values) < 2 * PARTS or values[-1][0] - values[0][0] < least_s:
        return None
    began, part = values[0][0], (values[-1][0] - values[0][0]) / PARTS
    floors: dict[int, int] = {}
    for at, size in values:
        number = min(PARTS - 1, int((at - began) / part))
        floors[number] = min(size, floors.get(number, size))
    if len(floors) < PARTS:
        return None
    least = [floors[number] for number in range(PARTS)]
    grown = [after - before for before, after in pairwise(least)]
    usual = statistics.median(grown)
    if usual <= 0 or min(grown) < usual / 3 or max(grown) > 3 * usual:
        return None
    return Growth(began, (least[-1] - least[0]) / (part * (PARTS - 1)), values[-1][1])


def growth_text(values: Sequence[tuple[float, int]]) -> str:
    """ "1.2 → 7.9 GiB in 40 s" since the last rise began, "7.9 GiB, steady" without growth, "" without points."""
    if len(values) < 2:
        return ""
    last_at, last = values[-1]
    first_at, first = _foot(values)
    if last - first < 0.05 * last:
        return f"{size_text(last)}, steady" if last else ""
    newest = size_text(last)
    before = size_text(first).removesuffix(newest[newest.index(" ") :])
    return f"{before} → {newest} in {duration_text(last_at - first_at)}"


def _foot(values: Sequence[tuple[float, int]]) -> tuple[float, int]:
    """Return the point where the last rise began. Small dips do not interrupt a rise."""
    at, low = values[-1]
    for time, value in reversed(values[:-1]):
        if value > low * 1.05:
            break
        if value <= low * 0.995:
            at, low = time, value
    return at, low
