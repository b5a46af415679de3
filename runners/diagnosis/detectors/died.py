"""Why a rank exited, and why a rank is slower than the others."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ....presets.finding import Finding
from ...formatting import spans_text
from ...model import FirstCause, Gpu, Host, Outcome, Pulse, RankPhase, RankSample, RunPhase
from ...state import Attempt, Node, Rank, RunState
from . import memory_growth, naming
from .naming import Kind, RankPosition, place
from .stuck_collectives import UNEVEN
from .view import View

# -----------------------------------------------------------------------------------------------------------
# Why a rank is slower than the others, from what GPUs, node and process tell of it. Each reason stands apart from the
# others of its kind: what holds for all ranks alike makes none of them slow.


BENIGN = frozenset(("idle", "application clocks", "sync boost", "display clocks"))
"""Clock reasons that hold nothing back, or that somebody wished."""
FETCHING = 0.5
"""Share of the samples in one place from which a rank counts as mostly there."""
OFTEN = 0.25
"""Share of the samples in one place from which it may be what makes a rank slow."""
INFORMATIVE = (Kind.LOADER, Kind.CHECKPOINT, Kind.CODE, Kind.LOCK, Kind.NETWORK, Kind.SUBPROCESS)
"""Places that tell why."""
PULSES = 3
"""Fewer samples say nothing of where a rank is."""
WITNESSES = 16
"""Other ranks whose places are compared with."""


class Reason(NamedTuple):
    """One thing that makes a rank slow."""

    kind: str
    """Words that stand in `text`, whatever the numbers."""
    text: str
    """As it stands after a colon."""
    remedy: str
    evidence: str = ""
    """A sentence; "" where the text says all."""


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


def witnesses(view: View, but: int | None = None) -> list[RankPosition | None]:
    """Where some of the other ranks usually are."""
    return [usual(pulses) for pulses in _some(view, but)]


# --- the GPU -------------------------------------------------------------------------------------------------


def _of_gpu(view: View, rank: Rank) -> Iterator[Reason]:
    own, others = _gpus(view, rank)
    if own is None:
        return
    yield from _clocks(own, others)
    yield from _link(own, others)
    if own.ecc_uncorrected or own.remap_failed or own.remap_pending:
        yield Reason(
            "memory errors", "its memory has memory errors (ECC)", "reset the GPU before the next run"
        )
    if own.pcie_replays and _far(own.pcie_replays, [gpu.pcie_replays for gpu in others], 10.0):
        yield Reason("PCIe replays", "PCIe replays", "reseat the GPU or its riser; watch the counter")


def _gpus(view: View, rank: Rank) -> tuple[Gpu | None, list[Gpu]]:
    """The GPU of a rank, and those of the others."""
    gpus: dict[int, Gpu] = {}
    for number, other in view.state.ranks.items():
        node, sample = view.state.nodes.get(other.place.node), other.sample
        if node is not None and sample is not None and sample.gpu is not None:
            gpu = next((gpu for gpu in node.gpus if gpu.index == sample.gpu), None)
            if gpu is not None:
                gpus[number] = gpu
    own = gpus.pop(rank.place.rank, None)
    return own, list(gpus.values())


def _clocks(own: Gpu, others: list[Gpu]) -> Iterator[Reason]:
    usual = _median(gpu.sm_mhz for gpu in others)
    if own.sm_mhz is None or usual is None or own.sm_mhz > 0.93 * usual:
        return
    clocks = f"{own.sm_mhz / 1000:.1f} of {usual / 1000:.1f} GHz"
    words = [word for word in own.throttle or () if word not in BENIGN]
    hot = "" if own.temp_c is None else f"{5 * round(own.temp_c / 5)} °C"
    if any(word.startswith("thermal") for word in words) or (own.temp_c or 0) >= 85:
        yield Reason("thermal", f"thermal throttling{f' at {hot}' * bool(hot)}, {clocks}",
                     "look after the cooling of this GPU")  # fmt: skip
    elif words:
        yield Reason(words[0], f"{', '.join(words)}, {clocks}", _remedy(words[0]))
    else:
        yield Reason(
            "low clocks", f"low clocks, {clocks}", "compare nvidia-smi -q -d CLOCK with another GPU"
        )


def _remedy(word: str) -> str:
    if word == "power cap":
        return "compare its power limit with the others' (nvidia-smi -q -d POWER); raise it, or leave the node out"
    return "look at power supply and cooling of the node (nvidia-smi -q -d PERFORMANCE)"


def _link(own: Gpu, others: list[Gpu]) -> Iterator[Reason]:
    width, gen = _median(gpu.pcie_width for gpu in others), _median(gpu.pcie_gen for gpu in others)
    remedy = "reseat the GPU or its riser, or leave the node out"
    if own.pcie_width and width and own.pcie_width < width:
        yield Reason("PCIe x", f"PCIe x{own.pcie_width} where others have x{width:.0f}", remedy)
    elif own.pcie_gen and gen and own.pcie_gen < gen and (own.util or 0) > 50:  # it sleeps at rest
        yield Reason("PCIe gen", f"PCIe gen {own.pcie_gen} where others have gen {gen:.0f}", remedy)


# --- the process ---------------------------------------------------------------------------------------------


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
        low = _low_cache(node)
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


def _low_cache(node: Node | None) -> bool:
    host = None if node is None else node.metrics
    return bool(
        host and host.page_cache is not None and host.mem_total and host.page_cache < 0.05 * host.mem_total
    )


# --- where it is ---------------------------------------------------------------------------------------------


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
        where = "" if site is None else naming.site_text(site)
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


# --- the node ------------------------------------------------------------------------------------------------


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
                     "look at cable, transceiver and switch port (ethtool -S, ibqueryerrors)")  # fmt: skip
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


# -----------------------------------------------------------------------------------------------------------
# How ranks ended: exit code, signal, exception, the kernel's word, and whether a restart can help.


LINES = 8
"""Last lines of its stderr that are shown as evidence."""
OTHERS_S = 10.0
"""Hold back victims this long while other nodes still run; the cause may be there."""
FAILED = (Outcome.FAILED, Outcome.LOST)
MEMORY = ("cuda-oom", "host-oom", "killed")
"""Classes of which memory.py may know more."""
PEERS = ("peer-gone", "timeout", "connect-timeout")
"""Symptoms of a rank that is not there any more."""
LOST = "see runner.log and the kernel's log there: what ends a runner most often is the kernel, for want of memory"
LAUNCHER = "the launcher itself said so, and no rank failed before it: see runner.log there"
CAN_HELP = {
    "no": "a restart cannot help before that",
    "maybe": "",
    "yes": "a restart can help",
}


def find(view: View) -> Iterable[Finding]:
    """The first cause of the newest attempt, where that failed and nobody had asked for its end."""
    state = view.state
    attempt = state.attempts[-1] if state.attempts else None
    if attempt is None or attempt.ended is None or attempt.outcome not in FAILED:
        return
    if state.phase in (RunPhase.STOPPING, RunPhase.STOPPED):
        return
    cause = attempt.first_cause
    if cause is None and attempt.outcome is Outcome.LOST and attempt.text:
        yield Finding("died-lost", "error", attempt.text, remedy=LOST, since=attempt.ended)
    if cause is None and attempt.outcome is Outcome.FAILED and attempt.text:
        yield Finding("died-launcher", "error", attempt.text, remedy=LAUNCHER, since=attempt.ended)
    if cause is None or not cause.kind:
        return
    if cause.symptom and view.now < attempt.ended + OTHERS_S and _others(state, cause):
        return
    early = _done_early(state, cause)
    if early:
        yield _left(state, attempt, cause, early)
        return
    if cause.kind in MEMORY and any(finding.id.startswith("oom-") for finding in memory_growth.find(view)):
        return  # one end, one sentence
    yield Finding(
        id=f"died-{cause.kind}",
        severity="warning" if cause.kind == "exit-abort" else "error",
        role="symptom" if cause.symptom else "cause",
        text=_text(state, cause),
        rank=cause.rank,
        ranks=tuple(sorted((cause.rank, *cause.victims))) if cause.victims else (),
        node=cause.node,
        remedy="; ".join(part for part in (cause.remedy, CAN_HELP.get(cause.retry, "")) if part),
        evidence=tuple(_evidence(state, attempt, cause)),
        since=cause.at if cause.at is not None else attempt.ended,
    )


def _others(state: RunState, cause: FirstCause) -> bool:
    """Whether other nodes have not told yet how their ranks ended."""
    return any(
        rank.phase is RankPhase.RUNNING and rank.place.node != cause.node for rank in state.ranks.values()
    )


def _done_early(state: RunState, cause: FirstCause) -> list[int]:
    """Ranks that were through with the script when others lost their connections to them."""
    if not cause.symptom or cause.kind not in PEERS:
        return []
    return sorted(number for number, rank in state.ranks.items() if rank.phase is RankPhase.SUCCEEDED)


def _left(state: RunState, attempt: Attempt, cause: FirstCause, early: list[int]) -> Finding:
    """What looks like a crash on the others is the regular end of one."""
    return Finding(
        id="died-peer-gone",
        severity="error",
        text=f"{naming.who(state, early)} ended with exit code 0 before the others were done",
        rank=early[0] if len(early) == 1 else None,
        ranks=tuple(sorted({*early, cause.rank, *cause.victims})),
        node=state.ranks[early[0]].place.node,
        remedy=UNEVEN,
        evidence=(f"because of it {cause.text}", *_evidence(state, attempt, cause)),
        since=cause.at if cause.at is not None else attempt.ended,
    )


def _text(state: RunState, cause: FirstCause) -> str:
    """The ledger's sentence, with the node where there are several."""
    plain = f"rank {cause.rank}"
    if not naming.several(state) or not cause.text.startswith(plain + " "):
        return cause.text
    return f"{plain} on {naming.host(state, cause.node)}{cause.text[len(plain) :]}"


