"""Report host or GPU memory that ran out, is nearly full or grows steadily, and what would reduce it."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ...presets.finding import Finding
from ..run.formatting import duration_text, size_text
from ..run.model import FirstCause, Outcome, PlanSummary, RankPhase
from ..run.state import Attempt, Node
from .view import Point, View

LINGERS_S = 120.0
"""Seconds of a new attempt during which the end of the previous one is still reported."""
FULL = 0.90
"""Minimum share of the limit in use for a kill to count as out of memory without a kernel log."""

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = r"(?<![\d.])([\d.]+) (bytes|[KMG]iB)"
_CUDA = re.compile(r"(?:CUDA|HIP)(?: error:)? out of memory|OutOfMemoryError")
_TRIED = re.compile(rf"[Tt]ried to allocate {_SIZE}")
_CAPACITY = re.compile(rf"total capacity of {_SIZE}|{_SIZE} total capacity")
_ALLOCATED = re.compile(rf"{_SIZE} is allocated by PyTorch|{_SIZE} already allocated")
_RESERVED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_RESERVED_ALL = re.compile(rf"{_SIZE} reserved in total by PyTorch")
_GPU = re.compile(r"\bGPU (\d+)\b")
_OTHER = re.compile(rf"Process (\d+) has {_SIZE} memory in use")
_HOST = re.compile(
    r"\bMemoryError\b|DefaultCPUAllocator|std::bad_alloc|Cannot allocate memory|\[Errno 12\]"
)
_ASKED = re.compile(r"tried to allocate (\d+) bytes")
_CGROUP = re.compile(r"cgroup|memcg", re.IGNORECASE)


class Cuda(NamedTuple):
    """torch's report of exhausted GPU memory, in bytes; None if unknown."""

    tried: int | None
    capacity: int | None
    allocated: int | None
    """Bytes in tensors of this process."""
    unused: int | None
    """Bytes that its allocator reserved but no tensor uses."""
    gpu: int | None
    """GPU index as this process numbers them."""
    others: int
    """Bytes of other processes on this GPU."""


def find(view: View) -> Iterable[Finding]:
    """Report an attempt that ended out of memory, and memory that grows or is nearly full while ranks run."""
    attempt = _ended(view)
    if attempt is not None and attempt.first_cause is not None:
        yield from _out_of_memory(view, attempt, attempt.first_cause)
    if view.attempt is not None and view.attempt.ended is None:
        yield from near(view)
        yield from rising(view)


def _ended(view: View) -> Attempt | None:
    """Return the newest attempt if it failed. While it is young, the attempt before it counts."""
    attempts = view.state.attempts
    for attempt in attempts[:-3:-1]:
        if attempt.ended is not None:
            recent = attempt is attempts[-1] or view.now - attempts[-1].began < LINGERS_S
            failed = attempt.outcome in (Outcome.FAILED, Outcome.LOST, Outcome.RESTARTED)
            return attempt if recent and failed else None
    return None


def _out_of_memory(view: View, attempt: Attempt, cause: FirstCause) -> Iterable[Finding]:
    text = "\n".join((cause.text, *cause.last_lines))
    if cause.oom is None and _CUDA.search(text) and cause.kind in ("", "cuda-oom"):
        yield _cuda(view, attempt, cause, text)
    elif cause.oom is not None or cause.kind == "host-oom" or (not cause.kind and _HOST.search(text)):
        refused = _refused(view, attempt, cause)
        yield _host(view, attempt, cause, cause.oom or "", sure=True) if refused is None else refused
    elif cause.signal == "SIGKILL" and (why := _was_full(view, cause)):
        yield _host(view, attempt, cause, why, sure=False)


def parse_cuda(text: str) -> Cuda:
    """Parse the numbers in the message of torch 1.x or 2.x."""
    allocated, reserved = _bytes(_ALLOCATED, text), _bytes(_RESERVED, text)
    in_all = _bytes(_RESERVED_ALL, text)
    if reserved is None and in_all is not None and allocated is not None:
        reserved = max(0, in_all - allocated)
    gpu = _GPU.search(text)
    return Cuda(
        tried=_bytes(_TRIED, text),
        capacity=_bytes(_CAPACITY, text),
        allocated=allocated,
        unused=reserved,
        gpu=int(gpu[1]) if gpu else None,
        others=sum(_number(match[2], match[3]) for match in _OTHER.finditer(text)),
    )


