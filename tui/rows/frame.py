"""Everything that one paint shows: the run's state, its link, and the user's view of it.

Also the names of nodes on the screen, and the state of the hub's link to each node.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeVar

from msgspec import Struct

from ...presets.plurals import plural
from ...runners.run.formatting import duration_exact, elapsed, time_of_day
from ...runners.run.freshness import Freshness, freshness, holds
from ...runners.run.model import LinkState
from ...runners.run.samples import Gpu
from ...runners.run.state import Node, Rank, RunState
from ...runners.telemetry.progress import Progress, progress
from . import glyphs
from .glyphs import fit

T = TypeVar("T")


CONNECTING = "connecting…"
"""Text of a pane until the first state of the run has come."""


class LinkPhase(enum.StrEnum):
    """State of the connection to the agent."""

    CONNECTING = "connecting"
    FOLLOWING = "following"
    LOST = "lost"
    """The connection broke; distui retries at `LinkStatus.retry_at`."""
    ENDED = "ended"
    """The run has ended and distui has read everything."""


class LinkStatus(Struct, frozen=True):
    """The connection as the screen shows it; times are unix seconds."""

    phase: LinkPhase
    since: float
    retry_at: float | None = None
    text: str = ""
    """Why the connection broke, in one sentence."""


class ViewOptions(Struct, frozen=True, kw_only=True):
    """The user's choice of what the screen shows; keys change it, events never do."""

    pane: str = "overview"
    """"overview", "ranks", "log", "curves", "nccl", "findings" or "events"."""
    metric: str = "util"
    """Metric of the map of GPUs: a name of METRICS in rows/map_metrics.py."""
    map_filter: str = ""
    """Filter of the map of GPUs; "" shows all."""
    sort: str = ""
    """Column of the rank table; "" puts the worst rank first."""
    reverse: bool = False
    columns: tuple[str, ...] = ()
    """Ids of the rank table's columns, in order; () for those that fit."""
    gpu_sort: str = ""
    gpu_reverse: bool = False
    gpu_columns: tuple[str, ...] = ()
    marked: frozenset[int] = frozenset()
    paused: bool = False
    ascii: bool = False
    readonly: bool = False
    window: str = "5m"
    """Minimum time span of charts: a name of WINDOWS in rows/charts.py."""
    log_scale: bool = False
    """Whether charts have a logarithmic value axis."""
    rank_filter: str = ""
    """Filter of the rank table; "" shows all. The words are those of rows/pane_filters.py."""
    gpu_filter: str = ""
    finding_filter: str = ""
    event_filter: str = ""
    layout: str = "train"
    """Layout of the overview: a name of LAYOUTS in rows/layouts.py."""
    maximised: str = ""
    """The pane that fills the body; "" if the layout holds."""


class Moment(Struct, frozen=True):
    """The time in the past that the whole cockpit shows."""

    at: float
    """Unix seconds."""
    latest: float
    """The end of the time line: now, or the end of the run."""
    step: int | None = None
    averaged_s: float = 0.0
    """Length of the buckets whose means are shown, since single samples are no longer kept; 0.0 for samples."""

    def text(self) -> str:
        """Return `PAST 14:32:07 · step 1210 · 10 s means`."""
        step = "" if self.step is None else f" · step {self.step}"
        means = f" · {self.averaged_s:g} s means" if self.averaged_s else ""
        return f"PAST {time_of_day(self.at)}{step}{means}"


