"""The ranks' answers to a dump as rows: their stacks, collectives and memory. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, NamedTuple

from ...presets.plurals import plural
from ...presets.sanitize import clean_text
from ...runners.diagnosis.rank_dumps import CollectiveWait, RecorderGroup, by_rank, merged_recorders
from ...runners.diagnosis.rank_memory import memory_values
from ...runners.diagnosis.stack_text import (
    SourceLines,
    StackFrame,
    StackGroup,
    frame_of,
    main_frames,
    merged_stacks,
    other_threads,
)
from ...runners.run.formatting import NA, agreeing, size_text, spans, spans_short, spans_text, time_of_day
from ...runners.run.state import RunState
from . import glyphs
from .glyphs import Row, fit, or_na, table, text_row

MOST = 12
"""Maximum number of rank ranges that a line names."""


Source = Callable[[StackFrame], str]
"""Returns the source line of a frame, "" if it is unknown."""


def source_of(state: RunState) -> Source:
    """Return a source for frames of this run's ranks, if their files are on this machine and unchanged."""
    return SourceLines(state).of


def no_source(frame: StackFrame) -> str:
    return ""


def merged_rows(what: str, data: Mapping[str, str], source: Source = no_source) -> list[Row]:
    """Return the answers of all ranks as one view, nothing cut. Raises ValueError if they cannot be parsed."""
    if what == "stacks":
        return stack_rows(data, source=source)
    try:
        lines = flight(by_rank(data)) if what == "flight" else memory(by_rank(data))
    except (AttributeError, KeyError, TypeError):  # a rank may answer anything
        raise ValueError("its values are not what a hook reports") from None
    return [text_row(line) for line in lines]


def dump_rows(what: str, data: Mapping[str, str], width: int, source: Source = no_source) -> list[Row]:
    """Return the view for the screen: merged, then each rank's own text with all threads.

    Answers that cannot be parsed are shown only as text.
    """
    rows: list[Row] = []
    if any(main_frames(text) for text in data.values()):
        rows += [*stack_rows(data, width, source), ()]
    elif what != "stacks":
        with suppress(ValueError):
            return merged_rows(what, data)
    for rank, text in sorted(data.items(), key=lambda item: (len(item[0]), item[0])):
        rows.append(((f"rank {rank}", "head"),))
        rows += [text_row(f"  {line}") for line in text.splitlines()]
    return rows


_PACKAGES = re.compile(r"(?:/lib/python\d\.\d+)?/(?:site|dist)-packages/|/lib/python\d\.\d+/")


def stack_title(data: Mapping[str, str]) -> str:
    """Return a title: how many ranks answered, and how many different stacks they have."""
    return f"Stacks of {plural(len(data), 'rank')}, {plural(len(_groups(data)), 'group')}"


def stack_rows(
    data: Mapping[str, str],
    width: int | None = None,
    source: Source = no_source,
    culprits: Set[int] = frozenset(),
) -> list[Row]:
    """Return one block per group, with marks for the user's own frames and for the frame where the stacks diverge.

    Groups have equal main threads. The other threads follow, those with the user's own frames first.
    `width` is the number of columns; without it no name and no path is cut. Groups with `culprits` come first.
    """
    groups = sorted(_groups(data), key=lambda group: culprits.isdisjoint(group.ranks))
    others = other_threads(by_rank(data))
    columns = _columns([frame for group in (*groups, *others) for frame in _frames(group)], width)
    rows: list[Row] = []
    for group in groups:
        rows += [*_group_rows(group, data, columns, source), ()]
    for group in others:
        rows += [*_thread_rows(group, columns, source), ()]
    return [*rows, *_legend(groups)] if any(group.frames for group in groups) else rows[:-1]


def _groups(data: Mapping[str, str]) -> list[StackGroup]:
    return merged_stacks(by_rank(data))


def _frames(group: StackGroup) -> list[StackFrame]:
    return [frame_of(clean_text(frame)) for frame in group.frames]


class _Columns(NamedTuple):
    """Widths of the columns after a frame's marks; None for no limit."""

    function: int
    place: int | None
    source: int | None
    """0 puts the source line in a separate row."""


LEAST_SOURCE = 24
"""Minimum columns of a source line next to its frame."""


