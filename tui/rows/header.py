"""The two lines of the header: the run and its state; its progress, its health, and its load. Pure.

Cells are dropped whole, the least important first. GPU values cover only the run's own GPUs. An unknown value has no
cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...presets.finding import Finding
from ...presets.plurals import plural
from ...runners.diagnosis.applied_preset import check_applied
from ...runners.diagnosis.first_step import no_step_yet
from ...runners.diagnosis.rank_activity import pause_of
from ...runners.diagnosis.status import HUNG, world_size
from ...runners.run.formatting import NA, duration_exact, duration_short, elapsed, time_of_day, usage_short
from ...runners.run.model import Cluster, LinkState, RankPhase, RunPhase
from ...runners.run.nccl_reach import instead_of_gloo, uses_gloo
from ...runners.run.state import RunState
from ...runners.run.under_way import under_way
from ...runners.telemetry.progress import STEPS_SOURCE, Progress, hung, parts
from . import glyphs
from .findings import alarms as finding_alarms
from .frame import Frame, SampleFields, gpu_fields, gpu_places, training_line
from .glyphs import Cells, Row, kept, or_na, percent, row_width
from .run_status import launching, recovered, short_cost

TRENDS_FROM = 120
"""Minimum columns for sparklines in the header."""

_GAP, _BAR = "   ", " │ "

ALARMS = {
    "hang": HUNG,
    "start": "does not start",
    "oom": "out of memory",
    "died": "rank died",
    "straggler": "slow rank",
    "input": "slow input",
    "training": "training",
    "disk": "disk full",
}
"""Word next to the state for a finding, by the first part of its id."""
_ENDS = ("died-", "oom-cuda", "oom-host", "oom-cgroup")
"""Findings that describe how an attempt ended."""


def header_rows(frame: Frame, width: int, trends: Mapping[str, str] | None = None) -> list[Row]:
    """Return both lines in `width` columns; `trends` maps fields of `Progress` to sparklines."""
    line = frame.once(training_line)
    return [what_row(frame, width), how_row(frame, line, width, trends or {})]


def what_row(frame: Frame, width: int) -> Row:
    """Return name, state and place of the run; the time is at the right end."""
    clock = time_cell(frame)
    room = width - 2 - (row_width(clock) + 2 if clock else 0)
    cells = kept(_what(frame), room)
    if not set(_attempt(frame)) <= set(cells):
        cells = kept(_what(frame, short=True), room)
    if not clock:
        return ((" ", "text"), *cells)
    blank = width - 1 - row_width(cells) - row_width(clock) - 1
    return ((" ", "text"), *cells, (" " * max(1, blank), "text"), *clock)


def how_row(frame: Frame, line: Progress, width: int, trends: Mapping[str, str]) -> Row:
    """Return progress, health and load of the training; before that, the started command."""
    load = _load(frame)
    short = False
    plain = _how(frame, line, load, {}, short)
    cells = kept(plain, width - 2)
    if not set(_checkpoint(frame, short)) <= set(cells):
        short = True
        plain = _how(frame, line, load, {}, short)
        cells = kept(plain, width - 2)
    if trends:
        numbers = kept([cell for cell in plain if cell[0] != _COMMAND], width - 2)
        drawn = kept(_how(frame, line, load, trends, short), width - 2)
        if {text for text, _ in numbers} <= {
            text for text, _ in drawn
        }:  # a trend must not displace a number
            cells = drawn
    return ((" ", "text"), *cells)


# --- the first line ---


def _what(frame: Frame, short: bool = False) -> Cells:
    """Return the cells of the first line; `short` leaves out the restarts and the age of the attempt."""
    state = frame.state
    return [
        (13, (("distui ▸", "dim"),), ""),
        (1, ((state.name or state.run or "…", "head"),), " "),
        (0, state_cell(frame), _GAP),
        (2, _link(frame), _GAP),
        (8 if launching(state) else 2, _progress(frame), _GAP),
        (5, _attempt(frame, short), _GAP),
        (4, _cluster_state(state.cluster), _GAP),
        (3 if _missing(frame) else 6, _size(frame), _GAP),
        (9, _software(state), _GAP),
        (8, _nccl_level(frame), _GAP),
        (10, _obeys(state), _GAP),
        (7, _price(frame), _GAP),
        (12, _autostop(state.cluster), _GAP),
        (11, _age(frame), _GAP),
    ]


def state_cell(frame: Frame) -> Row:
    """Return the state and its problem or progress: `● RUNNING`, `✖ RUNNING · hang`, `▲ RESTARTING: …`."""
    state = frame.state
    if busy := frame.once(_under_way):
        for action in _CHANGES:
            if busy[0].startswith(action):
                progress = busy[0].removeprefix(action).removeprefix(":").strip()
                return ((f"{glyphs.WARN} {action.upper()} · {progress}", "warn"),)
    glyph, style = glyphs.RUN[state.phase]
    alarm = worst_alarm(state)
    if alarm and not state.phase.ended:
        word, severe = alarm
        glyph, style = (glyphs.BAD, "bad") if severe else (glyphs.WARN, "warn")
        return ((f"{glyph} {state.phase.words.upper()} · {word}", style),)
    return ((f"{glyph} {state.phase.words.upper()}", style),)


_CHANGES = ("restarting", "stopping")
"""Actions under way that replace the state of the run."""


def _under_way(frame: Frame) -> list[str]:
    return under_way(frame.state, frame.node_now(0))


def _progress(frame: Frame) -> Row:
    """Return the progress of a launch, or of a command that leaves the state of the run as it is, as a profile does."""
    texts = [text for text in frame.once(_under_way) if not text.startswith(_CHANGES)]
    return ((texts[0], "accent"),) if texts else ()


def worst_alarm(state: RunState) -> tuple[str, bool] | None:
    """Return a word for the worst finding that needs a person, and whether it is an error; None if there is none."""
    alarms = [finding for finding in state.findings.values() if finding.alarm]
    if not alarms:
        return None
    worst = min(
        alarms,
        key=lambda finding: (
            _before(state, finding),
            finding.severity != "error",
            finding.role != "cause",
            finding.since or 0.0,
        ),
    )
    word = ALARMS.get(worst.id.partition("-")[0])
    if word and _before(state, worst):
        return f"{word} in attempt {state.attempt - 1}", False
    return word or plural(len(finding_alarms(state)), "alarm"), worst.severity == "error"


def _before(state: RunState, finding: Finding) -> bool:
    """Whether a finding describes the end of the previous attempt, while the current ranks run."""
    began = state.attempts[-1].began if state.attempts else 0.0
    return finding.id.startswith(_ENDS) and finding.since is not None and finding.since < began


def _link(frame: Frame) -> Row:
    if frame.lost:
        return ((f"{glyphs.BAD} agent lost" if frame.heard else f"{glyphs.BAD} no agent", "bad"),)
    if not frame.state.live and not frame.state.phase.ended:
        return ((f"{glyphs.STALE} connecting", "warn"),)
    if frame.quiet:
        return ((f"{glyphs.UNHEARD} {duration_short(frame.silence)} old", "stale"),)
    is_readonly = frame.view.readonly and not frame.state.phase.ended
    return (("read-only", "dim"),) if is_readonly else ()


def _attempt(frame: Frame, short: bool = False) -> Row:
    """Return the attempt from the second on, and its age: the age of the run is a different number."""
    state = frame.state
    if state.attempt < 2:
        return ()
    if short:
        return ((f"attempt {state.attempt}", "warn"),)
    restarts = plural(state.attempt - 1, "restart")
    lasted = state.attempts[-1].lasted(state.ended if state.phase.ended else frame.node_now(0))
    since = "" if lasted is None else f" for {duration_exact(lasted)}"
    return ((f"attempt {state.attempt} ({restarts}){since}", "warn"),)


def _heard(frame: Frame) -> tuple[int, int]:
    """Return the number of nodes that answer, and of all nodes."""
    state = frame.state
    total = state.plan.nnodes if state.plan else len(state.nodes)
    if state.merged:
        good = (LinkState.UP, LinkState.ENDED)
        return sum(node.link in good for node in state.nodes.values()), total
    return sum(frame.fresh(node.node, node.heard) for node in state.nodes.values()), total


def _running(state: RunState) -> int:
    return sum(rank.phase in (RankPhase.RUNNING, RankPhase.SUCCEEDED) for rank in state.ranks.values())


def _missing(frame: Frame) -> bool:
    """Whether expected nodes or ranks are missing."""
    if frame.state.phase.ended or not frame.state.nodes:
        return False
    heard, total = frame.once(_heard)
    missing = len(frame.state.ranks) - frame.state.once(_running)
    return heard < total or (frame.state.phase is RunPhase.RUNNING and missing > 0)


def _size(frame: Frame) -> Row:
    """Return `2 nodes · 16 ranks`, or `1 of 2 nodes · 15 of 16 ranks` if some are missing."""
    state = frame.state
    if not state.nodes:
        return ()
    cells: list[tuple[str, str]] = []
    heard, total = frame.once(_heard)
    if state.phase.ended or heard >= total:
        cells.append((plural(total, "node"), "text"))
    else:
        cells.append((f"{heard} of {plural(total, 'node')}", "warn"))
    if state.ranks:
        run, world = state.once(_running), world_size(state)
        whole = state.phase is not RunPhase.RUNNING or run >= world
        count = plural(world, "rank")
        cells += [(" · ", "dim"), (count, "text") if whole else (f"{run} of {count}", "warn")]
    return tuple(cells)


def _software(state: RunState) -> Row:
    """Return preset, torch and NCCL."""
    plan = state.plan
    gloo = plan is not None and plan.backend == "gloo" and not instead_of_gloo(state)
    versions = state.once(_nccl_versions)
    backend = ""
    if gloo:
        backend = "gloo"
    elif versions:
        backend = f"NCCL {_short_version(min(versions))}"
    texts = [
        plan.preset if plan is not None else "",
        f"torch {_short_version(state.torch)}" if state.torch else "",
        backend,
    ]
    return ((" · ".join(text for text in texts if text), "text"),) if any(texts) else ()


def _nccl_versions(state: RunState) -> set[str]:
    return {rank.nccl_version for rank in state.ranks.values() if rank.nccl_version}


def _nccl_levels(state: RunState) -> set[str]:
    return {rank.nccl_debug for rank in state.ranks.values() if rank.nccl_debug}


def _short_version(version: str) -> str:
    """ "2.14.0+cu128" → "2.14"."""
    return ".".join(version.partition("+")[0].split(".")[:2])


def _nccl_level(frame: Frame) -> Row:
    """Return a level of NCCL_DEBUG that logs statements; quiet levels are not shown."""
    state = frame.state
    levels = state.once(_nccl_levels)
    if state.phase.ended or not levels or uses_gloo(state):
        return ()
    name = next(iter(levels)) if len(levels) == 1 else "mixed"
    if name in ("WARN", "VERSION"):
        return ()
    return ((f"NCCL_DEBUG {name}{_time_left(frame)}", "warn"),)


def _time_left(frame: Frame) -> str:
    """Return ", 3 s left" if the level goes back automatically."""
    change = frame.state.nccl
    if change is None or change.until is None:
        return ""
    left = change.until - frame.node_now(0)
    return f", {duration_exact(left)} left" if left > 0 else ""


def _obeys(state: RunState) -> Row:
    """Return a cell if the ranks report that the preset is not applied."""
    acted = state.once(check_applied)
    if acted is None or acted.state != "not applied":
        return ()
    expected = state.plan is not None and state.plan.obeys
    return (("preset not applied", "warn" if expected else "dim"),)


def _cluster_state(cluster: Cluster | None) -> Row:
    """Return SkyPilot's state of a cluster that is not UP, and the limits of a managed job."""
    if cluster is None:
        return ()
    if cluster.managed:
        texts = [f"managed job {cluster.state}".rstrip(), recovered(cluster), "logs only"]
        return ((", ".join(text for text in texts if text), "warn"),)
    if cluster.down:
        return (("cluster down", "dim"),)
    return ((f"cluster {cluster.state}", "warn"),) if cluster.state not in ("", "UP") else ()


