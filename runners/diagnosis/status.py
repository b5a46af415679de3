"""Facts from the state of a run: its line in a list, whether its preset was applied, its mesh, and missing data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from ...presets import worker_group
from ...presets.finding import Finding, worst_first
from ...presets.sanitize import clean_text
from ..run.formatting import spans_text
from ..run.journal import History
from ..run.log_files import parse_file_id
from ..run.model import LinkState, PlanSummary, RankPhase, RunPhase, Wrapped
from ..run.run_directories import Entry
from ..run.state import RunState
from ..telemetry import curves, step_totals
from ..telemetry.progress import hung, progress

FOREIGN = "watch-"
"""Prefix of the ids of jobs that distui did not start."""


def foreign(state: RunState) -> bool:
    """Whether distui only watches the job, without having started it."""
    return state.run.startswith(FOREIGN)


DAMAGED = "damaged"
"""Id of the finding about damaged files of the run."""


def hidden(state: RunState, damaged: bool = False) -> bool:
    """Whether the attempts are unknown rather than none: the run is running, or files are damaged."""
    damaged = damaged or any(finding.id == DAMAGED for finding in state.findings.values())
    return not state.attempts and (damaged or state.phase is RunPhase.RUNNING)


def worst(state: RunState) -> str:
    """Return the worst finding of a run, else its end; "" if it runs without a finding."""
    findings = worst_first(state.findings.values())
    cause = next((attempt.first_cause for attempt in reversed(state.attempts) if attempt.first_cause), None)
    if state.phase is RunPhase.FAILED and cause is not None:
        return clean_text(cause.text)
    if findings and findings[0].alarm:
        return clean_text(findings[0].text)
    return clean_text(state.end_text) if state.end_text != str(state.phase) else ""


class RunFigures(Struct, frozen=True):
    """Figures of a run in a list; None if unknown."""

    nodes: int | None
    ranks: int | None
    step: int | None
    total: int | None
    exit_code: int | None
    finding: str
    """The worst finding, or the run's end."""
    lasted_s: float | None
    hung: bool = False
    ended: float | None = None
    """Unix time."""


def figures(entry: Entry, history: History, phase: RunPhase, now: float) -> RunFigures:
    """Figures of a run, from its own files; `phase` is from `run_directories.phase`."""
    state = history.state
    line = progress(state, now)
    unseen = hidden(state, bool(history.problems))
    step, total = (line.step, line.total) if phase.ended else _advanced(entry, state, now)
    return RunFigures(
        nodes=None if unseen else max(1, len({rank.place.node for rank in state.ranks.values()})),
        ranks=None if unseen else len(state.ranks),
        step=step,
        total=total,
        exit_code=state.exit_code,
        finding=worst(state),
        lasted_s=None if phase is RunPhase.LOST or not state.began else state.lasted(now),
        hung=not phase.ended and hung(state),
        ended=state.end(entry.record.created),
    )


RECENT_S = 120.0
"""Maximum age of a step on disk to count as a live run's current step: scripts report only now and then."""


def _advanced(entry: Entry, state: RunState, now: float) -> tuple[int | None, int | None]:
    """Step and total of a live run, from its first node's metrics on disk: the journal has neither."""
    store = next(iter(curves.kept(entry).values()), None)
    if store is None:
        return None, None
    values = curves.newest(store, ("train.step", "rank.step"), now - RECENT_S, now)
    reported, counted = values["train.step"].values(), values["rank.step"].values()
    step = max(reported) if reported else min(counted, default=None)
    total = step_totals.of_text(state.plan.command) if state.plan else None
    return None if step is None else int(step), total[0] if total and reported else None


# --- whether the preset was applied: the wrappers of the ranks' models against the plan ---

DIMENSIONS = ("pp", "ep", "cp", "tp")
"""Mesh dimensions that shard the model or its input, which a wrapper's class does not show."""
WORDS = {
    "ddp": "DistributedDataParallel",
    "zero1": "ZeroRedundancyOptimizer",
    "fsdp1": "FullyShardedDataParallel",
    "fsdp2": "fully_shard",
    "deepspeed": "DeepSpeed",
}


class Applied(Struct, frozen=True):
    """Whether the preset was applied to the models of the ranks."""

    state: Literal["applied", "not applied", "unknown"]
    text: str
    """The reason in a few words."""


