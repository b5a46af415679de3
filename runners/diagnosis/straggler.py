"""The straggler: the rank that the others wait for step after step, the time lost to it, and why it is slow."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ...presets.finding import Finding
from ..formatting import spans_text, step_text
from ..model import Gpu, Host, Pulse, RankSample
from ..state import Rank
from . import activity
from .activity import Kind, RankPosition, place
from .view import Arrivals, GroupArrivals, Piece, View

ID = "straggler"
INPUT = "input-bound"
MOST = 3
"""Findings at once."""
LEAST_STACKS = 4
"""Stacks of a rank that are needed before it counts as slow without a reason."""
MOVED = 8
"""Percentage points by which the share must change before the finding does."""
NO_REASON = "no reason is seen in clocks, throttling, CPU or I/O"
LOADING = 0.75
"""Share of the ranks that have to be in their data loaders mostly."""

_JOIN = "/torch/distributed/algorithms/join.py"
_PERCENT = re.compile(r"about (\d+) %")


def find(view: View) -> Iterable[Finding]:
    """Slow ranks, the worst first; where there is none, whether all ranks wait for their data."""
    before = {(old.rank, old.node or 0): old for old in view.state.findings.values() if old.id == ID}
    nodes = {number: rank.place.node for number, rank in view.state.ranks.items()}
    slow = lags(view.arrivals, nodes, view.now, frozenset(before))
    if slow and any(_through(pulses) for pulses in view.history.values()):
        return ()
    if slow:
        findings = (_lag_finding(view, lag, before.get((lag.rank, lag.node))) for lag in slow[:MOST])
        return [finding for finding in findings if finding is not None]
    return _input_bound(view)


def _through(pulses: Sequence[Pulse]) -> bool:
    """Whether a rank had no data left, and only accompanied the others: torch's Join has it call what they call."""
    return any(
        site.name == "__exit__" and site.file.endswith(_JOIN) for pulse in pulses for site in pulse.stack
    )


def _lag_finding(view: View, lag: Lag, before: Finding | None) -> Finding | None:
    """The finding; unchanged where the share changed little, None until enough samples show that there is no reason."""
    percent = max(10, 5 * round(20 * lag.share))
    why = [] if lag.rank is None else reasons(_since(view, lag.since, lag.rank), lag.rank)
    if before is not None and _same(before, 100 * lag.share, why):
        return before
    if before is None and not why and _stacks_seen(view, lag.rank) < LEAST_STACKS:
        return None
    return Finding(
        id=ID,
        severity="warning",
        text=_text(view, lag, percent, why[0] if why else None),
        rank=lag.rank,
        node=lag.node,
        remedy=why[0].remedy if why else _fallback_remedy(lag),
        evidence=_evidence(view, lag, why),
        ranks=() if lag.rank is not None else _ranks_on(view, lag.node),
        since=lag.since if before is None or before.since is None else before.since,
    )


def _since(view: View, since: float, rank: int) -> View:
    """The same with the looks since `rank` is slow, once it has enough: where it was before is no reason now."""
    history = {
        each: [pulse for pulse in pulses if pulse.at >= since] for each, pulses in view.history.items()
    }
    return replace(view, history=history) if len(history.get(rank, ())) >= PULSES else view


def _stacks_seen(view: View, rank: int | None) -> int:
    """Samples with a stack of a rank; LEAST_STACKS where there is never one, so that nobody waits for it."""
    pulses = () if rank is None else view.history.get(rank, ())
    return sum(bool(pulse.stack) for pulse in pulses) or LEAST_STACKS


def _same(before: Finding, percent: float, why: list[Reason]) -> bool:
    percents = _PERCENT.search(before.text)
    if percents is None or abs(int(percents[1]) - percent) >= MOVED:
        return False
    return not why or any(reason.kind in before.text for reason in why)


def _text(view: View, lag: Lag, percent: int, why: Reason | None) -> str:
    who = _who(view, lag)
    part = f"about {percent} % of {'each step' if lag.stepwise else 'the time'}"
    if why is not None:
        return f"{who} holds the others up: {why.text}; costs {part}"
    if lag.rank is None:
        return f"{who} hold the others up: one of them is the last in every step; costs {part}"
    return f"{who} is the one that the others wait for, {part}; {NO_REASON}"


