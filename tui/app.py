"""The cockpit: one Textual app over the runs of this machine."""

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

from ..runners import clock
from ..runners.model import CaughtUp, Event, GpuTick, HostTick, LogGrew, RankTick
from ..runners.settings_file import SettingsError, settings_path
from . import terminal
from .alerts import AlertingApp
from .background import OwnedSignal, after, background, call, keep_running
from .cockpit_commands import CommandingApp
from .keys import ACTIONS, MUTATING, bindings, help_rows, key_text, keymap_path, load_keymap
from .paint import NAMES, THEMES, Beat, CalmDriver, PacedApp
from .past import copied
from .rows import glyphs
from .rows.frame import Frame, LinkPhase, ViewOptions
from .rows.glyphs import Row
from .rows.run_status import launching
from .rows.runs import RunEntry
from .screens.modal import TextScreen
from .screens.run import RunScreen
from .screens.runs import RunList, RunsScreen
from .source import HOST, WATCH, Follower, LocalSource
from .travel import Travel
from .type_ahead import TypeAheadApp
from .user_settings import THEMES as THEME_WORDS
from .user_settings import keep as keep_settings
from .user_settings import load as load_settings

BESIDE = ("launch", "rerun", "remove", "note", "tags")
"""What changes no run that is being looked at: only `--readonly` takes it away."""

OWN_THEMES = dict(zip(THEME_WORDS, NAMES, strict=True))
"""What Textual calls them; its own themes have one name."""

KEEP_AFTER_S = 0.5
"""From a choice to its writing: keys that are held down write once."""

GARBAGE_AFTER_S = 2.0
"""When a start is over."""

MOST_GARBAGE = 20_000
"""Objects more than before after which it is looked for: the samples of 1,024 ranks are 3,000, and make none."""


class CockpitApp(AlertingApp, CommandingApp, TypeAheadApp, PacedApp):
    """Owns the follower of the run on the screen, and its view options; widgets own their paint."""

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
        """`compare`: what is shown over the first run."""
        super().__init__()
        self.source = source
        self.follower: Follower | None = None
        self.run_id = ""
        self.frames: Signal[Frame] = OwnedSignal(self, "frames")
        self._settings_path = settings if settings is not None else settings_path()
        self.settings, self._settings_problems = load_settings(self._settings_path)
        self._unkept: dict[str, object] = {}
        """Choices that are still to be written."""
        self.view = ViewOptions(ascii=ascii_only, readonly=readonly, **self.settings.of_view())
        self.clock = clock
        self.owns_terminal = False
        """Whether signals and a hang-up of the terminal end the app."""
        self.beat = Beat(lambda: self.call_next(self.tick))
        self.grown: Signal[None] = OwnedSignal(self, "grown")
        self.travel = Travel(self)
        self.replay = replay
        """Whether the run is played: the space key plays and holds."""
        self._first, self._compare_first = run_id, compare
        self._forced_readonly = readonly
        self._keys = keys if keys is not None else keymap_path()
        self._painted: object = None
        self._sampled: object = None
        self._held: Frame | None = None
        """What is shown while the screen is held."""
        self._can: object = None
        """Which keys worked at the last paint."""
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
        """What the start has made stays: the garbage collector does not visit it again."""
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
        """The follower has news: when are they painted?"""
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
        """The only heartbeat of the screen. One that fails is reported, and the next one comes all the same."""
        self.beat.beaten()
        call(self, "tick", self._tick)

    def _tick(self) -> None:
        """Publish a frame when there is something new."""
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
        """The key: play, and hold."""
        self.travel.toggle()

    def action_pace(self, text: str) -> None:
        """`:play`: at this speed, or as it was."""
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
        """Another run over this one; `@2`: an attempt of this run over its newest."""
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

    # --- what is allowed

    def _ended(self) -> bool:
        """Whether the run on the screen is a run of distui's that has ended: it can be launched again."""
        return (
            self.follower is not None
            and self.follower.state.phase.ended
            and not self.run_id.startswith(WATCH)
        )

    def allowed(self, action: str) -> bool | None:
        """Whether a key works now: `--readonly`, and a run that has ended, take away what changes it."""
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
        state, lost = self.follower.state, self.follower.status.phase is LinkPhase.LOST
        early = launching(state) and not lost and action in ("restart", "nccl")
        return not (state.phase.ended or early)

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
        """Ctrl-C, which Textual binds, ends nothing here."""
        self.notify("q leaves the cockpit; the run goes on (x stops a run)", timeout=8)

    def action_suspend_cockpit(self) -> None:
        """To the shell, where there is one that can bring us back."""
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
        """The run under the cursor of the list, or the one on the screen; "" where there is none."""
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
        """From a place beside the run to where one came from; from the first place there is no way back."""
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
        """The cockpit of the host that keeps the run, in this terminal; leaving it comes back here."""
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
        """The theme of that name, which is kept; without one the next of distui's own."""
        if not word:
            at = NAMES.index(self.theme) if self.theme in NAMES else -1
            word = THEME_WORDS[(at + 1) % len(NAMES)]
        self.theme = OWN_THEMES.get(word, word)
        self.choose(theme=word if self.theme != NAMES[0] else "")
        self.publish()

    # --- what is kept for later cockpits

    def choose(self, **fields: object) -> None:
        self.settings = replace(self.settings, **fields)
        if not self._unkept:
            background(self, "settings", after(KEEP_AFTER_S, self._keep_settings))
        self._unkept |= fields

    def _keep_settings(self, last: bool = False) -> None:
        """Write what was chosen; what cannot be written holds for this cockpit all the same."""
        fields, self._unkept = self._unkept, {}
        if not fields:
            return
        try:
            keep_settings(self._settings_path, fields)
        except SettingsError as error:
            if not last:
                self.notify(str(error), severity="warning", timeout=20)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette: our own table instead of Textual's."""
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
    """The run to show without asking: the only live one, or the only one at all."""
    live = [run for run in runs if run.live]
    chosen = live if live else runs
    return chosen[0].id if len(chosen) == 1 else None


def run_cockpit(source: LocalSource, run_id: str | None, **options: Any) -> int:
    """Show the cockpit until the user leaves it and return the process's exit status; `options`: of CockpitApp.

    `run_id` None shows the run list, or the only live run.
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
