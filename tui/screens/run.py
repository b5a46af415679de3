"""The run screen."""

from __future__ import annotations

import asyncio
import re
from typing import ClassVar

from msgspec.structs import replace
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container
from textual.events import Resize
from textual.screen import Screen
from textual.widget import Widget

from ...presets.sanitize import clean_text
from ...runners.logs.search import compile_grep
from ...runners.run.formatting import spans_text
from ...runners.run.log_files import LogError
from ...runners.run.model import Dump
from ...runners.run.wire.client import new_id
from ..background import background
from ..history import MetricHistory
from ..keys import bindings
from ..rows.charts import LIVE_WINDOW, STRIP, WINDOWS
from ..rows.column_choice import ColumnChoice, begin_choice, default_ids
from ..rows.columns import TABLES
from ..rows.frame import METRICS, Frame
from ..rows.glyphs import Row, wrap
from ..rows.layout import Arrangement, is_large, shows_wrong
from ..rows.log import JumpError, Selection, jump_of, named
from ..rows.tables import absent, next_sort
from .bars import Flash, TabRow
from .cockpit_commands import CommandingApp
from .curves import CurveStrip, RankStrip
from .findings_pane import Diagnosis, FindingList
from .log_view import LogLead, LogView
from .modal import TextScreen
from .nccl_board import NcclBoard, StatementRows
from .panes import (
    Banner,
    Card,
    Events,
    GpuTable,
    Header,
    HeatMap,
    KeyFooter,
    RankTable,
    Summary,
    TablePane,
    Wrong,
)
from .pickers import ColumnPicker
from .placing import Measures, place
from .prompts import FilterPrompt

_AT = re.compile(r"(?P<file>\S+):(?P<line>\d+): (?P<text>.*)", re.DOTALL)
"""Evidence that is a line of a log."""
_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()]")
_LONGEST = 160
"""Maximum characters of a line in the pattern that searches for it."""

ANSWERED = ("nccl", "stop")
"""Actions whose keys, if not allowed, show the reason."""


def pattern_of(text: str) -> str:
    """Return a regular expression that finds this line; for a line of NCCL only its message."""
    message = text.partition(" NCCL ")[2] or text
    return _SPECIAL.sub(r"\\\g<0>", message.strip()[:_LONGEST])


