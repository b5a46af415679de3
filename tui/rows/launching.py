"""A launch before there are ranks: its stages, its nodes, what a key would do; and why it failed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...runners.logs.clean import clean_text
from ...runners.model import HUB, LinkState, Stage
from ...runners.state import Node, Progress, RunState
from . import glyphs
from .billing import HOSTS, remains
from .cells import Cell, Row, clip, duration, fit, plural, wrap
from .frame import Frame
from .nodes import fit_name, link_state, names

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
"""How runners/hub/launching.py puts together why a launch failed; what does not look so is all cause."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a launch failed."""

    stage: Stage
    cause: str
    elsewhere: str
    """Who else has such nodes; "" where nobody said."""
    left: str
    """What is left of it; "" where that is nothing, or not known."""


def launching(state: RunState) -> bool:
    """Whether a launch is what there is to see: it goes on, or nothing came of it."""
    begun = bool(state.stages) and not state.ranks and not state.attempts
    return begun and (not state.phase.ended or failure(state) is not None)


def failure(state: RunState) -> Failure | None:
    """Why the launch failed; None while it goes on."""
    failed = [one for one in state.stages.values() if one.failed]
    if not failed or not state.phase.ended:
        return None
    first = next((one for one in failed if one.node == HUB), failed[0])
    text = first.text or state.end_text.removeprefix("the launch failed: ")
    found = _PARTS.fullmatch(clean_text(text))
    if found is None:
        return Failure(first.stage, clean_text(text), "", "")
    return Failure(first.stage, found["cause"], found["elsewhere"] or "", found["left"] or "")


def launch_title(state: RunState) -> str:
    """What is launched, and where."""
    nodes = plural(state.plan.nnodes, "node") if state.plan is not None else ""
    known = state.cluster
    where = "" if known is None else known.infra
    what = "managed job" if known is not None and known.managed else "launch"
    return " · ".join(part for part in (what, nodes, where) if part)


def launch_rows(frame: Frame, width: int) -> list[Row]:
    """Stages, nodes, and what comes next."""
    state = frame.state
    rows: list[Row] = []
    for stage in Stage:
        rows += _stage(frame, stage, width)
    rows += _node_rows(frame, width)
    found = failure(state)
    if found is not None:
        return [*rows, (), *_failed(frame, found, width)]
    if state.cluster is not None and state.cluster.managed:
        return [*rows, (), *wrap(MANAGED, width - 1, "warn", first=" "), (), *_keys(frame, width)]
    return [*rows, (), *_keys(frame, width)]


def _mark(progress: Progress | None) -> Cell:
    if progress is None:
        return glyphs.MISSING, "stale"
    if progress.failed:
        return glyphs.BAD, "bad"
    return (glyphs.STALE, "warn") if progress.ended is None else (glyphs.OK, "ok")


def _took(frame: Frame, progress: Progress) -> str:
    until = progress.ended if progress.ended is not None else (frame.state.ended or frame.now)
    return duration(until - progress.began)


def _whole(state: RunState, stage: Stage) -> Progress | None:
    """A stage on all nodes; where only nodes tell of it, there is none."""
    return state.stages.get((stage, HUB))


def _stage(frame: Frame, stage: Stage, width: int) -> list[Row]:
    """A row a stage, and its newest words, whole where it goes on."""
    state = frame.state
    progress = _whole(state, stage)
    if progress is None and (state.phase.ended or any(key[0] is stage for key in state.stages)):
        return []
    if progress is None and not _expected(state, stage):
        return []
    mark, style = _mark(progress)
    named = "text" if progress is not None else "stale"
    took = fit("" if progress is None else _took(frame, progress), _TIME)
    head: Row = ((f" {mark} ", style), (fit(stage, _LABEL), named), (took, "text"))
    said = "" if progress is None or progress.failed else clean_text(progress.text)
    if not said or progress is None:
        return [head]
    if progress.ended is not None:
        return [clip((*head, (said, "dim")), width)]
    first, *more = wrap(said, width - 3 - _LABEL - _TIME - 1)
    return [(*head, *first), *(((" " * (3 + _LABEL + _TIME), "text"), *row) for row in more)]


def _expected(state: RunState, stage: Stage) -> bool:
    """Whether a stage that has not begun will come: hosts of one's own are neither provisioned nor set up."""
    known = state.cluster
    short = known is not None and (known.infra == HOSTS or known.managed)
    return not (short and stage in (Stage.PROVISION, Stage.SYNC, Stage.SETUP))


