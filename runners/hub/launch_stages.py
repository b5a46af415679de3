"""How far a launch is: what SkyPilot prints → launch.log, and the stages that the viewers are shown."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...presets.sanitize import clean_lines
from ...presets.secrets import mask_text
from ..file_io import opener
from ..model import Stage, StageChanged
from .launch_order import LOG_FILE
from .merged_run import MergedRun

# -----------------------------------------------------------------------------------------------------------
# What SkyPilot prints while it launches → which stage that is. Pure.
# Sentences of SkyPilot 0.14 (sky/backends/cloud_vm_ray_backend.py, sky/execution.py); one that is not known changes
# nothing, so that another wording costs the progress on the screen and nothing else.


ORDER = tuple(Stage)
_MARKS: tuple[tuple[str, Stage], ...] = (
    (r"\bLaunching\b", Stage.PROVISION),
    (r"\bInstances? (?:is|are) up\b", Stage.PROVISION),
    (r"\bProvisioning\b|\bPreparing SkyPilot runtime\b", Stage.PROVISION),
    (r"\bSyncing files\b|\bSyncing workdir\b|\bSyncing \(", Stage.SYNC),
    (r"\bSetup (?:detached|completed)\b|\bRunning setup\b|\bJob submitted\b", Stage.SETUP),
)
_JOB = re.compile(r"Job submitted, ID: (\d+)")
_STARTED = re.compile(r"\bJob started\. Streaming logs\b")
_ORNAMENT = re.compile(r"^[\s⚙︎✓✔├└│─]+")


@dataclass(slots=True)
class Stages:
    """Where a launch stands. Each call gives the events that a line of SkyPilot's makes."""

    at: Stage | None = None
    job: int | None = None
    started: bool = False
    """Whether the job's own processes are being started."""

    def line(self, text: str) -> Iterator[StageChanged]:
        """One line, cleaned of escape sequences."""
        match = _JOB.search(text)
        if match:
            self.job = int(match[1])
        self.started = self.started or _STARTED.search(text) is not None
        for pattern, stage in _MARKS:
            if re.search(pattern, text):
                shown = _ORNAMENT.sub("", text).split("  View logs:")[0].strip().rstrip(".")
                yield from self.reach(stage, shown)
                return

    def reach(self, stage: Stage, text: str = "") -> Iterator[StageChanged]:
        """That stage is on: those before it are done. Nothing where a later one is on already."""
        if self.at is not None and ORDER.index(stage) < ORDER.index(self.at):
            return
        if self.at is not None and stage is not self.at:
            yield StageChanged(self.at, "done")
        yield StageChanged(stage, "begun", text)
        self.at = stage

    def fail(self, text: str) -> Iterator[StageChanged]:
        """The stage that is on did not come to its end."""
        yield StageChanged(self.at or Stage.PROVISION, "failed", text)


# -----------------------------------------------------------------------------------------------------------
# SkyPilot's text into launch.log, and the stages that it makes out of it to the viewers.


class LaunchReport:
    """Of one launch."""

    def __init__(self, run: MergedRun) -> None:
        self._run = run
        self._stages = Stages()
        self._since = time.monotonic()
        self._rest = ""
        self._why = ""
        self.provisioned = asyncio.Event()
        """Set when the nodes are there."""
        self.started = asyncio.Event()
        """Set when SkyPilot's text says that the job's processes are being started."""

    @property
    def at(self) -> Stage:
        """The stage that is on."""
        return self._stages.at or Stage.PROVISION

    @property
    def seconds(self) -> float:
        """How long it has been on."""
        return time.monotonic() - self._since

    @property
    def job(self) -> int | None:
        """The number of the job that SkyPilot's text names."""
        return self._stages.job

    def hear(self, text: str) -> None:
        """A piece of SkyPilot's text."""
        *whole, self._rest = (self._rest + text).split("\n")
        lines = clean_lines(mask_text("".join(f"{line}\n" for line in whole)).encode("utf-8", "replace"))
        with open(self._run.run_dir / LOG_FILE, "a", encoding="utf-8", opener=opener) as file:
            file.writelines(f"{line}\n" for line in lines)
        for line in lines:
            self._emit(self._stages.line(line))
        if self._stages.started:
            self.started.set()

    def reached(self, stage: Stage, text: str = "") -> None:
        """That stage is on."""
        if self._stages.at is not stage:
            self._emit(self._stages.reach(stage, text))

    def problem(self, text: str) -> None:
        """Something keeps the start from coming to its end; it is tried again."""
        if text != self._why and self._stages.at is Stage.START:
            self._run.emit(StageChanged(Stage.START, "begun", text))
            self._why = text

    def failed(self, text: str) -> None:
        """The stage that is on has failed."""
        self._emit(self._stages.fail(text))

    def _emit(self, events: Iterable[StageChanged]) -> None:
        before = self._stages.at
        for event in events:
            self._run.emit(event)
        if self._stages.at is not before:
            self._since = time.monotonic()
            if self._stages.at is not Stage.PROVISION:
                self.provisioned.set()