def _who(view: View, lag: Lag) -> str:
    """ "gpu-b gpu2 (rank 26)", "rank 2"."""
    if lag.rank is None:
        return f"the ranks on {view.host(lag.node)}"
    rank = view.state.ranks.get(lag.rank)
    gpu = None if rank is None or rank.sample is None else rank.sample.gpu
    if gpu is None:
        return view.who((lag.rank,))
    where = f"{view.host(lag.node)} " if view.several() else ""
    return f"{where}gpu{gpu} (rank {lag.rank})"


def _ranks_on(view: View, node: int) -> tuple[int, ...]:
    return tuple(sorted(number for number, rank in view.state.ranks.items() if rank.place.node == node))


def _evidence(view: View, lag: Lag, why: list[Reason]) -> tuple[str, ...]:
    who = f"the ranks of {view.host(lag.node)}" if lag.rank is None else f"rank {lag.rank}"
    how = (
        "by the time of NCCL's kernels, which are the shortest on the rank that is last"
        if lag.timed
        else "by the times at which the ranks called the same collectives"
    )
    step = "step" if lag.stepwise else "piece of time"
    lines = [
        f"{how}: {who} of {lag.members} ranks came last in most of them",
        f"the others wait {step_text(lag.share * lag.step_s)} in each {step} of {step_text(lag.step_s)}",
        *(reason.evidence for reason in why[:1] if reason.evidence),
        *(f"also: {reason.text}" for reason in why[1:3]),
    ]
    return tuple(lines)


def _fallback_remedy(lag: Lag) -> str:
    if lag.rank is None:
        return "compare the node with the others: network, clocks, what else runs there"
    return f"check what rank {lag.rank} does more than the others: `distui dump stacks`, its data, its node"


def _input_bound(view: View) -> Iterable[Finding]:
    """Whether most ranks are in their data loaders mostly, while steps are made."""
    if not any(
        len(pulses) > 2 and (pulses[0].step or 0) < (pulses[-1].step or 0)
        for pulses in view.history.values()
    ):
        return
    positions = witnesses(view)
    loading = [position for position in positions if position is not None and position.kind is Kind.LOADER]
    before = view.state.findings.get((INPUT, None, None))
    if not loading or len(loading) < LOADING * len(positions) * (1.0 if before is None else 0.6):
        return
    sites = {position.site for position in loading}
    site = loading[0].site if len(sites) == 1 else None
    where = f" ({activity.site_text(site)})" if site is not None else ""
    yield before or Finding(
        id=INPUT,
        severity="note",
        text=f"all ranks alike wait for their data loaders most of the time{where}",
        role="hint",
        remedy="give the loaders more workers (num_workers, prefetch_factor), or the data faster storage",
        evidence=(
            "in most samples the ranks were in their data loaders, and none is slower than the others",
        ),
        since=view.now,
    )


CLOCKS_S = 0.02
"""By how much the clocks of two nodes may differ."""
COLLECTIVES = 20
"""Fewer prove nothing."""
STEPS = 6
"""In fewer steps, being the last proves nothing: a pause may be validation or a checkpoint."""
SPAN_S, SHORT_S = 10.0, 5.0
"""A shorter time proves nothing; where the price is high, the second."""
HIGH = 0.20
WINDOW_S = 30.0
"""Older samples count only where there are too few newer ones."""
HEAVIEST_S = 2.0
"""A step counts by its length, so that many short ones of before do not outvote the slow ones of now; but no pause
counts for more than this."""
AGREE = 0.8
"""Share of the steps in which the same rank must be the last."""
LEAST = 0.10
"""Least share of the step for a finding."""
LEAST_S = 0.005
"""Least seconds of a step for a finding."""
INTERRUPTED = 3
"""Steps one after the other in which another rank is the last: what was before them is another matter."""
KEEPS = 0.7
"""Share of these limits at which an earlier finding still holds, so that it does not flicker."""
OLD_S = 60.0
"""Collectives that ended longer ago, and longer ago than five steps, are too old."""
SAMPLED = 64
"""Members of a group that stand for all of them, beside those that came last."""


class Lag(NamedTuple):
    """One rank, or one node, that the others wait for."""

    rank: int | None
    """None: several ranks of `node` in turn."""
    node: int
    share: float
    """Of each step, from 0 to 1."""
    step_s: float
    stepwise: bool
    """Whether `step_s` is an optimizer step; else a piece of time."""
    since: float
    """Unix time since which this rank is the one, as far back as collectives count."""
    members: int
    """Ranks of the group."""
    timed: bool
    """Whether the times are of kernels."""


