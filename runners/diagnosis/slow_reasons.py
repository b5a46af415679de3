"""Explain why a rank is slow: GPU clocks and links, CPU quota and cores, its usual place in the code, its node."""

from __future__ import annotations

import statistics
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from typing import NamedTuple

from ..run.formatting import spans_text
from ..run.pulse import Pulse
from ..run.samples import Gpu, Host, RankSample
from ..run.state import Rank
from . import activity
from .activity import Kind, RankPosition, position_of
from .view import View

BENIGN = frozenset(("idle", "application clocks", "sync boost", "display clocks"))
"""Clock reasons that are harmless or intended by the user."""
FETCHING = 0.5
"""Minimum share of a rank's samples in one place that makes it the usual place."""
OFTEN = 0.25
"""Minimum share of a rank's samples in one place that may explain a slow rank."""
THREADS_FACTOR, THREADS_LEAST = 2.0, 0.4
"""Times the others' CPU share of the threads other than the main one, and the least share, in cores."""
INFORMATIVE = (Kind.LOADER, Kind.CHECKPOINT, Kind.CODE, Kind.LOCK, Kind.NETWORK, Kind.SUBPROCESS)
"""Kinds of places that explain a slow rank."""
PULSES = 3
"""Minimum number of samples for a rank's usual place."""
WITNESSES = 16
"""Maximum number of other ranks in the comparison of places."""


class Reason(NamedTuple):
    """One reason why a rank is slow."""

    kind: str
    """Words that are always in `text`, whatever the numbers."""
    text: str
    """The reason in the form for use after a colon."""
    remedy: str
    evidence: str = ""
    """A sentence; "" if `text` is complete."""


_HALTED = Reason(
    "stopped",
    "a signal or the cgroup freezer stops it again and again",
    "find the process that sends SIGSTOP (a tool that limits CPU time, a batch system), or thaw its cgroup",
    "in many samples its process was stopped (state T)",
)


class Outlier(NamedTuple):
    """A row of slow_reasons.toml."""

    field: str
    factor: float
    least: float
    reason: Reason

    def found(self, own: object, others: Iterable[object]) -> Iterator[Reason]:
        """Yield the reason if it holds. `own`, `others`: samples with the field."""
        theirs = [getattr(other, self.field) for other in others]
        if _far(getattr(own, self.field), theirs, self.factor, self.least):
            yield self.reason


_ROWS = tomllib.loads(resources.files(__package__).joinpath("slow_reasons.toml").read_text("utf-8"))
_OUTLIERS = {
    field: Outlier(field, row.pop("factor"), row.pop("least"), Reason(**row))
    for field, row in _ROWS.items()
}


def reasons(view: View, rank: int) -> list[Reason]:
    """Return the reasons, the strongest first."""
    seen = view.state.ranks.get(rank)
    if seen is None:
        return []
    return [
        *_of_halts(view, rank),
        *_of_gpu(view, seen),
        *_of_process(view, seen),
        *_of_threads(view, rank),
        *_of_place(view, rank),
        *_of_node(view, seen),
    ]


def usual(pulses: Sequence[Pulse]) -> RankPosition | None:
    """Return the place of most of a rank's samples; None if it changes or there are too few samples."""
    positions = [position_of(pulse.stack) for pulse in pulses if pulse.stack]
    if len(positions) < PULSES:
        return None
    kind, times = Counter(position.kind for position in positions).most_common(1)[0]
    if times < FETCHING * len(positions):
        return None
    site, _ = Counter(position.site for position in positions if position.kind is kind).most_common(1)[0]
    return RankPosition(kind, site)


def witnesses(view: View) -> list[RankPosition | None]:
    """Return the usual places of some of the other ranks."""
    return [usual(pulses) for pulses in some_others(view)]


def _of_halts(view: View, rank: int) -> Iterator[Reason]:
    """Report a rank that is stopped and continued again and again."""
    pulses = view.history.get(rank, ())
    halted = [pulse for pulse in pulses if activity.is_halted(pulse)]
    if len(pulses) >= PULSES and len(halted) >= OFTEN * len(pulses):
        yield _HALTED


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
    yield from _OUTLIERS["pcie_replays"].found(own, others)


