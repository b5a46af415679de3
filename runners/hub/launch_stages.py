"""SkyPilot's output during a launch: in launch.log, and as stages."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...presets.masker import Masker, secrets_in
from ...presets.sanitize import clean_lines
from ..run import clock
from ..run.file_io import opener
from ..run.model import Stage, StageChanged
from .merged_run import LOG_FILE, MergedRun

# SkyPilot's output during a launch → stage. Pure.
# Sentences of SkyPilot 0.14 (sky/backends/cloud_vm_ray_backend.py, sky/execution.py). Unknown sentences are ignored,
# so another wording only affects the displayed progress.


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
    """Current stage of a launch. Each method yields the events of a line of SkyPilot's output."""

    at: Stage | None = None
    job: int | None = None
    started: bool = False
    """Whether the job's own processes are starting."""

    def line(self, text: str) -> Iterator[StageChanged]:
        """Process one line without escape sequences."""
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
        """Begin a stage and end the previous one. Nothing happens if a later stage is current."""
        if self.at is not None and ORDER.index(stage) < ORDER.index(self.at):
            return
        if self.at is not None and stage is not self.at:
            yield StageChanged(self.at, "done")
        yield StageChanged(stage, "begun", text)
        self.at = stage

    def fail(self, text: str) -> Iterator[StageChanged]:
        """Mark the current stage as failed."""
        yield StageChanged(self.at or Stage.PROVISION, "failed", text)


class LaunchLog:
    """File with SkyPilot's output, with masked secrets."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / LOG_FILE
        self._masker = Masker(secrets_in(os.environ))
        self._rest = ""

    def add(self, text: str) -> list[str]:
        """Add a piece of text, which may end anywhere; write and return the lines that are complete with it."""
        *whole, self._rest = (self._rest + text).split("\n")
        whole_text = "".join(f"{line}\n" for line in whole)
        lines = clean_lines(self._masker.text(whole_text.encode("utf-8", "replace")))
        with open(self._path, "a", encoding="utf-8", opener=opener) as file:
            file.writelines(f"{line}\n" for line in lines)
        return lines


class LaunchReport:
    """Report of one launch."""

    def __init__(self, run: MergedRun) -> None:
        self._run = run
        self._stages = Stages()
        self._since = clock.monotonic()
        self._log = LaunchLog(run.run_dir)
        self._why = ""
        self.provisioned = asyncio.Event()
        """Set once the nodes are provisioned."""
        self.started = asyncio.Event()
        """Set once SkyPilot's output reports the start of the job's processes."""

    @property
    def at(self) -> Stage:
        return self._stages.at or Stage.PROVISION

    @property
    def seconds(self) -> float:
        """Seconds since the begin of the current stage."""
        return clock.monotonic() - self._since

    @property
    def job(self) -> int | None:
        """Job number in SkyPilot's output."""
        return self._stages.job

    def hear(self, text: str) -> None:
        """Process a piece of SkyPilot's output."""
        for line in self._log.add(text):
            self._emit(self._stages.line(line))
        if self._stages.started:
            self.started.set()

    def reached(self, stage: Stage, text: str = "") -> None:
        if self._stages.at is not stage:
            self._emit(self._stages.reach(stage, text))

    def problem(self, text: str) -> None:
        """Report a problem that delays the START stage, which is retried."""
        if text != self._why and self._stages.at is Stage.START:
            self._run.emit(StageChanged(Stage.START, "begun", text))
            self._why = text

    def failed(self, text: str) -> None:
        self._emit(self._stages.fail(text))

    def _emit(self, events: Iterable[StageChanged]) -> None:
        before = self._stages.at
        for event in events:
            self._run.emit(event)
        if self._stages.at is not before:
            self._since = clock.monotonic()
            if self._stages.at is not Stage.PROVISION:
                self.provisioned.set()
