"""Findings as rows: worst first, equal ones together, with their evidence and stacks. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...presets.finding import Finding, worst_first
from ...presets.sanitize import clean_text
from ...runners.diagnosis.exceptions import StackGroup, main_frames, merged
from ...runners.diagnosis.judging import untimed
from ...runners.formatting import (
    duration_exact,
    duration_short,
    elapsed,
    plural,
    spans_short,
    spans_text,
    time_of_day,
)
from ...runners.state import RunState
from . import glyphs
from .frame import Frame
from .glyphs import Cell, Row, clip, fit, wrap
from .status import names

# -----------------------------------------------------------------------------------------------------------
# The findings of a run: worst first, equal ones together, what they rest on, and what all of them rest on. Pure.


QUIET = {None, "VERSION", "WARN"}
"""Levels of NCCL_DEBUG at which it makes no statements."""

HOOKED = ("up", "armed")
"""States of a hook that answers."""

_EACH = 12
"""Sentences of equal findings that are shown one by one."""
_LABEL = 10


@dataclass(frozen=True, slots=True)
class Item:
    """One row of the list: a finding, or several of one kind."""

    findings: tuple[Finding, ...]
    follows: bool = False
    """Whether these are the symptoms of a cause that stands above them."""

    @property
    def first(self) -> Finding:
        return self.findings[0]

    @property
    def key(self) -> str:
        """Stays the same while more findings of its kind come and go."""
        return "symptoms" if self.follows else f"{self.first.role} {self.first.id}"

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every rank that it is about."""
        return tuple(sorted({rank for finding in self.findings for rank in ranks_of(finding)}))


def ranks_of(finding: Finding) -> tuple[int, ...]:
    """The ranks of one finding."""
    alone = () if finding.rank is None else (finding.rank,)
    return finding.ranks or alone


def items(given: Iterable[Finding]) -> list[Item]:
    """Rows of the list; symptoms stand together below the first cause, where there is one."""
    kinds: dict[tuple[str, str], list[Finding]] = {}
    followers: list[Finding] = []
    ordered = worst_first(given)
    caused = any(finding.role == "cause" and finding.alarm for finding in ordered)
    for finding in ordered:
        if caused and finding.role == "symptom":
            followers.append(finding)
        else:
            kinds.setdefault((finding.role, finding.id), []).append(finding)
    listed = [Item(tuple(alike)) for alike in kinds.values()]
    if followers:
        at = next(at for at, item in enumerate(listed) if item.first.role == "cause")
        listed.insert(at + 1, Item(tuple(followers), follows=True))
    return listed


def item_row(frame: Frame, item: Item, width: int) -> Row:
    """Severity, role, where, since when, and what."""
    first = item.first
    glyph, style = glyphs.severity(first)
    ink = "dim" if first.quiet or item.follows else "text"
    summary = _symptoms(item) if item.follows else _summary(item)
    since = min((each.since for each in item.findings if each.since is not None), default=None)
    old = "" if since is None else duration_short(elapsed(since, _now(frame, first)))
    cells: tuple[Cell, ...] = (
        (f"{'│' if item.follows else glyph} ", "dim" if item.follows else style),
        (fit("" if item.follows else first.role, 8), "dim" if first.quiet else style),
        (fit(place(frame.state, item), 9) + " ", "dim" if first.quiet else "accent"),
        (fit(old, 4, right=True) + "  ", "dim"),
        (summary, ink),
    )
    return clip(cells, width)


def _now(frame: Frame, finding: Finding) -> float:
    if frame.state.phase.ended and frame.state.ended:
        return frame.state.ended
    return frame.node_now(finding.node or 0)


def _summary(item: Item) -> str:
    many = f"{len(item.findings)} × " if len(item.findings) > 1 else ""
    return many + clean_text(item.first.text)


def _symptoms(item: Item) -> str:
    counts: dict[str, int] = {}
    for finding in item.findings:
        counts[finding.id] = counts.get(finding.id, 0) + 1
    counted = ", ".join(f"{name} {count} ×" if count > 1 else name for name, count in counts.items())
    return f"{plural(len(item.findings), 'symptom')} that go with it: {counted}"


