"""The status line: one row that says how the run stands, with less in it where the terminal is narrow."""

from __future__ import annotations

from ...runners.model import LinkState, RunPhase
from ..text import cost, recovered
from . import glyphs
from .cells import Row, age, duration, join, pair, percent, plural, row_width, seconds
from .frame import Frame


def status_row(frame: Frame, width: int) -> Row:
    """As many parts as fit, the least important ones left out first."""
    parts = [(order, part) for order, part in _parts(frame) if part]
    while parts and row_width(join([part for _, part in parts])) > width - 1:
        parts.remove(max(parts, key=lambda item: item[0]))
    return ((" ", "text"), *join([part for _, part in parts]))


def one_line(frame: Frame, width: int) -> tuple[Row, ...]:
    """What a terminal too small for the screens gets."""
    return (status_row(frame, width), ((" enlarge the terminal to 60×15; keys work", "dim"),))


def _parts(frame: Frame) -> list[tuple[int, Row]]:
    """(order in which to keep, part); 0 is kept longest."""
    state = frame.state
    glyph, style = glyphs.RUN[state.phase]
    return [
        (8, (("distui", "dim"),)),
        (1, ((state.name or state.run or "…", "head"),)),
        (0, ((f"{glyph} {state.phase.upper()}", style),)),
        (2, _link(frame)),
        (6, _attempt(frame)),
        (5, _nodes(frame)),
        (3, _cluster(frame)),
        (6, _cost(frame)),
        (9, _autostop(frame)),
        (7, ((plural(len(state.ranks), "rank"), "text"),) if state.ranks else ()),
        *_load(frame),
        *_steps(frame),
        (10, _nccl(frame)),
        (11, _obeys(frame)),
        (12, _age(frame)),
    ]


def _obeys(frame: Frame) -> Row:
    """Said of a script that a preset does not reach."""
    plan = frame.state.plan
    if plan is None or not plan.preset or plan.obeys or frame.state.phase.ended:
        return ()
    return (("flags and env only", "dim"),)


def _attempt(frame: Frame) -> Row:
    number = frame.state.attempt
    return ((f"attempt {number}", "warn" if number > 1 else "text"),) if number else ()


def _nodes(frame: Frame) -> Row:
    state = frame.state
    total = state.plan.nnodes if state.plan else len(state.nodes)
    if not state.nodes or state.phase.ended:
        return ()
    if state.merged:
        good = (LinkState.UP, LinkState.ENDED)
        heard = sum(node.link in good for node in state.nodes.values())
    else:
        heard = sum(frame.fresh(node.node, node.heard) for node in state.nodes.values())
    return ((f"{heard}/{total} node" + ("" if total == 1 else "s"), "text" if heard >= total else "warn"),)


def _cluster(frame: Frame) -> Row:
    """SkyPilot's word for a cluster that is not simply up, and what a managed job does not show."""
    known = frame.state.cluster
    if known is None:
        return ()
    if known.managed:
        told = [f"managed job {known.state}".rstrip(), recovered(known), "logs only"]
        return ((", ".join(part for part in told if part), "warn"),)
    if known.down:
        return (("cluster down", "dim"),)
    return ((f"cluster {known.state}", "warn"),) if known.state not in ("", "UP") else ()


def _cost(frame: Frame) -> Row:
    known = frame.state.cluster
    text = "" if known is None else cost(known, frame.now).removesuffix(" so far")
    return ((text, "text"),) if text else ()


def _autostop(frame: Frame) -> Row:
    known = frame.state.cluster
    if known is None or known.autostop_min is None or known.down:
        return ()
    return ((f"autostop {known.autostop_min} min", "dim"),)


def _load(frame: Frame) -> list[tuple[int, Row]]:
    if frame.state.phase.ended:
        return []
    gpus = [gpu for node in frame.state.nodes.values() for gpu in frame.gpus(node)]
    utils = [gpu.util for gpu in gpus if gpu.util is not None]
    used = [gpu.mem_used for gpu in gpus if gpu.mem_used is not None]
    total = [gpu.mem_total for gpu in gpus if gpu.mem_total is not None]
    if not gpus:
        return [(3, _cpu(frame))]
    util = percent(sum(utils) / len(utils)) if utils else "n/a"
    return [
        (3, ((f"util {util}", "text"),)),
        (9, ((f"mem {pair(sum(used), sum(total))}", "text"),) if used and total else ()),
    ]


def _cpu(frame: Frame) -> Row:
    samples = [
        rank.sample.cpu_percent
        for rank in frame.state.ranks.values()
        if rank.sample is not None
        and rank.sample.cpu_percent is not None
        and frame.fresh(rank.place.node, rank.sampled)
    ]
    return ((f"cpu {percent(sum(samples) / len(samples))} a rank", "text"),) if samples else ()


def _steps(frame: Frame) -> list[tuple[int, Row]]:
    samples = [
        rank.sample
        for rank in frame.state.ranks.values()
        if rank.sample is not None and frame.fresh(rank.place.node, rank.sampled)
    ]
    steps = [sample.step for sample in samples if sample.step is not None]
    times = [sample.step_s for sample in samples if sample.step_s is not None]
    running = not frame.state.phase.ended
    return [
        (4, ((f"step {min(steps)}", "text"),) if steps else ()),
        (11, ((f"{seconds(max(times))}/step", "text"),) if times and running else ()),
    ]


def _nccl(frame: Frame) -> Row:
    levels = {rank.nccl_debug for rank in frame.state.ranks.values() if rank.nccl_debug}
    if frame.state.plan is not None and frame.state.plan.backend == "gloo":
        return ()
    if not levels or frame.state.phase.ended:
        return ()
    name = levels.pop() if len(levels) == 1 else "mixed"
    return ((f"NCCL_DEBUG {name}", "text" if name in ("WARN", "VERSION") else "warn"),)


def _link(frame: Frame) -> Row:
    if frame.lost:
        return ((f"{glyphs.BAD} agent lost" if frame.heard else f"{glyphs.BAD} no agent", "bad"),)
    if frame.view.paused:
        return (("PAUSED", "warn"),)
    if not frame.state.live and not frame.state.phase.ended:
        return ((f"{glyphs.STALE} connecting", "warn"),)
    if frame.quiet:
        return ((f"{glyphs.STALE} {age(frame.silence)} old", "stale"),)
    return (("read-only", "dim"),) if frame.view.readonly else ()


def _age(frame: Frame) -> Row:
    state = frame.state
    if not state.began:
        return ()
    until = state.ended if state.ended is not None else frame.node_now(0)
    word = "took" if state.phase in (RunPhase.SUCCEEDED, RunPhase.FAILED, RunPhase.STOPPED) else "for"
    return ((f"{word} {duration(until - state.began)}", "dim"),)