class RunScreen(Screen[None]):
    """One run. Handles the keys of `keys.py` with scope "run"; the app handles those that change the run."""

    app: CommandingApp
    BINDINGS: ClassVar[list[Binding]] = bindings("run", "replay")  # type: ignore[assignment]

    def __init__(self, app: CommandingApp) -> None:
        super().__init__()
        frames = app.frames
        self.history = MetricHistory(app.clock)
        """Metrics of this run over time, shared by all charts."""
        self.banner = Banner(frames, id="banner")
        self.heat = HeatMap(frames, id="heat")
        self.ranks = RankTable(frames, id="ranks")
        self.tabs = TabRow(frames)
        self.wrong = Wrong(frames, id="wrong")
        metrics = app.settings.metrics or STRIP
        self.curves = CurveStrip(frames, self.history, id="curves", metrics=metrics)
        self.status = Header(
            frames, lambda frame: {"loss": self.curves.trend(frame, "train.loss")}, id="status"
        )
        self.strip = RankStrip(frames, self.history, id="strip")
        self.events = Events(frames, id="events")
        self.diagnosis = Diagnosis(frames)
        self.nccl = NcclBoard(frames, app.run_id)
        self.log_view = LogView(frames, app.read_log, app.grown, id="log")
        self.lead = LogLead(self.log_view)
        self.gpus = GpuTable(frames, id="gpus")
        self.card = Card(frames, id="card")
        self.summary = Summary(frames, id="summary")
        self.flash = Flash(app.publish)
        self.foot = KeyFooter(id="footer", other_words=self._key_words)
        self._measures = Measures()
        self.placing = False
        """Whether the layout of the panes is changing."""
        self._shared: Arrangement | None = None
        self._patterns: list[str] = []
        """Earlier filters, the newest last."""
        self._from: tuple[str, Selection] | None = None
        """The pane and the log selection to restore after an opened line."""

    @property
    def panes(self) -> dict[str, Widget]:
        """The widgets of the body, by their names in rows/layout.py."""
        return {
            "gpus": self.gpus,
            "heat": self.heat,
            "ranks": self.ranks,
            "wrong": self.wrong,
            "card": self.card,
            "curves": self.curves,
            "strip": self.strip,
            "events": self.events,
            "findings": self.diagnosis,
            "nccl": self.nccl,
            "log": self.log_view,
        }

    def compose(self) -> ComposeResult:
        self.app.frames.subscribe(self, self._arrange, immediate=True)  # before the panes subscribe
        yield self.status
        yield self.tabs
        yield self.banner
        with Container(id="body"):
            yield from self.panes.values()
        yield self.summary
        yield self.flash
        yield self.foot

    def on_mount(self) -> None:
        self.tabs.keys = dict(self.app.keys)
        self.ranks.focus()
        self.call_after_refresh(self.app.publish)
        background(self, "places", self._find_places())

    async def _find_places(self) -> None:
        """Find the run's directories on this machine, for its card."""
        places = await asyncio.to_thread(self.app.source.places, self.app.run_id)
        self._measures.places = self.card.places = places
        self.app.publish()

    def on_resize(self, event: Resize) -> None:
        self.app.publish()

    # --- layout

    def _arrange(self, frame: Frame) -> None:
        """Place each pane; does nothing if no size has changed."""
        width, height = self.size
        if not width:
            return
        self.lead.to_culprit(frame.state)
        shared = self._measures.arranged(frame, width, height, self.flash.wanted(width))
        if shared != self._shared:
            self._shared = shared
            above = not shows_wrong(width, height, frame.view.pane, frame.state.phase.ended)
            with self.app.batch_update():
                self.banner.findings = above
                self._apply(shared)
            self.placing = True
            self.call_after_refresh(self._placed)

    def _placed(self) -> None:
        """Show the frame that the panes skipped while their layout changed."""
        if self.placing:
            self.placing = False
            self.app.publish()

    def _compositor_refresh(self) -> None:
        """Publish before Textual paints a new layout. A Textual version that does not call this method paints twice."""
        self._placed()
        super()._compositor_refresh()

    def _apply(self, shared: Arrangement) -> None:
        self.set_class(shared.framed, "-framed")
        rows: dict[Widget, int] = {
            self.status: 0 if shared.small else shared.header,
            self.tabs: 0 if shared.small else 1,
            self.banner: shared.banner,
            self.flash: shared.flash,
        }
        for pane, size in rows.items():
            pane.display = size != 0
            pane.styles.height = size or 0
        self.summary.display = shared.small
        self.query_one("#body").display = not shared.small
        self.ranks.beside_gpus = "gpus" in shared.panes
        place(self.panes, shared.panes)
        if self.focused is None or not self.focused.display:
            self.set_focus(
                self._of_pane(shared.main, self.log_view if shared.main == "log" else self.ranks)
            )

    def _of_pane(self, pane: str, other: Widget) -> Widget:
        """Return the widget that receives a pane's keys; `other` if the pane has none."""
        own: dict[str, Widget] = {
            "events": self.events,
            "curves": self.curves,
            "ranks": self.ranks,
            "findings": self.diagnosis.list,
            "nccl": self.nccl.panel,
        }
        return own.get(pane, other)

    # --- keys that only change the view

    def _key_words(self) -> dict[str, str]:
        """Return the footer's words that depend on the run."""
        words = {action: "" for action in ANSWERED if not self.app.allowed(action)}
        follower = self.app.follower
        if follower is not None and follower.state.phase.ended:
            words["restart"] = "run again"
        return words

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action in ANSWERED or self.app.allowed(action)

    def action_pane(self, pane: str) -> None:
        self._from = None
        self.show_pane(pane)

    def show_pane(self, pane: str) -> None:
        self.app.change_view(pane=pane)
        target = self._of_pane(pane, self.log_view if pane == "log" else self.ranks)
        self.call_after_refresh(target.focus)

    def action_back(self) -> None:
        chosen = self.log_view.selection
        if self.app.travel.live() or self.went_back():
            return
        held = self.log_view.display and not self.log_view.follow
        if chosen.pattern:
            self.log_view.select(replace(chosen, pattern=""))
        elif chosen.rank is not None:
            self.log_view.select(replace(chosen, rank=None))
        elif not held:
            self.action_pane("overview")
        if held:
            self.log_view.set_follow(True)

    def action_metric(self) -> None:
        if not self.heat.display:
            self.notify("no heat map here: the tables show these values; it appears with more GPUs")
            return
        at = METRICS.index(self.app.view.metric)
        self.app.change_view(metric=METRICS[(at + 1) % len(METRICS)])

    def action_sort(self) -> None:
        if self.ranks.frame is not None:
            self._sort_by(self.table, next_sort(self.ranks.frame, self.table))

    def action_reverse(self) -> None:
        name = "gpu_reverse" if self.table == "gpus" else "reverse"
        self.app.change_view(**{name: not getattr(self.app.view, name)})

    @property
    def table(self) -> str:
        """The table that the table keys act on."""
        return "gpus" if self.gpus.has_focus else "ranks"

    @on(TablePane.Sorted)
    def _sort_click(self, event: TablePane.Sorted) -> None:
        """Sort by another column, or reverse the order of the current one."""
        name = "gpu_sort" if event.table == "gpus" else "sort"
        if getattr(self.app.view, name) == event.column:
            reverse = "gpu_reverse" if event.table == "gpus" else "reverse"
            self.app.change_view(**{reverse: not getattr(self.app.view, reverse)})
        else:
            self._sort_by(event.table, event.column)

    def _sort_by(self, table: str, column: str) -> None:
        self.app.change_view(**{"gpu_sort" if table == "gpus" else "sort": column})

    def action_columns(self, table: str = "") -> None:
        """Choose the columns of the focused table, or of `table`."""
        pane = self.gpus if (table or self.table) == "gpus" else self.ranks
        frame, view = self.ranks.frame, self.app.view
        if frame is None:
            return
        gpus = pane is self.gpus
        columns, sort = (view.gpu_columns, view.gpu_sort) if gpus else (view.columns, view.sort)
        gone = absent(frame, pane.name_)
        asked = {column.id for column in TABLES[pane.name_] if column.asked}
        on_screen = {id for _, _, id in pane.table.areas} or set(default_ids(pane.name_))
        choice = begin_choice(
            pane.name_,
            columns,
            on_screen | (gone - asked),
            sort,
            view.gpu_reverse if gpus else view.reverse,
        )
        self.app.push_screen(ColumnPicker(choice, gone, view.ascii), self._columns_chosen)

    def _columns_chosen(self, choice: ColumnChoice | None) -> None:
        if choice is not None:
            prefix = "gpu_" if choice.table == "gpus" else ""
            values = {"columns": choice.columns, "sort": choice.sort, "reverse": choice.reverse}
            self._choose(**{prefix + name: value for name, value in values.items()})

    def _choose(self, **fields: object) -> None:
        """Change the view, and save the choice for later cockpits."""
        self.app.change_view(**fields)
        self.app.choose(**fields)

    def action_window(self, step: int) -> None:
        """Make charts show a longer or a shorter time; 0 resets to live and the default window."""
        names = [name for name, _ in WINDOWS]
        at = max(0, min(len(names) - 1, names.index(self.app.view.window) + step))
        if not step:
            self.app.travel.live()
        window = names[at] if step else LIVE_WINDOW
        self.app.change_view(window=window)
        self.app.choose(window="" if window == LIVE_WINDOW else window)

    def action_time(self, dots: int) -> None:
        """Move the whole screen by so many dots of the curves."""
        self.app.travel.step(dots * self.history.dot)

    def action_log_scale(self) -> None:
        self._choose(log_scale=not self.app.view.log_scale)

    def action_pause(self) -> None:
        self.app.change_view(paused=not self.app.view.paused)

    def on_curve_strip_log_wanted(self) -> None:
        self.action_pane("log")

    @on(Events.TimeChosen)
    def _show_time(self, event: Events.TimeChosen) -> None:
        self.app.travel.go(event.at)

    @on(RankTable.Marked)
    def _mark(self, event: RankTable.Marked) -> None:
        self.app.change_view(marked=self.app.view.marked ^ {event.rank})

    @on(RankTable.Moved)
    def _moved(self, event: RankTable.Moved) -> None:
        """On a large overview, show the log of the rank under the cursor."""
        if self.app.view.pane == "overview" and is_large(*self.size) and self.ranks.has_focus:
            self.lead.to(event.rank)

    @on(RankTable.Zoomed)
    def _zoom(self, event: RankTable.Zoomed) -> None:
        self.lead.chosen()
        self.log_view.select(replace(self.log_view.selection, rank=event.rank))
        self.log_view.set_follow(True)
        if not self.log_view.display:
            self.app.change_view(pane="log")
        self.call_after_refresh(self.log_view.focus)

    @on(LogView.Zoomed)
    def _zoom_log(self) -> None:
        """Show the log on the whole screen; there, show the log of the rank that wrote the line."""
        if self.app.view.pane != "log":
            self.action_pane("log")
        elif not self.log_view.to_own_log():
            self.notify("only one rank's log: esc shows all ranks", timeout=2)
        self.call_after_refresh(self.log_view.focus)

    # --- the log

    def action_follow(self) -> None:
        self.log_view.set_follow(not self.log_view.follow)

    def action_stream(self) -> None:
        self.log_view.next_stream()

    def action_hit(self, step: int) -> None:
        if not self.log_view.selection.pattern:
            self.notify("no pattern yet: / sets one")
        elif not self.log_view.to_hit(step):
            self.notify("no hit in the lines that are loaded")

    def action_error(self, step: int) -> None:
        background(self, "error", self._to_error(step), exclusive=True)

    async def _to_error(self, step: int) -> None:
        """Go to the error above or below; if none is loaded, search the rest of the files."""
        log = self.log_view
        try:
            with self.app.refusals("searching for an error"):
                reached = await log.next_error(
                    step, lambda share: log.name_search(f"searching {int(share * 100)} %")
                )
                self.notify(reached or "no error or warning in this log", timeout=2)
        finally:
            log.name_search("")

    def action_log_times(self) -> None:
        names = {"clock": "time of day", "start": "since the attempt began", "step": "since the line above"}
        self.notify(f"times: {names.get(self.log_view.next_times(), 'off')}", timeout=2)

    def action_log_wrap(self) -> None:
        self.log_view.toggle_wrap()

    def action_log_fold(self) -> None:
        folds = self.log_view.toggle_fold()
        self.notify(
            "equal lines of many ranks: as one" if folds else "equal lines of many ranks: each", timeout=2
        )

    def action_log_rule(self) -> None:
        self.log_view.draw_rule()

    def action_log_jump(self, typed: str) -> None:
        """Go to the place of `:line 500` or `:50%`."""
        try:
            why = self.log_view.go_to(jump_of(typed))
        except JumpError as error:
            why = str(error)
        if why:
            self.notify(why, severity="error")
        elif not self.log_view.display:
            self.action_pane("log")

    def action_filter(self) -> None:
        before = self.log_view.selection
        prompt = FilterPrompt(
            before.pattern,
            self._patterns,
            self._filter,
            lambda: self.log_view.state_text,
            self.app.view.ascii,
        )
        self.app.push_screen(prompt, lambda pattern: self._filtered(pattern, before))

    def _filtered(self, pattern: str | None, before: Selection) -> None:
        """Keep the filter when the prompt closes, or restore the previous selection if it was cancelled."""
        if pattern is None:
            self.log_view.select(before)
        elif pattern:
            self._patterns = [*(each for each in self._patterns if each != pattern), pattern]

    def _filter(self, pattern: str) -> str:
        """Show only the lines that match; return "" or the error in the pattern."""
        try:
            compile_grep(pattern)
        except LogError as error:
            return str(error).removeprefix("--grep ")
        self.log_view.select(replace(self.log_view.selection, pattern=pattern, only_hits=True))
        self.log_view.set_follow(True)
        return ""

    def action_copy(self) -> None:
        self.app.keep(self.log_view.chosen_text())

    def action_pager(self) -> None:
        self.app.page(self.log_view.whole_text())

    # --- from a finding to the log

    @on(FindingList.Zoomed)
    def _zoom_finding(self, event: FindingList.Zoomed) -> None:
        """Open the log line that is the finding's evidence, or else the log of its first rank."""
        for finding in event.item.findings:
            for line in finding.evidence:
                place = _AT.fullmatch(clean_text(line))
                if place is not None and named(place["file"]) is not None:
                    self.open_line(place["file"], int(place["line"]), place["text"])
                    return
        ranks = event.item.ranks
        if ranks:
            self._open_log(Selection(rank=ranks[0]))
        else:
            self.notify("this finding names no rank and no line: its details are below")

    @on(StatementRows.Opened)
    def _open_statement(self, event: StatementRows.Opened) -> None:
        if event.line is None:
            self.notify("no single log line contains this")
        else:
            self.open_line(event.line.file, event.line.line, event.line.text)

    def open_line(self, file: str, line: int, text: str) -> None:
        """Show a line in its log; if its file is not of this attempt, show only the line."""
        parsed = named(file)
        state = self.app.follower.state if self.app.follower is not None else None
        current = state is not None and parsed is not None and parsed.attempt in (None, state.attempt)
        if parsed is None or parsed.rank is None or not current:
            self._show_text(f"{file}, line {line}", wrap(clean_text(text), 80))
            return
        self._open_log(
            Selection(rank=parsed.rank, stream=parsed.stream, pattern=pattern_of(clean_text(text)))
        )

    def _open_log(self, selection: Selection) -> None:
        self._from = (self.app.view.pane, self.log_view.selection)
        self.log_view.select(selection)
        self.log_view.set_follow(True)
        self.app.change_view(pane="log")
        self.call_after_refresh(self.log_view.focus)

    def went_back(self) -> bool:
        """Return from an opened line to the pane where the user opened it; False if there is none."""
        if self._from is None or self.app.view.pane != "log":
            self._from = None
            return False
        (pane, before), self._from = self._from, None
        self.log_view.select(before)
        self.log_view.set_follow(True)
        self.show_pane(pane)
        return True

    # --- the NCCL screen

    def action_communicator(self, step: int) -> None:
        self.nccl.choose(step)

    # --- where the ranks are

    def action_stacks(self) -> None:
        """Show the stacks of the marked ranks, or of all, with equal stacks grouped.

        In the past, show the stacks that were recorded then.
        """
        state = self.app.follower.state if self.app.follower is not None else None
        then = self.app.travel.at or 0.0
        if state is None or (state.phase.ended and not then):
            self.notify(
                "the run has ended: there are no ranks to ask; [ goes back to when stacks were taken"
            )
            return
        marked = tuple(sorted(self.app.view.marked & set(state.ranks)))
        background(self, "stacks", self._ask_stacks(marked, then), exclusive=True)

    async def _ask_stacks(self, ranks: tuple[int, ...], then: float) -> None:
        """Request stacks; `then` is the unix time of the shown moment, or 0 for now."""
        follower = self.app.follower
        who = "the marked ranks" if ranks else "every rank"
        if follower is None:
            return
        with self.app.refusals(f"asking {who} for stacks"):
            done = await follower.send(Dump(new_id(), "stacks", ranks, at=then))
            if done.data:
                self.app.show_stacks(done.data, done.text if then else "")
            else:
                self.app.tell(done)

    def _show_text(self, title: str, rows: list[Row]) -> None:
        self.app.push_screen(TextScreen(title, rows, self.app.view.ascii))

    # --- what leaves the screen

    def action_command(self) -> None:
        self.app.ask_line()

    def action_rank_log(self, rank: int) -> None:
        """Show the log of one rank, as for `:logs RANK`."""
        state = self.app.follower.state if self.app.follower is not None else None
        if state is not None and rank not in state.ranks:
            self.notify(f"no rank {rank}: there are {spans_text('rank', state.ranks)}", severity="error")
        else:
            self.lead.chosen()
            self._open_log(replace(self.log_view.selection, rank=rank))

    def action_restart(self) -> None:
        self.app.restart()

    def action_stop(self) -> None:
        self.app.stop()

    def action_nccl(self) -> None:
        self.app.ask_nccl()

    def action_profile(self) -> None:
        self.app.ask_profile()

    def action_shell(self) -> None:
        self.app.shell(self.ranks.current)
