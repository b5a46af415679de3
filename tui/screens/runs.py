"""The list of runs: filter, order, marks, and actions on runs that have ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.events import Click, Resize
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Static

from ...presets.plurals import plural
from ...presets.sanitize import clean_text
from ...runners.run import run_notes
from ...runners.run.formatting import size_short
from ..background import background, keep_running
from ..keys import bindings
from ..other_hosts import ASK_S, HOST
from ..rows.run_filter import RUNS
from ..rows.runs import (
    EMPTY,
    PlacedColumn,
    RunEntry,
    at_column,
    head_row,
    ordered,
    place_columns,
    removal_rows,
    run_row,
    run_sort_keys,
)
from .bars import KeyFooter
from .cockpit import Cockpit
from .live_keys import KeyContext
from .modal import ConfirmScreen
from .prompts import WordsPrompt
from .rows_view import RowsView
from .searchable import SearchableRows
from .sort_prompt import SortPrompt

REFRESH_S = 1.0
"""Seconds between two reads of the list while it is shown."""


@dataclass
class ListPlace:
    """What the list of runs keeps while another screen is shown."""

    marked: set[str] = field(default_factory=set)
    """Ids of the marked runs."""
    current: str = ""
    """Id of the run under the cursor."""
    words: str = ""
    """The filter."""
    sort: str = ""
    reverse: bool = False


class RunList(SearchableRows):
    """One row per run."""

    HINT = "filter: words, or state:failed preset:fsdp2"
    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        binding for binding in bindings("list") if binding.id == "mark"
    ]

    @dataclass
    class Opened(Message):
        """The user wants to see a run."""

        run: str

    class Listed(Message):
        """The shown runs or their order changed."""

    def __init__(self, place: ListPlace) -> None:
        super().__init__(id="run-list")
        self.place = place
        self.words = place.words
        self.all: list[RunEntry] = []
        self.listed: list[RunEntry] = []
        self._places: list[PlacedColumn] = []

    def show(self, runs: list[RunEntry]) -> None:
        """Show these runs; the cursor stays on its run."""
        self.all = runs
        self.marked.intersection_update(run.id for run in runs)
        self.searched()

    def searched(self) -> None:
        current = self.current.id if self.current else self.place.current
        self.place.words = self.words
        self.listed = ordered(RUNS.fitting(self.all, self.words), self.sort, self.reverse)
        self.has_cursor = bool(self.listed)
        if self.listed:
            self._places = place_columns(self.listed, self.size.width - 1)
            ids = [run.id for run in self.listed]
            if current in ids:
                self.stay_on(ids.index(current))
            self.set_rows(
                [run_row(run, self._places, run.id in self.marked) for run in self.listed],
                head_row(self._places, self.sort, self.reverse),
            )
        elif self.all:
            self.set_rows([((" no match: esc clears the filter", "warn"),)])
        else:
            self.set_rows(EMPTY)
        self.post_message(self.Listed())

    def cursor_moved(self) -> None:
        if self.current is not None:
            self.place.current = self.current.id

    @property
    def marked(self) -> set[str]:
        return self.place.marked

    @property
    def sort(self) -> str:
        return self.place.sort

    @property
    def reverse(self) -> bool:
        return self.place.reverse

    @property
    def current(self) -> RunEntry | None:
        """The run under the cursor."""
        return self.listed[self.cursor] if self.cursor < len(self.listed) else None

    @property
    def chosen(self) -> list[RunEntry]:
        """The marked runs, else the one under the cursor."""
        marked = [run for run in self.all if run.id in self.marked]
        return marked or ([self.current] if self.current else [])

    def entered(self) -> None:
        if self.current is not None:
            self.post_message(self.Opened(self.current.id))

    def action_zoom(self) -> None:
        """Open the run on a double click."""
        self.entered()

    def action_mark(self) -> None:
        """Mark the run, and go to the next."""
        if self.current is not None:
            self.marked.symmetric_difference_update({self.current.id})
            self.searched()
            self.move_to(self.cursor + 1)

    def order(self, sort: str, reverse: bool) -> None:
        """Sort the runs, and show the top."""
        self.place.sort, self.place.reverse = sort, reverse
        self.searched()
        self.show_top(self.cursor)

    def ask_order(self) -> None:
        """Ask for a column; the present one again reverses the order."""
        self.app.push_screen(SortPrompt(run_sort_keys(self._places), self.sort), self._order_by)

    def _order_by(self, column: str | None) -> None:
        if column is not None:
            self.order(column, column == self.sort and not self.reverse)

    def on_click(self, event: Click) -> None:
        """Sort by a column on a click on the head, in the other order if it is sorted by it; open the selected run."""
        inside = event.get_content_offset(self)
        if inside is not None and inside.y == 0 and self.head is not None:
            if name := at_column(self._places, inside.x - 1):  # without the cursor's column
                self._order_by(name)
            return
        before = self.cursor
        super().on_click(event)
        is_on_row = inside is not None and self.clicked_row(inside.y) == before
        if is_on_row and event.chain == 1:
            self.entered()

    def on_resize(self, event: Resize) -> None:
        self.searched()


def marked_note(count: int) -> str:
    """Return how many runs are marked, and what to do with two of them; "" without marks."""
    if count == 1:
        return "   1 marked: space marks another one to compare"
    if count == 2:
        return "   2 marked: c compares them"
    return f"   {count} marked" if count else ""


class RunsScreen(Screen[None]):
    """All runs that this machine knows."""

    app: Cockpit
    BINDINGS: ClassVar[list[Binding]] = bindings("runs")  # type: ignore[assignment]

    def __init__(self, place: ListPlace) -> None:
        super().__init__()
        self.list = RunList(place)
        self.search_line = RowsView(id="run-search")
        self.search_line.can_focus = False

    def compose(self) -> ComposeResult:
        yield Static(" distui · runs", id="title", markup=False)
        yield self.search_line
        yield self.list
        yield KeyFooter(id="footer")

    def on_mount(self) -> None:
        if self.app.current is not None:
            self.list.place.current = self.app.current.id
        self.list.show(self.app.source.runs())
        keep_running(self, "runs", self._refresh)
        keep_running(self, "hosts", self._ask_elsewhere)
        self.list.focus()

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            if self.is_active:
                await self._reload()

    async def _reload(self) -> None:
        self.list.show(await asyncio.to_thread(self.app.source.measured_runs))

    async def _ask_elsewhere(self) -> None:
        """Query other hosts while the list is shown; each query is an ssh login."""
        while True:
            if self.is_active:
                await self.app.source.elsewhere.ask(self.app.choices.settings.hosts)
            await asyncio.sleep(ASK_S)

    def on_run_list_listed(self) -> None:
        shown, total = len(self.list.listed), len(self.list.all)
        marked = marked_note(len(self.list.marked))
        note = f"   {shown} of {total}{marked}" if self.list.words or marked else ""
        if strange := RUNS.mistake(self.list.words):
            note += f"   {strange}"
        self.search_line.set_rows([self.list.search_row(note)])

    # --- keys

    def key_context(self) -> KeyContext:
        return KeyContext("runs")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.app.permissions.allowed(action)

    def action_filter_runs(self) -> None:
        """Open the search from the footer or the palette; the list itself handles the key."""
        self.list.focus()
        self.list.search(self.list.words)

    def action_sort_runs(self) -> None:
        self.list.ask_order()

    def action_reverse_runs(self) -> None:
        self.list.order(self.list.sort, not self.list.reverse)

    def action_rerun(self) -> None:
        run = self.list.current
        if run is not None and run.host:
            self.notify(f"the run is kept on {run.host}: Enter opens it there, and r launches it again")
        elif run is not None and run.live:
            self.app.open_form(run.id)
        elif run is not None:
            self.app.rerun(run.id, run.name)

    def action_compare(self) -> None:
        """Draw the curves of two marked runs over each other."""
        from .side_by_side import ComparisonScreen

        runs = [run for run in self.list.all if run.id in self.list.marked]
        if len(runs) != 2:
            self.notify("mark two runs with space, then c draws their curves over each other")
            return
        watched = next((run for run in runs if not run.host and not run.path), None)
        if watched is not None:
            self.notify(f"nothing is recorded of {watched.name} that could be compared", severity="error")
            return
        first, second = (run.id.removeprefix(HOST) for run in runs)
        self.app.push_screen(ComparisonScreen(first, second, runs[0].name))

    def action_note(self) -> None:
        self._ask_marks("note", "empty takes the note away")

    def action_tags(self) -> None:
        self._ask_marks("tags", "good or +good adds one, -bad takes one away")

    def _ask_marks(self, kind: str, hint: str) -> None:
        """Edit the "note" or the "tags" of the marked runs, or of the one under the cursor."""
        runs = self.list.chosen
        away = next((run for run in runs if run.host or not run.path), None)
        if away is not None:
            place = f"kept on {away.host}: Enter opens it there" if away.host else "not kept here"
            self.notify(f"run {away.name} is {place}", severity="error")
        elif runs:
            check = _check_tags if kind == "tags" else str
            value = _shared_note(runs) if kind == "note" else ""
            screen = WordsPrompt(kind, hint, _about(kind, runs), value, check)
            ids = [run.id for run in runs]
            self.app.push_screen(screen, lambda text: self._mark(kind, text, ids))

    def _mark(self, kind: str, text: str | None, runs: list[str]) -> None:
        if text is not None and (text.strip() or kind == "note"):
            background(self, "marks", self._write_marks(kind, text, runs))

    async def _write_marks(self, kind: str, text: str, runs: list[str]) -> None:
        for run in runs:
            if problem := await asyncio.to_thread(self.app.source.mark, kind, text, run):
                self.notify(problem, severity="error")
        await self._reload()

    def action_remove(self) -> None:
        """Ask before ended runs are removed; live ones are refused."""
        runs = self.list.chosen
        refused = next((run for run in runs if run.live or not run.path), None)
        if refused is None:
            self._ask_removal(runs)
            return
        why = "is not kept here"
        if refused.live and not refused.host and refused.path:
            why = "is live: x on it stops it"
        self.notify(f"run {refused.name} {why}, and only ended runs are removed", severity="error")

    def _ask_removal(self, runs: list[RunEntry]) -> None:
        if not runs:
            return
        sizes = [run.size for run in runs if run.size is not None]
        size = f", {size_short(sum(sizes))}" if len(sizes) == len(runs) else ""
        about = plural(len(runs), "run") if len(runs) > 1 else f"run {runs[0].name}"
        screen = ConfirmScreen(f"Remove {about}{size}?", removal_rows(runs), "remove")
        self.app.push_screen(screen, lambda answer: self._removed(answer, [run.id for run in runs]))

    def _removed(self, answer: str | None, runs: list[str]) -> None:
        if answer:
            background(self, "remove", self._remove(runs))

    async def _remove(self, runs: list[str]) -> None:
        names, freed, problems = await asyncio.to_thread(self.app.source.remove, runs)
        if names:
            text = f"removed {plural(len(names), 'run')}, {size_short(freed)} freed: {', '.join(names)}"
            self.notify(clean_text(text))
        for problem in problems:
            self.notify(problem, severity="error")
        self.list.marked.clear()
        await self._reload()


def _about(kind: str, runs: list[RunEntry]) -> str:
    """Return whose note or tags are edited, with the current ones of a single run."""
    if len(runs) > 1:
        return plural(len(runs), "run")
    current = runs[0].note if kind == "note" else " ".join(runs[0].tags)
    return clean_text(f"{runs[0].name}: {current or f'no {kind}'}")


def _shared_note(runs: list[RunEntry]) -> str:
    """Return the note that all of these runs have; "" if their notes differ."""
    notes = {run.note for run in runs}
    return notes.pop() if len(notes) == 1 else ""


def _check_tags(line: str) -> object:
    """Check the words of tags. Raises RunError."""
    return run_notes.words_of(line.split())
