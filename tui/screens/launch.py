"""The launch screen: form, presets, plan."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Horizontal, Vertical
from textual.events import Key, Resize
from textual.screen import Screen

from ...presets.estimate.advice import Advice
from ...presets.finding import PlanError
from ...presets.sanitize import clean_text
from ...runners.launch.estimate_inputs import hardware_here, kind_of_file
from ...runners.launch.launch_form import LaunchForm, LaunchPreview
from ...runners.launch.launch_settings import LOCAL, SKY, kind_of
from ...runners.run.errors import LaunchError, RunError
from ..background import background, stop
from ..rows import advice
from ..rows.form import keys_row
from ..rows.form_estimate import arguments, asked, guided
from ..rows.form_fields import KIND, fields, kind_override, launch_form, repeated_fields
from ..rows.glyphs import Row, wrap
from ..rows.plan_preview import (
    check_title,
    finding_rows,
    folded_plan,
    plan_rows,
    problem_rows,
    yaml_rows,
)
from ..rows.preset_list import repeated_row, title_row, why_rows
from .cockpit import Cockpit
from .flash import Flash
from .launch_candidates import Candidates
from .launch_fields import FormView
from .launch_filling import FormFilling
from .launch_guide import GuideScreen
from .launch_panes import PANES, Details
from .launch_presets import PresetList
from .launch_saving import PresetSaving
from .modal import ConfirmScreen
from .rows_view import StillRows
from .starting import start_and_open

if TYPE_CHECKING:
    from ...presets.model import Loaded
    from ...runners.launch.recent import CopiedForm


TYPING_S = 0.15
"""Seconds without a change of the form before the plan is computed."""
WIDE = 160
"""Minimum columns for the plan next to the form instead of below it."""
WHY = 2
"""Rows of the preset's description."""
WITHOUT_PRESET = "this form repeats a run without a preset: esc, then ^n opens the form with presets"


