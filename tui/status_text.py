"""A run as plain text: what `distui status` and foreground launches print. The tables are the cockpit's."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ..presets.sanitize import clean_text
from ..runners.formatting import NA, duration_text, elapsed, plural, size_text
from ..runners.model import HUB, Host, LinkState, RunPhase
from ..runners.state import Node, RunState, StageProgress
from ..runners.status import applied, hidden
from .follower import LinkPhase, LinkStatus
from .rows.frame import Frame
from .rows.log import cause_rows, ledger_rows
from .rows.plain import plain, table
from .rows.ranks import plain_table
from .rows.status import cost, recovered

WIDTH = 121
"""Columns at which sentences are folded."""


def headline(state: RunState, now: float | None = None) -> str:
    """One line: what runs, how far, how fast."""
    now = time.time() if now is None else now
    steps = [
        rank.sample.step for rank in state.ranks.values() if rank.sample and rank.sample.step is not None
    ]
    paces = [
        rank.sample.step_s
        for rank in state.ranks.values()
        if rank.sample and rank.sample.step_s is not None
    ]
    unseen = hidden(state)
    parts = [
        state.name,
        state.phase.words,
        f"attempt {NA if unseen else state.attempt}",
        f"{NA} ranks" if unseen else plural(len(state.ranks), "rank"),
    ]
    if steps:
        parts.append(f"step {min(steps)}")
    if paces:
        parts.append(f"{max(paces) * 1000:.1f} ms a step")
    if state.phase is not RunPhase.LOST:  # nobody saw for how long
        parts.append(duration_text(state.lasted(now)))
    return "  ".join(parts)


def unsaid(text: str, earlier: Iterable[str]) -> str:
    """What a sentence of several parts says beyond those that were told already; "" for nothing."""
    stated = list(earlier)
    parts = [part for part in text.split("; ") if not any(part in sentence for sentence in stated)]
    for sentence in stated:
        parts = [part.removesuffix(f": {sentence}").removesuffix(f", but {sentence}") for part in parts]
    return "; ".join(parts)


def describe(state: RunState, now: float | None = None) -> str:
    """Everything `distui status` says."""
    now = time.time() if now is None else now
    frame = Frame(state, LinkStatus(LinkPhase.FOLLOWING, now), now, now)
    lines = [headline(state, now)]
    if state.plan is not None:
        plan = state.plan
        preset = f"preset {plan.preset}, " if plan.preset else ""
        backend = f", backend {plan.backend}" if plan.backend else ""
        lines.append(f"{preset}{plan.launcher}: {plan.command}{backend}")
    acted = applied(state)
    if acted is not None:
        lines.append(f"preset {acted.state}: {acted.text}")
    lines += cluster(state, now)
    for node in state.nodes.values():
        lines.append(_node(node))
    if state.ranks:
        lines += ["", *plain_table(frame)]
    for node in state.nodes.values():
        if node.gpus:
            lines += ["", *gpus(node)]
    if state.attempts:
        lines += ["", *plain(ledger_rows(state, WIDTH))]
    cause = state.attempts[-1].first_cause if state.attempts else None
    if cause is not None:
        lines += ["", *plain(cause_rows(cause, WIDTH))]
    stated = [] if cause is None else [cause.text]
    findings = [finding for finding in state.findings.values() if finding.text not in stated]
    lines += ["", *(f"{finding.severity}: {finding.text}" for finding in findings)] if findings else []
    end = unsaid(state.end_text, stated)
    if end:
        lines += ["", end]
    return "\n".join(clean_text(line) for line in lines)


def cluster(state: RunState, now: float | None = None) -> list[str]:
    """Where a launched run lives, what it has cost, and how far its launch is; [] for a run on this machine."""
    lines = []
    cloud = state.cluster
    if cloud is not None:
        parts = [cloud.name and f"cluster {cloud.name}", cloud.infra, cloud.resources, cloud.state]
        parts.append(f"job {cloud.job}" if cloud.job is not None else "")
        parts.append(recovered(cloud))
        parts.append(cost(cloud, now))
        parts.append(f"autostop after {cloud.autostop_min} min" if cloud.autostop_min is not None else "")
        parts.append("taken down" if cloud.down else "")
        lines.append("  ".join(part for part in parts if part))
    if not state.ranks:
        lines += [_stage(state, progress, now) for progress in state.stages.values()]
    return lines


def _stage(state: RunState, progress: StageProgress, now: float | None) -> str:
    until = progress.ended if progress.ended is not None else (time.time() if now is None else now)
    how = "failed" if progress.failed else "under way" if progress.ended is None else "done"
    node = state.nodes.get(progress.node)
    name = node.host if node is not None and node.host else f"node {progress.node}"
    where = "" if progress.node == HUB else f" on {name}"
    detail = f": {progress.text}" if progress.text else ""
    return f"{progress.stage}{where} {how} ({duration_text(elapsed(progress.began, until))}){detail}"


def _node(node: Node) -> str:
    parts = [f"node {node.node}", node.host]
    if node.link is not None and node.link is not LinkState.UP:
        parts.append(f"link {node.link}: {node.link_text}" if node.link_text else f"link {node.link}")
    metrics: Host | None = node.metrics
    if metrics is not None:
        cpu = NA if metrics.cpu_percent is None else f"{metrics.cpu_percent:.0f} %"
        parts.append(f"cpu {cpu} of {metrics.cores} cores")
        parts.append(f"memory {size_text(metrics.mem_used)} of {size_text(metrics.mem_total)}")
    if node.gpu_problem:
        parts.append(node.gpu_problem)
    return "  ".join(part for part in parts if part)


def gpus(node: Node) -> list[str]:
    """A line a GPU."""
    head = ("gpu", "name", "util", "memory", "power", "temp", "clocks")
    rows = [head]
    for gpu in node.gpus:
        held = ", ".join(gpu.throttle) if gpu.throttle else ("free" if gpu.throttle is not None else NA)
        rows.append(
            (
                str(gpu.index),
                gpu.name,
                "lost" if gpu.lost else NA if gpu.util is None else f"{gpu.util:.0f} %",
                f"{size_text(gpu.mem_used)} of {size_text(gpu.mem_total)}",
                NA if gpu.power_w is None else f"{gpu.power_w:.0f} W",
                NA if gpu.temp_c is None else f"{gpu.temp_c:.0f} °C",
                held,
            )
        )
    return table(rows, frozenset({0, 2, 4, 5}))
