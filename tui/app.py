"""The cockpit: one Textual app for the runs of this machine."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from textual.binding import Binding
from textual.events import Event, Key
from textual.filter import LineFilter, Monochrome, NoColor

from ..runners.run import clock
from ..runners.run.errors import LaunchError
from ..runners.run.settings_file import SettingsError, settings_path
from . import terminal
from .alerts import Alerts
from .background import BackgroundWork, after, background, call, keep_running
from .beat import Beat
from .choices import Choices
from .colourless import COLOURLESS, wants_no_colour
from .colours import NAMES, THEMES
from .keymap_file import keymap_path, load_keymap
from .keys import bindings, key_text
from .lending import lend
from .open_run import OpenRun
from .orientation import is_due, remember
from .other_hosts import HOST
from .pacing import PacedDriver
from .permissions import Permissions
from .rows import glyphs
from .rows.frame import ViewOptions
from .rows.glyphs import Row
from .rows.runs import RunEntry
from .rows.themes import THEMES as THEME_WORDS
from .screens.cockpit import Cockpit
from .screens.cockpit_commands import Commands
from .screens.key_dialogs import HelpScreen, OrientationScreen, PaletteScreen, help_entries
from .screens.live_keys import LiveKey
from .screens.run import RunScreen
from .screens.runs import ListPlace, RunList, RunsScreen
from .source import WATCH, LocalSource
from .terminal_output import REPEAT_PROBE
from .type_ahead import TypeAhead

OWN_THEMES = dict(zip(THEME_WORDS, NAMES, strict=True))
"""Names of distui's themes in Textual; Textual's own themes have one name."""

GARBAGE_AFTER_S = 2.0
"""Seconds until the start is over."""

MOST_GARBAGE = 20_000
"""Objects over the frozen ones that trigger a garbage collection.