def _price(frame: Frame) -> Row:
    cluster = frame.state.cluster
    price = "" if cluster is None else short_cost(cluster, frame.now)
    return ((price, "text"),) if price else ()


def _autostop(cluster: Cluster | None) -> Row:
    if cluster is None or cluster.autostop_min is None or cluster.down:
        return ()
    return ((f"autostop {cluster.autostop_min} min", "dim"),)


def _age(frame: Frame) -> Row:
    state = frame.state
    lasted = state.lasted(frame.node_now(0))
    if not state.began or state.phase is RunPhase.LOST or lasted is None:
        return ()
    if state.phase.ended:
        return ((f"took {duration_exact(lasted)}", "dim"),)
    return ((f"{'up' if state.attempt < 2 else 'run'} {duration_exact(lasted)}", "dim"),)


def time_cell(frame: Frame) -> Row:
    """Return the displayed time, with a word if it is not the current time."""
    if frame.moment is not None:
        return ((f" {frame.moment.text()} ", "hit"),)
    at = time_of_day(frame.now)
    behind = frame.behind
    if behind is None:
        return ((at, "dim"),)
    return ((f" HELD {at} · {duration_exact(behind)} behind ", "hit"),)


# --- the second line ---

_ORDER = {
    "step": 0,
    "fraction": 6,
    "eta_s": 2,
    "still_s": 1,
    "loss": 1,
    "tokens_s": 5,
    "samples_s": 5,
    "mfu": 8,
    "step_s": 4,
    "epoch": 13,
    "lr": 14,
    "grad_norm": 15,
}
"""Priority by field of `Progress`. The checkpoint has 6 (3 in its short form), the load 7 and 9 to 11."""
_COMMAND = 20
_MEASURED = ("loss", "lr", "grad_norm")
"""Fields that get a ~ where a mean replaces their sample."""
_COUNTS = ("step", "fraction")
"""Fields that stay true while no step comes."""
_BESIDE_STEP = ("fraction", "eta_s", "still_s")


