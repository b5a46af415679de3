"""A launch in progress as rows, and the cost of its cluster. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from ...presets.plurals import plural
from ...presets.sanitize import clean_text
from ...runners.run.formatting import duration_exact, elapsed
from ...runners.run.model import HUB, Cluster, LinkState, Stage
from ...runners.run.state import Node, RunState, StageProgress
from . import glyphs
from .frame import Frame, fit_name, link_state, names
from .glyphs import Cell, Row, clip, fit, labelled, wrap

HOSTS = "hosts"
"""`Cluster.infra` of hosts that the user named; distui does not know their cost."""


def billed(state: RunState) -> Cluster | None:
    """Return the cluster that stays until a user takes it down; None if there is none."""
    cluster = state.cluster
    if cluster is None or cluster.managed or cluster.down or cluster.infra == HOSTS or not cluster.name:
        return None
    return cluster


def no_cluster(state: RunState) -> str:
    """Return why there is no cluster to take down, in a sentence; "" if there is one."""
    cluster = state.cluster
    if billed(state) is not None:
        return ""
    if cluster is not None and cluster.down:
        return f"cluster {cluster.name} is down already"
    if cluster is not None and cluster.managed:
        return "SkyPilot takes the cluster of a managed job down itself: x ends the job"
    return "this run has no cluster of SkyPilot's: there is nothing to take down"


def remains(state: RunState, now: float) -> str:
    """Return the remaining cluster, its cost, and how to remove it, in a sentence; "" if nothing remains."""
    cluster = billed(state)
    if cluster is None:
        return ""
    price = cost(cluster, now)
    paid = f"is billed ({price})" if price else "may be billed (SkyPilot names no price)"
    if cluster.state == "STOPPED":
        return f"cluster {cluster.name} is stopped, its disks may be billed: :down takes it away"
    if cluster.autostop_min is not None:
        late = f"goes down after {cluster.autostop_min} min without a job"
        return f"cluster {cluster.name} {paid} and {late}; :down takes it down now"
    return f"cluster {cluster.name} stays and {paid} until :down takes it down"


def price(cluster: Cluster, now: float) -> str:
    """Return its price for a question about it."""
    return cost(cluster, now) or "unknown: SkyPilot names no price"


def given_up(state: RunState, now: float) -> str:
    """Return the effect of giving up the launch, in a sentence."""
    cluster = state.cluster
    if cluster is not None and cluster.managed:
        return "cancels the managed job; SkyPilot takes its cluster down"
    if cluster is not None and cluster.infra == HOSTS:
        return "gives the launch up: what was started on the hosts is ended"
    left = remains(state, now) or (
        "what SkyPilot has brought up by then stays and is billed until `distui down` takes it down"
    )
    return f"gives the launch up; {left}"


def recovered(cluster: Cluster) -> str:
    """Return how often SkyPilot recovered a managed job; "" for never."""
    return f"recovered {plural(cluster.recoveries, 'time')}" if cluster.recoveries else ""


def cost(cluster: Cluster, now: float) -> str:
    """Return the price per hour, and the cost so far; "" if SkyPilot reports no price."""
    price, spent = _price_and_spending(cluster, now)
    return f"{price}, {spent} so far" if spent else price


def short_cost(cluster: Cluster, now: float) -> str:
    """Return the cost so far at the price per hour, `$105.15 at $196.64/h`; "" if SkyPilot reports no price."""
    price, spent = _price_and_spending(cluster, now)
    return f"{spent} at {price}" if spent else price


def _price_and_spending(cluster: Cluster, now: float) -> tuple[str, str]:
    """Return the price per hour and the cost so far; "" for an unknown value."""
    per_hour = cluster.price_per_hour
    if per_hour is None:
        return "", ""
    if cluster.since is None:
        return f"${per_hour:.2f}/h", ""
    hours = max(0.0, (cluster.until or now) - cluster.since) / 3600
    return f"${per_hour:.2f}/h", f"${per_hour * hours:.2f}"


_LABEL = 12
_TIME = 12

MANAGED = (
    "SkyPilot gives no ssh to the nodes of a managed job: ranks, GPUs, steps and restarts are not seen here,"
    " only its text (the log) and its state"
)

_PARTS = re.compile(
    r"(?P<cause>.*?)(?:; (?P<elsewhere>--on \S+ has them \(.*?\)))?(?:; (?P<left>(?:whether )?cluster .*))?",
    re.DOTALL,
)
"""Format of launch errors in runners/hub/cluster_launch.py; a text in another format is all cause."""


class LaunchFailure(Struct, frozen=True):
    stage: Stage
    cause: str
    elsewhere: str
    """Other places with such nodes; "" if unknown."""
    left: str
    """Resources that the launch did not remove; "" if none, or unknown."""


def launching(state: RunState) -> bool:
    """Whether the screen shows the launch in place of ranks: it is in progress, or it failed."""
    begun = bool(state.stages) and not state.ranks and not state.attempts
    return begun and (not state.phase.ended or failure(state) is not None)


def failure(state: RunState) -> LaunchFailure | None:
    """Return why the launch failed; None while it is in progress."""
    failed = [progress for progress in state.stages.values() if progress.failed]
    if not failed or not state.phase.ended:
        return None
    first = min(failed, key=lambda progress: progress.node != HUB)
    text = first.text or state.end_text.removeprefix("the launch failed: ")
    parts = _PARTS.fullmatch(clean_text(text))
    if parts is None:
        return LaunchFailure(first.stage, clean_text(text), "", "")
    return LaunchFailure(first.stage, parts["cause"], parts["elsewhere"] or "", parts["left"] or "")


def launch_title(state: RunState) -> str:
    """Return the kind, size and place of the launch."""
    nodes = plural(state.plan.nnodes, "node") if state.plan is not None else ""
    cluster = state.cluster
    where = "" if cluster is None else cluster.infra
    what = "managed job" if cluster is not None and cluster.managed else "launch"
    return " · ".join(part for part in (what, nodes, where) if part)


def launch_rows(frame: Frame, width: int) -> list[Row]:
    """Return stages, nodes, and the next steps."""
    state = frame.state
    rows = stage_rows(frame, width)
    failed = failure(state)
    if failed is not None:
        return [*rows, (), *_failed(frame, failed, width)]
    if state.cluster is not None and state.cluster.managed:
        return [*rows, (), *wrap(MANAGED, width - 1, "warn", first=" "), (), *_keys(frame, width)]
    return [*rows, (), *_keys(frame, width)]


def stage_rows(frame: Frame, width: int) -> list[Row]:
    """Return one row per stage, and below them one row per node with its own stages."""
    rows = [row for stage in Stage for row in _stage(frame, stage, width)]
    return rows + _node_rows(frame, width)


def _mark(progress: StageProgress | None) -> Cell:
    if progress is None:
        return glyphs.MISSING, "stale"
    if progress.failed:
        return glyphs.BAD, "bad"
    return (glyphs.STALE, "warn") if progress.ended is None else (glyphs.OK, "ok")


def _took(frame: Frame, progress: StageProgress) -> str:
    until = progress.ended if progress.ended is not None else (frame.state.ended or frame.now)
    return duration_exact(elapsed(progress.began, until))


def _stage(frame: Frame, stage: Stage, width: int) -> list[Row]:
    """Return a stage's row with its newest message, wrapped in full while the stage is in progress."""
    state = frame.state
    progress = state.stages.get((stage, HUB))
    mark, style = _mark(progress)
    if progress is None:
        begun = state.phase.ended or any(key[0] is stage for key in state.stages)
        if begun or not _expected(state, stage):
            return []
        return [((f" {mark} ", style), (fit(stage, _LABEL), "stale"), (fit("", _TIME), "text"))]
    took = fit(_took(frame, progress), _TIME)
    head: Row = ((f" {mark} ", style), (fit(stage, _LABEL), "text"), (took, "text"))
    words = "" if progress.failed else clean_text(progress.text)
    if not words:
        return [head]
    if progress.ended is not None:
        return [clip((*head, (words, "dim")), width)]
    first, *more = wrap(words, width - 3 - _LABEL - _TIME - 1)
    return [(*head, *first), *(((" " * (3 + _LABEL + _TIME), "text"), *row) for row in more)]