Who = tuple[int | None, int]
"""Rank, or None for a whole node; and the node."""


def lags(
    arrivals: Arrivals, nodes: Mapping[int, int], now: float, before: frozenset[Who] = frozenset()
) -> list[Lag]:
    """The worst first; `nodes`: rank → node, `before`: who was named before.

    A rank that is late only because it waits in another group is left out.
    """
    seen = [(group, pieces) for group in arrivals.groups if (pieces := _pieces(group, nodes, now))]
    slow = [lag for group, pieces in seen if (lag := _lag(group, pieces, nodes, before)) is not None]
    worst: dict[tuple[int | None, int], Lag] = {}
    for lag in sorted(slow, key=lambda lag: -lag.share):
        worst.setdefault((lag.rank, lag.node), lag)
    return [lag for lag in worst.values() if not _victim(lag, seen, nodes)]


def _pieces(group: GroupArrivals, nodes: Mapping[int, int], now: float) -> list[Piece]:
    """The steps of a group; [] where they are too few or too old."""
    if len(group.met) < COLLECTIVES:
        return []
    newest: list[Piece] = []
    calls = 0
    for piece in reversed(group.pieces(_margin(group, nodes))):
        enough = calls >= COLLECTIVES and len(newest) >= STEPS
        if enough and newest[0].ends - piece.ends + piece.seconds > WINDOW_S:
            break
        newest.append(piece)
        calls += piece.calls
    if calls < COLLECTIVES or len(newest) < STEPS:
        return []
    if newest[0].ends - newest[-1].ends + newest[-1].seconds < SHORT_S:
        return []
    usual = statistics.median(piece.seconds for piece in newest)
    return newest[::-1] if now - newest[0].ends <= max(OLD_S, 5 * usual) else []


def _margin(group: GroupArrivals, nodes: Mapping[int, int]) -> float:
    """Seconds by which the clocks of a group may differ; kernels need no common clock."""
    places = {nodes.get(rank) for rank in group.members}
    return 0.0 if group.timed or len(places) == 1 else CLOCKS_S


def _lag(
    group: GroupArrivals, pieces: list[Piece], nodes: Mapping[int, int], before: frozenset[Who]
) -> Lag | None:
    asked = _asked(pieces, len(group.members))
    margin = _margin(group, nodes)
    blamed = [_blame(piece, asked, margin) for piece in pieces]
    weights = [min(piece.seconds, HEAVIEST_S) for piece in pieces]
    share = _middle([each[1] for each in blamed], weights)
    named = [
        (group.members[at], weight)
        for (at, price), weight in zip(blamed, weights, strict=True)
        if price > LEAST / 2
    ]
    who = _most(named, sum(weights), nodes, before)
    if who is None or (who[0] is None and all(nodes.get(rank) == who[1] for rank in group.members)):
        return None
    if share < HIGH and pieces[-1].ends - pieces[0].ends + pieces[0].seconds < SPAN_S:
        return None
    step = _middle([piece.seconds for piece in pieces], weights)
    keeps = KEEPS if who in before else 1.0
    if share < LEAST * keeps or share * step < LEAST_S * keeps:
        return None
    return Lag(
        *who,
        share=share,
        step_s=step,
        stepwise=group.a_step is not None,
        since=_onset(
            pieces, [price > LEAST / 2 and _is(group.members[at], who, nodes) for at, price in blamed]
        ),
        members=len(group.members),
        timed=group.timed,
    )


def _is(rank: int, who: Who, nodes: Mapping[int, int]) -> bool:
    return rank == who[0] if who[0] is not None else nodes.get(rank, 0) == who[1]


def _onset(pieces: Sequence[Piece], his: Sequence[bool]) -> float:
    """Unix time since which it is that rank. `his`: for each piece whether it is; one that is not ends nothing yet."""
    others = 0
    begin = len(pieces) - 1
    for at in range(len(pieces) - 1, -1, -1):
        others = 0 if his[at] else others + 1
        if others >= INTERRUPTED:
            break
        begin = at if his[at] else begin
    return pieces[begin].ends - pieces[begin].seconds


def _most(
    named: Sequence[tuple[int, float]], weight: float, nodes: Mapping[int, int], before: frozenset[Who]
) -> Who | None:
    """The rank, or the node, that is the last in most pieces. `named`: the last of each piece, and its weight."""
    for of in (lambda rank: (rank, nodes.get(rank, 0)), lambda rank: (None, nodes.get(rank, 0))):
        weights: dict[Who, float] = {}
        times: Counter[Who] = Counter()
        for rank, heavy in named:
            who = of(rank)
            weights[who] = weights.get(who, 0.0) + heavy
            times[who] += 1
        for who in weights:
            if weights[who] >= AGREE * weight * (KEEPS if who in before else 1.0) and times[who] >= STEPS:
                return who
    return None


