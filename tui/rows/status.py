"""The header, the run list and the node list as rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.cells import cell_len

from ...runners.formatting import (
    NA,
    duration_exact,
    duration_short,
    elapsed,
    plural,
    step_short,
    usage_short,
)
from ...runners.model import LinkState, RunPhase
from ...runners.state import Node, RunState
from ...runners.status import applied
from ..follower import PresetEntry, RunEntry
from . import glyphs
from .frame import Frame
from .glyphs import Row, clip, fit, join, percent, row_width, wrap
from .sky_nodes import cost, recovered

# -----------------------------------------------------------------------------------------------------------
# The run list, and what stands there before the first run.


EMPTY: tuple[Row, ...] = (
    (("No run yet.", "head"),),
    ((f"  {fit('^n', 32)}", "accent"), ("pick a preset and start one", "text")),
    ((f"  {fit('distui launch PRESET -- SCRIPT', 32)}", "accent"), ("the same from the shell", "text")),
    ((f"  {fit('distui watch', 32)}", "accent"), ("jobs that distui did not start", "text")),
)
"""What to do when there is nothing to show."""


def head_row() -> Row:
    """The names of the columns."""
    return (
        (
            f" {fit('run', 20)} {fit('state', 12)} {fit('age', 5, right=True)}  {fit('id', 24)}  preset",
            "dim",
        ),
    )


def run_row(entry: RunEntry) -> Row:
    """One run."""
    glyph, style = glyphs.run_phase(entry.phase)
    note = "  (read-only)" if entry.readonly and entry.live else ""
    return (
        (f" {fit(entry.name or entry.id, 20)} ", "head" if entry.live else "text"),
        (fit(f"{glyph} {entry.phase}", 12), style),
        (f" {fit(duration_short(entry.age_s), 5, right=True)}  {fit(entry.id, 24)}", "dim"),
        (f"  {glyphs.WARN} {entry.problem}" if entry.problem else "", "warn"),
        (f"  {entry.preset or '-'}{note}", "text"),
    )


# -----------------------------------------------------------------------------------------------------------
# The list of presets as rows, and what a search finds. Pure.


_MARKS = {"yours": "y", "project": "p"}


def matching(entries: Sequence[PresetEntry], words: str) -> list[PresetEntry]:
    """Those that hold every word, in whatever order: in name, title, summary, strategy or origin."""
    wanted = words.lower().split()
    return [entry for entry in entries if all(word in _text(entry) for word in wanted)]


def _text(item: PresetEntry) -> str:
    return f"{item.name} {item.title} {item.summary} {item.strategy} {item.origin} {item.problem}".lower()


def preset_rows(entries: Sequence[PresetEntry], width: int) -> list[Row]:
    """A row a preset: its name, and a mark where it does not ship or does not load."""
    rows: list[Row] = []
    for entry in entries:
        name = fit(entry.name, max(4, width - 2))
        if entry.problem:
            rows.append(((f"{name} ", "stale"), (glyphs.BAD, "bad")))
        else:
            rows.append(((f"{name} ", "text"), (_MARKS.get(entry.origin, " "), "accent")))
    return rows


def why_rows(entry: PresetEntry | None, width: int, height: int) -> list[Row]:
    """When to take the preset at hand; or why it cannot be taken."""
    if entry is None:
        return [((" no preset has all of these words: esc shows them all", "warn"),)]
    if entry.problem:
        return wrap(entry.problem, width - 1, first=f" {glyphs.BAD} ", then=" ")[:height]
    return wrap(entry.summary, width - 1, first=" ")[:height]


def title_row(entry: PresetEntry | None, width: int) -> Row:
    """What the screen is, and what the preset at hand is; its name where there is room."""
    head: Row = ((" distui · new run", "head"),)
    if entry is None:
        return head
    origin = {"yours": " (your own)", "project": " (of this project)"}.get(entry.origin, "")
    long = f" · {entry.name} · {entry.title}{origin}" if entry.title else f" · {entry.name}{origin}"
    short = f" · {entry.title}{origin}" if entry.title else long
    return clip((*head, (long if row_width(head) + cell_len(long) <= width else short, "text")), width)


# -----------------------------------------------------------------------------------------------------------
# Nodes as the screen names them, and how a hub stands to each.


MOST_NAMED = 4
"""Nodes named in a sentence before the others are only counted."""


def names(state: RunState) -> dict[int, str]:
    """By node: its host without the domain, unless two would look the same; "node 2" where nobody knows."""
    short = {number: _short(node.host) for number, node in state.nodes.items()}
    twice = Counter(short.values())
    return {
        number: (short[number] if twice[short[number]] == 1 else node.host) or f"node {number}"
        for number, node in state.nodes.items()
    }


def _short(host: str) -> str:
    first = host.partition(".")[0]
    return host if first.isdecimal() else first  # an address stays whole


def name_of(state: RunState, node: int) -> str:
    """The name of one node."""
    return names(state).get(node, f"node {node}")


def fit_name(name: str, width: int) -> str:
    """A name in exactly `width` columns; a long one loses its front, because hosts differ at their ends."""
    return fit(name if len(name) <= width else f"…{name[1 - width :]}", width)


def listed(texts: Sequence[str]) -> str:
    """`c1, c2`, `c1, c2, c3, c4 and 12 more`."""
    more = f" and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
    return ", ".join(texts[:MOST_NAMED]) + more


def silent(state: RunState) -> list[int]:
    """Nodes that do not answer although their part of the run goes on."""
    return [
        number
        for number, node in sorted(state.nodes.items())
        if node.phase is None and node.link in (LinkState.CONNECTING, LinkState.LOST)
    ]


def without(state: RunState, missing: Sequence[int]) -> str:
    """`c2`, `c2 and c3`, `5 nodes`."""
    named = [name_of(state, node) for node in missing]
    return " and ".join(named) if len(named) < 3 else plural(len(named), "node")


def link_state(frame: Frame, node: Node) -> tuple[str, str, str] | None:
    """Glyph, style and words where a node does not answer; None where it does or need not.

    The only place that says for how long: whatever counts is painted each second.
    """
    since = duration_exact(elapsed(node.link_since, frame.now))
    if frame.state.phase.ended or node.link not in (LinkState.CONNECTING, LinkState.LOST):
        return None
    if node.link is LinkState.CONNECTING:
        return glyphs.STALE, "warn", f"connecting {since}"
    wait = (node.retry_at or 0.0) - frame.now
    again = f"again in {duration_exact(wait)}" if wait >= 1 else "trying now"
    return glyphs.BAD, "bad", f"lost {since}, {again}"


# -----------------------------------------------------------------------------------------------------------
# The status line: one row that says how the run stands, with less in it where the terminal is narrow.


def status_row(frame: Frame, width: int) -> Row:
    """As many parts as fit, the least important ones left out first."""
    parts = [(order, part) for order, part in _parts(frame) if part]
    while parts and row_width(join([part for _, part in parts])) > width - 1:
        parts.remove(max(parts, key=lambda item: item[0]))
    return ((" ", "text"), *join([part for _, part in parts]))


def small_terminal_rows(frame: Frame, width: int) -> tuple[Row, ...]:
    """What a terminal too small for the screens gets."""
    return (status_row(frame, width), ((" enlarge the terminal to 60×15; keys work", "dim"),))


def _parts(frame: Frame) -> list[tuple[int, Row]]:
    """(order in which to keep, part); 0 is kept longest."""
    state = frame.state
    glyph, style = glyphs.RUN[state.phase]
    return [
        (8, (("distui", "dim"),)),
        (1, ((state.name or state.run or "…", "head"),)),
        (0, ((f"{glyph} {state.phase.words.upper()}", style),)),
        (2, _link_cell(frame)),
        (6, _attempt(frame)),
        (5, _nodes_cell(frame)),
        (3, _cluster(frame)),
        (6, _cost(frame)),
        (9, _autostop(frame)),
        (7, ((plural(len(state.ranks), "rank"), "text"),) if state.ranks else ()),
        *_load(frame),
        *steps(frame),
        (10, _nccl(frame)),
        (11, _obeys(frame)),
        (12, _age(frame)),
    ]


def _obeys(frame: Frame) -> Row:
    """Said of a script that a preset does not reach: by what was seen in the ranks, before that by its plan."""
    plan, acted = frame.state.plan, applied(frame.state)
    if acted is not None and acted.state == "not applied":
        return (("preset not applied", "warn" if plan is not None and plan.obeys else "dim"),)
    if acted is not None and acted.state == "applied":
        return ()
    if plan is None or not plan.preset or plan.obeys or frame.state.phase.ended:
        return ()
    return (("flags and env only", "dim"),)


def _attempt(frame: Frame) -> Row:
    number = frame.state.attempt
    return ((f"attempt {number}", "warn" if number > 1 else "text"),) if number else ()


def _nodes_cell(frame: Frame) -> Row:
    state = frame.state
    total = state.plan.nnodes if state.plan else len(state.nodes)
    if not state.nodes or state.phase.ended:
        return ()
    if state.merged:
        good = (LinkState.UP, LinkState.ENDED)
        heard = sum(node.link in good for node in state.nodes.values())
    else:
        heard = sum(frame.fresh(node.node, node.heard) for node in state.nodes.values())
    return ((f"{heard}/{plural(total, 'node')}", "text" if heard >= total else "warn"),)


def _cluster(frame: Frame) -> Row:
    """SkyPilot's word for a cluster that is not simply up, and what a managed job does not show."""
    cluster = frame.state.cluster
    if cluster is None:
        return ()
    if cluster.managed:
        parts = [f"managed job {cluster.state}".rstrip(), recovered(cluster), "logs only"]
        return ((", ".join(part for part in parts if part), "warn"),)
    if cluster.down:
        return (("cluster down", "dim"),)
    return ((f"cluster {cluster.state}", "warn"),) if cluster.state not in ("", "UP") else ()


