"""A finding as a card: its sentence, its remedy, the keys that act on it, and its folded evidence. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from ...presets.finding import Finding
from ...presets.sanitize import clean_text
from ...runners.diagnosis.remedy_commands import command_of
from ...runners.run.formatting import duration_text, listed, spans_text
from ...runners.run.nccl_reach import uses_gloo
from ...runners.run.state import RunState
from . import glyphs
from .findings import Item, ranks_of, seconds_since, sentence, since_text
from .frame import Frame, names
from .glyphs import Row, clip, fit, labelled, wrap
from .log import named
from .remedy import remedy_text
from .tabs import ClickableRow, ClickArea

_EACH = 12
"""Maximum number of findings of one kind that are listed individually."""
_LABEL = 10
_INDENT = "  "


class Button(Struct, frozen=True):
    """A key that acts on a finding."""

    id: str
    """Id of its action in `actions.toml`."""
    key: str
    """The key unless the user chose another."""
    word: str
    action: str
    """Textual action, with its namespace."""


STACKS = Button("stacks", "w", "stacks", "screen.forward('run', 'stacks')")
NCCL = Button("nccl", "d", "NCCL_DEBUG", "screen.forward('run', 'nccl')")
RESTART = Button("restart", "r", "restart", "screen.forward('run', 'restart')")
RUN_AGAIN = Button("restart", "r", "run again", "screen.forward('run', 'restart')")
COPY = Button("finding.copy", "y", "copy command", "copy")
LOG = Button("finding", "enter", "log", "zoom")
UNFOLD = Button("finding.evidence", "space", "evidence", "unfold")
FOLD = Button("finding.evidence", "space", "fold", "unfold")


def buttons(frame: Frame, item: Item, unfolded: bool) -> list[Button]:
    """Return the keys that help with a finding now."""
    finding = item.first
    found = [*_acting(frame, finding)]
    if command_of(finding.remedy):
        found.append(COPY)
    if _has_log(item):
        found.append(LOG)
    if _has_more(item):
        found.append(FOLD if unfolded else UNFOLD)
    return found


def _acting(frame: Frame, finding: Finding) -> Iterator[Button]:
    """Yield the keys that ask something of the run, or change it."""
    if frame.moment is not None:
        return  # the past cannot be changed
    ended = frame.state.phase.ended
    stuck = finding.id.startswith(("hang-", "start-")) or "stack" in finding.remedy
    if stuck and not ended:
        yield STACKS
    if frame.view.readonly:
        return
    if "NCCL_DEBUG" in finding.remedy and not ended and not uses_gloo(frame.state):
        yield NCCL
    if finding.severity == "error" and finding.role == "cause":
        yield RUN_AGAIN if ended else RESTART


def _has_log(item: Item) -> bool:
    """Whether the findings name a rank, or a line of a log in their evidence."""
    lines = (line for finding in item.findings for line in finding.evidence)
    return bool(item.ranks) or any(named(line.partition(":")[0]) for line in lines)


def _has_more(item: Item) -> bool:
    return len(item.findings) > 1 or bool(item.first.evidence)


class Card(Struct, frozen=True):
    """The rows of one finding."""

    item: Item
    rows: tuple[Row, ...]
    keys_at: int
    """Index of the row with the keys."""
    spans: tuple[ClickArea, ...]
    """The keys' columns in that row."""


def card(frame: Frame, item: Item, width: int, unfolded: bool, keys: Mapping[str, str]) -> Card:
    """Return a finding's card in `width` columns. `keys` are the user's own keys by action id."""
    head: tuple[str, str] = ("│ ", "dim")
    quiet = item.first.quiet or item.follows
    if not item.follows:
        glyph, style = glyphs.severity(item.first)
        head = (f"{glyph} ", style)
    rows = labelled(head, sentence(item), width, "dim" if quiet else "head")
    if item.first.remedy and not item.follows:
        remedy = clean_text(remedy_text(item.first))
        rows += labelled((f"{_INDENT}→ ", "accent"), remedy, width, "accent")
    facts, offered = _facts(frame, item), buttons(frame, item, unfolded)
    row = _key_row(facts, offered, keys)
    if row.width > width:
        rows.append(((facts, "dim"),))
        row = _key_row("", offered, keys)
    keys_at = len(rows)
    rows.append(clip(tuple(row.cells), width))
    if unfolded:
        rows += [((_INDENT, "text"), *each) for each in detail_rows(frame, item, width - len(_INDENT))]
    return Card(item, tuple(rows), keys_at, tuple(row.spans))


def _facts(frame: Frame, item: Item) -> str:
    """Return role, place and age."""
    seconds = seconds_since(frame, item)
    since = "" if seconds is None else f"{duration_text(seconds)} ago"
    return _INDENT + " · ".join(filter(None, [item.first.role, _where(frame.state, item), since]))


def _key_row(start: str, offered: Sequence[Button], keys: Mapping[str, str]) -> ClickableRow:
    """Return a text, then the keys."""
    row = ClickableRow()
    row.add((start, "dim"))
    for button in offered:
        row.add(("   " if row.width else _INDENT, "text"))
        row.add((keys.get(button.id, button.key), "key"), (f" {button.word}", "text"), action=button.action)
    return row


def _where(state: RunState, item: Item) -> str:
    ranks, nodes = item.ranks, {finding.node for finding in item.findings if finding.node is not None}
    nodes |= {state.ranks[rank].place.node for rank in ranks if rank in state.ranks and state.merged}
    named = names(state)
    hosts = [named.get(node, f"node {node}") for node in sorted(nodes)]
    affected = spans_text("rank", ranks) if ranks else ""
    return " on ".join(part for part in (affected, listed(hosts, 8)) if part)


def detail_rows(frame: Frame, item: Item, width: int) -> list[Row]:
    """Return what a card folds: id, begin, the other findings of this kind, evidence."""
    first = item.first
    rows = _labelled("id", first.id, width, "dim")
    if first.since is not None:
        rows += _labelled("since", since_text(frame, first), width)
    for other in item.findings[1:_EACH]:
        rows += _labelled(other.id if item.follows else "also", _with_rank(other), width, "dim")
    if len(item.findings) > _EACH:
        rows += _labelled("", f"… {len(item.findings) - _EACH} more of this kind", width, "dim")
    lines = [*first.evidence, *(each.evidence[0] for each in item.findings[1:_EACH] if each.evidence)]
    for line in lines:
        rows += [(("│ ", "dim"), *row) for row in wrap(clean_text(line), width - 2)]
    return rows


def _labelled(label: str, text: str, width: int, style: str = "text") -> list[Row]:
    head = fit(label, _LABEL) if len(label) < _LABEL else f"{label}  "
    return labelled((head, "dim"), clean_text(text), width, style)


def _with_rank(finding: Finding) -> str:
    ranks = ranks_of(finding)
    return f"{spans_text('rank', ranks)}: {finding.text}" if ranks else finding.text