def _bytes(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    if match is None:
        return None
    number, unit = [part for part in match.groups() if part is not None]
    return _number(number, unit)


def _number(number: str, unit: str) -> int:
    try:
        return round(float(number) * _UNITS[unit])
    except ValueError:  # "1.2.3"
        return 0


def _cuda(view: View, attempt: Attempt, cause: FirstCause, text: str) -> Finding:
    cuda = parse_cuda(text)
    who = _who(view, attempt, cause)
    of = f" of {size_text(cuda.capacity)}" if cuda.capacity else ""
    wanted = f": {size_text(cuda.tried)} more did not fit" if cuda.tried else ""
    return Finding(
        id="oom-cuda",
        severity="error",
        text=f"{who} ran out of GPU memory{of}{wanted}",
        rank=cause.rank,
        node=cause.node,
        remedy=_cuda_remedy(view, cuda),
        evidence=(
            *_cuda_numbers(cuda),
            *_curve(view, attempt, cause.rank, gpu=True),
            *_quoted(cause, _CUDA),
        ),
        ranks=cause.victims,
        since=cause.at,
    )


def _cuda_numbers(cuda: Cuda) -> Iterable[str]:
    if cuda.allocated is not None:
        unused = "" if cuda.unused is None else f", {size_text(cuda.unused)} reserved but unused"
        yield f"tensors held {size_text(cuda.allocated)}{unused}"
    if cuda.others:
        yield f"other processes on this GPU held {size_text(cuda.others)}"


def _cuda_remedy(view: View, cuda: Cuda) -> str:
    capacity = cuda.capacity or _gpu_memory(view)
    remedy = memory_remedy(view.state.plan, None if capacity is None else capacity / 1e9)
    if cuda.unused is not None and cuda.tried is not None and cuda.unused >= cuda.tried:
        first = "the memory is in pieces: try --env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True first"
        return f"{first}; then {remedy}"
    if capacity and cuda.others > 0.1 * capacity:
        return f"end the other processes on this GPU (nvidia-smi names them); else {remedy}"
    return remedy


def _gpu_memory(view: View) -> int | None:
    """Return the memory of the smallest GPU in bytes."""
    sizes = [gpu.mem_total for node in view.state.nodes.values() for gpu in node.gpus if gpu.mem_total]
    return min(sizes, default=None)


def _host(view: View, attempt: Attempt, cause: FirstCause, why: str, *, sure: bool) -> Finding:
    room = memory_limit(view.state.nodes.get(cause.node))
    in_cgroup = bool(_CGROUP.search(why)) or (not why and room is not None and room.cgroup)
    limit = "" if room is None or room.cgroup != in_cgroup else f" of {size_text(room.limit)}"
    where = f"the memory{limit} of its cgroup" if in_cgroup else f"host memory{limit}"
    ended = "was killed" if cause.signal == "SIGKILL" else "failed"
    who = _who(view, attempt, cause)
    return Finding(
        id="oom-cgroup" if in_cgroup else "oom-host",
        severity="error",
        text=f"{who} {ended}: {where} ran out"
        if sure
        else f"{who} was killed, most likely because {where} ran out",
        rank=cause.rank,
        node=cause.node,
        remedy=_host_remedy(in_cgroup),
        evidence=(
            *((why,) if why else ()),
            *_curve(view, attempt, cause.rank, gpu=False),
            *_largest(view, attempt, cause),
            *_quoted(cause, _HOST),
        ),
        ranks=cause.victims,
        since=cause.at,
    )


def _refused(view: View, attempt: Attempt, cause: FirstCause) -> Finding | None:
    """Report an allocation that failed although the node had free memory: a process limit or a policy."""
    room, near = memory_limit(view.state.nodes.get(cause.node)), _near(view, cause)
    if cause.oom is not None or cause.signal == "SIGKILL" or room is None or not near:
        return None
    free = room.limit - max(near)
    tried = next((int(match[1]) for line in cause.last_lines if (match := _ASKED.search(line))), 0)
    if free < (1 - FULL) * room.limit or tried > free:
        return None
    asked = f"asked for {size_text(tried)} and got" if tried else "got"
    used = size_text(max(near))
    return Finding(
        id="oom-host",
        severity="error",
        text=f"{_who(view, attempt, cause)} {asked} no more host memory, though there was room: "
        "a limit of the process itself refuses it",
        rank=cause.rank,
        node=cause.node,
        remedy="see `ulimit -v` where the ranks start, and vm.overcommit_memory of that node; raise the limit, "
        "or keep less of the data set in each rank",
        evidence=(
            f"{used} of {size_text(room.limit)} on the node were in use shortly before",
            *_curve(view, attempt, cause.rank, gpu=False),
            *_quoted(cause, _HOST),
        ),
        ranks=cause.victims,
        since=cause.at,
    )


def _host_remedy(in_cgroup: bool) -> str:
    less = (
        "take fewer data-loader workers or prefetched batches, and keep less of the data set in each rank"
    )
    more = (
        "ask for more memory for the job (--mem of Slurm, the container's limit)"
        if in_cgroup
        else "fewer ranks on a node, or a node with more memory"
    )
    return f"{less}; else {more}; states that rest in host memory (cpu_offload) need room there, too"


def _was_full(view: View, cause: FirstCause) -> str:
    """Return why a killed rank most likely ran out of memory; "" without evidence."""
    room = memory_limit(view.state.nodes.get(cause.node))
    near = _near(view, cause)
    if room is None or not near or max(near) < FULL * room.limit:
        return ""
    what = "the cgroup's" if room.cgroup else "the node's"
    used, limit = size_text(max(near)), size_text(room.limit)
    return f"{used} of {what} {limit} were in use shortly before; the kernel's own word cannot be read"


def _near(view: View, cause: FirstCause) -> list[int]:
    """Return the bytes in use on the node shortly before the failure."""
    points = view.node_memory.get(cause.node, ())
    at = cause.at if cause.at is not None else view.now
    return [point.rss for point in points if point.rss is not None and -15.0 <= point.at - at <= 2.0]


def _largest(view: View, attempt: Attempt, cause: FirstCause) -> Iterable[str]:
    """Name the rank with the most memory on that node if it is not the failed one."""
    nodes = {place.rank: place.node for place in attempt.ranks}
    held = {
        rank: max(point.rss or 0 for point in points[-3:])
        for rank, points in _curves(view, attempt).items()
        if points and nodes.get(rank) == cause.node
    }
    most = max(held, key=lambda rank: held[rank], default=cause.rank)
    if most != cause.rank and held[most] > 1.2 * held.get(cause.rank, 0):
        yield f"rank {most} held more: {size_text(held[most])}"


def _curves(view: View, attempt: Attempt) -> dict[int, Sequence[Point]]:
    newest = attempt is view.attempt
    return dict(view.memory if newest else view.memory_before)


def _curve(view: View, attempt: Attempt, rank: int, *, gpu: bool) -> Iterable[str]:
    points = _curves(view, attempt).get(rank, ())
    values = [(point.at, size) for point in points if (size := point.gpu if gpu else point.rss) is not None]
    if text := growth_text(values):
        yield f"rank {rank}'s {'GPU' if gpu else 'host'} memory: {text}"


BEGINS_S = 20.0
"""Seconds of growth in every rank, caused by imports."""
GROWS_S, GROWS, GROWS_BYTES = 20.0, 0.05, 64 << 20
"""Memory grew if at least this share of it and this many bytes were added in a rank's last seconds."""


def grew(view: View, attempt: Attempt, rank: int) -> Iterable[str]:
    """Yield the curve of a rank whose host memory was still growing at its end."""
    curve = [point for point in _curves(view, attempt).get(rank, ()) if point.rss is not None]
    last = curve[-1] if curve else Point(0.0)
    from_then = max(last.at - GROWS_S, attempt.began + BEGINS_S)
    earlier = [point.rss or last.rss or 0 for point in curve if point.at >= from_then]
    added = (last.rss or 0) - min(earlier, default=last.rss or 0)
    if last.rss and added >= max(GROWS_BYTES, GROWS * last.rss):
        yield from _curve(view, attempt, rank, gpu=False)


def _who(view: View, attempt: Attempt, cause: FirstCause) -> str:
    several = len({place.node for place in attempt.ranks}) > 1
    before = "" if attempt is view.attempt else f"attempt {attempt.number}: "
    return f"{before}rank {cause.rank}" + (f" on {view.host(cause.node)}" if several else "")


def _quoted(cause: FirstCause, pattern: re.Pattern[str]) -> Iterable[str]:
    """Return the newest matching line of its stderr."""
    yield from [line for line in cause.last_lines if pattern.search(line)][-1:]


WARM_UP_S = 180.0
"""Seconds after the start of an attempt during which growth is not reported."""
LEAST_S = 300.0
"""Minimum seconds of growth for a finding."""
WINDOW_S = 900.0
AHEAD_S = 1800.0
"""Only memory that runs out within this many seconds is reported."""
MUCH = 0.05
"""Minimum growth as a share of the limit."""
NEAR, FAR = 0.95, 0.90
"""Shares of the limit above which a cgroup becomes nearly full, and below which the finding ends."""


def near(view: View) -> Iterable[Finding]:
    """Report nodes whose cgroup is nearly full of memory that the kernel cannot reclaim."""
    for number, node in view.state.nodes.items():
        room = memory_limit(node)
        if room is None or not room.cgroup:
            continue
        before = view.state.findings.get(("oom-near", None, number))
        if room.used < room.limit * (NEAR if before is None else FAR):
            continue
        where = f" on {view.host(number)}" if view.several() else ""
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
    attempt = view.attempt
    if attempt is None or view.now - attempt.began < WARM_UP_S + LEAST_S:
        return
    since = max(attempt.began + WARM_UP_S, view.now - WINDOW_S)
    short = {node: growth for node in view.state.nodes if (growth := _short(view, node, since)) is not None}
    growing: dict[int, dict[int, Growth]] = {}
    for number, rank in view.state.ranks.items():
        if rank.phase is not RankPhase.RUNNING:
            continue
        points = view.memory.get(number, ())
        if rank.place.node in short and (own := steady(_values(points, since, gpu=False), LEAST_S)):
            growing.setdefault(rank.place.node, {})[number] = own
        if (gpu := _gpu(view, number, points, since)) is not None:
            yield gpu
    for node, ranks in growing.items():
        yield from _host_growth(view, node, ranks, *short[node])


def _short(view: View, node: int, since: float) -> tuple[Room, Growth] | None:
    """Return the limit of a node and its growth; None if the limit is not reached soon.

    File pages that ranks map do not count as memory in use.
    """
    room, points = memory_limit(view.state.nodes[node]), view.node_memory.get(node, ())
    if room is None or len(points) < 2 or not _nears(points[0], points[-1], room.limit - room.used):
        return None
    whole = steady(_values(points, since, gpu=False), LEAST_S)
    if whole is None or room.limit - room.used > whole.a_second * AHEAD_S:
        return None
    return room, whole


def _values(points: Sequence[Point], since: float, *, gpu: bool) -> list[tuple[float, int]]:
    if not points or (points[-1].gpu if gpu else points[-1].rss) is None:
        return []
    pairs = [(point.at, point.gpu if gpu else point.rss) for point in points if point.at >= since]
    return [(at, size) for at, size in pairs if size is not None]


def _host_growth(
    view: View, node: int, ranks: dict[int, Growth], room: Room, whole: Growth
) -> Iterable[Finding]:
    """Report growth only if the ranks cause most of the node's growth."""
    pace = sum(growth.a_second for growth in ranks.values())
    grown = sum(growth.a_second * (view.now - growth.since) for growth in ranks.values())
    if not whole.a_second / 2 <= pace <= 2 * whole.a_second or grown < MUCH * room.limit:
        return
    worst = max(ranks, key=lambda rank: ranks[rank].a_second)
    limit = f"{size_text(room.limit)} of {'the cgroup' if room.cgroup else 'the node'}"
    yield _finding(view, worst, node, tuple(sorted(ranks)), "host memory", limit, ranks[worst])


def _gpu(view: View, number: int, points: Sequence[Point], since: float) -> Finding | None:
    if len(points) < 2 or (points[-1].gpu or 0) <= (points[0].gpu or 0):
        return None
    gpu = view.gpu(number)
    if gpu is None or gpu.mem_total is None or gpu.mem_used is None:
        return None
    free = gpu.mem_total - gpu.mem_used
    if not _nears(points[0], points[-1], free, gpu=True):
        return None
    growth = steady(_values(points, since, gpu=True), LEAST_S)
    if growth is None or growth.a_second * (view.now - growth.since) < MUCH * gpu.mem_total:
        return None
    if free > growth.a_second * AHEAD_S:
        return None
    limit = f"{size_text(gpu.mem_total)} of its GPU"
    return _finding(view, number, view.state.ranks[number].place.node, (), "GPU memory", limit, growth)


def _nears(first: Point, last: Point, free: int, *, gpu: bool = False) -> bool:
    """Whether two points suggest that memory runs out. A cheap test before `steady`."""
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
    gone, who = duration_text(view.now - growth.since), view.who((rank,))
    grown = growth.a_second * (view.now - growth.since)
    return Finding(
        id="mem-creep",
        severity="warning",
        text=f"the {what} of {who} grows steadily and reaches the {limit} within half an hour",
        rank=rank,
        node=node,
        remedy="check for tensors or losses that are kept from step to step (take .item() or .detach()), and for caches "
        "without a bound; `distui dump memory` shows what is held",
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
    """Bytes per second."""
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


LADDER: Sequence[str] = ("single", "ddp", "zero1", "fsdp2-zero2", "fsdp2", "fsdp2-offload")
"""Presets in order of decreasing GPU memory."""
DEEPSPEED: Sequence[str] = ("ds-zero1", "ds-zero2", "ds-zero3", "ds-zero3-cpu", "ds-zero3-nvme")
KINDS: Mapping[str, str] = {
    "single": "single",
    "ddp": "ddp",
    "zero1": "zero1",
    "fsdp1": "fsdp2",
    "fsdp2": "fsdp2",
}
"""Entry of LADDER that a strategy resembles."""


SMALLER = "halve the micro batch, or compute activations again in backward"


def following(plan: PlanSummary) -> str | None:
    """Return the next preset that needs less GPU memory; None without one."""
    for ladder in (LADDER, DEEPSPEED):
        for at in (plan.preset, KINDS.get(plan.strategy, "")):
            if at in ladder:
                rest = ladder[ladder.index(at) + 1 :]
                return rest[0] if rest and _ranks(plan) > 1 and at != "single" else None
    return None


def memory_remedy(plan: PlanSummary | None, gpu_gb: float | None = None) -> str:
    """Return one sentence with the commands. `gpu_gb`: GB per GPU, None if unknown."""
    if plan is None:
        return f"{SMALLER}, or divide the model over more GPUs"
    smaller = f"{SMALLER} (--set batch.accumulation=2 for the same batch)"
    if not plan.preset:
        return f"{smaller}; what the script divides over its ranks is its own"
    preset = following(plan)
    if preset is None:
        return f"{smaller}; {_estimate(plan, gpu_gb)} shows what fits, on more GPUs, too"
    if plan.obeys is None:
        return f"{smaller}; another preset changes nothing here, for the script obeys none"
    return (
        f"`{launch(plan, preset)}` needs less, {_estimate(plan, gpu_gb)} estimates how much; else {smaller}"
    )


def launch(plan: PlanSummary, preset: str) -> str:
    """Return the command that launches the run with another preset."""
    nproc = f" --nproc-per-node {plan.nproc_per_node}" if plan.nproc_per_node else ""
    nodes = f" --nnodes {plan.nnodes}" if plan.nnodes > 1 else ""
    return f"distui launch {preset}{nproc}{nodes} -- {plan.command}"


def _estimate(plan: PlanSummary, gpu_gb: float | None) -> str:
    script = plan.command.split(" ", 1)[0]
    count = plan.nproc_per_node or 1
    gpus = f"{count}xGPU --gpu-memory {gpu_gb:.0f}" if gpu_gb else f"{count}xNAME"
    nodes = f" --nodes {plan.nnodes}" if plan.nnodes > 1 else ""
    return f"`distui advise --script {script} --gpus {gpus}{nodes}`"


def _ranks(plan: PlanSummary) -> int:
    return (plan.nproc_per_node or 2) * plan.nnodes
