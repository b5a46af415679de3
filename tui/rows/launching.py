"""A launch in progress as rows: rings and times of NCCL's init, stages, nodes that join."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from ...presets.sanitize import clean_text
from ...runners.diagnosis.nccl_facts import STAGES, Communicator
from ...runners.formatting import duration_exact, elapsed, plural
from ...runners.model import HUB, LinkState, Stage
from ...runners.state import Node, RunState, StageProgress
from . import glyphs
from .frame import Frame
from .glyphs import Cell, Row, clip, fit, wrap
from .matrix import host_of, hosts_in_order
from .nccl_cards import READY, late_ranks, short, slowest
from .sky_nodes import HOSTS, given_up, remains
from .status import fit_name, link_state, names

# -----------------------------------------------------------------------------------------------------------
# How a communicator came to be: its rings, and the time that each rank or node took. Pure.


EACH = 16
"""Ranks of which each has a bar; more have one a node."""
BARS = 24
"""Most bars; then those that were the last to be ready."""
_RANKS_SHOWN = 8
"""Ranks of a node that are written out in a ring."""

# ---- rings


def ring_rows(comm: Communicator, width: int) -> list[Row]:
    """The order of the ranks, folded by node; equal rings are told once."""
    at = host_of(comm)
    orders: dict[tuple[int, ...], list[int]] = {}
    for number, ring in enumerate(comm.rings):
        if ring:
            orders.setdefault(_begun(ring, at), []).append(number)
    if not orders:
        summary = f"{plural(comm.ring_count, 'ring')}: no line tells the order whole"
        return wrap(summary if comm.ring_count else "no line tells of rings", width, "dim")
    rows: list[Row] = []
    for order, numbers in orders.items():
        name = f"ring {','.join(map(str, numbers))}" if len(numbers) < 5 else plural(len(numbers), "ring")
        lines = wrap(_ring_text(order, at), width - 14)
        rows += [((fit(name if not row else "", 14), "dim"), *line) for row, line in enumerate(_cut(lines))]
        entered, least = crossings(order, at)
        if entered > least:
            text = f"enters nodes {entered} times a round; {least} would do"
            rows.append(((" " * 12 + f"{glyphs.WARN} ", "warn"), (text, "text")))
    more = comm.ring_count - sum(map(len, orders.values()))
    return rows + ([((f"{plural(more, 'more ring')} not told in full", "dim"),)] if more > 0 else [])


def _cut(lines: list[Row], most: int = 3) -> list[Row]:
    return lines if len(lines) <= most else [*lines[: most - 1], (("…", "dim"),)]


def _begun(ring: Sequence[int], at: dict[int, str]) -> tuple[int, ...]:
    """The same ring, begun where it enters the node of its lowest rank; on one node at the lowest rank."""
    first = ring.index(min(ring))
    if len({at.get(rank) for rank in ring}) > 1:
        home = at.get(ring[first])
        while at.get(ring[first - 1]) == home:
            first = (first - 1) % len(ring)
    return (*ring[first:], *ring[:first])


def _ring_text(order: Sequence[int], at: dict[int, str]) -> str:
    if len({at.get(rank) for rank in order}) < 2:
        return " → ".join(map(str, (*order, order[0])))
    parts = []
    for host, ranks in groupby(order, lambda rank: at.get(rank, "")):
        own = list(ranks)
        inside = (
            " ".join(map(str, own)) if len(own) <= _RANKS_SHOWN and len(order) <= 128 else f"×{len(own)}"
        )
        parts.append(f"{short(host) or 'n/a'} [{inside}]")
    return " → ".join([*parts, parts[0].partition(" ")[0]])


def crossings(order: Sequence[int], at: dict[int, str]) -> tuple[int, int]:
    """How often a ring enters a node in one round, and how often it would have to."""
    hosts = [at.get(rank) for rank in order]
    if None in hosts or len(set(hosts)) < 2:
        return 0, 0
    return sum(here != before for here, before in zip(hosts, [hosts[-1], *hosts[:-1]], strict=True)), len(
        set(hosts)
    )


# ---- init


@dataclass(frozen=True, slots=True)
class Bar:
    """One rank or node: when it began and was ready, in seconds from the first line of all."""

    label: str
    began: float
    ended: float | None
    """None: not ready, or nobody says when."""
    phases: tuple[tuple[str, float], ...] = ()
    text: str = ""


def bars(comm: Communicator) -> list[Bar]:
    """A bar a rank, or a node where there are many; times are relative to the first that is known."""
    first = min(comm.began.values(), default=0.0)
    took = {init.rank: init for init in comm.inits}
    ranks = sorted({*took, *comm.began})
    late = {rank: stage for stage, late in late_ranks(comm).items() for rank in late}
    late |= (
        {rank: stage for rank, stage in comm.stages.items() if STAGES.index(stage) < READY}
        if not took
        else {}
    )
    at = host_of(comm)
    if len(ranks) <= EACH:
        return [_bar(f"r{rank}", [rank], comm, first, late) for rank in ranks]
    shown = [
        _bar(
            short(host),
            [rank for rank in comm.hosts[host] if rank in took or rank in comm.began],
            comm,
            first,
            late,
        )
        for host in hosts_in_order(comm)
    ]
    shown += [_bar(f"r{rank}", [rank], comm, first, late) for rank in ranks if rank not in at]
    shown = [bar for bar in shown if bar.text]
    if len(shown) <= BARS:
        return shown
    last = sorted(shown, key=lambda bar: (bar.ended is not None, -(bar.ended or 0.0)))[:BARS]
    return [bar for bar in shown if bar in last]


def _bar(label: str, ranks: Sequence[int], comm: Communicator, first: float, late: dict[int, str]) -> Bar:
    took = {init.rank: init for init in comm.inits if init.rank in ranks}
    began = {rank: comm.began.get(rank, first) - first for rank in ranks}
    ends = {rank: began[rank] + init.seconds for rank, init in took.items() if rank in began}
    waiting = [late[rank] for rank in ranks if rank in late]
    start = min(began.values(), default=0.0)
    if waiting:
        who = f"{len(waiting)} of {len(ranks)} " if len(ranks) > 1 else ""
        return Bar(label, start, None, (), f"{who}{waiting[0]}, not complete")
    if not ends:
        return Bar(label, start, None, (), "time n/a" if ranks else "")
    worst = max(ends, key=lambda rank: ends[rank])
    phases = tuple((name, value) for name, value in took[worst].phases.items() if value > 0)
    return Bar(label, start, ends[worst], phases, f"{ends[worst] - start:.2f} s")


def init_rows(comm: Communicator, width: int) -> list[Row]:
    """The bars, each letter a phase, and the legend of the slowest rank."""
    shown = bars(comm)
    if not shown:
        return wrap("no line tells how long init took: NCCL 2.19 and newer do at INFO", width, "dim")
    edge = min(16, max(len(bar.label) for bar in shown)) + 1
    tail = max(len(bar.text) for bar in shown) + 1
    room = max(10, min(100, width - edge - tail - 1))
    longest = max((bar.ended or bar.began for bar in shown), default=0.0) or 1.0
    names = phase_letters(name for init in comm.inits for name in init.phases)
    rows = [
        (
            (fit(bar.label, edge), "dim"),
            *_drawn(bar, room, longest, names),
            (
                " " + bar.text,
                "text" if bar.ended is not None else "warn",
            ),
        )
        for bar in shown
    ]
    return [*rows, *_init_legend(comm, names, width, len(shown))]


def _drawn(bar: Bar, room: int, longest: float, names: dict[str, str]) -> list[Cell]:
    """Blanks until it begins, then a letter for each share of a phase."""
    start = min(room - 1, int(bar.began / longest * room))
    if bar.ended is None:
        return [(" " * start, "text"), ("░" * (room - start), "warn")]
    stop = max(start + 1, round(bar.ended / longest * room))
    length, total = stop - start, sum(value for _, value in bar.phases)
    text, passed = "", 0.0
    for name, value in bar.phases:
        passed += value
        text += names[name] * (round(passed / total * length) - len(text))
    return [(" " * start, "text"), (text or "█" * length, "ok"), (" " * (room - stop), "text")]


def phase_letters(phases: Iterable[str]) -> dict[str, str]:
    """Phase → a letter of its own: the first of its name that is free."""
    letters: dict[str, str] = {}
    for name in phases:
        if name not in letters:
            taken = set(letters.values())
            free = (char for char in (*name, *name.upper(), *"0123456789") if char not in taken)
            letters[name] = next(free, "█")
    return letters


def _init_legend(comm: Communicator, names: dict[str, str], width: int, shown: int) -> list[Row]:
    worst = slowest(comm)
    if worst is None:
        return []
    parts = [f"{names[name]} {name} {value:.2f}" for name, value in worst.phases.items() if value > 0]
    each = (
        "a row a rank"
        if shown and len({*comm.began, *(init.rank for init in comm.inits)}) <= EACH
        else "a row a node"
    )
    from_ = "" if comm.began else "; the lines carry no time, so all begin at the left"
    head = f"{each}, seconds of rank {worst.rank}, the slowest{from_}"
    return [*wrap("  ".join(parts), width, "text"), *wrap(head, width, "dim")]


# -----------------------------------------------------------------------------------------------------------
# A launch before there are ranks: its stages, its nodes, what a key would do; and why it failed.


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
"""How runners/hub/cluster_launch.py puts together why a launch failed; what does not look so is all cause."""


@dataclass(frozen=True, slots=True)
class LaunchFailure:
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


def failure(state: RunState) -> LaunchFailure | None:
    """Why the launch failed; None while it goes on."""
    failed = [progress for progress in state.stages.values() if progress.failed]
    if not failed or not state.phase.ended:
        return None
    first = next((progress for progress in failed if progress.node == HUB), failed[0])
    text = first.text or state.end_text.removeprefix("the launch failed: ")
    parts = _PARTS.fullmatch(clean_text(text))
    if parts is None:
        return LaunchFailure(first.stage, clean_text(text), "", "")
    return LaunchFailure(first.stage, parts["cause"], parts["elsewhere"] or "", parts["left"] or "")


def launch_title(state: RunState) -> str:
    """What is launched, and where."""
    nodes = plural(state.plan.nnodes, "node") if state.plan is not None else ""
    cluster = state.cluster
    where = "" if cluster is None else cluster.infra
    what = "managed job" if cluster is not None and cluster.managed else "launch"
    return " · ".join(part for part in (what, nodes, where) if part)


def launch_rows(frame: Frame, width: int) -> list[Row]:
    """Stages, nodes, and what comes next."""
    state = frame.state
    rows = stage_rows(frame, width)
    failed = failure(state)
    if failed is not None:
        return [*rows, (), *_failed(frame, failed, width)]
    if state.cluster is not None and state.cluster.managed:
        return [*rows, (), *wrap(MANAGED, width - 1, "warn", first=" "), (), *_keys(frame, width)]
    return [*rows, (), *_keys(frame, width)]


def stage_rows(frame: Frame, width: int) -> list[Row]:
    """A row a stage, and below them a row a node with its own."""
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


def _whole(state: RunState, stage: Stage) -> StageProgress | None:
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
    words = "" if progress is None or progress.failed else clean_text(progress.text)
    if not words or progress is None:
        return [head]
    if progress.ended is not None:
        return [clip((*head, (words, "dim")), width)]
    first, *more = wrap(words, width - 3 - _LABEL - _TIME - 1)
    return [(*head, *first), *(((" " * (3 + _LABEL + _TIME), "text"), *row) for row in more)]


def _expected(state: RunState, stage: Stage) -> bool:
    """Whether a stage that has not begun will come: hosts of one's own are neither provisioned nor set up."""
    cluster = state.cluster
    short = cluster is not None and (cluster.infra == HOSTS or cluster.managed)
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
    named = names(state)
    rows: list[Row] = [(), (*heads, ("link", "dim"))]
    for number in numbers:
        cells: list[Cell] = [
            ("   ", "text"),
            (fit_name(named.get(number, f"node {number}"), _LABEL - 1) + " ", "text"),
        ]
        for stage in stages:
            progress = state.stages.get((stage, number))
            mark, style = _mark(progress)
            words = "" if progress is None else f" {_took(frame, progress)}"
            cells += [(mark, style), (fit(words, _TIME - 1), "text")]
        rows.append(clip((*cells, *_link(frame, number)), width))
        for stage in stages:
            progress = state.stages.get((stage, number))
            if progress is not None and progress.failed:
                rows += wrap(f"{stage}: {clean_text(progress.text)}", width - 1, first="     ")
    return rows


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


