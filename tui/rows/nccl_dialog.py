"""The NCCL_DEBUG dialog: the choices, their cost, and the ranks that can apply them. Pure."""

from __future__ import annotations

from collections import Counter
from statistics import median

from msgspec import Struct, field
from msgspec.structs import replace

from ...presets.nccl import (
    DEFAULT_SUBSYS,
    FLOOD_BYTES,
    LEVELS,
    Subsystem,
    cost,
    flood_rate,
    subsystems,
)
from ...runners.run.formatting import duration_short, size_short
from ...runners.run.machine import disk_reserve
from ...runners.run.model import SetNccl
from ...runners.run.nccl_reach import describe_reach, reach, uses_gloo
from ...runners.run.state import RunState
from .frame import name_of
from .glyphs import Row, fit, label_row, labelled

SECONDS: tuple[float | None, ...] = (None, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Durations of a level that the dialog offers; `:nccl` takes any number."""

ENDS_S = 60.0
"""Default duration of a level that logs every collective."""

USUAL = 200.0
"""Collectives per second that are assumed if the rate is unknown."""

_HEAD = 3
"""Rows before the subsystems: level, duration, method."""


class Ways(Struct, frozen=True):
    """The methods that are possible now."""

    live: bool
    text: str
    """One sentence for the dialog."""


def ways(state: RunState, ranks: tuple[int, ...] = ()) -> Ways:
    """Return live if some of these ranks support it, else a restart. () means all ranks."""
    live = not uses_gloo(state) and reach(state, ranks).live_for_any
    return Ways(live, describe_reach(state, ranks))


class Disk(Struct, frozen=True):
    """The disk of the node with the least free space."""

    name: str
    free: int
    total: int
    """Both in bytes."""

    @property
    def room(self) -> int:
        """Bytes that may be written."""
        return max(0, self.free - disk_reserve(self.total))


class NcclForm(Struct, frozen=True, kw_only=True):
    """The current state of the dialog."""

    level: str
    seconds: float | None = None
    restart: bool = False
    chosen: frozenset[str] = frozenset()
    offered: tuple[Subsystem, ...] = ()
    """Subsystems of this NCCL version."""
    ways: Ways = field(default_factory=lambda: Ways(False, ""))
    ranks: tuple[int, ...] = ()
    """() means all."""
    timed: bool = True
    """Whether the duration follows the level; False after the user chose a duration."""
    rate: float | None = None
    """Collectives per second of a rank, by the flight recorder; None if unknown."""
    together: int = 1
    """Maximum number of these ranks on one node."""
    disk: Disk | None = None

    @property
    def subsys(self) -> str:
        """The chosen subsystems as a value of NCCL_DEBUG_SUBSYS."""
        return ",".join(flag.name for flag in self.offered if flag.name in self.chosen)

    @property
    def floods(self) -> bool:
        """Whether the level logs every collective, or is TRACE."""
        return self.level == "TRACE" or flood_rate(self.level, self.subsys, 1.0, 1) > 0


def begin(state: RunState, marked: frozenset[int]) -> NcclForm:
    """Return the initial state of the dialog: the current level of the ranks."""
    levels = {rank.nccl_debug for rank in state.ranks.values()}
    versions = {rank.nccl_version for rank in state.ranks.values() if rank.nccl_version}
    ranks = tuple(sorted(marked & set(state.ranks)))
    possible = ways(state, ranks)
    asked = ranks or tuple(state.ranks)
    level = levels.pop() if len(levels) == 1 else None
    return NcclForm(
        level=level if level in LEVELS else "WARN",
        restart=not possible.live,
        offered=subsystems(versions.pop() if len(versions) == 1 else None),
        ways=possible,
        ranks=ranks,
        rate=collectives_a_second(state),
        together=max(Counter(state.ranks[rank].place.node for rank in asked).values(), default=1),
        disk=_fullest(state, {state.ranks[rank].place.node for rank in asked}),
    )


def collectives_a_second(state: RunState) -> float | None:
    """Return the median over the ranks; None without a flight recorder."""
    rates = []
    for rank in state.ranks.values():
        done = rank.pulse.recent if rank.pulse is not None else ()
        if len(done) > 1 and (took := done[-1].created - done[0].created) > 0:
            rates.append((len(done) - 1) / took)
    return median(rates) if rates else None


def _fullest(state: RunState, nodes: set[int]) -> Disk | None:
    """Return the disk with the least free space among those of these nodes; None if none is known."""
    disks = [
        Disk(name_of(state, number), node.metrics.disk_free, node.metrics.disk_total)
        for number, node in state.nodes.items()
        if number in nodes
        and node.metrics is not None
        and node.metrics.disk_free is not None
        and node.metrics.disk_total is not None
    ]
    return min(disks, key=lambda disk: disk.free, default=None)


def change(form: NcclForm, row: int, step: int) -> NcclForm:
    """Return the form after the value of a row changed to the next (1) or previous (-1) one.

    A level that floods the log gets an end, unless the user chose the duration.
    """
    if row == 1:
        now = SECONDS.index(form.seconds)
        return replace(form, seconds=SECONDS[(now + step) % len(SECONDS)], timed=False)
    if row == 2:
        return replace(form, restart=not form.restart if form.ways.live else True)
    if row == 0:
        form = replace(form, level=LEVELS[(LEVELS.index(form.level) + step) % len(LEVELS)])
    elif row < _HEAD + len(form.offered):
        form = replace(form, chosen=form.chosen ^ {form.offered[row - _HEAD].name})
    if form.timed:
        return replace(form, seconds=ENDS_S if form.floods else None)
    return form


_LABEL = 7


def _choices(choices: list[tuple[str, bool]], width: int) -> str:
    """Return all choices with a mark if they fit; else the chosen one and its number."""
    whole = "  ".join(f"({'x' if on else ' '}) {name}" for name, on in choices)
    if len(whole) <= width:
        return whole
    at = next((at for at, (_, on) in enumerate(choices) if on), 0)
    return f"< {choices[at][0]} >  {at + 1} of {len(choices)}"


def form_rows(form: NcclForm, width: int) -> list[Row]:
    """Return one row per choice, none wider than `width`; brackets mark choices without colour."""
    level = _choices([(name, name == form.level) for name in LEVELS], width - _LABEL)
    spans = [("until changed" if end is None else f"{end:g} s", end == form.seconds) for end in SECONDS]
    way = [("live", not form.restart), ("restart", form.restart)]
    chosen = _choices(way, width - _LABEL) if form.ways.live else "(x) restart of the worker group"
    rows: list[Row] = [
        label_row("level", _LABEL, level),
        label_row("for", _LABEL, _choices(spans, width - _LABEL)),
        label_row("how", _LABEL, chosen),
    ]
    for flag in form.offered:
        on = flag.name in form.chosen
        head = f"[{'x' if on else ' '}] {fit(flag.name, 10)} "
        rows.append(
            ((head, "head" if on else "text"), (fit(flag.text, max(10, width - len(head))).rstrip(), "dim"))
        )
    return rows


def note_rows(form: NcclForm, width: int) -> list[Row]:
    """Return the notes below the choices: ranks that obey, log volume, disk, end."""
    each = USUAL if form.rate is None else max(form.rate, 0.1)
    rate = flood_rate(form.level, form.subsys, each, form.together)
    notes = (
        ("obey", form.ways.text),
        ("writes", _written(form, each)),
        ("disk", _room(form, rate)),
        ("ends", _ends(form)),
    )
    return [row for label, text in notes for row in labelled((fit(label, 7), "dim"), text, width, "dim")]


def _written(form: NcclForm, each: float) -> str:
    words = cost(form.level, form.subsys, float(f"{each:.2g}"), form.together)
    if words:
        return f"{words} a node{', if there are so many' if form.rate is None else ''}"
    if form.level == "TRACE":
        return "without bound where NCCL was built for TRACE, else what INFO does"
    which = "" if form.chosen or form.level != "INFO" else f"{DEFAULT_SUBSYS} (none is chosen): "
    return f"{which}little once the job runs"


def _room(form: NcclForm, rate: float) -> str:
    disk = form.disk
    if disk is None:
        return "how much is free is not known"
    lasts = f": enough for {duration_short(disk.room / rate)}" if rate > 0 else ""
    return f"{size_short(disk.free)} of {size_short(disk.total)} free on {disk.name}{lasts}"


def _ends(form: NcclForm) -> str:
    """Return the end of a flood of log lines."""
    after = "when you change it" if form.seconds is None else f"after {form.seconds:g} s"
    if not form.ways.live:
        return f"{after} (no automatic reset: it cannot be changed live)"
    least = size_short(disk_reserve(form.disk.total)) if form.disk is not None else "5 %"
    return f"{after}; earlier above {FLOOD_BYTES / 1e6:.0f} MB/s a node, or with less than {least} of disk free"


def command(form: NcclForm, command_id: str) -> SetNccl:
    return SetNccl(
        id=command_id,
        level=form.level,
        subsys=form.subsys,
        ranks=form.ranks,
        seconds=form.seconds,
        restart=form.restart,
    )
