"""status: the cockpit's content as text, with the cockpit's rows."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Iterable

from ...presets.finding import worst_first
from ...presets.plurals import plural
from ...presets.sanitize import clean_text
from ...runners.diagnosis.applied_preset import check_applied
from ...runners.diagnosis.first_step import no_step_yet
from ...runners.diagnosis.rank_activity import pause_of
from ...runners.diagnosis.status import attempts_unknown, state_words, world_size
from ...runners.node.local_agent import with_link
from ...runners.node.run_following import folded_events, snapshot
from ...runners.reports.run_status import complete, marked
from ...runners.run import clock, run_directories, run_notes
from ...runners.run.checkpoints import checkpoint_line
from ...runners.run.formatting import NA, duration_text, size_text, step_text
from ...runners.run.model import LinkState, RunPhase
from ...runners.run.nccl_reach import instead_of_gloo
from ...runners.run.run_notes import RunNotes
from ...runners.run.samples import Host
from ...runners.run.state import Node, RunState
from ...runners.run.under_way import under_way
from ...runners.run.wire.client import Link
from ...runners.telemetry.progress import parts, progress, source_text
from ..rows.attempts import cause_rows, ledger_rows
from ..rows.findings import Item, item_row
from ..rows.frame import Frame, LinkPhase, LinkStatus
from ..rows.glyphs import plain
from ..rows.log import large_size
from ..rows.run_status import cost, recovered, stage_rows
from ..rows.tables import plain_gpus, plain_table
from ..terminal import answer
from .events import while_read
from .run_or_bundle import run_or_bundle

WIDTH, UNCUT = 121, 1 << 16
"""Maximum columns of a sentence in a table, and of a finding, which is printed whole."""
MOST_VALUES = 8
"""Maximum number of further script values in the training line."""
EVERY_S = 2.0
"""Minimum seconds between two texts of `--watch`."""
CLEAR_SCREEN = "\x1b[H\x1b[J"


def headline(state: RunState, now: float | None = None) -> str:
    """Return one line: name, state, progress, pace."""
    frame, unseen = _frame(state, now), attempts_unknown(state)
    words = no_step_yet(state, frame.now)
    begun = [f"attempt {state.attempt}"] if state.attempt else []
    seen, world = len(state.ranks), world_size(state)
    if seen:
        ranks = plural(world, "rank")
        begun.append(ranks if seen == world else f"{seen} of {ranks}")
    parts = [
        state.name,
        state_words(state),
        *([f"attempt {NA}", f"{NA} ranks"] if unseen else begun),
        *([f"no step yet: {words}"] if words else steps(state, frame.now)),
        *under_way(state, frame.now),
    ]
    if state.phase is not RunPhase.LOST:  # the duration of a lost run is unknown
        parts.append(duration_text(state.lasted(frame.now)))
    return "  ".join(parts)


def steps(state: RunState, now: float) -> list[str]:
    """Return progress and pace of the training for the headline."""
    line = progress(state, now)
    texts = [] if line.step is None or line.earlier else [f"step {line.step}"]
    texts += [text for name, text in parts(line, pause_of(state, now)) if name == "still_s"]
    if line.step_s is not None and not state.phase.ended:
        texts.append(f"{step_text(line.step_s)}/step")
    return texts


def _frame(state: RunState, now: float | None) -> Frame:
    now = clock.now() if now is None else now
    return Frame(state, LinkStatus(LinkPhase.FOLLOWING, now), now, now)


def unsaid(text: str, earlier: Iterable[str]) -> str:
    """Return the parts of a sentence that earlier sentences do not contain; "" if there are none."""
    stated = list(earlier)
    parts = [part for part in text.split("; ") if not any(part in sentence for sentence in stated)]
    for sentence in stated:
        parts = [part.removesuffix(f": {sentence}").removesuffix(f", but {sentence}") for part in parts]
    return "; ".join(parts)


def _logs(state: RunState) -> list[str]:
    """Return the size of large logs and how much of it is kept; [] if they are small."""
    size, cap = large_size(state), 0 if state.plan is None else state.plan.log_cap
    if not size:
        return []
    if not cap:
        return [f"logs: {size_text(size)}; a launch with --log-cap keeps head and tail of each"]
    if any(finding.id == "log-cap" for finding in state.findings.values()):
        return [f"logs: {size_text(size)}, which their cap of {size_text(cap)} cannot hold"]
    return [
        f"logs: {size_text(size)} written; a log that takes more than {size_text(cap)} on disk loses its middle"
    ]


def describe(state: RunState, now: float | None = None, marks: RunNotes | None = None) -> str:
    """Return the whole text of `distui status`."""
    frame = _frame(state, now)
    lines = [headline(state, frame.now), *_marked(marks), *_plan(state)]
    lines += training(state, frame.now)
    if state.checkpoints:
        lines.append(f"checkpoint: {checkpoint_line(state.checkpoint or state.checkpoints[-1], frame.now)}")
    lines += _logs(state)
    lines += cluster(state, frame.now)
    if state.stages and not state.ranks:
        lines += ["", *plain(stage_rows(frame, WIDTH))]
    else:
        lines += [_node(frame, node) for node in state.nodes.values()]
    lines += _tables(frame)
    lines += _judgement(frame)
    return "\n".join(clean_text(line) for line in lines)


def _plan(state: RunState) -> list[str]:
    """Return what runs, and what the preset did to it."""
    lines: list[str] = []
    plan = state.plan
    if plan is not None:
        preset = f"preset {plan.preset}, " if plan.preset else ""
        used = " planned, NCCL in use" if instead_of_gloo(state) else ""
        backend = f", backend {plan.backend}{used}" if plan.backend else ""
        lines.append(f"{preset}{plan.launcher}: {plan.command}{backend}")
    acted = check_applied(state)
    if acted is not None:
        lines.append(f"preset {acted.state}: {acted.text}")
    return lines


def _tables(frame: Frame) -> list[str]:
    """Return ranks, GPUs and attempts."""
    lines: list[str] = []
    if frame.state.ranks:
        lines += ["", *plain_table(frame)]
    for node in frame.state.nodes.values():
        if node.gpus:
            lines += ["", *plain_gpus(frame, node)]
    if frame.state.attempts:
        lines += ["", *plain(ledger_rows(frame.state, WIDTH))]
    return lines


def _judgement(frame: Frame) -> list[str]:
    """Return first cause, findings and end of the run; none repeats another."""
    state = frame.state
    lines: list[str] = []
    cause = state.attempts[-1].first_cause if state.attempts else None
    if cause is not None:
        lines += ["", *plain(cause_rows(cause, WIDTH))]
    stated = [] if cause is None else [cause.text]
    findings = worst_first(finding for finding in state.findings.values() if finding.text not in stated)
    if findings:
        lines += ["", *plain(item_row(frame, Item((finding,)), UNCUT) for finding in findings)]
    end = unsaid(state.end_text, stated)
    return [*lines, "", end] if end else lines


def _marked(marks: RunNotes | None) -> list[str]:
    """Return the user's tags and note of the run; [] without any."""
    lines = [f"tags: {' '.join(marks.tags)}"] if marks and marks.tags else []
    lines += [f"note: {marks.note}"] if marks and marks.note else []
    return [*lines, *([marks.problem] if marks and marks.problem else [])]