def _failed(frame: Frame, failed: LaunchFailure, width: int) -> list[Row]:
    """Which stage, why, what is left and paid for, what to try."""
    state = frame.state
    ours = state.cluster is not None and state.cluster.infra == HOSTS
    left = remains(state, frame.now) or failed.left or "nothing: no cluster is left, nothing is billed"
    if ours:
        left = "nothing: what was started on the hosts was ended"
    tries = [f"{failed.elsewhere}: ^n, place"] if failed.elsewhere else []
    again = (
        "^n, or the same command once more" if ours else f"`distui relaunch {state.name}` does it once more"
    )
    tries += [again]
    word = "given up" if state.phase == "stopped" else "failed"
    rows: list[Row] = []
    for label, text, style in (
        (word, f"at {failed.stage}: {failed.cause}", "text"),
        ("left", left, "warn" if "billed" in left and not left.startswith("nothing") else "text"),
        *(("next" if not at else "", text, "text") for at, text in enumerate(tries)),
    ):
        mark = glyphs.BAD if label == "failed" else " "
        lines = wrap(text, width - 13, style)
        rows.append(((f" {mark} ", "bad"), (fit(label, 9), "dim"), *lines[0]))
        rows += [((" " * 12, "text"), *line) for line in lines[1:]]
    return rows
