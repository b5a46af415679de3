"""Memory that will run out: it grows steadily, or is nearly full."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...model import Finding, RankPhase
from . import curve, naming
from .curve import Growth, Point, Room
from .view import View

WARM_UP_S = 180.0
"""Seconds after the start of an attempt in which memory may grow as it likes."""
LEAST_S = 300.0
"""A shorter time of growth says nothing."""
WINDOW_S = 900.0
AHEAD_S = 1800.0
"""Only what runs out within this time is told."""
MUCH = 0.05
"""Share of the limit by which memory must have grown."""
NEAR, FAR = 0.95, 0.90
"""Shares of the limit at which a cgroup counts as nearly full, and as not so any more."""


def near(view: View) -> Iterable[Finding]:
    """Nodes whose cgroup is nearly full of what the kernel cannot give back."""
    for number, node in view.state.nodes.items():
        known = curve.room(node.metrics)
        if known is None or not known.cgroup:
            continue
        before = view.state.findings.get(("oom-near", None, number))
        if known.used < known.limit * (NEAR if before is None else FAR):
            continue
        where = f" on {naming.host(view.state, number)}" if naming.several(view.state) else ""
        yield before or Finding(
            id="oom-near",
            severity="warn",
            text=f"the cgroup{where} is nearly full: more than {NEAR:.0%} of its {curve.size(known.limit)} are in use, "
            "page cache left out",
            node=number,
            remedy="when it is full the kernel kills a rank: fewer data-loader workers, or more memory for the job",
            evidence=_held(view, number),
            since=view.now,
        )


def _held(view: View, node: int) -> tuple[str, ...]:
    """The ranks there that hold most."""
    held = [
        (rank.sample.rss_bytes, number)
        for number, rank in view.state.ranks.items()
        if rank.place.node == node and rank.sample is not None and rank.sample.rss_bytes
    ]
    return tuple(
        f"rank {number} holds {curve.size(size)}" for size, number in sorted(held, reverse=True)[:3]
    )


def rising(view: View) -> Iterable[Finding]:
    """Ranks whose memory grows steadily and will reach the limit soon; one finding a node of its host memory."""
    attempts = view.state.attempts
    if not attempts or view.now - attempts[-1].began < WARM_UP_S + LEAST_S:
        return
    since = max(attempts[-1].began + WARM_UP_S, view.now - WINDOW_S)
    short = {node: found for node in view.state.nodes if (found := _short(view, node, since)) is not None}
    growing: dict[int, dict[int, Growth]] = {}
    for number, rank in view.state.ranks.items():
        if rank.phase is not RankPhase.RUNNING:
            continue
        points = view.memory.get(number, ())
        if rank.place.node in short and (own := curve.steady(_values(points, since, gpu=False), LEAST_S)):
            growing.setdefault(rank.place.node, {})[number] = own
        if (gpu := _gpu(view, number, points, since)) is not None:
            yield gpu
    for node, ranks in growing.items():
        yield from _host(view, node, ranks, *short[node])


def _short(view: View, node: int, since: float) -> tuple[Room, Growth] | None:
    """The limit of a node and how it is approached; None where it is not reached soon.

    What ranks map of files is no loss, and is not in what the node has in use.
    """
    known, points = curve.room(view.state.nodes[node].metrics), view.node_memory.get(node, ())
    if known is None or len(points) < 2 or not _nears(points[0], points[-1], known.limit - known.used):
        return None
    whole = curve.steady(_values(points, since, gpu=False), LEAST_S)
    if whole is None or known.limit - known.used > whole.a_second * AHEAD_S:
        return None
    return known, whole


def _values(points: Sequence[Point], since: float, *, gpu: bool) -> list[tuple[float, int]]:
    if not points or (points[-1].gpu if gpu else points[-1].rss) is None:
        return []
    pairs = [(one.at, one.gpu if gpu else one.rss) for one in points if one.at >= since]
    return [(at, size) for at, size in pairs if size is not None]


def _host(view: View, node: int, ranks: dict[int, Growth], known: Room, whole: Growth) -> Iterable[Finding]:
    """What the ranks take must be most of what the node loses."""
    pace = sum(one.a_second for one in ranks.values())
    grown = sum(one.a_second * (view.now - one.since) for one in ranks.values())
    if not whole.a_second / 2 <= pace <= 2 * whole.a_second or grown < MUCH * known.limit:
        return
    worst = max(ranks, key=lambda rank: ranks[rank].a_second)
    limit = f"{curve.size(known.limit)} of {'the cgroup' if known.cgroup else 'the node'}"
    yield _finding(view, worst, node, tuple(sorted(ranks)), "host memory", limit, ranks[worst])


def _gpu(view: View, number: int, points: Sequence[Point], since: float) -> Finding | None:
    if len(points) < 2 or (points[-1].gpu or 0) <= (points[0].gpu or 0):
        return None
    rank = view.state.ranks[number]
    node = view.state.nodes.get(rank.place.node)
    index = None if rank.sample is None else rank.sample.gpu
    gpu = next((one for one in node.gpus if one.index == index), None) if node is not None else None
    if gpu is None or gpu.mem_total is None or gpu.mem_used is None:
        return None
    free = gpu.mem_total - gpu.mem_used
    if not _nears(points[0], points[-1], free, gpu=True):
        return None
    found = curve.steady(_values(points, since, gpu=True), LEAST_S)
    if found is None or found.a_second * (view.now - found.since) < MUCH * gpu.mem_total:
        return None
    if free > found.a_second * AHEAD_S:
        return None
    limit = f"{curve.size(gpu.mem_total)} of its GPU"
    return _finding(view, number, rank.place.node, (), "GPU memory", limit, found)


def _nears(first: Point, last: Point, free: int, *, gpu: bool = False) -> bool:
    """Whether a closer look is worth it."""
    before, after = (first.gpu, last.gpu) if gpu else (first.rss, last.rss)
    if before is None or after is None:
        return False
    return 3 * AHEAD_S * (after - before) > free * (last.at - first.at)


def _finding(
    view: View, rank: int, node: int, ranks: tuple[int, ...], what: str, limit: str, growth: Growth
) -> Finding:
    before = view.state.findings.get(("mem-creep", rank, node))
    if before is not None and what in before.text:
        return before
    gone, who = curve.span(view.now - growth.since), naming.who(view.state, (rank,))
    grown = growth.a_second * (view.now - growth.since)
    return Finding(
        id="mem-creep",
        severity="warn",
        text=f"the {what} of {who} grows steadily and reaches the {limit} within half an hour",
        rank=rank,
        node=node,
        remedy="look for tensors or losses that are kept from step to step (take .item() or .detach()), and for caches "
        "without a bound; `distui dump memory` shows what is held",
        evidence=(f"{curve.size(grown)} more within {gone}, {curve.size(growth.now)} now",),
        ranks=ranks if len(ranks) > 1 else (),
        since=growth.since,
    )