class LaunchScreen(Screen[None]):
    """Builds a LaunchForm, shows its LaunchPreview, and starts it after a confirmation."""

    app: Cockpit
    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape", "dismiss", "leave the form", id="launch.back"),
        Binding("ctrl+l", "start", "start the run", id="launch.start"),
        Binding("ctrl+s", "save", "save as a preset", id="launch.save"),
        Binding("ctrl+g", "guide", "open the guide", id="launch.guide"),
        Binding("ctrl+r", "recent", "fill in an earlier launch", id="launch.recent"),
        *(
            Binding(f"f{number + 1}", f"pane({number})", f"show {name}", id=f"launch.{name.lower()}")
            for number, name in enumerate(PANES, 1)
        ),
    ]

    def __init__(self, copied: CopiedForm | None = None) -> None:
        """Fill the form with that of a run, or from the last launch."""
        super().__init__()
        self._copied = copied
        self._repeated = copied.form if copied is not None and copied.form.repeats else None
        """The form of a command or a task, of which only options change."""
        self.presets, self.form_view, self.details = PresetList(), FormView(), Details()
        self._filling = FormFilling(self.presets, self.form_view)
        self.top, self.why, self.foot = (
            StillRows(id="title"),
            StillRows(id="why"),
            StillRows(id="launch-keys"),
        )
        self.flash = Flash(self._fit_flash)
        self.candidates = Candidates()
        self.preview: LaunchPreview | None = None
        self.loaded: Loaded | None = None
        """The preset in the form: with another kind of strategy, if the user chose one."""
        self._hardware = ""
        self._guided_fields: frozenset[str] = frozenset()
        """Fields that the guide filled in last."""
        self._shown: tuple[str, tuple[str, ...]] | None = None

    def compose(self) -> ComposeResult:
        yield self.top
        yield self.why
        with Container(id="launch"):
            with Horizontal(id="choose"):
                yield self.presets
                yield self.form_view
            with Vertical(id="plan-box"):
                yield self.candidates
                yield self.details
        yield self.flash
        yield self.foot

    def on_mount(self) -> None:
        self._hardware = hardware_here()
        self.form_view.entitle("form")
        self.candidates.border_title = "SkyPilot offers · Enter to choose"
        self.presets.set_entries(self.app.source.presets())
        self.presets.display = self._repeated is None
        self._filling.begin(self._copied)
        self._open()
        self.form_view.focus()

    def action_recent(self) -> None:
        """Fill the form from the launch before the displayed one."""
        if self._repeated is not None:
            self.notify(WITHOUT_PRESET)
        elif self._filling.go_back():
            self._open()
        else:
            self.notify("no earlier launch to recall")

    def _fit_flash(self) -> None:
        """Show messages in separate rows above the keys, so that they cover nothing."""
        rows = self.flash.wanted(self.size.width)
        self.flash.display = rows > 0
        self.flash.styles.height = rows

    def on_resize(self, event: Resize) -> None:
        width, height = event.size
        self._fit_flash()
        self.set_class(width >= WIDE, "-wide")
        self.query_one("#choose").styles.height = "100%" if width >= WIDE else max(10, (height - 4) // 2)
        self.call_after_refresh(self._draw_why)
        self._draw_keys()

    def on_descendant_focus(self) -> None:
        self._draw_keys()

    def _draw_keys(self) -> None:
        self.foot.set_rows([keys_row(self.size.width, typing=self.focused is self.form_view)])

    # --- the form

    @property
    def form(self) -> LaunchForm:
        """The current form. Raises RunError for an open quote."""
        preset = self.presets.current_name if self._repeated is None else ""
        return launch_form(preset, self.form_view.fields, self.form_view.typed, self._repeated)

    def _open(self) -> None:
        """Show the fields of the selected preset if they are not shown yet, and compute its plan."""
        if self._repeated is not None:
            self.form_view.set_fields(repeated_fields(self._repeated))
            self._draw_why()
            self._renew()
            return
        entry = self.presets.current
        wanted = (self.presets.current_name, kind_override(self.form_view.typed))
        if wanted != self._shown:
            self._shown = wanted
            kind = entry.strategy if entry else ""
            try:
                self.loaded = self.app.source.preset(*wanted) if entry and not entry.problem else None
            except LaunchError:  # the plan shows why
                self.loaded = None
            self.form_view.set_fields(fields(self.loaded, kind, self._hardware))
            self._draw_why()
        self._renew()

    def _draw_why(self) -> None:
        if self._repeated is not None:
            self.top.set_rows([repeated_row(self._repeated.name)])
            self.why.set_rows([])
            return
        self.top.set_rows([title_row(self.presets.current, self.size.width)])
        self.why.set_rows(why_rows(self.presets.current, self.size.width, WHY))

    @on(PresetList.Highlighted)
    def _highlighted(self) -> None:
        self.form_view.forget([KIND])  # it belonged to the previous preset
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

    # --- the preview

    def _renew(self) -> None:
        """Discard the plan and compute it after TYPING_S without a change."""
        self.preview = None
        self.flash.clear()  # the message was about the previous form
        stop(self, "plan")
        try:
            form = self.form
        except RunError as error:
            self._show_preview(LaunchPreview(text="", problems=(str(error),)))
            return
        background(self, "plan", self._plan_soon(form), exclusive=True)
        self.details.put("memory", lambda width: self._memory(form, width))
        through_sky = kind_of(form.place) == SKY and not form.repeats
        self.candidates.display = through_sky
        if through_sky:
            self.candidates.request(form)
        else:
            self.candidates.leave()

    async def _plan_soon(self, form: LaunchForm) -> None:
        """Compute the plan after TYPING_S seconds."""
        await asyncio.sleep(TYPING_S)
        entry = self.presets.current
        if self._repeated is None and (entry is None or entry.problem):
            none = "no preset is chosen: change the search, or esc for all of them"
            self._show_preview(LaunchPreview(text="", problems=(entry.problem if entry else none,)))
        else:
            self._show_preview(await asyncio.to_thread(self.app.source.plan, form))

    def _show_preview(self, preview: LaunchPreview) -> None:
        self.preview = preview
        self.details.put(
            "plan", lambda width: plan_rows(preview, width), "plan ✖" if preview.problems else ""
        )
        self.details.put("YAML", lambda width: yaml_rows(preview, width))
        self.details.put("lint", lambda width: finding_rows(preview, width), check_title(preview))

    def _memory(self, form: LaunchForm, width: int) -> list[Row]:
        if self.loaded is None:
            return []
        try:
            preset = self.app.source.preset(form.preset, form.overrides).preset
            here = self._hardware if kind_of(form.place) == LOCAL else ""
            answer = asked(form, preset, here, kind_of_file(form.script.strip()))
        except (LaunchError, PlanError) as error:
            return problem_rows([str(error)], width)
        if answer is None:
            text = "Enter a model (7B) and a GPU (8xA100-80GB) in the form to see the memory estimate here."
            return wrap(text, width - 1, "dim", first=" ")
        return advice.memory_rows(answer, preset, arguments(form), width)

    def action_pane(self, number: int) -> None:
        """Show a pane: 1 plan, 2 YAML, 3 lint, 4 memory; if it is already shown, focus it."""
        if self.details.pane == PANES[number - 1]:
            self.details.focus()
        self.details.show(PANES[number - 1])

    def action_zoom(self) -> None:
        """Toggle between only the pane and all panes."""
        self.toggle_class("-zoomed")

    def action_onward(self, by: int) -> None:
        """Move the focus to another pane, after it is visible again."""
        self.remove_class("-zoomed")
        self.call_after_refresh(self.focus_next if by > 0 else self.focus_previous)

    def on_key(self, event: Key) -> None:
        """Type a letter into the form if the focused pane has no binding for it; the cockpit's keys are off here."""
        pane, letter = self.focused, event.character
        own = pane is not None and event.key in pane._bindings.key_to_bindings
        if letter is not None and event.is_printable and not own:
            event.stop()
            self.form_view.type_letter(letter)

    # --- guide and save

    def action_guide(self) -> None:
        if self._repeated is not None:
            self.notify(WITHOUT_PRESET)
            return
        self.app.push_screen(GuideScreen(), self._guided)

    def _guided(self, advice: Advice | None) -> None:
        """Fill the form with the advised launch and the model of its estimate."""
        if advice is None or advice.first is None:
            return
        self.presets.go(advice.first.preset.name)
        values = guided(advice, advice.first)
        for name in self._guided_fields - values.keys():
            self.form_view.set(name, "")
        for name, value in values.items():
            self.form_view.set(name, value)
        self._guided_fields = frozenset(values)
        self.details.show("memory")

    def action_save(self) -> None:
        """Ask for the name of a new preset of the user."""
        if self.loaded is None:
            self.notify("there is no preset to build on: choose one first", severity="error")
            return
        with self.app.refusals():
            PresetSaving(self.app, self.presets, self.form_view).ask(self.form)

    # --- start

    async def _ask_hosts(self, form: LaunchForm) -> None:
        """Query the hosts, show the whole plan, then ask for confirmation."""
        self.notify("asking the hosts …")
        self._show_preview(await asyncio.to_thread(self.app.source.plan, form, True))
        self.action_start()

    @on(FormView.Submitted)
    def action_start(self) -> None:
        """Open the confirm page, or show why the form cannot start."""
        preview = self.preview
        if preview is None:
            self.notify("the plan is not ready yet; press Enter again")
        elif preview.problems:
            self.notify(preview.problems[0], severity="error")
        elif preview.open_questions:
            background(self, "plan", self._ask_hosts(self.form), exclusive=True)
        else:
            self._confirm(preview, self.form)

    def _confirm(self, preview: LaunchPreview, form: LaunchForm) -> None:
        """Ask before a launch."""

        def answered(yes: str | None) -> None:
            if yes:
                background(self, "launch", self._launch(form), exclusive=True)

        above: list[Row] = []
        if preview.findings:
            above = [*finding_rows(preview, 86), ()]
        rows, whole = [*above, *folded_plan(preview.text)], [*above, *plan_rows(preview)]
        more = whole if len(rows) < len(whole) else ()
        title = f"Start {form.name}?"
        if not form.repeats:
            title = (
                f"Start {form.option('name') or form.script} with preset {preview.preset or form.preset}?"
            )
        question = ConfirmScreen(clean_text(title), rows, "start", more=more)
        self.app.push_screen(question, answered)

    async def _launch(self, form: LaunchForm) -> None:
        await start_and_open(self.app, self.app.source.launch(form))
