"""The launch screen: preset, form, and the plan that the form makes, verbatim. Nothing starts from here
before the confirm page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import Screen
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from ..follow import LaunchError, LaunchForm, Preview
from ..placing import SKY, kind_of
from ..rows.launch import plan_rows
from ..widgets.candidates import Candidates
from ..widgets.rows_view import RowsView
from .modal import ConfirmScreen

if TYPE_CHECKING:
    from ...runners.hub.candidates import Candidate
    from ..app import CockpitApp

TYPING_S = 0.15
"""How long the form must be still before the plan is made anew."""

FIELDS = (
    ("script", "script", "train.py"),
    ("args", "arguments", "--steps 1000"),
    ("nproc", "ranks", "as the preset says; a number, gpu or cpu"),
    ("name", "name", "of the run; made from the script"),
    ("env", "environment", "K=V K2=V2"),
    ("nccl", "NCCL_DEBUG", "WARN"),
    ("place", "place", "local; sky, aws, slurm/lab, …; hosts A,B"),
)
"""Field of LaunchForm, label, placeholder."""

NARROW = (("nodes", "nodes", "1"), ("gpus", "GPUs", "H100:8"), ("cpus", "CPUs", "8+"))
"""The same, side by side: what the nodes are."""


class LaunchScreen(Screen[None]):
    """Makes a LaunchForm, shows its Preview, and starts it when asked twice."""

    app: CockpitApp
    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape", "leave", "back", id="launch.back"),
        Binding("ctrl+l", "start", "start", id="launch.start"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.plan_view = RowsView(id="plan")
        self.candidates = Candidates(self._ask)
        self.preview: Preview | None = None
        self._names: list[str] = []

    def compose(self) -> ComposeResult:
        self.plan_view.ascii_only = self.candidates.ascii_only = self.app.view.ascii
        yield Static(" distui · new run", id="title", markup=False)
        with Horizontal(id="launch"):
            yield OptionList(id="presets", compact=True)
            with VerticalScroll(id="form", can_focus=False):
                for name, label, hint in FIELDS:
                    with Horizontal(classes="row"):
                        yield Label(label, classes="field")
                        yield Input(placeholder=hint, compact=True, id=f"form-{name}")
                with Horizontal(classes="row"):
                    for name, label, hint in NARROW:
                        yield Label(label, classes="field" if name == "nodes" else "narrow")
                        yield Input(placeholder=hint, compact=True, id=f"form-{name}")
                yield Static("", id="summary-text", markup=False)
        with Vertical(id="plan-box"):
            yield self.candidates
            yield self.plan_view
        yield Static(
            " Enter start (asks first)   tab next field   esc back", id="launch-keys", markup=False
        )

    async def _ask(self, form: LaunchForm) -> list[Candidate]:
        return await self.app.source.candidates(form)

    def on_mount(self) -> None:
        presets = self.app.source.presets()
        self._names = [preset.name for preset in presets]
        listed = self.query_one("#presets", OptionList)
        listed.add_options([Option(preset.name, id=preset.name) for preset in presets])
        listed.border_title = "preset"
        self.query_one("#form").border_title = "run"
        self.plan_view.border_title = "plan"
        self.candidates.border_title = "nodes that SkyPilot would take · Enter takes their place"
        if presets:
            listed.highlighted = 0
        self.query_one("#form-script", Input).focus()
        self._renew()

    @property
    def form(self) -> LaunchForm:
        """What is typed now."""
        listed = self.query_one("#presets", OptionList)
        at = listed.highlighted or 0
        names = [name for name, _, _ in (*FIELDS, *NARROW)]
        typed = {name: self.query_one(f"#form-{name}", Input).value.strip() for name in names}
        return LaunchForm(preset=self._names[at] if self._names else "", **typed)

    @on(Input.Changed)
    @on(OptionList.OptionHighlighted)
    def _renew(self) -> None:
        form = self.form
        self.preview = None
        self.run_worker(self._make_plan(form), group="plan", exclusive=True)
        through_sky = kind_of(form.place) == SKY
        self.candidates.display = through_sky
        if through_sky:
            self.candidates.look(form)
        else:
            self.candidates.leave()

    @on(Candidates.Taken)
    def _taken(self, event: Candidates.Taken) -> None:
        place = self.query_one("#form-place", Input)
        place.value = event.infra
        place.focus()

    async def _make_plan(self, form: LaunchForm) -> None:
        chosen = next((one for one in self.app.source.presets() if one.name == form.preset), None)
        self.query_one("#summary-text", Static).update(chosen.summary if chosen else "")
        await asyncio.sleep(TYPING_S)
        self.preview = await asyncio.to_thread(self.app.source.plan, form)
        self.plan_view.set_rows(plan_rows(self.preview))

    async def _ask_hosts(self, form: LaunchForm) -> None:
        """The whole plan, and then the question."""
        self.notify("asking the hosts …")
        self.preview = await asyncio.to_thread(self.app.source.plan, form, True)
        self.plan_view.set_rows(plan_rows(self.preview))
        self.action_start()

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self.action_start()

    @on(OptionList.OptionSelected)
    def _picked(self) -> None:
        self.query_one("#form-script", Input).focus()

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
            question = ConfirmScreen(
                f"Start {form.name or form.script} with preset {form.preset}?",
                plan_rows(preview),
                "start",
                self.app.view.ascii,
            )
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