def _evidence(state: RunState, attempt: Attempt, cause: FirstCause) -> Iterator[str]:
    ended = cause.signal or (None if cause.exit_code is None else f"exit code {cause.exit_code}")
    if ended is not None:
        yield f"attempt {attempt.number}: rank {cause.rank} (pid {cause.pid}) ended with {ended}"
    before = _before(state, attempt, cause)
    if before:
        yield f"{spans_text('attempt', before)} ended in the same way"
    if cause.victims:
        yield f"after it: {spans_text('rank', cause.victims)}"
    if cause.where:
        yield f"raised at {cause.where}"
    if cause.oom:
        yield cause.oom
    yield from cause.evidence
    yield from _xids(state, cause)
    yield from cause.last_lines[-LINES:]


def _before(state: RunState, attempt: Attempt, cause: FirstCause) -> list[int]:
    """Numbers of the attempts right before that ended of the same class at the same place."""
    numbers: list[int] = []
    for earlier in reversed(state.attempts[:-1]):
        other = earlier.first_cause
        if other is None or (other.kind, other.where) != (cause.kind, cause.where):
            break
        numbers.append(earlier.number)
    return numbers


def _xids(state: RunState, cause: FirstCause) -> Iterator[str]:
    """What the driver told of that node's GPUs during the run."""
    for finding in state.findings.values():
        if finding.id.startswith("xid-") and finding.node in (None, cause.node):
            yield finding.text
