"""A run as text for the command line; sources of NCCL's facts and of this machine's GPU names."""

from __future__ import annotations

import glob
import re
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from ..presets.cluster import MEMORY_GB
from ..presets.sanitize import clean_text
from ..runners import run_directories
from ..runners.diagnosis.nccl_facts import NcclFacts
from ..runners.errors import NoSuchRunError, RunError
from ..runners.formatting import NA, duration_text, elapsed, plural, size_text, spans_text, time_of_day
from ..runners.model import HUB, Cluster, FirstCause, Host, LinkState, RunPhase
from ..runners.state import Attempt, Node, Rank, RunState, StageProgress
from ..runners.status import applied, hidden

# -----------------------------------------------------------------------------------------------------------
# The GPUs of this machine by the names that the memory estimate knows, read from what the driver shows.


def gpus_here(root: str = "/") -> str:
    """ "8xH100" where every GPU is of one known model; else ""."""
    models = []
    for path in glob.glob(f"{root}proc/driver/nvidia/gpus/*/information"):
        try:
            match = re.search(r"^Model:\s*(.+)$", Path(path).read_text("utf-8", "replace"), re.MULTILINE)
        except OSError:
            return ""
        models.append(name_of(match[1].strip()) if match else "")
    return f"{len(models)}x{models[0]}" if models and models[0] and len(set(models)) == 1 else ""


def name_of(model: str) -> str:
    """ "NVIDIA A100-SXM4-80GB" → "A100-80GB"; "" where no known GPU is meant."""
    words = set(re.split(r"[\s-]+", model.upper().replace("GEFORCE ", "").replace("RTX ", "RTX")))
    sizes = {word for word in words if re.fullmatch(r"\d+GB", word)}
    fitting = [name for name in MEMORY_GB if set(name.split("-")) <= words]
    if not fitting:
        return ""
    best = max(fitting, key=lambda name: (name.count("-"), len(name)))
    size = next(iter(sizes), "")
    return best if not size or size == f"{MEMORY_GB[best]}GB" else ""


# -----------------------------------------------------------------------------------------------------------
# Where the NCCL screen has its facts from: the nodes while a run lives, the logs on this machine once it has ended.


class NodeFacts:
    """Facts of the nodes as one; decoded again only where a node has said something new."""

    def __init__(self) -> None:
        self._documents: tuple[bytes, ...] = ()
        self._facts: NcclFacts | None = None

    def of(self, state: RunState) -> NcclFacts | None:
        """What the nodes told so far; None where none has."""
        documents = tuple(node.nccl for _, node in sorted(state.nodes.items()) if node.nccl is not None)
        if documents != self._documents:
            self._documents, self._facts = documents, merged(documents)
        return self._facts


def merged(documents: Iterable[bytes]) -> NcclFacts | None:
    """The documents of several nodes as one; those that cannot be understood are left out."""
    facts: list[NcclFacts] = []
    for document in documents:
        try:
            facts.append(msgspec.json.decode(document, type=NcclFacts))
        except msgspec.DecodeError:  # of an agent of another version
            continue
    if len(facts) < 2:
        return facts[0] if facts else None
    from ..runners.diagnosis.live import merge  # only where there are several nodes

    return merge(facts)


def read_run(run: str, stop: threading.Event) -> NcclFacts | None:
    """Facts from the logs of a run; None when it was stopped. Takes as long as reading them. Raises RunError."""
    from ..runners.diagnosis import report  # the rules take a while to load
    from ..runners.diagnosis.live import collect

    away = "the logs of this run are not on this machine: `distui diagnose FILE` reads them where they are"
    try:
        files = report.of_run(run_directories.resolve(run))
    except NoSuchRunError:  # of a source that keeps its runs elsewhere
        raise RunError(away) from None
    if not files:
        raise RunError(away)
    reading, _ = report.read_run(files, stop.is_set)
    return None if stop.is_set() else collect(reading)


# -----------------------------------------------------------------------------------------------------------
# A run as plain text: what verbs print where there is no cockpit. Pure.