def _columns(frames: Sequence[StackFrame], width: int | None) -> _Columns:
    """Share `width` among the function's name, then its path, then the source line."""
    name = max((len(frame.function) for frame in frames), default=0)
    if width is None:
        return _Columns(name, None, 0)
    name = min(name, max(16, width // 5))
    place = max((len(_inside(frame)) for frame in frames), default=0)
    left = width - 4 - name - 2
    if left - place - 2 < LEAST_SOURCE:
        return _Columns(name, left, 0)
    return _Columns(name, place, left - place - 2)


def _group_rows(group: StackGroup, data: Mapping[str, str], columns: _Columns, source: Source) -> list[Row]:
    many = len(group.ranks)
    head = f"rank {group.ranks[0]}"
    if many > 1:
        head = f"{plural(many, 'rank')}: {spans_short(group.ranks, ', ')}"
    rows: list[Row] = [((head, "head"),)]
    if not group.frames:
        reason = _why_frameless(data.get(str(group.ranks[0]), "").strip())
        return [*rows, ((f"    {reason}", "dim"),)]
    parted = len(group.frames) - group.shared - 1
    for at, frame in enumerate(_frames(group)):
        ink = "dim" if not frame.own or (group.shared and at > parted) else "text"
        own = (f"{OWN if frame.own else ' '} ", "accent")
        first, *below = _frame_rows(frame, columns, ink, source)
        rows.append((own, (f"{glyphs.CURSOR if at == parted else ' '} ", "warn"), *first))
        rows += [(own, ("  ", "text"), *row) for row in below]
    return rows


def _thread_rows(group: StackGroup, columns: _Columns, source: Source) -> list[Row]:
    """Return a thread that is not the main one; with equal stacks, one block for all."""
    threads = "another thread" if len(group.ranks) == 1 else f"{len(group.ranks)} other threads"
    rows: list[Row] = [((f"{threads} of {spans_text('rank', sorted(set(group.ranks)))}", "head"),)]
    for frame in _frames(group):
        own, ink = (f"{OWN if frame.own else ' '}   ", "accent"), "text" if frame.own else "dim"
        rows += [(own, *row) for row in _frame_rows(frame, columns, ink, source)]
    return rows


def _why_frameless(answer: str) -> str:
    return (
        clean_text(answer.splitlines()[0]) if answer and not main_frames(answer) else "no Python runs there"
    )


def _frame_rows(frame: StackFrame, columns: _Columns, ink: str, source: Source) -> list[Row]:
    """Return function, place and source line. If the source does not fit, it goes below the user's own frames."""
    edge, line = columns.function + 2, clean_text(source(frame))
    name = fit(frame.function, columns.function) + "  "
    whole = f"{frame.path}:{frame.line}"
    place = whole if columns.place is None else _end_of(_inside(frame), columns.place)
    if columns.source:
        place = fit(place, columns.place or 0) + "  "
        return [((name, ink), (place, "dim"), (fit(line, columns.source).rstrip(), ink))]
    rows: list[Row] = [((name, ink), (place, "dim"))]
    if line and frame.own:
        room = len(line) if columns.place is None else columns.place
        rows.append(((" " * edge, ink), (fit(line, room).rstrip(), ink)))
    return rows


def _legend(groups: Sequence[StackGroup]) -> list[Row]:
    """Return the legend of the marks in front of frames."""
    own = any(frame.own for group in groups for frame in _frames(group))
    texts = [f"{OWN} your code"] if own else []
    texts += [f"{glyphs.CURSOR} where the ranks diverge"] if len(groups) > 1 else []
    return [(("   ".join(texts), "dim"),)] if texts else []


OWN = "▏"
"""Mark in front of a frame of the user's code."""


def _inside(frame: StackFrame) -> str:
    """Return file and line; the path is relative to its package directory."""
    return f"{_PACKAGES.split(frame.path)[-1]}:{frame.line}"


def _end_of(where: str, width: int) -> str:
    """Return the end of a long path, which contains the line number."""
    return where if len(where) <= width else f"…{where[1 - width :]}"


def flight(texts: Mapping[int, str]) -> list[str]:
    """Return one table per group, then its conclusions. Raises ValueError."""
    lines: list[str] = []
    for group in merged_recorders(texts):
        lines += [""] if lines else []
        named = f"{group.name} ({group.desc})" if group.desc else group.name
        members = f"{len(group.ranks)} ranks" + (
            f" ({spans(group.ranks, MOST)})" if group.sure else " known"
        )
        lines += [f"Group {named}: {members}", *(f"    {row}" for row in _rows(group))]
        lines += [f"    {sentence}" for sentence in _sentences(group)]
    counted = _counted(texts)
    if lines and counted:
        lines.append("")
    return [*lines, *counted] or [_nothing(texts)]


def _counted(texts: Mapping[int, str]) -> list[str]:
    """Return one table per group whose calls torch only counts, as 2.14 does with its backend nccl2."""
    calls: dict[str, dict[int, int]] = {}
    for rank, text in texts.items():
        for group in json.loads(text).get("counted", ()):
            named = f"{group['name']} ({group['desc']})"
            title = f"Group {named}: this torch only counts what its backend {group['backend']} does"
            calls.setdefault(title, {})[rank] = int(group["enqueued"])
    lines: list[str] = []
    for title, called in sorted(calls.items()):
        alike: dict[int, list[int]] = {}
        for rank, count in sorted(called.items()):
            alike.setdefault(count, []).append(rank)
        rows = [("ranks", "called"), *((spans(those, MOST), str(count)) for count, those in alike.items())]
        lines += [title, *(f"    {row}" for row in table(rows, frozenset({1})))]
    hint = "TORCH_DIST_USE_NCCL2=0, or the backend nccl-legacy, is recorded call by call."
    return [*lines, hint] if lines else []


def _nothing(texts: Mapping[int, str]) -> str:
    """Return why no call is recorded: torch before 2.8 or so has no recorder for gloo."""
    dumped = [json.loads(text) for text in texts.values()]
    kinds = {str(entry.get("kind")) for each in dumped for entry in each.get("recorders", ())}
    if kinds == {"nccl"}:
        return "No call is recorded: this torch records only NCCL's collectives, not gloo's."
    return "No rank has called a collective yet."


def _rows(group: RecorderGroup) -> list[str]:
    """Return the table of a group; ranks with equal progress share a row."""
    alike: dict[tuple[str, str, str], list[int]] = {}
    for part in group.parts:
        newest = "" if part.newest is None else f"{part.newest.what}  {part.newest.site}".rstrip()
        alike.setdefault((or_na(part.called), or_na(part.completed), newest), []).append(part.rank)
    rows = [("ranks", "called", "completed", "newest call")]
    rows += [(spans(those, MOST), *row) for row, those in sorted(alike.items(), key=lambda item: item[1])]
    return table(rows, frozenset({1, 2}))


def _sentences(group: RecorderGroup) -> list[str]:
    sentences = []
    if group.lowest:
        verb = agreeing(group.lowest, "is", "are")
        sentences.append(f"Furthest behind {verb} {spans_text('rank', group.lowest)}.")
    sentences += [_wait_sentence(wait, group) for wait in group.waits]
    for parting in group.divergences:
        shown = [
            f"{call.what} at {call.site or NA} ({spans_text('rank', those)})"
            for call, those in parting.variants
        ]
        sentences.append(f"First difference in {parting.of}: #{parting.seq}: {'; '.join(shown)}.")
    if group.unasked:
        sentences.append(f"No answer from {spans_text('rank', group.unasked)}.")
    return sentences


def _wait_sentence(wait: CollectiveWait, group: RecorderGroup) -> str:
    clock = time_of_day(wait.since, utc=True)
    site = f" ({wait.call.site})" if wait.call.site else ""
    verb = agreeing(wait.ranks, "waits", "wait")
    who = spans_text("rank", wait.ranks).capitalize()
    text = f"{who} {verb} in #{wait.call.seq} {wait.call.what}{site} since {clock}"
    if wait.missing:
        have = agreeing(wait.missing, "has", "have")
        text += f"; {spans_text('rank', wait.missing)} {have} not called it"
    elif not group.unasked and set(wait.ranks) == set(group.ranks):
        text += "; every rank known has called it"
    return text + "."


VIEWER = "https://pytorch.org/memory_viz"


def memory(texts: Mapping[int, str]) -> list[str]:
    """Return one row per rank and device, and the paths of the snapshots. Raises ValueError."""
    entries = memory_values(texts)
    rows: list[tuple[str, ...]] = [("rank", "resident", "peak")]
    if any(entry["devices"] for entry in entries):
        rows[0] += ("GPU", "allocated", "reserved", "peak alloc.", "peak res.", "split", "OOMs")
    for entry in entries:
        host = (str(entry["rank"]), size_text(entry["rss_bytes"]), size_text(entry["max_rss_bytes"]))
        rows += [(*host, *_device(name, its)) for name, its in entry["devices"].items()] or [
            host + (NA,) * (len(rows[0]) - 3)
        ]
    lines = table(rows, frozenset(range(len(rows[0]))))
    return [*lines, *_snapshots(entries)]


def _device(name: str, its: Mapping[str, Any]) -> tuple[str, ...]:
    sizes = (size_text(its[key]) for key in ("allocated", "reserved", "peak_allocated", "peak_reserved"))
    return (name, *sizes, or_na(its["fragmentation"], "{:.0%}".format), or_na(its["ooms"]))


def _snapshots(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    paths = [f"    rank {entry['rank']}: {entry['snapshot']}" for entry in entries if entry["snapshot"]]
    lines = [""] if paths or any(entry["note"] for entry in entries) else []
    if paths:
        curve = all(entry["recording"] for entry in entries if entry["snapshot"])
        hint = "" if curve else "; --record lets the next ones show a curve"
        lines += [f"Snapshots on the ranks' nodes, for {VIEWER}{hint}:", *paths]
    return lines + _notes(entries)


def _notes(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return each note once, with its ranks."""
    notes: dict[str, list[int]] = {}
    for entry in entries:
        if entry["note"]:
            notes.setdefault(entry["note"], []).append(entry["rank"])
    return [f"{spans_text('rank', those).capitalize()}: {note}." for note, those in notes.items()]