def world_size(state: RunState) -> int:
    """Return the number of ranks of the newest attempt, with those that `srun` started on other machines."""
    return max(len(state.ranks), state.world_size)


def applied(state: RunState) -> Applied | None:
    """Compare the ranks' models with the preset; None for a run without a preset."""
    plan = state.plan
    if plan is None or not plan.preset:
        return None
    made = _models(state)
    if not made:
        yet = "" if state.phase.ended else " yet"
        return Applied("unknown", f"no rank has shown{yet} what its model is wrapped with")
    world = state.world_size or len(state.ranks)
    judged = {number: _judge(plan, wrapped, world) for number, wrapped in made.items()}
    for number, check in judged.items():
        if check.state != "applied":
            return Applied(check.state, f"rank {number}: {check.text}" if len(judged) > 1 else check.text)
    return judged[min(judged)]


def _models(state: RunState) -> dict[int, Wrapped]:
    """Return the models of the ranks that reported one."""
    return {number: rank.made for number, rank in sorted(state.ranks.items()) if rank.made is not None}


def _judge(plan: PlanSummary, made: Wrapped, world: int) -> Applied:
    """Judge one rank."""
    seen = _seen(made)
    missing = _missing(plan, made, world)
    if missing:
        return Applied("not applied", f"{plan.preset} asks for {missing}, and the model {seen}")
    if plan.precision and made.param and plan.precision != made.param:
        return Applied("applied", f"the model {seen}, in {made.param} instead of {plan.precision}")
    return Applied("applied", f"the model {seen}")


def _missing(plan: PlanSummary, made: Wrapped, world: int) -> str:
    """Return the preset's requirement that the model lacks; "" for none."""
    wrapper = _missing_wrapper(plan, made, world)
    if wrapper:
        return wrapper
    stage = plan.zero_stage
    if stage is not None and made.zero_stage not in (None, stage):
        return f"ZeRO stage {stage}"
    for name in DIMENSIONS:
        size = plan.mesh.get(name, 1)
        if size > 1 and made.dims.get(name) != size:
            return f"{name} {size}"
    return ""


def _missing_wrapper(plan: PlanSummary, made: Wrapped, world: int) -> str:
    """Return the preset's wrapper that the model lacks, or that others contradict; "" for none."""
    kind, has = plan.strategy, set(made.strategies)
    if kind == "single":
        return "a whole model" if has - {"ddp"} else ""
    if kind == "ddp" and (world == 1 or _is_piped(plan, made)):
        return WORDS[kind] if has - {"ddp"} else ""
    if kind not in has:
        return WORDS.get(kind, kind)
    if kind == "ddp" and has & {"zero1", "fsdp1", "fsdp2", "deepspeed"}:
        return "DistributedDataParallel alone"
    return ""


def _is_piped(plan: PlanSummary, made: Wrapped) -> bool:
    """Whether the model is split into the pipeline stages of the plan."""
    stages = plan.mesh.get("pp", 1)
    return stages > 1 and made.dims.get("pp") == stages


def _seen(made: Wrapped) -> str:
    """Wrappers in words: "is wrapped in fully_shard, divided by tp 2"."""
    shown = [each for each in made.strategies if each != "zero1" or not made.adopted]
    names = " and ".join(WORDS.get(strategy, strategy) for strategy in shown)
    if made.zero_stage is not None:
        names = names.replace("DeepSpeed", f"DeepSpeed (ZeRO stage {made.zero_stage})")
    dims = _dims_text(made.dims)
    text = f"is wrapped in {names or 'nothing'}"
    if dims:
        text += f", divided by {dims}"
    return f"{text}; {made.adopted}" if made.adopted else text


def _dims_text(dims: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in dims.items() if name in DIMENSIONS and size > 1)


# --- coordinates of ranks in the mesh of the plan ---

DATA = ("dp_shard", "dp")
"""Dimensions that adapt to the number of ranks in an elastic run."""


