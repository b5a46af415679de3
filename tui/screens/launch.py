"""The launch screen: presets, form, and beside them the plan that the form makes, verbatim, with what a check of it
finds. Nothing starts from here before the confirm page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Horizontal, Vertical
from textual.events import Resize
from textual.screen import Screen
from textual.timer import Timer

from ...presets.errors import PlanError
from ...runners.errors import RunError
from ..advising import gpus_here
from ..follow import LaunchError, LaunchForm, Preview
from ..placing import LOCAL, SKY, kind_of
from ..rows import advice
from ..rows.cells import Row, wrap
from ..rows.fields import KIND, fields, kind_override, launch_form
from ..rows.launch import counted, finding_rows, keys_row, plan_rows, problem_rows, yaml_rows
from ..rows.shelf import title_row, why_rows
from ..widgets.candidates import Candidates
from ..widgets.details import PANES, Details
from ..widgets.form import FormView
from ..widgets.rows_view import RowsView
from ..widgets.shelf import PresetList
from .modal import ConfirmScreen

if TYPE_CHECKING:
    from ...presets.guide import Recommendation
    from ...presets.model import Loaded
    from ...runners.hub.candidates import Candidate
    from ..app import CockpitApp

TYPING_S = 0.15
"""How long the form must be still before the plan is made anew."""
WIDE = 160
"""Columns from which the plan stands beside the form, not below it."""
WHY = 2
"""Rows for what the preset is."""


class LaunchScreen(Screen[None]):
    """Makes a LaunchForm, shows its Preview, and starts it when asked twice."""

    app: CockpitApp
    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape", "leave", "back", id="launch.back"),
        Binding("ctrl+l", "start", "start", id="launch.start"),
        Binding("ctrl+s", "save", "save", id="launch.save"),
        Binding("ctrl+g", "guide", "guide", id="launch.guide"),
        *(
            Binding(f"f{number + 1}", f"pane({number})", name, id=f"launch.{name.lower()}")
            for number, name in enumerate(PANES, 1)
        ),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.shelf, self.form_view, self.details = PresetList(), FormView(), Details()
        self.top, self.why, self.foot = RowsView(id="title"), RowsView(id="why"), RowsView(id="launch-keys")
        self.top.can_focus = self.why.can_focus = self.foot.can_focus = False
        self.candidates = Candidates(self._ask)
        self.preview: Preview | None = None
        self.loaded: Loaded | None = None
        """The preset as the form shows it: with another kind of strategy, if one was chosen."""
        self._hardware = ""
        self._soon: Timer | None = None
        self._shown: tuple[str, tuple[str, ...]] | None = None

    def compose(self) -> ComposeResult:
        panes: list[RowsView] = [self.shelf, self.form_view, self.details, self.candidates]
        for view in (*panes, self.top, self.why, self.foot):
            view.ascii_only = self.app.view.ascii
        yield self.top
        yield self.why
        with Container(id="launch"):
            with Horizontal(id="choose"):
                yield self.shelf
                yield self.form_view
            with Vertical(id="plan-box"):
                yield self.candidates
                yield self.details
        yield self.foot

    async def _ask(self, form: LaunchForm) -> list[Candidate]:
        return await self.app.source.candidates(form)

    def on_mount(self) -> None:
        self._hardware = gpus_here()
        self.form_view.entitle("form")
        self.candidates.border_title = "nodes that SkyPilot would take · Enter takes their place"
        self.shelf.set_entries(self.app.source.presets())
        self._open()
        self.form_view.focus()

    def on_resize(self, event: Resize) -> None:
        width, height = event.size
        self.set_class(width >= WIDE, "-wide")
        self.query_one("#choose").styles.height = "100%" if width >= WIDE else max(10, (height - 4) // 2)
        self.call_after_refresh(self._draw_why)
        self.foot.set_rows([keys_row(width)])

    # --- what is chosen and typed

    @property
    def form(self) -> LaunchForm:
        """What is typed now. Raises RunError for an open quote."""
        entry = self.shelf.current
        return launch_form(entry.name if entry else "", self.form_view.fields, self.form_view.typed)

    def _open(self) -> None:
        """Show the fields of the preset at hand, where they are not shown yet, and make its plan."""
        entry = self.shelf.current
        wanted = (entry.name if entry else "", kind_override(self.form_view.typed))
        if wanted != self._shown:
            self._shown = wanted
            kind = entry.strategy if entry else ""
            try:
                self.loaded = self.app.source.preset(*wanted) if entry and not entry.problem else None
            except LaunchError:  # the plan says why
                self.loaded = None
            self.form_view.set_fields(fields(self.loaded, kind, self._hardware))
            self._draw_why()
        self._renew()

    def _draw_why(self) -> None:
        self.top.set_rows([title_row(self.shelf.current, self.size.width)])
        self.why.set_rows(why_rows(self.shelf.current, self.size.width, WHY))

    @on(PresetList.Highlighted)
    def _highlighted(self) -> None:
        self.form_view.forget([KIND])  # it was another preset's
        self._open()

    @on(FormView.Changed)
    def _changed(self, event: FormView.Changed) -> None:
        if event.field == KIND:
            self._open()
        else:
            self._renew()

    @on(PresetList.Chosen)
    def _picked(self) -> None:
        self.form_view.focus()

    @on(Candidates.Taken)
    def _taken(self, event: Candidates.Taken) -> None:
        self.form_view.set("place", event.infra)
        self.form_view.go("place")
        self.form_view.focus()

    # --- what is shown of it

    def _renew(self) -> None:
        """Something changed: the plan is made once the form is still."""
        self.preview = None
        self.workers.cancel_group(self, "plan")
        if self._soon is not None:
            self._soon.stop()
        try:
            form = self.form
        except RunError as error:
            self._show_preview(Preview(text="", problems=(str(error),)))
            return
        self._soon = self.set_timer(TYPING_S, lambda: self._start_plan(form))
        self.details.put("memory", lambda width: self._memory(form, width))
        through_sky = kind_of(form.place) == SKY
        self.candidates.display = through_sky
        if through_sky:
            self.candidates.look(form)
        else:
            self.candidates.leave()

    def _start_plan(self, form: LaunchForm) -> None:
        self.run_worker(self._make_plan(form), group="plan", exclusive=True)

    async def _make_plan(self, form: LaunchForm) -> None:
        entry = self.shelf.current
        if entry is None or entry.problem:
            none = "no preset is chosen: change the search, or esc for all of them"
            self._show_preview(Preview(text="", problems=(entry.problem if entry else none,)))
        else:
            self._show_preview(await asyncio.to_thread(self.app.source.plan, form))

    def _show_preview(self, preview: Preview) -> None:
        self.preview = preview
        self.details.put(
            "plan", lambda width: plan_rows(preview, width), "plan ✖" if preview.problems else ""
        )
        self.details.put("YAML", lambda width: yaml_rows(preview, width))
        self.details.put("lint", lambda width: finding_rows(preview, width), counted(preview.findings))

    def _memory(self, form: LaunchForm, width: int) -> list[Row]:
        if self.loaded is None:
            return []
        try:
            preset = self.app.source.preset(form.preset, form.overrides).preset
            found = advice.asked(form, preset, self._hardware if kind_of(form.place) == LOCAL else "")
        except (LaunchError, PlanError) as error:
            return problem_rows([str(error)], width)
        if found is None:
            text = "Type a model (7B) and a GPU (8xA100-80GB) into the form: here stands what fits, by component."
            return wrap(text, width - 1, "dim", first=" ")
        return advice.memory_rows(found, preset, width)

    def action_pane(self, number: int) -> None:
        """Put a pane in front: 1 plan, 2 YAML, 3 lint, 4 memory."""
        self.details.show(PANES[number - 1])

    def action_zoom(self) -> None:
        """The pane alone, or beside presets and form again."""
        self.toggle_class("-zoomed")

    def action_onward(self, by: int) -> None:
        """To another pane, which has to be there first."""
        self.remove_class("-zoomed")
        self.call_after_refresh(self.focus_next if by > 0 else self.focus_previous)

    # --- guide and save

    def action_guide(self) -> None:
        from .guide import GuideScreen

        self.app.push_screen(GuideScreen(self.app.view.ascii), self._guided)

    def _guided(self, found: Recommendation | None) -> None:
        if found is None:
            return
        self.shelf.go(found.preset)
        told = {
            "nproc": str(found.nproc),
            "nodes": str(found.nodes) if found.nodes > 1 else "",
            "params": found.params,
        }
        counted = {
            "hardware": found.hardware,
            "seq": found.seq,
            "format": found.format,
            "recompute": "true",
        }
        for name, value in (told | counted).items():
            self.form_view.set(name, value)
        self.action_pane(PANES.index("memory") + 1)

    def action_save(self) -> None:
        from .saving import Saving

        Saving(self).ask()

    # --- start

    @on(FormView.Submitted)
    def _submitted(self) -> None:
        self.action_start()

    async def _ask_hosts(self, form: LaunchForm) -> None:
        """The whole plan, and then the question."""
        self.notify("asking the hosts …")
        self._show_preview(await asyncio.to_thread(self.app.source.plan, form, True))
        self.action_start()

    def action_start(self) -> None:
        """The confirm page, or why there is none."""
        preview = self.preview
        if preview is None:
            self.notify("the plan is still being made: once more, please")
        elif preview.problems:
            self.notify(preview.problems[0], severity="error", markup=False)
        elif preview.asks:
            self.run_worker(self._ask_hosts(self.form), group="plan", exclusive=True)
        else:
            form = self.form
            found = [row for row in finding_rows(preview, 86) if preview.findings]
            title = f"Start {form.name or form.script} with preset {form.preset}?"
            rows = [*found, *[()] * bool(found), *plan_rows(preview)]
            question = ConfirmScreen(title, rows, "start", self.app.view.ascii)
            self.app.push_screen(question, lambda yes: self._answered(yes, form))

    def _answered(self, yes: str | None, form: LaunchForm) -> None:
        if yes:
            self.run_worker(self._launch(form), group="launch", exclusive=True)

    async def _launch(self, form: LaunchForm) -> None:
        try:
            run = await self.app.source.launch(form)
        except LaunchError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self.app.open_run(run)

    def action_leave(self) -> None:
        self.dismiss(None)