Samples of 1,024 ranks are 3,000 objects, and create no garbage cycles.
"""


class CockpitApp(Cockpit):
    """Opens runs and screens, and publishes frames of the run on the screen."""

    CSS_PATH = "app.tcss"
    TITLE = "distui"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        *bindings("app"),
        Binding("escape", "leave_place", "back", show=False, id="back.place"),
    ]
    commands: Commands
    """Commands to the run on the screen."""

    def __init__(
        self,
        source: LocalSource,
        run_id: str | None = None,
        *,
        readonly: bool = False,
        ascii_only: bool = False,
        clock: Callable[[], float] = clock.now,
        keys: Path | None = None,
        settings: Path | None = None,
        replay: bool = False,
        in_browser: bool = False,
        orientation: bool = False,
    ) -> None:
        """`in_browser`: the viewer has no terminal on this machine, and may be another person.

        `orientation`: show the most important keys at the start.
        """
        super().__init__()
        self.no_color = wants_no_colour()
        self.source = source
        self.clock = clock
        self.replay = replay
        self.work = BackgroundWork(self)
        self.choices = Choices(self, settings if settings is not None else settings_path(), not in_browser)
        self.permissions = Permissions(readonly, in_browser)
        self.alerts = Alerts(self.write)
        self.type_ahead = TypeAhead(self, self.work.parts, super().on_event)
        self.beat = Beat(lambda: self.call_next(self.tick))
        self.ascii_only = ascii_only
        self.view = self._first_view()
        self.owns_terminal = False
        """Whether signals and a hang-up of the terminal end the app."""
        self._first = run_id
        self._orients = orientation
        self._list_place = ListPlace()
        self._came_from_list = False
        self._keys = keys if keys is not None else keymap_path()
        for theme in THEMES:
            self.register_theme(theme)
        chosen = self.choices.settings.theme
        self.theme = OWN_THEMES.get(chosen, chosen or NAMES[0])

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Remove all colours if NO_COLOR is set; Textual's own filters leave greys."""
        kept = [each for each in super().get_line_filters() if not isinstance(each, Monochrome | NoColor)]
        return [*kept, COLOURLESS] if self.no_color else kept

    def _first_view(self) -> ViewOptions:
        """Return the view of a run that the user has not changed yet."""
        options = self.choices.settings.of_view()
        return ViewOptions(ascii=self.ascii_only, readonly=self.permissions.forced_readonly, **options)

    # --- life

    def refresh_css(self, animate: bool = True) -> None:
        """Apply the theme's colours. At the start the style sheet is not read yet, and is not parsed twice for them."""
        if self.screen_stack:
            super().refresh_css(animate)
        else:
            self.stylesheet.set_variables(self.get_css_variables())

    def on_mount(self) -> None:
        self.work.parts.watch_loop(asyncio.get_running_loop())
        keymap, problems = load_keymap(self._keys)
        self.set_keymap(keymap)
        self.keys = {id: key_text(key.partition(",")[0]) for id, key in keymap.items()}
        for problem in (*problems, *self.choices.problems):
            self.notify(problem, severity="warning", timeout=20)
        if self.owns_terminal:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self._signalled, number)
            self.pacer.greet("" if self.ascii_only else REPEAT_PROBE)
            background(self, "garbage-collector", after(GARBAGE_AFTER_S, collect_from_now))
        self.app_resume_signal.subscribe(
            self, lambda _: call(self, "resume", self.paint_anew), immediate=True
        )
        self.set_class(self.ascii_only, "-ascii")
        self.beat.beaten()
        run = self._first if self._first is not None else _only(self.source.runs())
        if run is None:
            self.action_runs()
        else:
            self.open_run(run)
        if self._orients:
            self.push_screen(OrientationScreen(self.keys), lambda _: remember())

    def _signalled(self, number: int) -> None:
        terminal.end_if_hung_up(128 + number)
        self.exit(return_code=128 + number)

    async def on_unmount(self) -> None:
        self.beat.stop()
        with suppress(SettingsError):
            self.choices.write()
        if self.current is not None:
            await self.current.follower.drop()

    async def on_event(self, event: Event) -> None:
        self.alerts.track_focus(event)
        if isinstance(event, Key):
            self.key_pressed()
        await self.type_ahead.take(event)

    # --- the run on the screen

    def open_run(self, run: str) -> None:
        if self.current is not None:
            background(self, "drop", self.current.follower.drop())
        current = OpenRun(self, run, self.source, self.clock, self.beat, self.publish)
        self.current = self.permissions.run = current
        self.commands = Commands(self, current)
        self.view = self._first_view()
        self.alerts.begin()
        keep_running(self, "follow", current.follower.run)
        while len(self.screen_stack) > 1:
            self.pop_screen()
        self.push_screen(RunScreen(self, current, self.commands))
        self.tick()

    def tick(self) -> None:
        """Run the screen's only heartbeat. A failed one is reported, and the next one still runs."""
        self.beat.beaten()
        call(self, "tick", self._tick)

    def _tick(self) -> None:
        """Publish a frame if there is something new."""
        if self.owns_terminal:
            terminal.end_if_hung_up(128 + signal.SIGHUP)
        self.picture.hurried = False
        current = self.current
        if current is not None and not self.replay:
            self.alerts.ring(current.state, self.clock())
        if current is not None and current.travel.at is None and current.has_news():
            self.publish()
        else:
            self.pacer.pump()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.permissions.allowed(action)

    # --- keys

    def action_leave(self) -> None:
        self.exit(return_code=0)

    def action_help(self, topic: str = "") -> None:
        """Show every key, those of the focused pane first, or those about a topic."""
        keymap, problems = load_keymap(self._keys)
        wrong: list[Row] = [((f"{glyphs.WARN} ", "warn"), (problem, "text")) for problem in problems]
        self.push_screen(HelpScreen(help_entries(self.screen, keymap, self.view.readonly), wrong, topic))

    def action_palette(self) -> None:
        """Run the command that the user chooses."""
        self.push_screen(PaletteScreen(self.screen), self._run_command)

    def _run_command(self, key: LiveKey | None) -> None:
        if key is not None:
            background(self, "action", self.run_action(key.call, key.node))

    def action_help_quit(self) -> None:
        """Explain how to leave; Textual binds Ctrl-C to this action."""
        self.notify("q quits the cockpit; the run goes on (x stops a run)", timeout=8)

    def action_suspend_cockpit(self) -> None:
        """Suspend to the shell, if there is one that can resume the cockpit."""
        if terminal.has_job_control():
            self.action_suspend_process()
        else:
            text = (
                "no shell could bring the cockpit back here: q quits, `distui attach` shows the run again"
            )
            self.notify(text, severity="warning")

    def action_launch(self) -> None:
        """Open the launch form, filled from the run under the cursor of the list, or from the displayed one."""
        from .screens.launch import LaunchScreen

        if isinstance(self.screen, LaunchScreen):
            return
        run, copied = (
            self.screen.list.current if isinstance(self.screen, RunsScreen) else self.current,
            None,
        )
        if run is not None:
            with suppress(LaunchError):
                copied = self.source.form_of(run.id)
        if copied is not None and copied.form.repeats:
            copied = None  # this key begins a launch with a preset
        self.push_screen(LaunchScreen(copied))

    def rerun(self, run: str, name: str) -> None:
        from .screens.rerun import ask_rerun

        ask_rerun(self, run, name)

    def open_form(self, run: str) -> None:
        from .screens.launch import LaunchScreen

        with self.refusals():
            self.push_screen(LaunchScreen(self.source.form_of(run)))

    def action_runs(self) -> None:
        if not isinstance(self.screen, RunsScreen):
            self.push_screen(RunsScreen(self._list_place))

    def return_to_list(self) -> None:
        """Show the list of runs if the run on the screen was opened from it."""
        if self._came_from_list:
            self.action_runs()

    def action_leave_place(self) -> None:
        """Return from a screen outside the run to the previous one; the first screen stays."""
        if len(self.screen_stack) > 2:
            self.pop_screen()

    def on_run_list_opened(self, event: RunList.Opened) -> None:
        if event.run.startswith(HOST):
            background(self, "elsewhere", self._open_elsewhere(event.run), exclusive=True)
            return
        places = [at for at, screen in enumerate(self.screen_stack) if isinstance(screen, RunScreen)]
        self._came_from_list = True
        if self.current is None or event.run != self.current.id or not places:
            self.open_run(event.run)
            return
        while len(self.screen_stack) > places[0] + 1:
            self.pop_screen()

    async def _open_elsewhere(self, entry: str) -> None:
        """Run the cockpit of the host that keeps the run, in this terminal, until the user leaves it."""
        options = {"--readonly": self.permissions.forced_readonly, "--ascii": self.ascii_only}
        flags = [flag for flag, is_set in options.items() if is_set]
        words = list[str]()
        with self.refusals("the host is asked for its distui"):
            words = await self.source.elsewhere.attach_words(entry, *flags)
        if words and (code := lend(self, words)):
            text = f"the cockpit on {words[words.index('--') + 1]} ended with exit code {code}"
            self.notify(text, severity="warning", timeout=20)

    def action_theme(self, word: str = "") -> None:
        """Switch to that theme and save it; without a name, to the next of distui's own."""
        if not word:
            at = NAMES.index(self.theme) if self.theme in NAMES else -1
            word = THEME_WORDS[(at + 1) % len(NAMES)]
        self.theme = OWN_THEMES.get(word, word)
        self.choices.choose(theme=word if self.theme != NAMES[0] else "")
        self.publish()