def _cost(frame: Frame) -> Row:
    cluster = frame.state.cluster
    text = "" if cluster is None else cost(cluster, frame.now).removesuffix(" so far")
    return ((text, "text"),) if text else ()


def _autostop(frame: Frame) -> Row:
    cluster = frame.state.cluster
    if cluster is None or cluster.autostop_min is None or cluster.down:
        return ()
    return ((f"autostop {cluster.autostop_min} min", "dim"),)


def _load(frame: Frame) -> list[tuple[int, Row]]:
    if frame.state.phase.ended:
        return []
    gpus = [gpu for node in frame.state.nodes.values() for gpu in frame.gpus(node)]
    utils = [gpu.util for gpu in gpus if gpu.util is not None]
    used = [gpu.mem_used for gpu in gpus if gpu.mem_used is not None]
    total = [gpu.mem_total for gpu in gpus if gpu.mem_total is not None]
    if not gpus:
        return [(3, _cpu(frame))]
    util = percent(sum(utils) / len(utils)) if utils else NA
    return [
        (3, ((f"util {util}", "text"),)),
        (9, ((f"mem {usage_short(sum(used), sum(total))}", "text"),) if used and total else ()),
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


def steps(frame: Frame) -> list[tuple[int, Row]]:
    """How far the slowest rank is and how fast, as parts of the status line."""
    samples = [
        rank.sample
        for rank in frame.state.ranks.values()
        if rank.sample is not None and frame.fresh(rank.place.node, rank.sampled)
    ]
    reached = [sample.step for sample in samples if sample.step is not None]
    times = [sample.step_s for sample in samples if sample.step_s is not None]
    running = not frame.state.phase.ended
    return [
        (4, ((f"step {min(reached)}", "text"),) if reached else ()),
        (11, ((f"{step_short(max(times))}/step", "text"),) if times and running else ()),
    ]


def _nccl(frame: Frame) -> Row:
    levels = {rank.nccl_debug for rank in frame.state.ranks.values() if rank.nccl_debug}
    if frame.state.plan is not None and frame.state.plan.backend == "gloo":
        return ()
    if not levels or frame.state.phase.ended:
        return ()
    name = levels.pop() if len(levels) == 1 else "mixed"
    return ((f"NCCL_DEBUG {name}", "text" if name in ("WARN", "VERSION") else "warn"),)


def _link_cell(frame: Frame) -> Row:
    if frame.lost:
        return ((f"{glyphs.BAD} agent lost" if frame.heard else f"{glyphs.BAD} no agent", "bad"),)
    if frame.view.paused:
        return (("PAUSED", "warn"),)
    if not frame.state.live and not frame.state.phase.ended:
        return ((f"{glyphs.STALE} connecting", "warn"),)
    if frame.quiet:
        return ((f"{glyphs.STALE} {duration_short(frame.silence)} old", "stale"),)
    return (("read-only", "dim"),) if frame.view.readonly else ()


def _age(frame: Frame) -> Row:
    state = frame.state
    if not state.began or state.phase is RunPhase.LOST:
        return ()
    word = "took" if state.phase in (RunPhase.SUCCEEDED, RunPhase.FAILED, RunPhase.STOPPED) else "for"
    return ((f"{word} {duration_exact(state.lasted(frame.node_now(0)))}", "dim"),)