def ago(began: float | None, now: float) -> str:
    """ "3 min ago"; "n/a" where a clock was set back since."""
    seconds = elapsed(began, now)
    return NA if seconds is None else f"{duration_text(seconds)} ago"


def table(rows: Sequence[tuple[str, ...]], right: frozenset[int] = frozenset()) -> list[str]:
    """Columns as wide as they need; those in `right` flush right."""
    rows = [tuple(clean_text(cell) for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


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
        lines += ["", *ranks(state)]
    for node in state.nodes.values():
        if node.gpus:
            lines += ["", *gpus(node)]
    if state.attempts:
        lines += ["", *ledger(state.attempts)]
    cause = state.attempts[-1].first_cause if state.attempts else None
    if cause is not None:
        lines += ["", *report(cause)]
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


def recovered(cluster: Cluster) -> str:
    """How often SkyPilot recovered a managed job; "" for never."""
    return f"recovered {plural(cluster.recoveries, 'time')}" if cluster.recoveries else ""


def cost(cluster: Cluster, now: float | None = None) -> str:
    """Price an hour, and so far; "" where SkyPilot names no price."""
    if cluster.price_per_hour is None:
        return ""
    price = f"${cluster.price_per_hour:.2f}/h"
    if cluster.since is None:
        return price
    until = cluster.until or (time.time() if now is None else now)
    return f"{price}, ${cluster.price_per_hour * max(0.0, until - cluster.since) / 3600:.2f} so far"


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


def ranks(state: RunState) -> list[str]:
    """A line a rank."""
    head = ("rank", "node", "local", "state", "pid", "gpu", "cpu", "rss", "step", "ms/step", "NCCL_DEBUG")
    rows = [head, *(_rank(number, rank) for number, rank in sorted(state.ranks.items()))]
    return table(rows, frozenset({0, 1, 2, 4, 5, 6, 7, 8, 9}))


def _rank(number: int, rank: Rank) -> tuple[str, ...]:
    sample = rank.sample
    ended = rank.signal or (None if rank.exit_code is None else f"exit {rank.exit_code}")
    return (
        str(number),
        str(rank.place.node),
        str(rank.place.local_rank),
        f"{rank.phase} ({ended})" if ended else str(rank.phase),
        str(rank.pid or NA),
        NA if sample is None or sample.gpu is None else str(sample.gpu),
        NA if sample is None or sample.cpu_percent is None else f"{sample.cpu_percent:.0f} %",
        size_text(sample.rss_bytes if sample else None),
        NA if sample is None or sample.step is None else str(sample.step),
        NA if sample is None or sample.step_s is None else f"{sample.step_s * 1000:.1f}",
        rank.nccl_debug or NA,
    )


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


def differing(attempt: Attempt) -> list[str]:
    """What ranks have instead of what the attempt changed, a piece a rank."""
    return [
        f"rank {rank} has "
        + " ".join(
            f"no {name}" if value is None else f"{name}={value}" for name, value in sorted(env.items())
        )
        for rank, env in sorted(attempt.env_differs.items(), key=lambda pair: int(pair[0]))
    ]


def ledger(attempts: list[Attempt]) -> list[str]:
    """A line an attempt."""
    rows = [("attempt", "began", "lasted", "cause", "outcome", "changed")]
    for attempt in attempts:
        changed = " ".join(
            f"{name}={value}" if value is not None else f"-{name}"
            for name, value in attempt.env_diff.items()
        )
        rows.append(
            (
                str(attempt.number),
                time_of_day(attempt.began),
                duration_text(attempt.lasted()) if attempt.ended else "",
                attempt.cause,
                str(attempt.outcome or "running"),
                "; ".join(filter(None, [changed, *differing(attempt)])),
            )
        )
    return table(rows, frozenset({0}))


def report(cause: FirstCause) -> list[str]:
    """The first-cause report of a failed attempt."""
    lines = [f"first cause: {cause.text}"]
    if cause.victims:
        lines.append(f"after it, because of it: {spans_text('rank', cause.victims)}")
    if cause.last_lines:
        lines += ["last lines of its stderr:", *(f"  {line}" for line in cause.last_lines)]
    return lines
