"""Metrics of a run's past in the viewer: windows that the node sent, and the samples that arrived since.

A visible chart requests its window once, then follows the samples that arrive anyway. Only data of visible charts is
kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec import Struct, field

from ..runners.run.answers import MetricsWindow, Series
from ..runners.run.commands import ReadMetrics
from ..runners.run.wire.client import new_id
from .newest_samples import Key, Want, finite_or_none, latest, newest_values, time_of
from .rows.frame import Frame
from .rows.value_axis import Value

MOST_BUCKETS = 2000
"""Maximum buckets per series."""
MOST_TRACKS = 640
"""Maximum series; the least recently shown are dropped first."""
MOST_LETTERS = 4
"""Maximum ranks that a chart shows individually."""
AGAIN_S = 10.0
"""Seconds before a failed request is repeated."""
HOLE_S = 4.0
"""Seconds without a frame before the missed samples are requested from the node."""
SAMPLE_S = 1
"""Nominal seconds between two samples; the actual interval is sometimes a little longer."""


class Bucket(NamedTuple):
    """Samples of one interval."""

    mean: float
    low: float
    high: float
    samples: int


class Buckets(Struct):
    """One series in buckets of one length; unknown values are None."""

    first: int = 0
    """Number of the first bucket: its start time divided by its length."""
    values: list[Bucket | None] = field(default_factory=list)

    def put(self, number: int, mean: float, low: float, high: float) -> None:
        """Add one sample; samples older than the first bucket are dropped."""
        if not self.values or number - self.first > 4 * MOST_BUCKETS:
            self.first, self.values = number, []
        if number < self.first:
            return
        while self.first + len(self.values) <= number:
            self.values.append(None)
        at = number - self.first
        old = self.values[at]
        if old is None:
            self.values[at] = Bucket(mean, low, high, 1)
        else:
            total, samples = old.mean * old.samples + mean, old.samples + 1
            self.values[at] = Bucket(total / samples, min(old.low, low), max(old.high, high), samples)
        self._trim()

    def count_as(self, samples: int) -> None:
        """Let each bucket count as so many samples."""
        self.values = [None if each is None else each._replace(samples=samples) for each in self.values]

    def take(self, first: int, values: list[Bucket | None]) -> None:
        """Replace the buckets by those of a node; newer live buckets are kept."""
        end = first + len(values)
        newer = self.slice(end, max(0, self.first + len(self.values) - end))
        self.first, self.values = first, values + newer
        self._trim()

    def slice(self, first: int, size: int) -> list[Bucket | None]:
        """Return `size` buckets; None outside the known range."""
        begin, end = first - self.first, first - self.first + size
        before: list[Bucket | None] = [None] * min(size, max(0, -begin))
        after: list[Bucket | None] = [None] * min(size, max(0, end - max(len(self.values), begin)))
        return before + self.values[max(0, begin) : max(0, end)] + after

    def drop_before(self, number: int) -> None:
        """Drop all buckets before this one."""
        over = min(number - self.first, len(self.values))
        if over > 0:
            self.first += over
            del self.values[:over]

    def _trim(self) -> None:
        self.drop_before(self.first + len(self.values) - MOST_BUCKETS)


def bridged(values: list[Bucket | None]) -> list[Bucket | None]:
    """Fill single empty buckets between two others with the bucket before."""
    return [
        values[at - 1]
        if value is None and 0 < at < len(values) - 1 and values[at + 1] is not None
        else value
        for at, value in enumerate(values)
    ]


def _or(value: Value, other: float) -> float:
    return other if value is None else value


class _Track(Struct):
    """All series of one Want, in buckets of one length."""

    want: Want
    seconds: int
    series: dict[Key, Buckets] = field(default_factory=dict)
    of: dict[Key, int] = field(default_factory=dict)
    """Number of ranks or GPUs that are folded into it."""
    asked_from: int | None = None
    """First bucket that was requested from the node."""
    seen_to: int = 0
    """The newest bucket that was seen live or requested."""
    asking: bool = False
    again_at: float = 0.0
    error: str = ""
    most_shown: int = 0
    """Most buckets that a chart has shown at once."""
    sampled: tuple[int, int] | None = None
    """The newest samples that it has: version of the telemetry, and second."""

    def drop_before(self, number: int) -> None:
        """Drop all buckets before this one; a chart that needs them requests them again."""
        if self.asked_from is not None and self.asked_from < number:
            self.asked_from = number
            for buckets in self.series.values():
                buckets.drop_before(number)


class Shown(Struct, frozen=True):
    """One series in the form that charts use."""

    node: int | None
    index: int | None
    of: int
    mean: list[Value]
    low: list[Value]
    high: list[Value]


class Ask(Struct, frozen=True):
    """A request to the node, and the tracks that wait for its answer."""

    read: ReadMetrics
    tracks: tuple[_Track, ...]


class MetricHistory:
    """The tracks of one run. Each paint of a chart calls `show`; `due` returns the requests for the node."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tracks: dict[tuple[Want, int], _Track] = {}
        """Tracks by content and length of buckets; the least recently shown first."""
        self.dot = 1.0
        """Seconds per dot of the last painted curves: the step of the time cursor."""
        self.edge: float | None = None
        """End of the time axis while the past is shown; None for the newest time."""
        self.crosshair: float | None = None
        """Unix time whose values the charts show; None for the newest ones."""
        self.own: dict[int, set[int]] = {}
        """Indexes of the run's GPUs by node, as last known."""
        self._letters: dict[int, int] = {}
        self._due: dict[tuple[str, tuple[int, ...], int, int, int], list[_Track]] = {}

    def letters_of(self, marked: Iterable[int]) -> dict[int, int]:
        """Map marked ranks to letter numbers. A rank keeps its letter while it is marked; four ranks have one."""
        chosen = set(marked)
        self._letters = {rank: at for rank, at in self._letters.items() if rank in chosen}
        free = [at for at in range(MOST_LETTERS) if at not in self._letters.values()]
        self._letters |= dict(zip(sorted(chosen - self._letters.keys()), free, strict=False))
        return self._letters

    # --- what charts show

    def show(
        self, frame: Frame, want: Want, seconds: int, begin: float, size: int, live: bool
    ) -> list[Shown]:
        """Return series of `size` buckets of `seconds` from `begin` (unix seconds); `live` adds the frame's samples.

        Unknown values are None, and are requested.
        """
        track = self._tracks.pop((want, seconds), None)
        if track is None:
            self._forget()
            track = _Track(want, seconds)
        self._tracks[want, seconds] = track
        first = int(begin // seconds)
        newest = _newest(frame, seconds)
        last = first + size - 1
        if live and first <= newest <= last + 1:
            self._follow(frame, track, newest)
            track.most_shown = max(track.most_shown, size)
            track.drop_before(last - 2 * track.most_shown)
        self._need(track, first, min(last, newest))
        shown: list[Shown] = []
        for (node, index), buckets in sorted(track.series.items(), key=lambda item: _order(item[0])):
            values = buckets.slice(first, size)
            if seconds <= SAMPLE_S:  # samples may be slightly late
                values = bridged(values)
            columns = ([None if value is None else value[at] for value in values] for at in range(3))
            shown.append(Shown(node, index, track.of.get((node, index), 1), *columns))
        return shown

    def follow(self, frame: Frame, shown: Iterable[tuple[Want, int]]) -> None:
        """Add the newest samples to these series, whose charts are visible but not painted now."""
        for want, seconds in shown:
            track = self._tracks.get((want, seconds))
            if track is not None:
                self._follow(frame, track, _newest(frame, seconds))

    def note(self, want: Want, seconds: int) -> str:
        """Return that the node is asked, or why it sent no data; "" if it did."""
        track = self._tracks[want, seconds]
        return "reading …" if track.asking else track.error

    def _follow(self, frame: Frame, track: _Track, number: int) -> None:
        """Add the newest samples to the current bucket, once per sample."""
        if number - track.seen_to <= max(1, HOLE_S / track.seconds):
            track.seen_to = max(track.seen_to, number)
        stamp = (frame.state.telemetry_version, int(time_of(frame)))
        if track.sampled == stamp:
            return
        track.sampled = stamp
        for at, values in newest_values(frame, track.want).items():
            mean = sum(values) / len(values)
            track.series.setdefault(at, Buckets()).put(number, mean, min(values), max(values))
            track.of[at] = len(values)

    def _need(self, track: _Track, first: int, last: int) -> None:
        """Schedule a request if the node has to send some of these buckets."""
        covered = track.asked_from is not None and track.asked_from <= first and last <= track.seen_to
        if covered or track.asking or self._clock() < track.again_at or last < first:
            return
        track.asked_from, track.seen_to, track.asking = first, max(track.seen_to, last), True
        self._due.setdefault((track.want.fold, track.want.indexes, track.seconds, first, last), []).append(
            track
        )

    # --- what the node is asked

    def due(self) -> list[Ask]:
        """Return the pending requests, one for all charts of a window. Pass each to `answered` or `refused`."""
        due, self._due = self._due, {}
        asks: list[Ask] = []
        for (fold, indexes, seconds, first, last), tracks in due.items():
            names = tuple(dict.fromkeys(track.want.metric for track in tracks))
            ask = ReadMetrics(
                new_id(),
                float(first * seconds),
                float((last + 1) * seconds),
                buckets=last - first + 1,
                metrics=names,
                fold=fold,
                indexes=indexes,
            )
            asks.append(Ask(ask, tuple(tracks)))
        return asks

    def answered(self, ask: Ask, window: MetricsWindow) -> None:
        """Store a window; buckets of another length are converted if possible."""
        for track in ask.tracks:
            track.asking, track.error = False, window.error
            if window.error:
                track.again_at = self._clock() + AGAIN_S
                continue
            for series in window.series:
                if series.metric == track.want.metric:
                    self._take(track, window, series)

    def refused(self, ask: Ask, why: str) -> None:
        """Record a failed request, which is repeated later."""
        for track in ask.tracks:
            track.asking, track.error, track.asked_from = False, why, None
            track.again_at = self._clock() + AGAIN_S

    def _take(self, track: _Track, window: MetricsWindow, series: Series) -> None:
        fold = track.want.fold
        key: Key = (None if fold == "all" else series.node, series.index if fold == "each" else None)
        fitted = fitted_to(track.seconds, window, series)
        if fitted is not None and series.mean:
            track.series.setdefault(key, Buckets()).take(fitted.first, fitted.values)
            track.of[key] = series.of

    def _forget(self) -> None:
        """Drop the least recently shown tracks."""
        while sum(max(1, len(track.series)) for track in self._tracks.values()) > MOST_TRACKS:
            del self._tracks[next(iter(self._tracks))]


def fitted_to(seconds: int, window: MetricsWindow, series: Series) -> Buckets | None:
    """Return a node's series in buckets of `seconds`; None if it has no valid length.

    Shorter buckets are folded, longer ones repeated.
    """
    begin, length = window.begin, window.seconds
    if not length or not math.isfinite(begin + length):
        return None
    fitted = Buckets(round(begin / seconds))
    low, high = series.low or series.mean, series.high or series.mean
    for at, value in enumerate(series.mean):
        mean = finite_or_none(value)
        if mean is None:
            continue
        since = begin + at * length
        start = int(since // seconds)
        end = max(start + 1, int((since + length) // seconds))
        for number in range(start, end):
            fitted.put(
                number, mean, _or(finite_or_none(low[at]), mean), _or(finite_or_none(high[at]), mean)
            )
    fitted.count_as(seconds)
    return fitted


def _newest(frame: Frame, seconds: int) -> int:
    """Return the number of the bucket that is filled now."""
    return int(latest(frame) // seconds)


def _order(key: Key) -> tuple[int, int]:
    return (-1 if key[0] is None else key[0], -1 if key[1] is None else key[1])