def _expected(state: RunState, stage: Stage) -> bool:
    """Whether a stage that has not begun will follow: the user's own hosts need no provisioning and no setup."""
    cluster = state.cluster
    short = cluster is not None and (cluster.infra == HOSTS or cluster.managed)
    return not (short and stage in (Stage.PROVISION, Stage.SYNC, Stage.SETUP))


def _node_rows(frame: Frame, width: int) -> list[Row]:
    """Return one row per node: its own stages, and its link."""
    state = frame.state
    own = [key for key in state.stages if key[1] != HUB]
    stages = sorted({stage for stage, _ in own}, key=list(Stage).index)
    numbers = sorted({node for _, node in own} | set(state.nodes))
    if not numbers:
        return []
    heads: list[Cell] = [("   ", "dim"), (fit("node", _LABEL), "dim")]
    heads += [(fit(stage, _TIME), "dim") for stage in stages]
    named = names(state)
    rows: list[Row] = [(), (*heads, ("link", "dim"))]
    for number in numbers:
        rows += _node_row(frame, number, named.get(number, f"node {number}"), stages, width)
    return rows


def _node_row(frame: Frame, number: int, name: str, stages: Sequence[Stage], width: int) -> list[Row]:
    """Return the node's row, and below it why stages failed."""
    cells: list[Cell] = [("   ", "text"), (fit_name(name, _LABEL - 1) + " ", "text")]
    failures: list[Row] = []
    for stage in stages:
        progress = frame.state.stages.get((stage, number))
        words = "" if progress is None else f" {_took(frame, progress)}"
        cells += [_mark(progress), (fit(words, _TIME - 1), "text")]
        if progress is not None and progress.failed:
            failures += wrap(f"{stage}: {clean_text(progress.text)}", width - 1, first="     ")
    return [clip((*cells, *_link(frame, number)), width), *failures]