def _how(frame: Frame, line: Progress, load: Cells, trends: Mapping[str, str], short: bool) -> Cells:
    """Return the cells of the second line. `short` keeps only the checkpoint's age, and raises its priority."""
    cells: Cells = []
    after: Cells = []
    for name, text in parts(line, frame.once(_pause)):
        if name == "step" and line.step == 0 and line.sources.get("step") == STEPS_SOURCE:
            continue  # no optimizer step was seen; a script without an optimizer has none
        if name in _MEASURED and frame.moment is not None and frame.moment.averaged_s:
            text = text.replace(" ", " ~", 1)
        cell: Row = ((text, _style(frame, line, name)),)
        if trends.get(name):
            cell = (*cell, (f" {trends[name]}", "accent"))
        gap = "  " if name in _BESIDE_STEP and cells else _BAR
        (after if _ORDER.get(name, 16) > 12 else cells).append((_ORDER.get(name, 16), cell, gap))
    cells.append((3 if short else 6, _checkpoint(frame, short), _BAR))
    cells.append((3, _before_steps(frame), _BAR))
    cells += load
    cells += after
    cells.append((_COMMAND, _command(frame.state), _BAR))
    return cells


def _style(frame: Frame, line: Progress, name: str) -> str:
    if name in line.not_finite:
        return "bad"
    if name == "still_s":
        return _still_style(frame)
    is_old = line.still_s is not None and name not in _COUNTS
    return "stale" if is_old or frame.quiet or frame.lost or line.earlier else "text"


