"""The known context of a shell text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """The known context of a text. None means unknown."""

    file: str = ""
    """Name of the file in findings."""
    nnodes: int | None = None
    gpus: int | None = None
    """Per node."""
    env: Mapping[str, str] = field(default_factory=dict)
    is_task: bool = False
    """True if each node of a SkyPilot cluster without other jobs runs this text."""
    exists: Callable[[str], bool] | None = None
    """Return True if a file exists, by its path relative to the text's folder."""

    def at(self, line: int) -> str:
        return f"{self.file}:{line}" if self.file else f"line {line}"
