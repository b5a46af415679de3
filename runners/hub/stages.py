"""What SkyPilot prints while it launches → which stage that is. Pure.

Sentences of SkyPilot 0.14 (sky/backends/cloud_vm_ray_backend.py, sky/execution.py); one that is not known changes
nothing, so that another wording costs the progress on the screen and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..model import Stage, StageChanged

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
