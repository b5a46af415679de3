"""The known context of a shell text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .slurm import Slurm


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """The known context of a text. None means unknown."""

    file: str = ""
    """Name of the file in findings."""
    first_line: int = 1
    """Line of the text's first line in the file."""
    nnodes: int | None = None
    gpus: int | None = None
    """Per node."""
    env: Mapping[str, str] = field(default_factory=dict)
    is_task: bool = False
    """True if each node runs this text, as the only job there: a SkyPilot task, a pod, a step of Slurm."""
    exists: Callable[[str], bool] | None = None
    """Return True if a file exists, by its path relative to the text's folder."""
    read: Callable[[str], bytes | None] | None = None
    """Return the content of a file, by its path relative to the text's folder, or None."""
    batch: Slurm | None = None
    """Options of the batch job that runs this text."""
    late: frozenset[str] | None = None
    """Names that the shell of this text expands, if another shell has written the text. None: all names."""
    in_image: bool = False
    """True if the text runs in a container."""
    opened: tuple[str, ...] = ()
    """The files through which this text is started, the first one first."""

    is_submitted: bool = False
    """True if sbatch starts this text, whose #SBATCH lines then count."""

    @property
    def is_own_job(self) -> bool:
        """Return True if a user or sbatch starts this text, not another text as a part of itself."""
        return not self.opened or self.is_submitted

    @property
    def owns_nodes(self) -> bool:
        """Return True if no other job can be on the nodes."""
        is_whole = self.batch is not None and self.batch.takes_whole_nodes
        return is_whole or (self.is_task and self.batch is None)

    def at(self, line: int) -> str:
        return f"{self.file}:{line}" if self.file else f"line {line}"
