"""Request to SkyPilot for a launch (launch.json), and its progress: on disk, in launch.log and as stages."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ...presets import skypilot
from ...presets.sanitize import clean_lines
from ...presets.secrets import Masker, secrets_in
from ..node import package
from ..run import clock, file_io
from ..run.errors import RunError
from ..run.file_io import opener
from ..run.model import Stage, StageChanged
from .merged_run import LAUNCH_FILE, LOG_FILE, MergedRun

PROGRESS_FILE = "launch.progress.json"
CARGO = "cargo"
"""Folder in the run directory that SkyPilot copies to ~/.distui of every node; removed after the submission."""


class SkyRequest(Struct, frozen=True, omit_defaults=True):
    """Request to SkyPilot. Secrets in `task` are placeholders; their values are in the hub's environment."""

    kind: str
    """Always "skypilot" for this module; other kinds belong to other modules."""
    cluster: str = ""
    """Name of the cluster, or of the managed job."""
    task: dict[str, Any] = {}
    bundle: str = ""
    """Path on the nodes: "~/.distui/bundle-…"."""
    managed: bool = False
    retry_until_up: bool = False
    fast: bool = False
    """Use a running cluster as it is: SkyPilot neither checks it nor runs `setup:` again."""
    python: str = ""
    """SkyPilot's interpreter, so that a hub from another shell finds it, too."""
    reuse: bool = False
    """The user named the cluster: use an existing one of that name."""


class LaunchProgress(Struct, frozen=True, omit_defaults=True):
    """Progress of a launch."""

    request: str = ""
    """Id of the launch at SkyPilot's API server."""
    job: int | None = None
    """SkyPilot's job number; None before the submission."""


def read(run_dir: Path) -> SkyRequest | None:
    """Read the request of a run; None without one for SkyPilot."""
    order = file_io.document_or_none(run_dir / LAUNCH_FILE, SkyRequest)
    return order if order is not None and order.kind == "skypilot" else None


def write(run_dir: Path, order: SkyRequest) -> None:
    """Write the request. Raises OSError."""
    file_io.write_atomically(
        run_dir / LAUNCH_FILE, msgspec.json.format(msgspec.json.encode(order), indent=1)
    )


def progress(run_dir: Path) -> LaunchProgress:
    """Read the progress of the launch; empty if no file exists."""
    return file_io.document_or_none(run_dir / PROGRESS_FILE, LaunchProgress) or LaunchProgress()


def keep(run_dir: Path, now: LaunchProgress) -> None:
    """Write the progress. Raises OSError."""
    file_io.write_atomically(run_dir / PROGRESS_FILE, msgspec.json.encode(now))


def task(order: SkyRequest) -> dict[str, Any]:
    """Return the task with its secrets from this process's environment; raise RunError if one is missing."""
    made, missing = skypilot.revealed(order.task, os.environ)
    if missing:
        raise RunError(
            f"the value of {', '.join(sorted(missing))} is no longer known here: export it and launch again"
        )
    return made


def load_cargo(order: SkyRequest, run_dir: Path) -> None:
    """Add the bundle to the launch's files. Raises RunError."""
    if order.bundle:
        package.lay(order.bundle.rpartition("/")[2], run_dir / CARGO)
        (run_dir / CARGO).chmod(0o700)  # rsync gives ~/.distui this mode, too


def unload_cargo(run_dir: Path) -> None:
    """Remove the cargo after the submission, because the nodes then have it."""
    if progress(run_dir).job is not None:
        shutil.rmtree(run_dir / CARGO, ignore_errors=True)


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
