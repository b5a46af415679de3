"""Apps on a scripted link, with a clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import scripted as play
import several
import tiers
from looks import FOLDER, Look
from patience import HANG_S
from textual._compositor import Compositor
from textual._context import active_app, visible_screen_stack
from textual._wait import SLEEP_GRANULARITY
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot
from textual.widgets import Input

from distui.presets.sanitize import as_message
from distui.runners.logs import grep, search
from distui.runners.run import clock
from distui.runners.run.model import Event
from distui.tui.app import CockpitApp
from distui.tui.open_run import OpenRun
from distui.tui.rows.runs import RunEntry
from distui.tui.screens.log_view import LogView


@dataclass
class Rig:
    """One app with its source; made by `cockpit`."""

    run_dir: Path
    source: play.ScriptedSource
    now: float = play.NOW
    app: CockpitApp = field(init=False)
    pilot: Pilot[None] = field(init=False)

    @property
    def link(self) -> play.ScriptedLink:
        assert self.source.link is not None
        return self.source.link

    @property
    def run(self) -> OpenRun:
        """The run on the screen."""
        assert self.app.current is not None
        return self.app.current

    async def until(self, wanted: Callable[[], object]) -> None:
        """Let the app work until something is so."""
        end = clock.monotonic() + HANG_S
        while not wanted():
            assert clock.monotonic() < end, "it never happened"
            assert self.app.is_running, "the app has ended"
            self.app.tick()
            await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    def told(self) -> str:
        """What notifications say, unwrapped."""
        return "\n".join(SAID)

    def screen(self) -> str:
        """What the terminal shows now."""
        visible_screen_stack.set(self.app._background_screens)
        return "\n".join(strip.text for strip in self.app.screen._compositor.render_strips())


Start = Callable[..., "Rig"]

SAID: list[str] = []
"""The messages of this test's cockpits."""


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the messages of the cockpit."""
    SAID.clear()
    notify = CockpitApp.notify

    def record(app: CockpitApp, message: str, **options: Any) -> None:
        SAID.append(as_message(message))
        notify(app, message, **options)

    monkeypatch.setattr(CockpitApp, "notify", record)
    return SAID


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Times of day do not depend on where the tests run, and nothing is written to the user's home."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        patch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        patch.setenv("TEXTUAL_ANIMATIONS", "none")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(autouse=True)
def idle(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pilot waits until all that it made has happened, and Textual's timers follow the loop's clock.

    Textual's own wait judges by the processor time of the process, and its timers follow the system's clock.
    """

    async def screen_is_idle(pilot: Pilot[None]) -> bool:
        """Textual sends a message to each widget here, and awaits them all."""
        await asyncio.sleep(SLEEP_GRANULARITY)
        return True

    if not tiers.is_real(request.node):
        monkeypatch.setattr(Pilot, "_wait_for_screen", screen_is_idle)

    async def wait(min_sleep: float = SLEEP_GRANULARITY, max_sleep: float = 1) -> None:
        await asyncio.sleep(SLEEP_GRANULARITY)  # virtual time moves only if nothing is left to do
        app = active_app.get(None)
        while isinstance(app, CockpitApp) and app.is_running and app.type_ahead.busy:
            await asyncio.sleep(SLEEP_GRANULARITY)

    monkeypatch.setattr("textual.pilot.wait_for_idle", wait)
    monkeypatch.setattr("textual.app.wait_for_idle", wait)
    monkeypatch.setattr("textual._time.get_time", clock.monotonic)


@pytest.fixture(autouse=True)
def unseen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose a screen only if the test looks at it, unless the test takes `painted`."""

    def compose_nothing(compositor: Compositor, full: bool = False, **options: object) -> None:
        compositor._dirty_regions.clear()

    if "painted" not in request.fixturenames:
        monkeypatch.setattr(Compositor, "render_update", compose_nothing)


@pytest.fixture
def painted() -> None:
    """Paint whatever changes, as in a terminal."""


_rules: dict[Hashable, list[RuleSet]] = {}
_parse_rules = Stylesheet._parse_rules


@pytest.fixture(autouse=True)
def parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse each style sheet once per process, not once per app."""

    def parse(sheet: Stylesheet, *source: Any, **options: Any) -> list[RuleSet]:
        key = (source, tuple(options.items()), frozenset(sheet._variables.items()))
        if key not in _rules:
            _rules[key] = _parse_rules(sheet, *source, **options)
        return _rules[key]

    monkeypatch.setattr(Stylesheet, "_parse_rules", parse)


@pytest.fixture(autouse=True)
def greps_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search logs in this process, unless the test may start processes; test_log_tail.py compares the two."""
    if not tiers.is_real(request.node):
        monkeypatch.setattr(search, "run_grep", grep.answer)


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cursor that does not blink."""
    monkeypatch.setattr(Input, "_toggle_cursor", lambda field: None)


@pytest.fixture
def rig(tmp_path: Path) -> Start:
    """Makes a Rig; nothing runs yet."""

    def make(
        events: Iterable[tuple[float, Event]] | None = None,
        *,
        runs: Iterable[RunEntry] = (),
        run: str | None = "r-1a2b3c4d",
        readonly: bool = False,
        link_readonly: bool = False,
        ascii_only: bool = False,
        ranks: int = 8,
        lines: int = 30,
        nodes: Iterable[several.Told] | None = None,
    ) -> Rig:
        folder = tmp_path / "run"
        if nodes is None:
            play.write_logs(folder, ranks, lines)
        else:
            several.write_logs(folder)
        script = [] if events is None else play.stamped(events)
        told = several.stamped(nodes) if nodes is not None else script
        link = None if events is None and nodes is None else play.ScriptedLink(folder, told, link_readonly)
        made = Rig(folder, play.ScriptedSource(link, runs))
        made.app = CockpitApp(
            made.source,
            run,
            readonly=readonly,
            ascii_only=ascii_only,
            clock=lambda: made.now,
            keys=tmp_path / "keys.toml",
        )
        return made

    return make


@pytest.fixture
def look(request: pytest.FixtureRequest) -> Look:
    """Compares screens with the file of the test."""
    folder, name = (text.removeprefix("test_") for text in (request.path.stem, request.function.__name__))
    return Look(FOLDER / folder / f"{name}.txt")


def log_text(log: LogView) -> str:
    """All lines that the log pane has loaded."""
    return log.laid_out.text_of(log.laid_out.lines)


@asynccontextmanager
async def shown(rig: Rig, width: int = 80, height: int = 24, *, faults: bool = False) -> AsyncIterator[Rig]:
    """The app running in a terminal of this size. `faults`: parts of it may fail."""
    async with rig.app.run_test(size=(width, height)) as pilot:
        rig.pilot = pilot
        await pilot.pause()
        yield rig
    assert faults or not rig.app.work.tracebacks, "".join(rig.app.work.tracebacks)
