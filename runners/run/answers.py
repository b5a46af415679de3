"""The lines with which an agent answers: its greeting, windows of logs, and windows of curves."""

from __future__ import annotations

from msgspec import Struct


class Series(Struct, frozen=True, omit_defaults=True):
    """One curve of a MetricsWindow: one value per bucket, None without samples."""

    metric: str
    node: int = 0
    """Node number; HUB for a fold of several nodes."""
    index: int | None = None
    """NVML index of the GPU, or the rank; None for a node's own values and for folds."""
    of: int = 1
    """Number of GPUs or ranks in the fold."""
    mean: tuple[float | None, ...] = ()
    low: tuple[float | None, ...] = ()
    """Smallest sample of each bucket; () if it equals the mean in every bucket."""
    high: tuple[float | None, ...] = ()
    samples: tuple[int, ...] = ()
    """Number of samples per bucket, if requested."""


class MetricsWindow(Struct, frozen=True, tag=True):
    """The answer to ReadMetrics. Bucket k begins at `begin + k * seconds`, aligned to the clock."""

    id: str
    begin: float = 0.0
    seconds: float = 1.0
    """Length of a bucket."""
    count: int = 0
    """Number of buckets."""
    series: tuple[Series, ...] = ()
    error: str = ""


class LogWindow(Struct, frozen=True, tag=True):
    """Header of a window; `length` raw bytes follow the line."""

    id: str
    file: str
    offset: int
    """Start of the window in the file: the start of a line if there is one within reach."""
    next: int
    """Offset of the next window."""
    size: int
    """Current size of the file."""
    length: int
    error: str = ""
    times: tuple[tuple[int, float], ...] = ()
    """Pairs (offset, unix time) with offsets in ascending order, as the agent observed them. The bytes between two
    offsets were written between the two times."""
    starts: tuple[int, ...] = ()
    """With a pattern: the offset in the file of each returned line."""
    shift: float = 0.0
    """Seconds that were added to the node's times in `times`; timestamps inside the lines need the same correction."""


class AgentHello(Struct, frozen=True, tag=True):
    """The agent's first line."""

    proto: tuple[int, int]
    version: str
    run: str
    seq: int
    """Newest seq in the journal."""
    node: int = 0
    """Number of the agent's node; HUB for a hub."""
    now: float = 0.0
    """Unix time of the agent, for the hub's clock correction; 0.0 if the agent does not send it."""
