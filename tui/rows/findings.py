"""Findings as rows: their order and kinds, one row each, and which data they are based on. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ...presets.finding import Finding, worst_first
from ...presets.plurals import plural
from ...presets.sanitize import clean_text
from ...runners.diagnosis.missing_data import untimed
from ...runners.diagnosis.status import foreign
from ...runners.run.formatting import (
    duration_exact,
    duration_short,
    elapsed,
    spans_short,
    time_of_day,
)
from ...runners.run.nccl_reach import uses_gloo
from ...runners.run.state import RunState
from . import glyphs
from .frame import Frame, names
from .glyphs import Cell, Row, clip, fit

QUIET = {None, "VERSION", "WARN"}
"""Levels of NCCL_DEBUG that log no statements."""

HOOKED = ("up", "armed")
"""States of a hook that answers."""


class Item(Struct, frozen=True):
    """One row of the list: a finding, or several of one kind."""

    findings: tuple[Finding, ...]
    follows: bool = False
    """Whether these are the symptoms of the cause in the row above."""

    @property
    def first(self) -> Finding:
        return self.findings[0]

    @property
    def key(self) -> str:
        """An id that does not change while findings of this kind come and go."""
        return "symptoms" if self.follows else f"{self.first.role} {self.first.id}"

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every affected rank."""
        return tuple(sorted({rank for finding in self.findings for rank in ranks_of(finding)}))


def ranks_of(finding: Finding) -> tuple[int, ...]:
    alone = () if finding.rank is None else (finding.rank,)
    return finding.ranks or alone


def items(given: Iterable[Finding]) -> list[Item]:
    """Return the rows of the list. Symptoms are grouped below the first cause, if there is one."""
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


def alarms(state: RunState) -> list[Item]:
    """Return the rows of the list that need a person; their number is the number of alarms everywhere."""
    return state.once(_alarms)


def _alarms(state: RunState) -> list[Item]:
    return [item for item in items(state.findings.values()) if item.first.alarm and not item.follows]


def culprits(state: RunState) -> set[int]:
    """Return the ranks that the alarms blame; a finding with one rank blames only that one, not its victims."""
    blamed: set[int] = set()
    for item in alarms(state):
        if item.first.role == "cause":
            blamed |= {item.first.rank} if item.first.rank is not None else set(item.ranks)
    return blamed


def item_row(frame: Frame, item: Item, width: int) -> Row:
    """Return severity, role, place, age and sentence, cut to `width` columns."""
    first = item.first
    glyph, style = glyphs.severity(first)
    lead, role = (f"{glyph} ", style), first.role
    if item.follows:
        lead, role = ("│ ", "dim"), ""
    cells: tuple[Cell, ...] = (
        lead,
        (fit(role, 8), "dim" if first.quiet else style),
        (fit(place(frame.state, item), 9) + " ", "dim" if first.quiet else "accent"),
        (fit(_age(frame, item), 4, right=True) + "  ", "dim"),
        (sentence(item), "dim" if first.quiet or item.follows else "text"),
    )
    return clip(cells, width)


def _age(frame: Frame, item: Item) -> str:
    """Return how long ago the first of the findings began; "" if that is unknown."""
    seconds = seconds_since(frame, item)
    return "" if seconds is None else duration_short(seconds)


def seconds_since(frame: Frame, item: Item) -> float | None:
    """Return the seconds since the first of the findings began; None if that is unknown."""
    since = min((each.since for each in item.findings if each.since is not None), default=None)
    return None if since is None else elapsed(since, _now(frame, item.first))


def _now(frame: Frame, finding: Finding) -> float:
    if frame.state.phase.ended and frame.state.ended:
        return max(frame.state.ended, frame.now)
    return frame.node_now(finding.node or 0)


def sentence(item: Item) -> str:
    """Return the sentence of a finding, with their number if there are several of its kind."""
    if item.follows:
        return _symptoms(item)
    many = f"{len(item.findings)} × " if len(item.findings) > 1 else ""
    return many + clean_text(item.first.text)


def _symptoms(item: Item) -> str:
    counts: dict[str, int] = {}
    for finding in item.findings:
        counts[finding.id] = counts.get(finding.id, 0) + 1
    counted = ", ".join(f"{name} {count} ×" if count > 1 else name for name, count in counts.items())
    return f"{plural(len(item.findings), 'symptom')} that go with it: {counted}"


def place(state: RunState, item: Item) -> str:
    """Return `r3`, `r0-3`, `62 ranks`, `c2`; "" if the finding is about the whole run."""
    ranks = item.ranks
    if ranks:
        short = f"r{spans_short(ranks)}"
        return short if len(short) <= 9 else plural(len(ranks), "rank")
    nodes = {finding.node for finding in item.findings if finding.node is not None}
    named = names(state)
    if len(nodes) == 1:
        return named.get(min(nodes), f"node {min(nodes)}")
    return plural(len(nodes), "node") if nodes else ""


def since_text(frame: Frame, finding: Finding) -> str:
    since = finding.since or 0.0
    seconds = elapsed(since, _now(frame, finding))
    return time_of_day(since) + ("" if seconds is None else f", {duration_exact(seconds)} ago")


def no_findings(state: RunState) -> str:
    """Return the text for an empty list of findings."""
    if state.phase.ended:
        return "No findings."
    ranks = state.ranks.values()
    if foreign(state):
        return "No findings. No hook answers: distui examines ranks without CPU use and output for 30 s."
    if ranks and not any(rank.hook in HOOKED for rank in ranks):
        return "No findings, but no hook answers: what the ranks do is unknown, except that they run."
    return "No findings."


def coverage_rows(state: RunState) -> list[Row]:
    """Return the data sources of verdicts and which are missing; [] before the first rank and after the end."""
    ranks = state.ranks
    if not ranks or state.phase.ended:
        return []
    hooks = sum(rank.hook in HOOKED for rank in ranks.values())
    recorders = sum(rank.pulse is not None and rank.pulse.recorder is True for rank in ranks.values())
    return [
        (("data sources", "dim"),),
        _covered("hooks (stacks, steps, collectives)", hooks, len(ranks), "rank"),
        _covered("flight recorder", recorders, len(ranks), "rank"),
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
    count = f"{there}/{plural(all_, noun)}"
    return ((f" {glyph} ", style), (f"{what}: ", "text"), (count, "dim" if whole else "warn"))


def _nccl_covered(state: RunState) -> Row:
    what = "NCCL log"
    if uses_gloo(state):
        return ((f" {glyphs.MISSING} ", "dim"), (f"{what}: ", "text"), ("none, the backend is gloo", "dim"))
    if foreign(state):
        return (
            (f" {glyphs.MISSING} ", "dim"),
            (f"{what}: ", "text"),
            ("not read of a job that distui did not start", "dim"),
        )
    quiet = {rank.nccl_debug for rank in state.ranks.values()} <= QUIET
    heard = sum(node.nccl is not None for node in state.nodes.values())
    if quiet:
        return (
            (f" {glyphs.MISSING} ", "warn"),
            (f"{what}: ", "text"),
            ("too quiet; press d for INFO", "warn"),
        )
    return _covered(what, heard, len(state.nodes), "node")