def collect_from_now() -> None:
    """Exclude the objects of the start from garbage collection."""
    gc.freeze()
    gc.set_threshold(MOST_GARBAGE)
    gc.enable()


def _only(runs: list[RunEntry]) -> str | None:
    """Return the run to show without asking: the only live one, or the only one at all."""
    live = [run for run in runs if run.live]
    chosen = live if live else runs
    return chosen[0].id if len(chosen) == 1 else None


def run_cockpit(source: LocalSource, run_id: str | None, **options: Any) -> int:
    """Show the cockpit until the user leaves it; return the exit status.

    `run_id` None shows the run list, or the only live run. `options` are those of CockpitApp.
    """
    due = not options.get("readonly") and not source.simulated and is_due()
    app = CockpitApp(source, run_id, orientation=due, **options)
    app.owns_terminal = True
    app.driver_class = PacedDriver
    app.run()
    app.work.print_tracebacks()
    current = app.current
    if source.simulated:
        print("`distui demo --hang` trains for real on this machine, and `distui launch` your own script")
    elif (
        not app.return_code and current is not None and current.state.name and not current.state.phase.ended
    ):
        text = f"{current.state.name} goes on; `distui {_verb_of(current)}` shows it again"
        print(terminal.typeable(text, sys.stdout))
    return app.return_code or 0


def _verb_of(run: OpenRun) -> str:
    """Return the verb that opens a run, with its argument."""
    if run.watched:
        return f"watch {run.id.removeprefix(WATCH)}"
    is_shared = os.sep in run.id
    return f"attach {run.id if is_shared else run.state.name}"
