"""The cockpit: one Textual app for the runs of this machine."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace
from textual.app import SystemCommand
from textual.binding import Binding
from textual.screen import Screen
from textual.signal import Signal

from ..runners.run import clock
from ..runners.run.model import CaughtUp, Event, GpuTick, HostTick, LogGrew, RankTick
from ..runners.run.settings_file import SettingsError, settings_path
from . import terminal
from .alerts import AlertingApp
from .background import OwnedSignal, after, background, call, keep_running
from .keys import ACTIONS, MUTATING, bindings, help_rows, key_text, keymap_path, load_keymap
from .paint import NAMES, THEMES, Beat, CalmDriver, PacedApp
from .past import copied
from .rows import glyphs
from .rows.frame import Frame, LinkPhase, ViewOptions
from .rows.glyphs import Row
from .rows.run_status import launching
from .rows.runs import RunEntry
from .rows.themes import THEMES as THEME_WORDS
from .screens.cockpit_commands import CommandingApp
from .screens.modal import TextScreen
from .screens.run import RunScreen
from .screens.runs import RunList, RunsScreen
from .source import HOST, WATCH, Follower, LocalSource
from .travel import Travel
from .type_ahead import TypeAheadApp
from .user_settings import keep as keep_settings
from .user_settings import load as load_settings

BESIDE = ("launch", "rerun", "remove", "note", "tags")
"""Actions that do not change the displayed run; only `--readonly` disables them."""

OWN_THEMES = dict(zip(THEME_WORDS, NAMES, strict=True))
"""Names of distui's themes in Textual; Textual's own themes have one name."""

KEEP_AFTER_S = 0.5
"""Seconds from a choice to its writing, so that held keys cause one write."""

GARBAGE_AFTER_S = 2.0
"""Seconds until the start is over."""

MOST_GARBAGE = 20_000
"""Objects over the frozen ones that trigger a garbage collection.