def _clocks(own: Gpu, others: list[Gpu]) -> Iterator[Reason]:
    usual = _median(gpu.sm_mhz for gpu in others)
    if own.sm_mhz is None or usual is None or own.sm_mhz > 0.93 * usual:
        return
    clocks = f"{own.sm_mhz / 1000:.1f} of {usual / 1000:.1f} GHz"
    words = _throttles(own)
    hot = "" if own.temp_c is None else f" at {5 * round(own.temp_c / 5)} °C"
    if any(word.startswith("thermal") for word in words) or (own.temp_c or 0) >= 85:
        yield Reason("thermal", f"thermal throttling{hot}, {clocks}", "check the cooling of this GPU")
    elif words:
        yield Reason(words[0], f"{', '.join(words)}, {clocks}", _remedy(words[0]))
    else:
        yield Reason(
            "low clocks", f"low clocks, {clocks}", "compare nvidia-smi -q -d CLOCK with another GPU"
        )


def _throttles(own: Gpu) -> list[str]:
    return [word for word in own.throttle or () if word not in BENIGN]


def _remedy(word: str) -> str:
    if word == "power cap":
        return "compare its power limit with the others' (nvidia-smi -q -d POWER); raise it, or leave the node out"
    return "check power supply and cooling of the node (nvidia-smi -q -d PERFORMANCE)"


def _link(own: Gpu, others: list[Gpu]) -> Iterator[Reason]:
    width, gen = _median(gpu.pcie_width for gpu in others), _median(gpu.pcie_gen for gpu in others)
    remedy = "reseat the GPU or its riser, or leave the node out"
    if _is_lower(own.pcie_width, width):
        yield Reason("PCIe x", f"PCIe x{own.pcie_width} where others have x{width:.0f}", remedy)
    elif _is_lower(own.pcie_gen, gen) and (own.util or 0) > 50:  # idle links go down
        yield Reason("PCIe gen", f"PCIe gen {own.pcie_gen} where others have gen {gen:.0f}", remedy)


def _is_lower(value: float | None, usual: float | None) -> bool:
    return bool(value and usual and value < usual)


def _of_process(view: View, rank: Rank) -> Iterator[Reason]:
    sample = rank.sample
    if sample is None:
        return
    others = _samples(_other_ranks(view, rank))
    yield from _OUTLIERS["throttled_percent"].found(sample, others)
    yield from _cores(view, rank, sample)
    for reason in _OUTLIERS["read_bps"].found(sample, others):
        small = "little of the node's memory is page cache" if _is_cache_small(view, rank) else ""
        yield reason._replace(evidence=small)


def _is_cache_small(view: View, rank: Rank) -> bool:
    node = view.state.nodes.get(rank.place.node)
    host = None if node is None else node.metrics
    if host is None or host.page_cache is None:
        return False
    return host.page_cache < 0.05 * (host.mem_total or 0)


def _cores(view: View, rank: Rank, sample: RankSample) -> Iterator[Reason]:
    """Report fewer cores than the other ranks have, or a shared core."""
    if not sample.cpus or not _is_one_core(sample.cpus):
        return
    sharing, free = [], []
    for peer in _other_ranks(view, rank):
        if peer.sample is None:
            continue
        if peer.sample.cpus != sample.cpus:
            free.append(peer.sample.cpus)
        elif peer.place.node == rank.place.node:
            sharing.append(peer.place.rank)
    if not free:
        return
    remedy = "bind each rank to cores of its own (taskset, numactl, --cpus-per-task of the scheduler)"
    if sharing:
        cores = f"it shares core {sample.cpus} with {spans_text('rank', sorted(sharing))}"
        yield Reason("it shares core", cores, remedy)
    elif not any(map(_is_one_core, free)):
        yield Reason(
            "bound to core", f"it is bound to core {sample.cpus} only, the others have more", remedy
        )


def _is_one_core(cpus: str | None) -> bool:
    """Whether a set of cores is a single one; True if it is unknown."""
    return (cpus or "0").isdigit()


def _of_threads(view: View, rank: int) -> Iterator[Reason]:
    """Report other threads of the rank that use far more CPU time than those of the others: they also take the GIL."""
    pulses = view.history.get(rank, ())
    others = [activity.other_threads_share(own) for own in some_others(view, rank) if len(own) >= PULSES]
    if len(pulses) < PULSES or not others:
        return
    if _far(activity.other_threads_share(pulses), others, THREADS_FACTOR, THREADS_LEAST):
        text = f"{_busy_thread(pulses)} CPU time, which the others do not"
        yield Reason(
            "CPU time", text, "a thread of Python code takes the GIL: let it sleep, or use a process"
        )