def training(state: RunState, now: float) -> list[str]:
    """Return the script's progress and the source of each number; [] if it reports nothing."""
    title = "training, last values" if state.phase.ended else "training"
    line = progress(state, now)
    if not state.training:
        return []
    values = [f"{name} {value:.4g}" for name, value in list(line.values.items())[:MOST_VALUES]]
    texts = [text for _, text in parts(line, pause_of(state, now))]
    lines = [f"{title}: {'  '.join(texts)}", f"  {source_text(line)}"]
    return [*lines, *(["  " + "  ".join(values)] if values else [])]


def cluster(state: RunState, now: float) -> list[str]:
    """Return the cluster of a launched run, and its cost; [] for a run on this machine."""
    cloud = state.cluster
    if cloud is None:
        return []
    parts = [cloud.name and f"cluster {cloud.name}", cloud.infra, cloud.resources, cloud.state]
    parts.append(f"job {cloud.job}" if cloud.job is not None else "")
    parts.append(recovered(cloud))
    parts.append(cost(cloud, now))
    parts.append(f"autostop after {cloud.autostop_min} min" if cloud.autostop_min is not None else "")
    parts.append("taken down" if cloud.down else "")
    return ["  ".join(part for part in parts if part)]


def _node(frame: Frame, node: Node) -> str:
    parts = [f"node {node.node}", node.host]
    if node.link is not None and node.link is not LinkState.UP:
        parts.append(f"link {node.link}: {node.link_text}" if node.link_text else f"link {node.link}")
    metrics: Host | None = node.metrics
    if metrics is not None and frame.fresh(node.node, node.sampled):
        cpu = NA if metrics.cpu_percent is None else f"{metrics.cpu_percent:.0f} %"
        parts.append(f"cpu {cpu} of {metrics.cores} cores")
        parts.append(f"memory {size_text(metrics.mem_used)} of {size_text(metrics.mem_total)}")
    if node.gpu_problem:
        parts.append(node.gpu_problem)
    return "  ".join(part for part in parts if part)


@run_or_bundle
def status(options: argparse.Namespace) -> int:
    """Print the status of one run; with --watch repeatedly until the run has ended."""

    async def use(entry: run_directories.Entry, link: Link) -> int:
        if not options.watch:
            _print(await snapshot(link), entry, link, options)
            return 0
        async for state in _changes(link):
            _print(state, entry, link, options)
        return 0

    return asyncio.run(while_read(with_link(options.run, use)))


async def _changes(link: Link) -> AsyncIterator[RunState]:
    """Yield the state after events, at most every EVERY_S, and at the end of the run."""
    state, due = RunState(), 0.0
    async for _ in folded_events(link, state):
        if not state.live:
            continue
        if state.phase.ended:
            break
        if clock.monotonic() >= due:
            yield state
            due = clock.monotonic() + EVERY_S
    yield state


def _print(state: RunState, entry: run_directories.Entry, link: Link, options: argparse.Namespace) -> None:
    complete(state, entry, link)
    marks = run_notes.read(entry.path)
    lines = describe(state, marks=marks).splitlines()
    if options.watch and not options.json and sys.stdout.isatty():
        sys.stdout.write(CLEAR_SCREEN)
        if not state.phase.ended:
            lines = _fitting(lines)
    answer(options.json, marked(state, marks), lines)
    sys.stdout.flush()


def _fitting(lines: list[str]) -> list[str]:
    """Return as much of the lines as the terminal can show without scrolling."""
    columns, rows = shutil.get_terminal_size()
    if len(lines) >= rows:
        more = plural(len(lines) - rows + 2, "more line")
        lines = [*lines[: rows - 2], f"… {more}: `distui status` prints all"]
    return [line[:columns] for line in lines]