Samples of 1,024 ranks are 3,000 objects, and create no garbage cycles.
"""


class CockpitApp(AlertingApp, CommandingApp, TypeAheadApp, PacedApp):
    """Owns the follower of the run on the screen, and its view options; widgets paint themselves."""

    CSS_PATH = "app.tcss"
    TITLE = "distui"
    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        *bindings("app"),
        Binding("escape", "leave_place", "back", show=False, id="back.place"),
    ]

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
        compare: str = "",
    ) -> None:
        """Create the app; `compare` names a run to compare the first run with."""
        super().__init__()
        self.source = source
        self.follower: Follower | None = None
        self.run_id = ""
        self.frames: Signal[Frame] = OwnedSignal(self, "frames")
        self._settings_path = settings if settings is not None else settings_path()
        self.settings, self._settings_problems = load_settings(self._settings_path)
        self._unkept: dict[str, object] = {}
        """Choices that are not written yet."""
        self.view = ViewOptions(ascii=ascii_only, readonly=readonly, **self.settings.of_view())
        self.clock = clock
        self.owns_terminal = False
        """Whether signals and a hang-up of the terminal end the app."""
        self.beat = Beat(lambda: self.call_next(self.tick))
        self.grown: Signal[None] = OwnedSignal(self, "grown")
        self.travel = Travel(self)
        self.replay = replay
        """Whether this is a replay: the space key toggles playback."""
        self._first, self._compare_first = run_id, compare
        self._forced_readonly = readonly
        self._keys = keys if keys is not None else keymap_path()
        self._painted: object = None
        self._sampled: object = None
        self._held: Frame | None = None
        """The frame that is shown while the screen is paused."""
        self._can: object = None
        """The keys that were enabled at the last paint."""
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = OWN_THEMES.get(self.settings.theme, self.settings.theme or NAMES[0])

    # --- life

    def on_mount(self) -> None:
        keymap, problems = load_keymap(self._keys)
        self.set_keymap(keymap)
        self.keys = {id: key_text(key.partition(",")[0]) for id, key in keymap.items()}
        for problem in (*problems, *self._settings_problems):
            self.notify(problem, severity="warning", timeout=20)
        if self.owns_terminal:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self._signalled, number)
            self.pacer.greet()
            background(self, "garbage-collector", after(GARBAGE_AFTER_S, self._collect_from_now))
        self.app_resume_signal.subscribe(
            self, lambda _: call(self, "resume", self.paint_anew), immediate=True
        )
        self.set_class(self.view.ascii, "-ascii")
        self.beat.beaten()
        self._show_first()

    def _collect_from_now(self) -> None:
        """Exclude the objects of the start from garbage collection."""
        gc.freeze()
        gc.set_threshold(MOST_GARBAGE)
        gc.enable()

    def _show_first(self) -> None:
        run = self._first if self._first is not None else _only(self.source.runs())
        if run is None:
            self.action_runs()
        else:
            self.open_run(run)
            if self._compare_first:
                self.action_compare(self._compare_first)

    def _signalled(self, number: int) -> None:
        terminal.end_if_hung_up(128 + number)
        self.exit(return_code=128 + number)

    async def on_unmount(self) -> None:
        self.beat.stop()
        self._keep_settings(last=True)
        if self.follower is not None:
            await self.follower.drop()

    def open_run(self, run: str) -> None:
        source, old, self.run_id = self.source, self.follower, run
        if old is not None:
            background(self, "drop", old.drop())
        self.follower = Follower(lambda: source.open(run), clock=self.clock, notify=self._schedule_paint)
        options = self.settings.of_view()
        self.view = ViewOptions(ascii=self.view.ascii, readonly=self._forced_readonly, **options)
        self._painted = self._held = None
        self.travel.pause()
        self.travel = Travel(self)
        self.begin_alerts()
        keep_running(self, "follow", self.follower.run)
        self._show(RunScreen(self))
        self.tick()

    def _schedule_paint(self, event: Event | None) -> None:
        """Schedule a frame for news of the follower."""
        if isinstance(event, CaughtUp):
            self.beat.at_once()
        elif isinstance(event, GpuTick | HostTick | RankTick):
            self.beat.stir(sample=True)
        elif isinstance(event, LogGrew):
            self.grown.publish(None)
            self.beat.stir(sample=True)
        else:
            self.beat.stir(sample=False)

    def _show(self, screen: Screen[None]) -> None:
        while len(self.screen_stack) > 1:
            self.pop_screen()
        self.push_screen(screen)

    def tick(self) -> None:
        """Run the screen's only heartbeat. A failed one is reported, and the next one still runs."""
        self.beat.beaten()
        call(self, "tick", self._tick)

    def _tick(self) -> None:
        """Publish a frame if there is something new."""
        if self.owns_terminal:
            terminal.end_if_hung_up(128 + signal.SIGHUP)
        self.picture.hurried = False
        follower = self.follower
        if follower is not None and not self.replay:
            self.ring(follower.state, self.clock())
        if follower is None or self.travel.active:
            self.pacer.pump()
            return
        sampled = (follower.state.telemetry_version, int(self.clock()))
        if sampled != self._sampled or follower.stamp != self._painted:
            self._painted, self._sampled = follower.stamp, sampled
            self.publish()
        else:
            self.pacer.pump()

    def publish(self) -> None:
        follower = self.follower
        if follower is None:
            return
        readonly = self._forced_readonly or follower.readonly
        if readonly != self.view.readonly:
            self.view = replace(self.view, readonly=readonly)
        can = (self.allowed("restart"), self.allowed("stop"))
        if can != self._can:
            self._can = can
            self.refresh_bindings()
        frame = self.live_frame(follower)
        if not self.view.paused:
            self._held = None
        elif self._held is None:
            self._held = dataclasses.replace(frame, state=copied(frame.state))
        if self._held is not None:
            frame = dataclasses.replace(self._held, view=self.view, wall=frame.now)
        with self.pacer.together():
            self.frames.publish(self.travel.frame(frame))

    # --- which time is shown

    def action_at(self, text: str) -> None:
        self.travel.go_to(text)

    def action_play(self) -> None:
        """Toggle playback."""
        self.travel.toggle()

    def action_pace(self, text: str) -> None:
        """Handle `:play`: play at this speed, or toggle playback."""
        speed = text.strip().removesuffix("x").removesuffix("×")
        if not speed:
            self.travel.toggle()
            return
        try:
            number = float(speed)
        except ValueError:
            number = 0.0
        if 0.01 <= number <= 3600:
            self.travel.play(number)
        else:
            self.notify(f"{text!r} is no speed: type play 4", severity="error")

    def action_speed(self, by: int) -> None:
        self.travel.faster(by)

    def action_live(self) -> None:
        self.travel.live()

    def action_compare(self, other: str) -> None:
        """Compare this run with another run; `@2` compares its newest attempt with attempt 2."""
        from .screens.side_by_side import ComparisonScreen

        if not self.run_id or self.run_id.startswith(WATCH):
            self.notify("nothing is recorded of this job that could be compared", severity="error")
            return
        mine, state = self.run_id, self.follower.state if self.follower is not None else None
        title = state.name if state is not None and state.name else mine
        if other.startswith("@"):
            mine, other = f"{mine}@{state.attempt if state is not None else 1}", f"{mine}{other}"
        self.push_screen(ComparisonScreen(mine, other, title, self.view.ascii))

    def action_mark_run(self, kind: str, text: str) -> None:
        if self.run_id.startswith(WATCH) or self._forced_readonly:
            self.notify(self.why_readonly(), severity="error")
            return
        problem = self.mark(kind, text, self.run_id)
        done = f"{kind} written: the list of runs shows it" if text else "the note is taken away"
        self.notify(problem or done, severity="error" if problem else "information")

    # --- permissions

    def _ended(self) -> bool:
        """Whether the displayed run has ended and can be launched again."""
        return (
            self.follower is not None
            and self.follower.state.phase.ended
            and not self.run_id.startswith(WATCH)
        )

    def allowed(self, action: str) -> bool | None:
        """Whether an action is enabled: `--readonly` and the run's end disable the actions that change it."""
        if action == "play":
            return self.replay
        if action not in MUTATING:
            return True
        if action in BESIDE or self._ended():
            return not self._forced_readonly if action in (*BESIDE, "restart") else False
        if self.view.readonly:
            return False
        if self.follower is None:
            return True
        needs_ranks = action in ("restart", "nccl")
        return not (self.follower.state.phase.ended or (needs_ranks and self._launching()))

    def _launching(self) -> bool:
        """Whether the displayed run has no ranks yet."""
        follower = self.follower
        return (
            follower is not None
            and launching(follower.state)
            and follower.status.phase is not LinkPhase.LOST
        )

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.allowed(action)

    # --- keys

    def action_leave(self) -> None:
        self.exit(return_code=0)

    def action_help(self) -> None:
        keymap, problems = load_keymap(self._keys)
        wrong: list[Row] = [((f"{glyphs.WARN} ", "warn"), (problem, "text")) for problem in problems]
        if wrong:
            wrong.append(())
        rows = [*wrong, *help_rows(self.view.readonly, keymap)]
        self.push_screen(TextScreen("Keys", rows, self.view.ascii))

    def action_help_quit(self) -> None:
        """Explain how to leave; Textual binds Ctrl-C to this action."""
        self.notify("q leaves the cockpit; the run goes on (x stops a run)", timeout=8)

    def action_suspend_cockpit(self) -> None:
        """Suspend to the shell, if there is one that can resume the cockpit."""
        if terminal.has_job_control():
            self.action_suspend_process()
        else:
            text = (
                "no shell could bring the cockpit back here: q leaves, `distui attach` shows the run again"
            )
            self.notify(text, severity="warning")

    def action_launch(self) -> None:
        from .screens.launch import LaunchScreen

        if not isinstance(self.screen, LaunchScreen):
            self.push_screen(LaunchScreen(self._run_at_hand()))

    def _run_at_hand(self) -> str:
        """Return the run under the cursor of the list, or the displayed one; "" if there is none."""
        if isinstance(self.screen, RunsScreen):
            return self.screen.list.current.id if self.screen.list.current else ""
        return self.run_id

    def rerun(self, run: str) -> None:
        from .screens.launch import LaunchScreen

        self.push_screen(LaunchScreen(run, True))

    def action_runs(self) -> None:
        if not isinstance(self.screen, RunsScreen):
            self.push_screen(RunsScreen(self.view.ascii))

    def action_leave_place(self) -> None:
        """Return from a screen outside the run to the previous one; the first screen stays."""
        if len(self.screen_stack) > 2:
            self.pop_screen()

    def on_run_list_opened(self, event: RunList.Opened) -> None:
        if event.run.startswith(HOST):
            background(self, "elsewhere", self._open_elsewhere(event.run), exclusive=True)
            return
        shown = self.follower is not None and event.run == self.run_id
        at = next(
            (at for at, screen in enumerate(self.screen_stack) if isinstance(screen, RunScreen)), None
        )
        if not shown or at is None:
            self.open_run(event.run)
            return
        while len(self.screen_stack) > at + 1:
            self.pop_screen()

    async def _open_elsewhere(self, entry: str) -> None:
        """Run the cockpit of the host that keeps the run, in this terminal, until the user leaves it."""
        flags = [
            flag for flag, on in (("--readonly", self._forced_readonly), ("--ascii", self.view.ascii)) if on
        ]
        words = list[str]()
        with self.refusals("the host is asked for its distui"):
            words = await self.source.attach_words(entry, *flags)
        if words and (code := self.lend(words)):
            text = f"the cockpit on {words[words.index('--') + 1]} ended with exit code {code}"
            self.notify(text, severity="warning", timeout=20)

    def action_theme(self, word: str = "") -> None:
        """Switch to that theme and save it; without a name, to the next of distui's own."""
        if not word:
            at = NAMES.index(self.theme) if self.theme in NAMES else -1
            word = THEME_WORDS[(at + 1) % len(NAMES)]
        self.theme = OWN_THEMES.get(word, word)
        self.choose(theme=word if self.theme != NAMES[0] else "")
        self.publish()

    # --- choices for later cockpits

    def choose(self, **fields: object) -> None:
        self.settings = replace(self.settings, **fields)
        if not self._unkept:
            background(self, "settings", after(KEEP_AFTER_S, self._keep_settings))
        self._unkept |= fields

    def _keep_settings(self, last: bool = False) -> None:
        """Write the user's choices. If they cannot be written, they apply only to this cockpit."""
        fields, self._unkept = self._unkept, {}
        if not fields:
            return
        try:
            keep_settings(self._settings_path, fields)
        except SettingsError as error:
            if not last:
                self.notify(str(error), severity="warning", timeout=20)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Return the palette's entries from distui's own table instead of Textual's."""
        for action in ACTIONS:
            if action.scope in ("app", "run") and action.id != "palette":
                name = action.action.partition("(")[0]
                if self.allowed(name) and (action.scope == "app" or hasattr(screen, f"action_{name}")):
                    target = self if action.scope == "app" else screen
                    yield SystemCommand(
                        action.text, f"key {key_text(action.key)}", self._runner(action.action, target)
                    )

        for text, line, do in self.cluster_commands():
            yield SystemCommand(text, line, do)

    def _runner(self, action: str, target: object) -> Callable[[], None]:
        def run() -> None:
            background(self, "action", self.run_action(action, target))  # type: ignore[arg-type]

        return run


def _only(runs: list[RunEntry]) -> str | None:
    """Return the run to show without asking: the only live one, or the only one at all."""
    live = [run for run in runs if run.live]
    chosen = live if live else runs
    return chosen[0].id if len(chosen) == 1 else None


def run_cockpit(source: LocalSource, run_id: str | None, **options: Any) -> int:
    """Show the cockpit until the user leaves it; return the exit status.

    `run_id` None shows the run list, or the only live run. `options` are those of CockpitApp.
    """
    app = CockpitApp(source, run_id, **options)
    app.owns_terminal = True
    app.driver_class = CalmDriver
    app.run()
    app.print_tracebacks()
    state = app.follower.state if app.follower is not None else None
    if not app.return_code and state is not None and state.name and not state.phase.ended:
        run = app.run_id or ""
        verb = f"watch {run.removeprefix(WATCH)}" if run.startswith(WATCH) else f"attach {state.name}"
        print(terminal.typeable(f"{state.name} goes on; `distui {verb}` shows it again", sys.stdout))
    return app.return_code or 0