def _still_style(frame: Frame) -> str:
    if hung(frame.state):
        return "bad"
    return "text" if frame.once(_pause) else "warn"


def _pause(frame: Frame) -> str:
    """Return the known reason for steps that have stopped; "" while they go on."""
    if frame.once(training_line).still_s is None:
        return ""
    return pause_of(frame.state, frame.node_now(0))


def _before_steps(frame: Frame) -> Row:
    """Return what the ranks do before the first step."""
    words = frame.once(_no_step)
    return ((f"no step yet: {words}", "text"),) if words and not frame.lost else ()


def _no_step(frame: Frame) -> str:
    return no_step_yet(frame.state, frame.node_now(0))


def _checkpoint(frame: Frame, short: bool) -> Row:
    """Return the newest complete checkpoint, the one that a restart would load."""
    state = frame.state
    saved = state.checkpoint
    if saved is None:
        return ()
    step = "" if saved.step is None or short else f" (step {saved.step:,})"
    word = "saved" if short else "checkpoint"
    if state.phase.ended:
        return ((f"{word} {time_of_day(saved.at)}{step}", "text"),)
    age = or_na(elapsed(saved.at, frame.node_now(0)), checkpoint_age)
    return ((f"{word} {age} ago{step}", "text"),)


def checkpoint_age(seconds: float) -> str:
    """Return "41 s", "12 min", "3 h 20 min"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds // 60:.0f} min" if seconds < 3600 else duration_exact(seconds)


def _load(frame: Frame) -> Cells:
    if frame.state.phase.ended:
        return []
    gpus = frame.once(gpu_fields)
    if not frame.state.once(gpu_places) or not gpus.of("util"):
        return [(7, _cpu(frame), _BAR)]
    utils, power = _measured(gpus.of("util")), _measured(gpus.of("power_w"))
    util: Row = ((f"util {NA}", "stale"),)
    if utils:
        util = ((f"util {percent(sum(utils) / len(utils))}", "text"),)
    return [
        (7, util, _BAR),
        (10, _memory(gpus), _BAR),
        (11, ((watts(sum(power)), "text"),) if power else (), _BAR),
    ]


def _memory(gpus: SampleFields) -> Row:
    sized = zip(gpus.of("mem_used"), gpus.of("mem_total"), strict=True)
    memory = [(used, total) for used, total in sized if used is not None and total is not None]
    if not memory:
        return ()
    used_all = usage_short(sum(used for used, _ in memory), sum(total for _, total in memory))
    return ((f"mem {used_all}", "text"),)


def watts(power: float) -> str:
    """Return "612 W", "3.5 kW"."""
    return f"{power:.0f} W" if power < 1000 else f"{power / 1000:.1f} kW"


def _measured(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _cpu(frame: Frame) -> Row:
    ranks = frame.state.ranks.values()
    samples = _measured(
        rank.sample.cpu_percent
        for rank in ranks
        if rank.sample is not None and frame.fresh(rank.place.node, rank.sampled)
    )
    return ((f"cpu {percent(sum(samples) / len(samples))} per rank", "text"),) if samples else ()


def _command(state: RunState) -> Row:
    plan = state.plan
    return ((f"{plan.preset}  {plan.command}".strip(), "dim"),) if plan is not None else ()