def _link(frame: Frame, number: int) -> Row:
    node = frame.state.nodes.get(number)
    if node is None or node.link is None or _only_named(frame.state, node):
        return ((glyphs.MISSING, "stale"),)
    link = link_state(frame, node)
    if link is None:
        return ((f"{glyphs.OK} ", "ok"), (str(node.link), "text"))
    why = f": {clean_text(node.link_text)}" if node.link_text else ""
    return ((f"{link[0]} ", link[1]), (link[2] + why, "text"))


def _only_named(state: RunState, node: Node) -> bool:
    """Whether a node has no link yet, or never had one: a host's name is known before anything else."""
    if node.link in (LinkState.UP, LinkState.ENDED):
        return False
    return state.phase.ended or (_on_own_hosts(state) and (Stage.START, HUB) not in state.stages)


def _on_own_hosts(state: RunState) -> bool:
    return state.cluster is not None and state.cluster.infra == HOSTS


def _keys(frame: Frame, width: int) -> list[Row]:
    """Return the key that gives the launch up, and its effect."""
    if frame.state.phase.ended or frame.view.readonly:
        return []
    return labelled((" x  ", "key"), given_up(frame.state, frame.now), width - 2, "dim")


def _left_over(frame: Frame, failed: LaunchFailure) -> str:
    if _on_own_hosts(frame.state):
        return "nothing: what was started on the hosts was ended"
    return (
        remains(frame.state, frame.now) or failed.left or "nothing: no cluster is left, nothing is billed"
    )


def _failed(frame: Frame, failed: LaunchFailure, width: int) -> list[Row]:
    """Return the failed stage, the cause, remaining resources and their cost, and remedies."""
    state = frame.state
    left = _left_over(frame, failed)
    again = f"`distui rerun {state.name}` does it again"
    if _on_own_hosts(state):
        again = "^n, or the same command again"
    billed = "billed" in left and not left.startswith("nothing")
    word = "given up" if state.phase == "stopped" else "failed"
    labels = [
        (word, f"at {failed.stage}: {failed.cause}", "text"),
        ("left", left, "warn" if billed else "text"),
    ]
    if failed.elsewhere:
        labels += [("next", f"{failed.elsewhere}: ^n, place", "text"), ("", again, "text")]
    else:
        labels.append(("next", again, "text"))
    rows: list[Row] = []
    for label, text, style in labels:
        mark = glyphs.BAD if label == "failed" else " "
        beside = labelled((fit(label, 9), "dim"), text, width - 4, style)
        rows += [((f" {' ' if at else mark} ", "bad"), *row) for at, row in enumerate(beside)]
    return rows
