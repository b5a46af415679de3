"""What a launch tells: SkyPilot's text into launch.log, and the stages that it makes out of it to the viewers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from ...presets.clean import clean_lines
from ...presets.secrets import mask_text
from ..file_io import opener
from ..model import Stage, StageChanged
from .seam import HubForCloud
from .stages import Stages

LOG_FILE = "launch.log"


class LaunchReport:
    """Of one launch."""

    def __init__(self, hub: HubForCloud) -> None:
        self._hub = hub
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
        with open(self._hub.run_dir / LOG_FILE, "a", encoding="utf-8", opener=opener) as file:
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
            self._hub.emit(StageChanged(Stage.START, "begun", text))
            self._why = text

    def failed(self, text: str) -> None:
        """The stage that is on has failed."""
        self._emit(self._stages.fail(text))

    def _emit(self, events: Iterable[StageChanged]) -> None:
        before = self._stages.at
        for event in events:
            self._hub.emit(event)
        if self._stages.at is not before:
            self._since = time.monotonic()
            if self._stages.at is not Stage.PROVISION:
                self.provisioned.set()