def place(state: RunState, item: Item) -> str:
    """`r3`, `r0-3`, `62 ranks`, `c2`; "" where it is about the run."""
    ranks = item.ranks
    if ranks:
        short = f"r{spans_short(ranks)}"
        return short if len(short) <= 9 else plural(len(ranks), "rank")
    nodes = {finding.node for finding in item.findings if finding.node is not None}
    named = names(state)
    if len(nodes) == 1:
        return named.get(min(nodes), f"node {min(nodes)}")
    return plural(len(nodes), "node") if nodes else ""


def detail_rows(frame: Frame, item: Item, width: int) -> list[Row]:
    """One item in full: its sentence, what to do, which ranks, since when, the evidence."""
    first = item.first
    glyph, style = glyphs.severity(first)
    rows: list[Row] = [((f"{glyph} {first.severity} {first.role} ", style), (first.id, "dim"))]
    rows += wrap(clean_text(first.text), width, "head")
    if first.remedy:
        rows += _labelled("do", first.remedy, width, "accent")
    rows += _labelled("where", _where(frame.state, item), width)
    if first.since is not None:
        rows += _labelled("since", _since(frame, first), width)
    for other in item.findings[1:_EACH]:
        rows += _labelled("also" if not item.follows else other.id, _with_rank(other), width, "dim")
    if len(item.findings) > _EACH:
        rows += _labelled("", f"… {len(item.findings) - _EACH} more of this kind", width, "dim")
    return rows + _evidence(item, width)


def _labelled(label: str, text: str, width: int, style: str = "text") -> list[Row]:
    if not text:
        return []
    head = fit(label, _LABEL) if len(label) < _LABEL else f"{label}  "
    lines = wrap(clean_text(text), width - len(head), style)
    return [((head if not at else " " * len(head), "dim"), *line) for at, line in enumerate(lines)]


def _where(state: RunState, item: Item) -> str:
    ranks, nodes = item.ranks, {finding.node for finding in item.findings if finding.node is not None}
    nodes |= {state.ranks[rank].place.node for rank in ranks if rank in state.ranks and state.merged}
    named = names(state)
    hosts = [named.get(node, f"node {node}") for node in sorted(nodes)]
    who = spans_text("rank", ranks) if ranks else ""
    on = ", ".join(hosts[:8]) + (f" and {len(hosts) - 8} more" if len(hosts) > 8 else "")
    return " on ".join(part for part in (who, on) if part)


def _since(frame: Frame, finding: Finding) -> str:
    since = finding.since or 0.0
    seconds = elapsed(since, _now(frame, finding))
    return time_of_day(since) + ("" if seconds is None else f", {duration_exact(seconds)} ago")


def _with_rank(finding: Finding) -> str:
    ranks = ranks_of(finding)
    return f"{spans_text('rank', ranks)}: {finding.text}" if ranks else finding.text


def _evidence(item: Item, width: int) -> list[Row]:
    """All of the first, then one line of each of the others."""
    lines = [*item.first.evidence, *(each.evidence[0] for each in item.findings[1:_EACH] if each.evidence)]
    if not lines:
        return [(("no evidence is told", "dim"),)] if item.first.role == "cause" else []
    rows: list[Row] = [(("evidence", "dim"),)]
    for line in lines:
        wrapped = wrap(clean_text(line), width - 2)
        rows += [(("│ ", "dim"), *row) for row in wrapped]
    return rows


def no_findings(state: RunState) -> str:
    """What stands where no finding does."""
    if state.phase.ended:
        return "No findings."
    ranks = state.ranks.values()
    if ranks and not any(rank.hook in HOOKED for rank in ranks):
        return "No findings, but no hook answers: what the ranks do is not known, only that they run."
    return "No findings: nothing is known to be wrong."