def _middle(values: Sequence[float], weights: Sequence[float]) -> float:
    """The median by weight."""
    left = sum(weights) / 2
    for value, weight in sorted(zip(values, weights, strict=True)):
        left -= weight
        if left <= 0:
            return value
    return 0.0


def _asked(pieces: Iterable[Piece], size: int) -> Sequence[int]:
    """Members whose waits are compared: all of a small group, else those that were last and some others."""
    if size <= SAMPLED:
        return range(size)
    last = {met.who for piece in pieces for met in piece.waits}
    return sorted(last.union(range(0, size, size // SAMPLED)))


def _blame(piece: Piece, asked: Sequence[int], margin: float) -> tuple[int, float]:
    """The member that waits least in a piece, and what that costs the others, as a share of the piece."""
    waits = _waits(piece, asked, margin)
    least = min(waits)
    victim = sorted(waits)[len(waits) // 2]
    return asked[waits.index(least)], (victim - least) / piece.seconds


def _waits(piece: Piece, asked: Sequence[int], margin: float) -> list[float]:
    """Seconds for which members wait in a piece."""
    totals = [0.0] * len(asked)
    for met in piece.waits:
        values, late = met.values, met.late - margin
        totals = [
            total + (late - values[member] if values[member] < late else 0.0)
            for total, member in zip(totals, asked, strict=True)
        ]
    return totals


def _share(pieces: list[Piece], member: int, margin: float) -> float:
    """What share of the usual piece a member waits for."""
    return statistics.median(_waits(piece, (member,), margin)[0] / piece.seconds for piece in pieces)


def _victim(lag: Lag, seen: list[tuple[GroupArrivals, list[Piece]]], nodes: Mapping[int, int]) -> bool:
    """Whether the rank itself waits for others in another group for most of what it costs."""
    if lag.rank is None:
        return False
    for group, pieces in seen:
        member = group.index.get(lag.rank)
        if member is None:
            continue
        if _share(pieces, member, _margin(group, nodes)) >= lag.share / 2:
            return True
    return False


BENIGN = frozenset(("idle", "application clocks", "sync boost", "display clocks"))
"""Clock reasons that hold nothing back, or that somebody wished."""
FETCHING = 0.5
"""Share of the samples in one place from which a rank counts as mostly there."""
OFTEN = 0.25
"""Share of the samples in one place from which it may be what makes a rank slow."""
INFORMATIVE = (Kind.LOADER, Kind.CHECKPOINT, Kind.CODE, Kind.LOCK, Kind.NETWORK, Kind.SUBPROCESS)
"""Places that explain a slow rank."""
PULSES = 3
"""Samples that are needed for where a rank usually is."""
WITNESSES = 16
"""Other ranks whose places are compared with."""


class Reason(NamedTuple):
    """One reason why a rank is slow."""

    kind: str
    """Words that stand in `text`, whatever the numbers."""
    text: str
    """As it stands after a colon."""
    remedy: str
    evidence: str = ""
    """A sentence; "" where the text has everything."""


def reasons(view: View, rank: int) -> list[Reason]:
    """The strongest first."""
    seen = view.state.ranks.get(rank)
    if seen is None:
        return []
    return [*_of_gpu(view, seen), *_of_process(view, seen), *_of_place(view, rank), *_of_node(view, seen)]


def usual(pulses: Sequence[Pulse]) -> RankPosition | None:
    """Where a rank is in most of its samples; None where that changes, or where there are too few."""
    positions = [place(pulse.stack) for pulse in pulses if pulse.stack]
    if len(positions) < PULSES:
        return None
    kind, times = Counter(position.kind for position in positions).most_common(1)[0]
    if times < FETCHING * len(positions):
        return None
    site, _ = Counter(position.site for position in positions if position.kind is kind).most_common(1)[0]
    return RankPosition(kind, site)


def witnesses(view: View) -> list[RankPosition | None]:
    """Where some of the other ranks usually are."""
    return [usual(pulses) for pulses in _some(view)]


def _of_gpu(view: View, rank: Rank) -> Iterator[Reason]:
    own = view.gpu(rank.place.rank)
    if own is None:
        return
    others = [gpu for peer in _other_ranks(view, rank) if (gpu := view.gpu(peer.place.rank)) is not None]
    yield from _clocks(own, others)
    yield from _link(own, others)
    if own.ecc_uncorrected or own.remap_failed or own.remap_pending:
        yield Reason(
            "memory errors", "its memory has memory errors (ECC)", "reset the GPU before the next run"
        )
    if own.pcie_replays and _far(own.pcie_replays, [gpu.pcie_replays for gpu in others], 10.0):
        yield Reason("PCIe replays", "PCIe replays", "reseat the GPU or its riser; watch the counter")


def _clocks(own: Gpu, others: list[Gpu]) -> Iterator[Reason]:
    usual = _median(gpu.sm_mhz for gpu in others)
    if own.sm_mhz is None or usual is None or own.sm_mhz > 0.93 * usual:
        return
    clocks = f"{own.sm_mhz / 1000:.1f} of {usual / 1000:.1f} GHz"
    words = [word for word in own.throttle or () if word not in BENIGN]
    hot = "" if own.temp_c is None else f"{5 * round(own.temp_c / 5)} °C"
    if any(word.startswith("thermal") for word in words) or (own.temp_c or 0) >= 85:
        yield Reason("thermal", f"thermal throttling{f' at {hot}' * bool(hot)}, {clocks}",
                     "check the cooling of this GPU")  # fmt: skip
    elif words:
        yield Reason(words[0], f"{', '.join(words)}, {clocks}", _remedy(words[0]))
    else:
        yield Reason(
            "low clocks", f"low clocks, {clocks}", "compare nvidia-smi -q -d CLOCK with another GPU"
        )


def _remedy(word: str) -> str:
    if word == "power cap":
        return "compare its power limit with the others' (nvidia-smi -q -d POWER); raise it, or leave the node out"
    return "check power supply and cooling of the node (nvidia-smi -q -d PERFORMANCE)"


def _link(own: Gpu, others: list[Gpu]) -> Iterator[Reason]:
    width, gen = _median(gpu.pcie_width for gpu in others), _median(gpu.pcie_gen for gpu in others)
    remedy = "reseat the GPU or its riser, or leave the node out"
    if own.pcie_width and width and own.pcie_width < width:
        yield Reason("PCIe x", f"PCIe x{own.pcie_width} where others have x{width:.0f}", remedy)
    elif own.pcie_gen and gen and own.pcie_gen < gen and (own.util or 0) > 50:  # it sleeps at rest
        yield Reason("PCIe gen", f"PCIe gen {own.pcie_gen} where others have gen {gen:.0f}", remedy)


def _of_process(view: View, rank: Rank) -> Iterator[Reason]:
    sample = rank.sample
    if sample is None:
        return
    others = [peer.sample for peer in _other_ranks(view, rank) if peer.sample is not None]
    quota = [peer.throttled_percent or 0.0 for peer in others]
    if (sample.throttled_percent or 0.0) >= 20 and _far(sample.throttled_percent, quota, 1.3):
        yield Reason("CPU quota", "its cgroup's CPU quota holds it back",
                     "raise cpu.max of its cgroup, or the job's number of cores",
                     "the quota was used up in many periods (nr_throttled of cpu.stat grows)")  # fmt: skip
    yield from _cores(view, rank, sample)
    if (
        sample.read_bps is not None
        and sample.read_bps > 10e6
        and _far(sample.read_bps, [peer.read_bps for peer in others], 3.0)
    ):
        node = view.state.nodes.get(rank.place.node)
        host = None if node is None else node.metrics
        low = host and host.page_cache is not None and host.page_cache < 0.05 * (host.mem_total or 0)
        yield Reason("reads from storage", "it reads from storage where the others do not",
                     "put its part of the data on a local disk, or give the node more memory for its page cache",
                     "little of the node's memory is page cache" if low else "")  # fmt: skip


def _cores(view: View, rank: Rank, sample: RankSample) -> Iterator[Reason]:
    """Fewer cores than the others have, or one that is shared."""
    if sample.cpus is None or not sample.cpus.isdigit():
        return
    node = rank.place.node
    sharing = sorted(
        peer.place.rank
        for peer in _other_ranks(view, rank)
        if peer.place.node == node and peer.sample is not None and peer.sample.cpus == sample.cpus
    )
    free = [peer for peer in _other_ranks(view, rank) if peer.sample and peer.sample.cpus != sample.cpus]
    remedy = "bind each rank to cores of its own (taskset, numactl, --cpus-per-task of the scheduler)"
    if sharing and free:
        yield Reason(
            "it shares core", f"it shares core {sample.cpus} with {spans_text('rank', sharing)}", remedy
        )
    elif free and all(peer.sample and not (peer.sample.cpus or "0").isdigit() for peer in free):
        yield Reason(
            "bound to core", f"it is bound to core {sample.cpus} alone, the others have more", remedy
        )


def _of_place(view: View, rank: int) -> Iterator[Reason]:
    """A place where it is far more often than the others are."""
    own = _places(view.history.get(rank, ()))
    if len(own) < PULSES:
        return
    counted = Counter(_location(position) for position in own if position.kind in INFORMATIVE)
    others = Counter[object]()
    pooled = 0
    for pulses in _some(view, rank):
        positions = _places(pulses)
        pooled += len(positions)
        others.update(_location(position) for position in positions)
    for location, times in counted.most_common():
        share, theirs = times / len(own), others[location] / max(1, pooled)
        if times < 2 or share < OFTEN or theirs > share / 3:
            continue
        sites = Counter(position.site for position in own if _location(position) == location)
        site = sites.most_common(1)[0][0]
        where = "" if site is None else activity.site_text(site)
        if location is Kind.LOADER:
            text = f"it waits for its data loader ({where})" if where else "it waits for its data loader"
            remedy = (
                "give its loader more workers (num_workers, prefetch_factor), or its data faster storage"
            )
            yield Reason("data loader", text, remedy)
        elif where:
            yield Reason(where, f"it is often at {where}", "see what this place does on this rank alone")
        return


def _places(pulses: Sequence[Pulse]) -> list[RankPosition]:
    return [place(pulse.stack) for pulse in pulses if pulse.stack]


def _location(pos: RankPosition) -> object:
    """What counts as the same place: a function of the user's own code, else the kind."""
    return (pos.site.file, pos.site.name) if pos.kind is Kind.CODE and pos.site else pos.kind


def _some(view: View, but: int | None = None) -> list[Sequence[Pulse]]:
    """The pulses of some of the other ranks."""
    others = [pulses for rank, pulses in view.history.items() if rank != but and pulses]
    return others[:: max(1, len(others) // WITNESSES)]


def _of_node(view: View, rank: Rank) -> Iterator[Reason]:
    """What sets the node apart from others, and what holds for its processors in any case."""
    node = view.state.nodes.get(rank.place.node)
    host = None if node is None else node.metrics
    if host is None:
        return
    hosts = [
        peer.metrics for at, peer in view.state.nodes.items() if at != rank.place.node and peer.metrics
    ]
    if (host.steal_percent or 0) >= 5 and _far(
        host.steal_percent, [peer.steal_percent for peer in hosts], 2.0
    ):
        yield Reason("steal", "the hypervisor takes CPU time from the node (CPU steal)",
                     "ask for a dedicated machine, or move the node")  # fmt: skip
    if host.nic_errors and _far(host.nic_errors, [peer.nic_errors for peer in hosts], 3.0):
        yield Reason("network errors", "the node's interfaces count network errors",
                     "check cable, transceiver and switch port (ethtool -S, ibqueryerrors)")  # fmt: skip
    yield from _short_of_cores(host, hosts)


def _short_of_cores(host: Host, hosts: list[Host]) -> Iterator[Reason]:
    stalled = host.cpu_stall_percent is not None and host.cpu_stall_percent >= 40
    loaded = bool(host.load1 and host.cores and host.load1 > 1.5 * host.cores)
    if not (stalled or loaded) or not hosts or (not _far(host.load1, [peer.load1 for peer in hosts], 1.5)):
        return
    yield Reason("short of cores", "the node is short of cores",
                 "end what else runs there, or give the ranks fewer threads (OMP_NUM_THREADS)",
                 "tasks wait for a core (load, /proc/pressure/cpu)")  # fmt: skip


def _other_ranks(view: View, rank: Rank) -> list[Rank]:
    return [peer for peer in view.state.ranks.values() if peer is not rank]


def _median(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None


def _far(value: float | None, others: Iterable[float | None], factor: float) -> bool:
    """Whether a value stands out: beyond `factor` times what is usual among the others; alone it does."""
    usual = _median(others)
    return value is not None and (usual is None or value > factor * max(usual, 0.0))