@dataclass(frozen=True, slots=True)
class Frame:
    """All inputs of one paint."""

    state: RunState
    link: LinkStatus
    now: float
    """Unix seconds on this machine."""
    heard: float
    """This machine's clock when the last event arrived; 0.0 before the first."""
    view: ViewOptions = field(default_factory=ViewOptions)
    moment: Moment | None = None
    """The past moment that `state` shows; None for the live state."""
    wall: float | None = None
    """This machine's clock while `state` and `now` are frozen; None if they are current."""
    _derived: dict[object, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def once(self, find: Callable[[Frame], T]) -> T:
        """Return `find(self)`, computed once per frame for all panes. Callers must not change it."""
        if find not in self._derived:
            self._derived[find] = find(self)
        value: T = self._derived[find]
        return value

    @property
    def behind(self) -> float | None:
        """Age of the frozen state in seconds; None if the state is current."""
        return None if self.wall is None else max(0.0, self.wall - self.now)

    @property
    def silence(self) -> float:
        """Seconds since the last event from the agent."""
        return max(0.0, self.now - self.heard) if self.heard else 0.0

    @property
    def quiet(self) -> bool:
        """Whether samples have stopped although a node is connected.

        A hub emits no samples, so a hub without a connected node is never quiet.
        """
        nodes = self.state.nodes.values()
        sampled = not self.state.merged or any(node.link is LinkState.UP for node in nodes)
        return sampled and not holds(self.silence) and not self.state.phase.ended

    @property
    def lost(self) -> bool:
        """Whether the agent cannot be reached now."""
        return self.link.phase is LinkPhase.LOST

    def node_now(self, node: int) -> float:
        """Return the time on the node's clock, without the assumption that it agrees with this machine's.

        A hub runs on its viewer's machine and has converted the times of all nodes to its own clock.
        """
        if self.state.merged:
            return self.now
        entry = self.state.nodes.get(node)
        return (entry.heard if entry else self.now) + self.silence

    def age(self, node: int, sampled: float) -> float | None:
        """Return the age of a sample of this node in seconds; None if there is no sample."""
        return elapsed(sampled, self.node_now(node))

    def fresh(self, node: int, sampled: float) -> bool:
        """Whether a sample is still current."""
        return self._freshness(node, sampled) is Freshness.HOLDS and self.answers(node)

    def usable(self, node: int, sampled: float) -> bool:
        """Whether the screen may show a sample, dim if it is not fresh."""
        return self._freshness(node, sampled) is not Freshness.UNKNOWN

    def _freshness(self, node: int, sampled: float) -> Freshness:
        """Return the freshness of a node's sample. The last samples of a run that has ended stay valid."""
        found: Freshness | None = self._derived.get((node, sampled))
        if found is None:
            found = freshness(sampled, self.node_now(node))
            if self.state.phase.ended and self.age(node, sampled) is not None:
                found = Freshness.HOLDS
            self._derived[node, sampled] = found
        return found

    def answers(self, node: int) -> bool:
        """Whether a node answers, by the state of the hub's link to it."""
        entry = self.state.nodes.get(node)
        silent = entry is not None and entry.link in (LinkState.CONNECTING, LinkState.LOST)
        return self.state.phase.ended or not silent

    def gpus(self, node: Node) -> tuple[Gpu, ...]:
        """Return the node's GPUs if their values are fresh, else ()."""
        return node.gpus if self.fresh(node.node, node.gpu_sampled) else ()


def training_line(frame: Frame) -> Progress:
    """Return the training line, the source of its values for header, table and charts. Use it by `Frame.once`."""
    return progress(frame.state, frame.node_now(0), dim=True)


def gpu_of(rank: Rank, node: Node | None) -> Gpu | None:
    """Return the GPU that a rank uses, by NVML or else by its launch environment."""
    if node is None:
        return None
    if rank.sample is not None and rank.sample.gpu is not None:
        return _by_index(node.gpus, rank.sample.gpu)
    place = rank.place.gpu
    if place is None:
        return None
    return next((gpu for gpu in node.gpus if place in (str(gpu.index), gpu.uuid)), None)


def _by_index(gpus: Sequence[Gpu], index: int) -> Gpu | None:
    """Return the GPU with an index, usually at that place."""
    if 0 <= index < len(gpus) and gpus[index].index == index:
        return gpus[index]
    return next((gpu for gpu in gpus if gpu.index == index), None)


def gpu_owners(frame: Frame) -> dict[tuple[int, int], list[int]]:
    """Map node and index of each known GPU of the run to the ranks that use it."""
    owners: dict[tuple[int, int], list[int]] = {}
    for number, rank in sorted(frame.state.ranks.items()):
        gpu = gpu_of(rank, frame.state.nodes.get(rank.place.node))
        if gpu is not None:
            owners.setdefault((rank.place.node, gpu.index), []).append(number)
    return owners


def gpu_places(state: RunState) -> dict[int, set[int]]:
    """Map each node to the indexes of the GPUs that the run's ranks use; a node whose GPUs are unknown is left out."""
    places: dict[int, set[int]] = {}
    for rank in state.ranks.values():
        index = rank.sample.gpu if rank.sample is not None else None
        if index is None and rank.place.gpu is not None and rank.place.gpu.isdecimal():
            index = int(rank.place.gpu)
        if index is None:
            gpu = gpu_of(rank, state.nodes.get(rank.place.node))
            index = gpu.index if gpu is not None else None
        if index is not None:
            places.setdefault(rank.place.node, set()).add(index)
    return places


Sampled = tuple[int, int | None, Any]
"""Node, index and sample."""


def fresh_gpus(frame: Frame) -> list[Sampled]:
    """Return the GPUs with fresh values: those that the run's ranks use, or all if their GPUs are unknown."""
    own = frame.state.once(gpu_places)
    return [
        (number, gpu.index, gpu)
        for number, node in frame.state.nodes.items()
        for gpu in frame.gpus(node)
        if not own or gpu.index in own.get(number, ())
    ]


class SampleFields:
    """The values of samples by field. Each field is read once for all callers."""

    def __init__(self, samples: Iterable[Sampled], together: Sequence[str]) -> None:
        """Take fields that are read in one pass as `together`, since callers ask for most of them."""
        self._samples = [sample for _, _, sample in samples]
        self._together = together
        self._read: dict[str, Sequence[Any]] = {}

    def of(self, field: str) -> Sequence[Any]:
        """Return one value per sample; None if it is unknown. Raises AttributeError if samples lack the field."""
        if field not in self._read:
            if field not in self._together:
                self._read[field] = [getattr(sample, field) for sample in self._samples]
            elif self._samples:
                rows = map(attrgetter(*self._together), self._samples)
                self._read |= dict(zip(self._together, zip(*rows, strict=True), strict=True))
        return self._read.get(field, ())


def gpu_fields(frame: Frame) -> SampleFields:
    """Return the fields of `fresh_gpus`, for the header and the charts."""
    return SampleFields(frame.once(fresh_gpus), ("util", "mem_used", "mem_total", "power_w"))


def names(state: RunState) -> dict[int, str]:
    """Map each node to its host without the domain, or to the full host if two short names are equal.

    A node with an unknown host is "node 2".
    """
    return state.once(_names)


def _names(state: RunState) -> dict[int, str]:
    short = {number: short_host(node.host) for number, node in state.nodes.items()}
    twice = Counter(short.values())
    return {
        number: (short[number] if twice[short[number]] == 1 else node.host) or f"node {number}"
        for number, node in state.nodes.items()
    }


def short_host(host: str) -> str:
    """Return a host without its domain; an address stays whole."""
    first = host.partition(".")[0]
    return host if first.isdecimal() or not first else first


def name_of(state: RunState, node: int) -> str:
    return names(state).get(node, f"node {node}")


def fit_name(name: str, width: int) -> str:
    """Return a name in exactly `width` columns. A long name loses its front, because hosts differ at their ends."""
    return fit(name if len(name) <= width else f"…{name[1 - width :]}", width)


def silent(state: RunState) -> list[int]:
    """Return the nodes that do not answer although their part of the run goes on."""
    return [
        number
        for number, node in sorted(state.nodes.items())
        if node.phase is None and node.link in (LinkState.CONNECTING, LinkState.LOST)
    ]


def without(state: RunState, missing: Sequence[int]) -> str:
    """Return the missing nodes as `c2`, `c2 and c3`, `5 nodes`."""
    named = [name_of(state, node) for node in missing]
    return " and ".join(named) if len(named) < 3 else plural(len(named), "node")


def link_state(frame: Frame, node: Node) -> tuple[str, str, str] | None:
    """Return glyph, style and words for a node that does not answer; None if it answers or its run has ended.

    Only this place shows for how long, because a counting text is painted each second.
    """
    if node.link not in (LinkState.CONNECTING, LinkState.LOST) or frame.state.phase.ended:
        return None
    since = duration_exact(elapsed(node.link_since, frame.now))
    if node.link is LinkState.CONNECTING:
        return glyphs.STALE, "warn", f"connecting {since}"
    wait = (node.retry_at or 0.0) - frame.now
    next_try = f"next try in {duration_exact(wait)}" if wait >= 1 else "trying now"
    return glyphs.BAD, "bad", f"no answer {since}, {next_try}"