def sizes(state: RunState) -> dict[str, int]:
    """Mesh dimensions of the current attempt; empty if the plan has none, or the number of ranks does not fit."""
    plan = state.plan
    if plan is None or not plan.mesh or not state.attempts:
        return {}
    dims, world = dict(plan.mesh), state.world_size
    data = next((name for name in DATA if name in dims), None)
    if data is not None:
        dims[data], left = divmod(world, math.prod(dims.values()) // dims[data])
        if left:
            return {}
    return dims if math.prod(dims.values()) == world else {}


def coordinates(dims: Mapping[str, int], rank: int) -> dict[str, int]:
    """Coordinates of one rank; empty if `dims` (from `sizes`) is empty."""
    return worker_group.coordinates(dims, rank) if dims else {}


def short(dims: Mapping[str, int], rank: int) -> str:
    """Coordinates in short: "pp1 sh0 tp1"; "" for a single dimension, which equals the rank."""
    names = {"dp_replicate": "rep", "dp_shard": "sh"}
    if len(dims) < 2:
        return ""
    return " ".join(f"{names.get(name, name)}{at}" for name, at in coordinates(dims, rank).items())


# --- current findings, and missing data ---


HUNG = "hung?"
"""Suffix of the state: a hang is a conclusion from samples, and the findings have the reason."""


def state_words(state: RunState) -> str:
    """Return the state of a run in words, with a hang."""
    return f"{state.phase.words}, {HUNG}" if hung(state) else state.phase.words


def standing(state: RunState) -> list[Finding]:
    """Return the current findings, the worst first."""
    return worst_first(state.findings.values())


def judged_attempt(entry: Entry, state: RunState) -> int | None:
    """Attempt whose logs a diagnosis reads; None: the newest with logs.

    A hub keeps the ends of older attempts' logs, which are irrelevant to this one.
    """
    return state.attempt or None if entry.record.kind == "hub" else None


def missing(state: RunState, logs: Sequence[str] | None) -> list[str]:
    """Return the data that a diagnosis lacks, one sentence each.

    `logs`: ids of the logs that were read; None if none are needed.
    """
    gaps: list[str] = []
    if logs is not None:
        gaps += _unread(state, logs)
        if not logs and not gaps:
            gaps = ["no logs of the newest attempt are on this machine"]
    return gaps if state.phase.ended else [*gaps, *_missing_values(state)]


def _missing_values(state: RunState) -> Iterator[str]:
    """Yield sentences about data that nodes and ranks of a live run do not report."""
    for node in state.nodes.values():
        if node.link is LinkState.LOST:
            yield f"{node.host or f'node {node.node}'} does not answer: its values are old"
    yield from _hookless(state)
    if untimed(state):
        yield UNTIMED


def _hookless(state: RunState) -> Iterator[str]:
    """Yield a sentence about the running ranks whose hook does not answer."""
    running = [number for number, rank in sorted(state.ranks.items()) if rank.phase is RankPhase.RUNNING]
    blind = [number for number in running if not state.ranks[number].hook]
    if blind:
        pulses = [state.ranks[number].pulse for number in blind]
        has_stacks = all(pulse and pulse.stack for pulse in pulses)
        lacking = "no flight recorder" if has_stacks else "no stack, no flight recorder"
        yield f"no hook answers in {spans_text('rank', blind)}: {lacking}"


UNTIMED = "TORCH_NCCL_ENABLE_TIMING=1 has torch record how long collectives take: without it no slow rank is detected"
"""Text for NCCL, because ranks enqueue a collective long before it runs."""


def untimed(state: RunState) -> bool:
    """Whether NCCL collectives are known, but none of them has a duration."""
    if state.plan is None or state.plan.backend != "nccl":
        return False
    pulses = [rank.pulse for rank in state.ranks.values() if rank.pulse is not None]
    seen = [call for pulse in pulses for call in pulse.recent if not call.p2p]
    return bool(seen) and all(call.duration_ms is None for call in seen)


def _unread(state: RunState, logs: Sequence[str]) -> Iterator[str]:
    """Unread logs on nodes: during a run, a hub keeps only logs that a viewer requested."""
    if state.phase.ended or not state.merged:
        return
    files = [file for name in logs if (file := parse_file_id(name)) is not None]
    here = {file.node for file in files if file.attempt == state.attempt}
    running = {rank.place.node for rank in state.ranks.values() if rank.phase is RankPhase.RUNNING}
    if absent := sorted(running - here):
        where = f"of attempt {state.attempt} on {spans_text('node', absent)}"
        yield f"the logs {where} were not read yet: `distui logs {state.name}` fetches them"