def _busy_thread(pulses: Sequence[Pulse]) -> str:
    """Return the subject and verb for the thread in the user's own code, if a pulse has only one."""
    for pulse in reversed(pulses):
        own = [
            (thread.name, site.name)
            for thread in pulse.threads
            for site in thread.stack[:1]
            if activity.own_code(site.file) and not thread.error
        ]
        if len(own) == 1:
            return f"its thread {own[0][0]} in {own[0][1]}() uses"
    return "other threads of it use"


def _of_place(view: View, rank: int) -> Iterator[Reason]:
    """Report a place that is far more frequent on this rank than on the others."""
    own = _places(view.history.get(rank, ()))
    if len(own) < PULSES:
        return
    counted = Counter(_location(position) for position in own if position.kind in INFORMATIVE)
    others = Counter[object]()
    pooled = 0
    for pulses in some_others(view, rank):
        positions = _places(pulses)
        pooled += len(positions)
        others.update(_location(position) for position in positions)
    for location, times in counted.most_common():
        share, theirs = times / len(own), others[location] / max(1, pooled)
        if times < 2 or share < OFTEN or theirs > share / 3:
            continue
        yield from _reason_at(location, own)
        return


def _reason_at(location: object, own: Sequence[RankPosition]) -> Iterator[Reason]:
    """Report a place by the site where the rank was most often."""
    sites = Counter(position.site for position in own if _location(position) == location)
    site = sites.most_common(1)[0][0]
    where = "" if site is None else activity.site_text(site)
    if location is Kind.LOADER:
        text = f"it waits for its data loader ({where})" if where else "it waits for its data loader"
        remedy = "give its loader more workers (num_workers, prefetch_factor), or its data faster storage"
        yield Reason("data loader", text, remedy)
    elif where:
        remedy = (
            f"find out why {where} takes longer there: larger input, a slower disk, a branch on the rank"
        )
        yield Reason(where, f"it is often at {where}", remedy)


def _places(pulses: Sequence[Pulse]) -> list[RankPosition]:
    return [position_of(pulse.stack) for pulse in pulses if pulse.stack]


def _location(pos: RankPosition) -> object:
    """Return the key of a place: the function in the user's own code, else the kind."""
    return (pos.site.file, pos.site.name) if pos.kind is Kind.CODE and pos.site else pos.kind


def some_others(view: View, but: int | None = None) -> list[Sequence[Pulse]]:
    others = [pulses for rank, pulses in view.history.items() if rank != but and pulses]
    return others[:: max(1, len(others) // WITNESSES)]


def _of_node(view: View, rank: Rank) -> Iterator[Reason]:
    """Report differences between the node and the others."""
    node = view.state.nodes.get(rank.place.node)
    host = None if node is None else node.metrics
    if host is None:
        return
    others = [peer.metrics for number, peer in view.state.nodes.items() if number != rank.place.node]
    hosts = [metrics for metrics in others if metrics is not None]
    yield from _OUTLIERS["steal_percent"].found(host, hosts)
    yield from _OUTLIERS["nic_errors"].found(host, hosts)
    if hosts and _waits_for_cores(host):
        yield from _OUTLIERS["load1"].found(host, hosts)


def _waits_for_cores(host: Host) -> bool:
    if host.cpu_stall_percent is not None and host.cpu_stall_percent >= 40:
        return True
    return bool(host.load1 and host.cores and host.load1 > 1.5 * host.cores)


def _other_ranks(view: View, rank: Rank) -> list[Rank]:
    return [peer for peer in view.state.ranks.values() if peer is not rank]


def _samples(ranks: Iterable[Rank]) -> list[RankSample]:
    return [rank.sample for rank in ranks if rank.sample is not None]


def _median(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None


def _far(value: float | None, others: Iterable[float | None], factor: float, least: float = 0.0) -> bool:
    """Whether a value exceeds `factor` times the median of the others, or the others have no values.

    A value below `least` is never far.
    """
    if value is None or value < least:
        return False
    usual = _median(others)
    return usual is None or value > factor * max(usual, 0.0)
