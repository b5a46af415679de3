"""Report host or GPU memory that ran out, and what would reduce it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from ...presets.finding import Finding
from ..run.formatting import size_text
from ..run.model import FirstCause, Outcome
from ..run.state import Attempt
from .line_formats import OUT_OF_MEMORY
from .memory_curve import MemoryPoint, sizes
from .memory_growth import growth_text, memory_limit, near, rising
from .memory_remedies import memory_remedy
from .view import View

LINGERS_S = 120.0
"""Seconds of a new attempt during which the end of the previous one is still reported."""
FULL = 0.90
"""Minimum share of the limit in use for a kill to count as out of memory without a kernel log."""

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


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
    if cause.oom is None and cause.kind in ("", "cuda-oom") and OUT_OF_MEMORY["cuda"].search(text):
        yield _cuda(view, attempt, cause, text)
    elif cause.oom is not None or (cause.kind or _kind_of(text)) == "host-oom":
        yield _refused(view, attempt, cause) or _host(view, attempt, cause, cause.oom or "", sure=True)
    elif cause.signal == "SIGKILL" and (why := _was_full(view, cause)):
        yield _host(view, attempt, cause, why, sure=False)


def _kind_of(text: str) -> str:
    return "host-oom" if OUT_OF_MEMORY["host"].search(text) else ""


def parse_cuda(text: str) -> Cuda:
    """Parse the numbers in the message of torch 1.x or 2.x."""
    allocated, reserved = _bytes(OUT_OF_MEMORY["allocated"], text), _bytes(OUT_OF_MEMORY["reserved"], text)
    in_all = _bytes(OUT_OF_MEMORY["reserved_all"], text)
    if reserved is None and in_all is not None and allocated is not None:
        reserved = max(0, in_all - allocated)
    gpu = OUT_OF_MEMORY["gpu"].search(text)
    return Cuda(
        tried=_bytes(OUT_OF_MEMORY["tried"], text),
        capacity=_bytes(OUT_OF_MEMORY["capacity"], text),
        allocated=allocated,
        unused=reserved,
        gpu=int(gpu[1]) if gpu else None,
        others=sum(_number(match[2], match[3]) for match in OUT_OF_MEMORY["other"].finditer(text)),
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
            *_quoted(cause, OUT_OF_MEMORY["cuda"]),
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
    gpus = chain(*(node.gpus for node in view.state.nodes.values()))
    return min((gpu.mem_total for gpu in gpus if gpu.mem_total), default=None)


def _host(view: View, attempt: Attempt, cause: FirstCause, why: str, *, sure: bool) -> Finding:
    room = memory_limit(view.state.nodes.get(cause.node))
    in_cgroup = bool(OUT_OF_MEMORY["cgroup"].search(why)) or (not why and room is not None and room.cgroup)
    limit = "" if room is None or room.cgroup != in_cgroup else f" of {size_text(room.limit)}"
    where = f"the memory{limit} of its cgroup" if in_cgroup else f"host memory{limit}"
    who, ended = _who(view, attempt, cause), "was killed" if cause.signal == "SIGKILL" else "failed"
    text = f"{who} {ended}: {where} ran out"
    if not sure:
        text = f"{who} was killed, most likely because {where} ran out"
    return Finding(
        id="oom-cgroup" if in_cgroup else "oom-host",
        severity="error",
        text=text,
        rank=cause.rank,
        node=cause.node,
        remedy=_host_remedy(in_cgroup),
        evidence=(
            *((why,) if why else ()),
            *_curve(view, attempt, cause.rank, gpu=False),
            *_largest(view, attempt, cause),
            *_quoted(cause, OUT_OF_MEMORY["host"]),
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
    tried = next(
        (int(match[1]) for line in cause.last_lines if (match := OUT_OF_MEMORY["asked"].search(line))), 0
    )
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
            *_quoted(cause, OUT_OF_MEMORY["host"]),
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


def _curves(view: View, attempt: Attempt) -> Mapping[int, Sequence[MemoryPoint]]:
    return view.memory if attempt is view.attempt else view.memory_before


def _curve(view: View, attempt: Attempt, rank: int, *, gpu: bool) -> Iterable[str]:
    values = sizes(_curves(view, attempt).get(rank, ()), gpu=gpu)
    if text := growth_text(values):
        yield f"rank {rank}'s {'GPU' if gpu else 'host'} memory: {text}"


BEGINS_S = 20.0
"""Seconds of growth in every rank, caused by imports."""
GROWS_S, GROWS, GROWS_BYTES = 20.0, 0.05, 64 << 20
"""Memory grew if at least this share of it and this many bytes were added in a rank's last seconds."""


def grew(view: View, attempt: Attempt, rank: int) -> Iterable[str]:
    """Yield the curve of a rank whose host memory was still growing at its end."""
    curve = sizes(_curves(view, attempt).get(rank, ()), gpu=False)
    if not curve:
        return
    end, last = curve[-1]
    begin = max(end - GROWS_S, attempt.began + BEGINS_S)
    least = min((size for at, size in curve if at >= begin), default=last)
    if last - least >= max(GROWS_BYTES, GROWS * last):
        yield from _curve(view, attempt, rank, gpu=False)


def _who(view: View, attempt: Attempt, cause: FirstCause) -> str:
    several = len({place.node for place in attempt.ranks}) > 1
    before = "" if attempt is view.attempt else f"attempt {attempt.number}: "
    return f"{before}rank {cause.rank}" + (f" on {view.host(cause.node)}" if several else "")


def _quoted(cause: FirstCause, pattern: re.Pattern[str]) -> Iterable[str]:
    """Return the newest matching line of its stderr."""
    yield from [line for line in cause.last_lines if pattern.search(line)][-1:]
