"""What is asked of SkyPilot for a launch (launch.json), and how far that came: on disk, in launch.log and as stages."""

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
from .. import clock, file_io
from ..errors import RunError
from ..file_io import opener
from ..model import Stage, StageChanged
from ..node import package
from .merged_run import LAUNCH_FILE, LOG_FILE, MergedRun

PROGRESS_FILE = "launch.progress.json"
CARGO = "cargo"
"""Folder in the run directory: what SkyPilot copies to ~/.distui of every node, until the job is submitted."""


class SkyRequest(Struct, frozen=True, omit_defaults=True):
    """What is asked of SkyPilot. Secrets are hidden in `task`; their values are in the hub's environment."""

    kind: str
    """"skypilot": this file's reader; other kinds belong to others."""
    cluster: str = ""
    """Its name; of a managed job the job's."""
    task: dict[str, Any] = {}
    bundle: str = ""
    """On the nodes: "~/.distui/bundle-…"."""
    managed: bool = False
    retry_until_up: bool = False
    fast: bool = False
    """A cluster that is up is used as it is: SkyPilot does neither check it nor run `setup:` again."""
    python: str = ""
    """The interpreter that has SkyPilot: a hub that is started from another shell still finds it."""
    reuse: bool = False
    """The user named the cluster: one of that name that is there is taken."""


class LaunchProgress(Struct, frozen=True, omit_defaults=True):
    """How far a launch came."""

    request: str = ""
    """Id of the launch at SkyPilot's API server."""
    job: int | None = None
    """SkyPilot's number of the job, once it was submitted."""


def read(run_dir: Path) -> SkyRequest | None:
    """The order of a run; None where it has none that SkyPilot fulfils."""
    order = file_io.document_or_none(run_dir / LAUNCH_FILE, SkyRequest)
    return order if order is not None and order.kind == "skypilot" else None


def write(run_dir: Path, order: SkyRequest) -> None:
    """Raises OSError."""
    file_io.write_atomically(
        run_dir / LAUNCH_FILE, msgspec.json.format(msgspec.json.encode(order), indent=1)
    )


def progress(run_dir: Path) -> LaunchProgress:
    """How far the launch came; nothing yet where nothing is written."""
    return file_io.document_or_none(run_dir / PROGRESS_FILE, LaunchProgress) or LaunchProgress()


def keep(run_dir: Path, now: LaunchProgress) -> None:
    """Raises OSError."""
    file_io.write_atomically(run_dir / PROGRESS_FILE, msgspec.json.encode(now))


def task(order: SkyRequest) -> dict[str, Any]:
    """The task with its secrets, from this process's environment. Raises RunError when one is not there."""
    made, missing = skypilot.revealed(order.task, os.environ)
    if missing:
        raise RunError(
            f"the value of {', '.join(sorted(missing))} is not known here any more: export it and launch anew"
        )
    return made


def load_cargo(order: SkyRequest, run_dir: Path) -> None:
    """Put the bundle beside what the launch wrote there. Raises RunError."""
    if order.bundle:
        package.lay(order.bundle.rpartition("/")[2], run_dir / CARGO)
        (run_dir / CARGO).chmod(0o700)  # rsync gives ~/.distui the same mode


def unload_cargo(run_dir: Path) -> None:
    """The nodes have it, once there is a job."""
    if progress(run_dir).job is not None:
        shutil.rmtree(run_dir / CARGO, ignore_errors=True)


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


class LaunchLog:
    """The file of SkyPilot's text, as it may be shown."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / LOG_FILE
        self._masker = Masker(secrets_in(os.environ))
        self._rest = ""

    def add(self, text: str) -> list[str]:
        """Take a piece, which may end anywhere, and write the lines that are whole with it. Return these."""
        *whole, self._rest = (self._rest + text).split("\n")
        whole_text = "".join(f"{line}\n" for line in whole)
        lines = clean_lines(self._masker.text(whole_text.encode("utf-8", "replace")))
        with open(self._path, "a", encoding="utf-8", opener=opener) as file:
            file.writelines(f"{line}\n" for line in lines)
        return lines


class LaunchReport:
    """Of one launch."""

    def __init__(self, run: MergedRun) -> None:
        self._run = run
        self._stages = Stages()
        self._since = clock.monotonic()
        self._log = LaunchLog(run.run_dir)
        self._why = ""
        self.provisioned = asyncio.Event()
        """Set when the nodes are there."""
        self.started = asyncio.Event()
        """Set when SkyPilot's text says that the job's processes are being started."""

    @property
    def at(self) -> Stage:
        return self._stages.at or Stage.PROVISION

    @property
    def seconds(self) -> float:
        """How long it has been on."""
        return clock.monotonic() - self._since

    @property
    def job(self) -> int | None:
        """The number of the job that SkyPilot's text names."""
        return self._stages.job

    def hear(self, text: str) -> None:
        """A piece of SkyPilot's text."""
        for line in self._log.add(text):
            self._emit(self._stages.line(line))
        if self._stages.started:
            self.started.set()

    def reached(self, stage: Stage, text: str = "") -> None:
        if self._stages.at is not stage:
            self._emit(self._stages.reach(stage, text))

    def problem(self, text: str) -> None:
        """Something keeps the start from coming to its end; it is tried again."""
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
