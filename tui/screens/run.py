"""The run screen: its panes, where they are, and which part of it handles a key."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from textual import actions, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container
from textual.events import Resize
from textual.screen import Screen
from textual.widget import Widget

from ..background import background
from ..keys import bindings, name_of
from ..lending import copy
from ..open_run import OpenRun
from ..rows.banner import banner_remedy
from ..rows.charts import STRIP
from ..rows.cycle import following
from ..rows.frame import Frame
from ..rows.idle_keys import Situation, idle_keys
from ..rows.layout import TALL, Arrangement, is_large, shows_findings
from ..rows.layouts import LAYOUTS, TRAIN
from ..rows.tabs import PLACES
from .bars import KeyFooter, TabRow
from .cockpit import Cockpit
from .cockpit_commands import Commands
from .curves import CurveStrip
from .findings_pane import FindingCards
from .flash import Flash
from .guide_line import GuideLine
from .list_filters import ListFilters
from .live_keys import KeyContext
from .log_keys import LogKeys
from .log_opener import LogOpener
from .log_view import LogLead, LogView
from .map_pane import MapPane
from .nccl_board import NcclBoard, StatementRows
from .panes import Banner, Card, Ended, Events, Header, Launch, Summary
from .placing import Measures, place
from .rank_strip import RankStrip
from .run_keys import RunKeys
from .table_panes import GpuTable, RankTable, TablePane

ANSWERED = ("nccl", "stop")
"""Actions whose keys, if not allowed, show the reason."""


class RunScreen(Screen[None]):
    """One run. Keys of `keys.py` with scope "run" act on its parts; the app handles those with scope "app"."""

    app: Cockpit
    BINDINGS: ClassVar[list[Binding]] = bindings("run")  # type: ignore[assignment]

    def __init__(self, app: Cockpit, run: OpenRun, commands: Commands) -> None:
        # If the class is added later, Textual styles all widgets twice.
        super().__init__(classes="-framed" if app.size.height >= TALL else None)
        frames = run.frames
        self.run = run
        self.banner = Banner(frames, id="banner")
        self.map = MapPane(frames, id="map")
        self.launch = Launch(frames, id="launch")
        self.ended = Ended(frames, id="ended")
        self.ranks = RankTable(frames, id="ranks")
        self.tabs = TabRow(frames)
        self.curves = CurveStrip(run, app.choices.settings.metrics or STRIP, id="curves")
        self.status = Header(
            frames, lambda frame: {"loss": self.curves.trend(frame, "train.loss")}, id="status"
        )
        self.strip = RankStrip(run, id="strip")
        self.events = Events(frames, run.travel.go, id="events")
        self.findings = FindingCards(frames)
        self.nccl = NcclBoard(frames, run.id)
        self.log_view = LogView(frames, run.follower.read_log, run.grown, id="log")
        self.gpus = GpuTable(frames, id="gpus")
        self.card = Card(frames, id="card")
        self.summary = Summary(frames, id="summary")
        self.flash = Flash(app.publish)
        self.guide = GuideLine(frames, id="guide")
        self.guide.display = app.source.simulated
        self.foot = KeyFooter(id="footer")
        self._keys_offered = KeyContext()
        self.lead = LogLead(self.log_view)
        self.opener = LogOpener(app, run, self.log_view, self.lead, self.show_pane)
        self.run_keys = RunKeys(app, run, commands)
        self.log_keys = LogKeys(app, self.log_view)
        self.filters = ListFilters(app)
        self._measures = Measures()
        self.placing = False
        """Whether the layout of the panes is changing."""
        self._shared: Arrangement | None = None
        self._displaced: tuple[Widget, Widget] | None = None
        """The pane that lost the focus because a layout has no room for it, and the pane that got it."""

    @property
    def panes(self) -> dict[str, Widget]:
        """The widgets of the body, by their names in rows/layout.py."""
        return {
            "gpus": self.gpus,
            "launch": self.launch,
            "ended": self.ended,
            "map": self.map,
            "ranks": self.ranks,
            "card": self.card,
            "curves": self.curves,
            "strip": self.strip,
            "events": self.events,
            "findings": self.findings,
            "nccl": self.nccl,
            "log": self.log_view,
        }

    def compose(self) -> ComposeResult:
        self.run.frames.subscribe(self, self._arrange, immediate=True)  # before the panes subscribe
        yield self.status
        yield self.tabs
        yield self.banner
        with Container(id="body"):
            yield from self.panes.values()
        yield self.summary
        yield self.flash
        yield self.guide
        yield self.foot

    def on_mount(self) -> None:
        self.tabs.keys = dict(self.app.keys)
        self.findings.keys = self.app.keys
        self.tabs.hidden = tuple(id for id, _, _ in PLACES if not self.app.permissions.allowed(id))
        self.ranks.focus()
        self.call_after_refresh(self.app.publish)
        background(self, "places", self._find_places())

    async def _find_places(self) -> None:
        """Find the run's directories on this machine, for its card."""
        places = await asyncio.to_thread(self.app.source.places, self.run.id)
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
        self._offer_keys()
        self.curves.follow_moment(frame)
        self.lead.to_culprit(frame.state)
        if self.app.source.simulated:
            height -= 1  # for the guide
        log = self.log_view.laid_out.useful.columns
        shared = self._measures.arranged(frame, width, height, self.flash.wanted(width), log)
        if shared != self._shared:
            self._shared = shared
            above = not shows_findings(frame.view.pane, frame.state.phase.ended)
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
        self._keep_focus([shared.main, *shared.panes])

    def _keep_focus(self, panes: Sequence[str]) -> None:
        """Move the focus from a hidden pane to the first visible one of these, and back when it is visible again."""
        focused = self.focused
        targets = [self._focus_target(pane) for pane in panes]
        target = next((widget for widget in targets if widget.display), targets[0])
        if focused is None or not focused.display:
            self._displaced = (focused, target) if focused is not None else None
            self.set_focus(target)
        elif self._displaced is not None and self._displaced[0].display:
            before, substitute = self._displaced
            self._displaced = None
            if focused is substitute:
                self.set_focus(before)

    def _focus_target(self, pane: str) -> Widget:
        """Return the widget that receives the keys of a pane."""
        targets: dict[str, Widget] = {
            "events": self.events,
            "curves": self.curves,
            "findings": self.findings,
            "nccl": self.nccl.panel,
            "log": self.log_view,
            "map": self.map,
        }
        return targets.get(pane, self.ranks)

    # --- keys

    def key_context(self) -> KeyContext:
        """Return the focused pane, and the keys that would do nothing now."""
        state, allowed = self.run.state, self.app.permissions.allowed
        situation = Situation(
            ended=state.phase.ended,
            in_past=self.run.travel.at is not None,
            has_map=self.map.display,
            has_time=self.events.current is not None,
            has_finding=self.findings.current is not None,
            has_pattern=bool(self.log_view.selection.pattern),
            panes=len(self._shared.panes) if self._shared is not None else 0,
            is_maximised=bool(self.app.view.maximised),
        )
        refused = frozenset(action for action in (*ANSWERED, "restart") if not allowed(action))
        words = {"restart": "run again"} if state.phase.ended else {}
        pane = self._focused_pane()
        if pane == "curves":
            words["filter"] = "find metric"
        return KeyContext(pane, idle_keys(situation) | refused, words)

    def _focused_pane(self) -> str:
        """Return the name of the pane that has the focus."""
        if self.focused is not None:
            for name, pane in self.panes.items():
                if pane in self.focused.ancestors_with_self:
                    return name
        return ""

    def _offer_keys(self) -> None:
        """Refresh the footer if other keys act now."""
        context = self.key_context()
        if context != self._keys_offered:
            self._keys_offered = context
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "forward":
            action = name_of(str(parameters[1]))
        return action in ANSWERED or self.app.permissions.allowed(action)

    def action_forward(self, part: str, call: str) -> None:
        """Run an action of a part of this screen: `forward("log", "hit(1)")`."""
        parts: dict[str, object] = {
            "run": self.run_keys,
            "log": self.log_keys,
            "table": self.table,
            "curves": self.curves,
            "map": self.map,
            "nccl": self.nccl,
        }
        _, name, arguments = actions.parse(call)
        getattr(parts[part], f"action_{name}")(*arguments)

    @property
    def table(self) -> TablePane:
        """The table that the table keys act on."""
        return self.gpus if self.gpus.has_focus else self.ranks

    def action_shell(self) -> None:
        self.run_keys.open_shell(self.ranks.current)

    def action_filter(self, words: str = "") -> None:
        """Filter the focused list by words, or ask for them. The curves find a metric. Words filter ranks elsewhere."""
        pane = self._focused_pane()
        if words:
            self.filters.put(pane if self.filters.has(pane) else "ranks", words)
        elif self.filters.has(pane):
            self.filters.open(pane)
        elif pane == "log":
            self.log_keys.action_filter()
        elif pane == "curves":
            self.curves.find_metric()
        else:
            self.notify(
                "this pane has no list to filter: / filters ranks (2), the log (3), findings (6) and events (7)"
            )

    def action_copy_chosen(self) -> None:
        """Copy the chosen lines of the log, or from another pane the remedy of the banner."""
        frame = self.ranks.frame
        remedy = banner_remedy(frame) if frame is not None else ""
        if remedy and self._focused_pane() != "log":
            copy(self.app, remedy)
        elif self.log_view.display:
            self.log_keys.action_copy()
        else:
            self.notify("there is nothing to copy here: y copies lines of the log (3) and remedies (6)")

    def action_node(self, name: str) -> None:
        """Show the GPUs and ranks of one node only."""
        self.filters.put("map", f'node:"{name}"' if " " in name else f"node:{name}")

    def action_maximise(self) -> None:
        """Give the focused pane the whole body, or restore the layout."""
        view = self.app.view
        self.app.change_view(maximised="" if view.maximised else self._focused_pane())

    def action_layout(self) -> None:
        """Switch to the next layout of the overview, and save it."""
        layout = self.app.view.layout
        if self.app.view.pane == "overview" and not self.app.view.maximised:
            layout = following(tuple(LAYOUTS), layout)
        self.app.change_view(pane="overview", layout=layout, maximised="")
        self.app.choices.choose(layout="" if layout == TRAIN else layout)
        self.app.clear_messages()
        self.notify(f"layout: {layout}", timeout=2)

    def action_pause(self) -> None:
        self.app.change_view(paused=not self.app.view.paused)

    def action_pane(self, pane: str) -> None:
        self.opener.forget()
        self.show_pane(pane)

    def show_pane(self, pane: str) -> None:
        self.run.travel.try_again()
        self._displaced = None
        self.app.change_view(pane=pane, maximised="")
        self.set_focus(
            self._focus_target(pane)
        )  # `focus` would wait, and the frames would be painted twice

    def action_back(self) -> None:
        """Undo the newest of: a shown time, an opened line, a filter, one rank's log, a pane; else show the list."""
        if self.filters.release(self._focused_pane()):
            return
        if self.app.view.maximised:
            self.action_maximise()
            return
        undo = (self._show_now, self.curves.forget_found, self.opener.go_back, self.log_keys.release)
        if any(step() for step in undo):
            return
        if self.app.view.pane == "overview":
            self.app.return_to_list()
        else:
            self.action_pane("overview")

    def _show_now(self) -> bool:
        """Remove the crosshair and return to live; False if the screen shows the newest values already."""
        removed = self.curves.cross.remove()
        return self.run.travel.live() or removed

    def action_rank_log(self, rank: int) -> None:
        self.opener.open_rank(rank)

    # --- from one pane to the log

    @on(Events.EventMoved)
    def _moved_in_events(self) -> None:
        self._offer_keys()

    @on(RankTable.Moved)
    def _moved(self, event: RankTable.Moved) -> None:
        """On a large overview, show the log of the rank under the cursor."""
        if self.app.view.pane == "overview" and is_large(*self.size) and self.ranks.has_focus:
            self.lead.to(event.rank)

    @on(RankTable.Zoomed)
    @on(MapPane.Zoomed)
    def _zoom_rank(self, event: RankTable.Zoomed | MapPane.Zoomed) -> None:
        self.opener.zoom_rank(event.rank)

    @on(LogView.Zoomed)
    def _zoom_log(self) -> None:
        self.opener.zoom_line()

    @on(FindingCards.Zoomed)
    def _zoom_finding(self, event: FindingCards.Zoomed) -> None:
        self.opener.open_finding(event.item)

    @on(Events.Failed)
    def _open_failure(self, event: Events.Failed) -> None:
        self.opener.open_failure(event.attempt)

    @on(Events.StacksWanted)
    def _show_stacks(self, event: Events.StacksWanted) -> None:
        self.run_keys.show_stacks_of(event.at)

    @on(StatementRows.Opened)
    def _open_statement(self, event: StatementRows.Opened) -> None:
        if event.line is None:
            self.notify("no single log line contains this")
        else:
            self.opener.open_line(event.line.file, event.line.line, event.line.text)