def coverage_rows(state: RunState) -> list[Row]:
    """What verdicts rest on, and what of it is missing; nothing before the first rank and after the end."""
    ranks = state.ranks
    if not ranks or state.phase.ended:
        return []
    hooks = sum(rank.hook in HOOKED for rank in ranks.values())
    recorders = sum(rank.pulse is not None and rank.pulse.recorder is True for rank in ranks.values())
    return [
        (("verdicts rest on", "dim"),),
        _covered("hooks: stacks, steps, collectives", hooks, len(ranks), "rank"),
        _covered("flight recorder of torch", recorders, len(ranks), "rank"),
        _nccl_covered(state),
        *([_UNTIMED] if untimed(state) else []),
    ]


_UNTIMED: Row = (
    (f" {glyphs.MISSING} ", "warn"),
    ("durations of collectives, for slow ranks: ", "text"),
    ("need TORCH_NCCL_ENABLE_TIMING=1", "warn"),
)


def _covered(what: str, there: int, all_: int, noun: str) -> Row:
    whole = there == all_
    glyph, style = (glyphs.OK, "ok") if whole else (glyphs.MISSING, "warn")
    count = f"all {plural(all_, noun)}" if whole else f"{there} of {plural(all_, noun)}"
    return ((f" {glyph} ", style), (f"{what}: ", "text"), (count, "dim" if whole else "warn"))


def _nccl_covered(state: RunState) -> Row:
    what = "NCCL's statements"
    if state.plan is not None and state.plan.backend == "gloo":
        return ((f" {glyphs.MISSING} ", "dim"), (f"{what}: ", "text"), ("gloo: NCCL is not used", "dim"))
    quiet = {rank.nccl_debug for rank in state.ranks.values()} <= QUIET
    heard = sum(node.nccl is not None for node in state.nodes.values())
    if quiet:
        return (
            (f" {glyphs.MISSING} ", "warn"),
            (f"{what}: ", "text"),
            ("need INFO: d raises the level", "warn"),
        )
    return _covered(what, heard, len(state.nodes), "node")


# -----------------------------------------------------------------------------------------------------------
# Stacks of many ranks as one text: equal ones together, the largest group first. Pure.


_PACKAGES = re.compile(r"/(?:site|dist)-packages/|/lib/python\d\.\d+/")


def stack_title(data: Mapping[str, str]) -> str:
    """How many ranks answered, and in how many places they are."""
    groups = _groups(data)
    return f"Where {plural(len(data), 'rank')} are: {plural(len(groups), 'place')}"


def stack_rows(data: Mapping[str, str]) -> list[Row]:
    """A group after the other; where the ways part is marked."""
    rows: list[Row] = []
    for group in _groups(data):
        rows += [*_group_rows(group, data), ()]
    return rows[:-1]


def _groups(data: Mapping[str, str]) -> list[StackGroup]:
    return merged({int(rank): text for rank, text in data.items() if rank.isdecimal()})


def _group_rows(group: StackGroup, data: Mapping[str, str]) -> list[Row]:
    many = len(group.ranks)
    head = (
        f"{plural(many, 'rank')} here: {spans_short(group.ranks, ', ')}"
        if many > 1
        else f"rank {group.ranks[0]} alone"
    )
    rows: list[Row] = [((head, "head"),)]
    if not group.frames:
        text = data.get(str(group.ranks[0]), "").strip()
        reason = (
            clean_text(text.splitlines()[0]) if text and not main_frames(text) else "no Python runs there"
        )
        return [*rows, ((f"    {reason}", "dim"),)]
    parted = len(group.frames) - group.shared - 1
    edge = min(24, max(len(frame.rpartition(" ")[2]) for frame in group.frames)) + 2
    for at, frame in enumerate(group.frames):
        where, _, function = clean_text(frame).rpartition(" ")
        mark = glyphs.CURSOR if group.shared and at == parted else " "
        ink = "dim" if group.shared and at > parted else "text"
        rows.append(((f"  {mark} ", "warn"), (fit(function, edge), ink), (_end_of(where), "dim")))
    return rows


def _end_of(where: str, width: int = 34) -> str:
    """File and line: of a package what stands in it, of a long path the end, because the line stands there."""
    inside = _PACKAGES.split(where)[-1]
    return inside if len(inside) <= width else f"…{inside[1 - width :]}"