def _node_rows(frame: Frame, width: int) -> list[Row]:
    """A row a node: its own stages, and its link."""
    state = frame.state
    stages = [stage for stage in Stage if any(key[0] is stage and key[1] != HUB for key in state.stages)]
    numbers = sorted({node for _, node in state.stages if node != HUB} | set(state.nodes))
    if not numbers:
        return []
    heads: list[Cell] = [("   ", "dim"), (fit("node", _LABEL), "dim")]
    heads += [(fit(stage, _TIME), "dim") for stage in stages]
    known = names(state)
    rows: list[Row] = [(), (*heads, ("link", "dim"))]
    for number in numbers:
        cells: list[Cell] = [
            ("   ", "text"),
            (fit_name(known.get(number, f"node {number}"), _LABEL - 1) + " ", "text"),
        ]
        for stage in stages:
            progress = state.stages.get((stage, number))
            mark, style = _mark(progress)
            words = "" if progress is None else f" {_took(frame, progress)}"
            cells += [(mark, style), (fit(words, _TIME - 1), "text")]
        rows.append(clip((*cells, *_link(frame, number)), width))
    return rows


def _link(frame: Frame, number: int) -> Row:
    node = frame.state.nodes.get(number)
    if node is None or node.link is None or _only_named(frame.state, node):
        return ((glyphs.MISSING, "stale"),)
    found = link_state(frame, node)
    if found is None:
        return ((f"{glyphs.OK} ", "ok"), (str(node.link), "text"))
    why = f": {clean_text(node.link_text)}" if node.link_text else ""
    return ((f"{found[0]} ", found[1]), (found[2] + why, "text"))


def _only_named(state: RunState, node: Node) -> bool:
    """Whether there is no link yet, or was none: a host has its name before anything else."""
    if node.link in (LinkState.UP, LinkState.ENDED):
        return False
    ours = state.cluster is not None and state.cluster.infra == HOSTS
    return state.phase.ended or (ours and (Stage.START, HUB) not in state.stages)


def _keys(frame: Frame, width: int) -> list[Row]:
    """What gives the launch up, and what would stay."""
    if frame.state.phase.ended or frame.view.readonly:
        return []
    rest = wrap(given_up(frame.state, frame.now), width - 2, "dim", first=" x  ")
    (text, style), *_ = rest[0]
    return [((" x  ", "key"), (text[4:], style)), *rest[1:]]


def given_up(state: RunState, now: float | None = None) -> str:
    """What giving the launch up does, in a sentence."""
    known = state.cluster
    if known is not None and known.managed:
        return "cancels the managed job; SkyPilot takes its cluster down"
    if known is not None and known.infra == HOSTS:
        return "gives the launch up: what was started on the hosts is ended"
    left = remains(state, now) or (
        "what SkyPilot has brought up by then stays and is billed until `distui down` takes it down"
    )
    return f"gives the launch up; {left}"


def _failed(frame: Frame, found: Failure, width: int) -> list[Row]:
    """Which stage, why, what is left and paid for, what to try."""
    state = frame.state
    ours = state.cluster is not None and state.cluster.infra == HOSTS
    left = remains(state, frame.now) or found.left or "nothing: no cluster is left, nothing is billed"
    if ours:
        left = "nothing: what was started on the hosts was ended"
    tries = [f"{found.elsewhere}: ^n, place"] if found.elsewhere else []
    again = (
        "^n, or the same command once more" if ours else f"`distui relaunch {state.name}` does it once more"
    )
    tries += [again]
    word = "given up" if state.phase == "stopped" else "failed"
    rows: list[Row] = []
    for label, text, style in (
        (word, f"at {found.stage}: {found.cause}", "text"),
        ("left", left, "warn" if "billed" in left and not left.startswith("nothing") else "text"),
        *(("next" if not at else "", text, "text") for at, text in enumerate(tries)),
    ):
        mark = glyphs.BAD if label == "failed" else " "
        lines = wrap(text, width - 13, style)
        rows.append(((f" {mark} ", "bad"), (fit(label, 9), "dim"), *lines[0]))
        rows += [((" " * 12, "text"), *line) for line in lines[1:]]
    return rows
