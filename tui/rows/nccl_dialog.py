"""The NCCL_DEBUG dialog: the choices, their cost, and the ranks that can apply them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from statistics import median

from msgspec import Struct, field
from msgspec.structs import replace

from ...presets.nccl import (
    DEFAULT_SUBSYS,
    FLOOD_BYTES,
    LATER_LEVELS,
    LEVELS,
    Subsystem,
    cost,
    flood_rate,
    subsystems,
)
from ...runners.run.commands import SetNccl
from ...runners.run.formatting import duration_short, size_short
from ...runners.run.machine import disk_reserve
from ...runners.run.nccl_reach import describe_reach, reach, uses_gloo
from ...runners.run.state import RunState
from .cycle import following
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


class Methods(Struct, frozen=True):
    """The methods of a change that are possible now."""

    live: bool
    text: str
    """One sentence for the dialog."""
    restart: bool = True
    """False if a restart would change nothing, because the ranks do not use NCCL."""


def methods(state: RunState, ranks: tuple[int, ...] = ()) -> Methods:
    """Return live if some of these ranks support it, else a restart. () means all ranks."""
    live = reach(state, ranks).live_for_any
    return Methods(live, describe_reach(state, ranks), restart=not uses_gloo(state))


class Disk(Struct, frozen=True):
    """The disk of a run directory."""

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
    levels: tuple[str, ...] = LEVELS
    is_current: bool = True
    """Whether all these ranks have the initial level."""
    seconds: float | None = None
    restart: bool = False
    chosen: frozenset[str] = frozenset()
    suggests: bool = True
    """Whether the subsystems follow the level; False after the user chose one, or if some are active already."""
    offered: tuple[Subsystem, ...] = ()
    """Subsystems of this NCCL version."""
    methods: Methods = field(default_factory=lambda: Methods(False, ""))
    ranks: tuple[int, ...] = ()
    """() means all."""
    timed: bool = True
    """Whether the duration follows the level; False after the user chose a duration."""
    rate: float | None = None
    """Collectives per second of a rank, by the flight recorder; None if unknown."""
    most_on_a_node: int = 1
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
    """Return the initial state of the dialog: level and subsystems of the marked ranks, or of all."""
    ranks = tuple(sorted(marked & set(state.ranks)))
    changed = [state.ranks[number] for number in ranks or state.ranks]
    level = _single({rank.nccl_debug for rank in changed})
    possible = methods(state, ranks)
    offered: tuple[Subsystem, ...] = ()
    if possible.restart:
        offered = subsystems(_single({rank.nccl_version for rank in changed if rank.nccl_version}))
    nodes = Counter(rank.place.node for rank in changed)
    is_current = level in (*LEVELS, *LATER_LEVELS)
    active = _active_subsystems(state, level, set(ranks or state.ranks), offered)
    return NcclForm(
        level=level if level is not None and is_current else "WARN",
        levels=_levels(level),
        is_current=is_current,
        restart=possible.restart and not possible.live,
        chosen=active,
        suggests=not active,
        offered=offered,
        methods=possible,
        ranks=ranks,
        rate=collectives_per_second(state),
        most_on_a_node=max(nodes.values(), default=1),
        disk=_tightest_disk(state, nodes.keys()),
    )


def _single(values: Set[str | None]) -> str | None:
    """Return the only value; None if there are none or several."""
    return next(iter(values)) if len(values) == 1 else None


def _levels(current: str | None) -> tuple[str, ...]:
    """Return the levels to choose from: LEVELS, and the current one if only a newer NCCL knows it."""
    if current not in LATER_LEVELS:
        return LEVELS
    return (*LEVELS[:-2], current, *LEVELS[-2:])


def _active_subsystems(
    state: RunState, level: str | None, ranks: Set[int], offered: Sequence[Subsystem]
) -> frozenset[str]:
    """Return the subsystems of the last change if it still applies to all these ranks; else none, for the default."""
    last = state.nccl
    if last is None or last.level != level or not ranks <= set(last.ranks):
        return frozenset()
    if last.subsys == DEFAULT_SUBSYS:
        return frozenset()
    names = frozenset(last.subsys.removeprefix("^").split(","))
    if last.subsys.startswith("^"):
        return frozenset(flag.name for flag in offered) - names
    return names


def collectives_per_second(state: RunState) -> float | None:
    """Return the median over the ranks; None without a flight recorder."""
    rates = []
    for rank in state.ranks.values():
        done = rank.pulse.recent if rank.pulse is not None else ()
        if len(done) > 1 and (took := done[-1].created - done[0].created) > 0:
            rates.append((len(done) - 1) / took)
    return median(rates) if rates else None


def _tightest_disk(state: RunState, nodes: Set[int]) -> Disk | None:
    """Return the disk of these nodes with the least room for logs; None if none is known."""
    disks = [
        Disk(name_of(state, number), node.metrics.disk_free, node.metrics.disk_total)
        for number, node in state.nodes.items()
        if number in nodes
        and node.metrics is not None
        and node.metrics.disk_free is not None
        and node.metrics.disk_total is not None
    ]
    return min(disks, key=lambda disk: disk.room, default=None)


def change(form: NcclForm, row: int, step: int) -> NcclForm:
    """Return the form after the value of a row changed to the next (1) or previous (-1) one.

    A level that floods the log gets an end, unless the user chose the duration.
    """
    if row == 1:
        return replace(form, seconds=following(SECONDS, form.seconds, step), timed=False)
    if row == 0:
        form = replace(form, level=following(form.levels, form.level, step))
    elif row == 2:
        form = replace(form, restart=form.methods.restart and not (form.restart and form.methods.live))
    elif row < _HEAD + len(form.offered):
        form = replace(form, chosen=form.chosen ^ {form.offered[row - _HEAD].name}, suggests=False)
    if form.suggests:
        form = replace(form, chosen=_suggested(form))
    if form.timed:
        form = replace(form, seconds=ENDS_S if form.floods else None)
    return form


MID_RUN = "COLL"
"""The subsystem with lines for each collective; those of NCCL's default log little once the job runs."""


def _suggested(form: NcclForm) -> frozenset[str]:
    """Return the subsystems that have something to log with a live INFO; {} for NCCL's default."""
    if form.level != "INFO" or form.restart:
        return frozenset()
    return frozenset({MID_RUN} & {flag.name for flag in form.offered})


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
    level = _choices([(name, name == form.level) for name in form.levels], width - _LABEL)
    spans = [("until changed" if end is None else f"{end:g} s", end == form.seconds) for end in SECONDS]
    how = [("live", not form.restart), ("restart", form.restart)]
    chosen = _choices(how, width - _LABEL)
    if not form.methods.restart:
        chosen = "(x) live"
    elif not form.methods.live:
        chosen = "(x) restart of the worker group"
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
    if not form.methods.restart:
        after = "when you change it" if form.seconds is None else f"after {form.seconds:g} s"
        return _labelled_notes((("gloo", form.methods.text), ("ends", after)), width)
    each = USUAL if form.rate is None else max(form.rate, 0.1)
    rate = flood_rate(form.level, form.subsys, each, form.most_on_a_node)
    notes = (
        ("obey", form.methods.text),
        ("writes", _written(form, each)),
        ("disk", _room(form, rate)),
        ("ends", _ends(form)),
    )
    return _labelled_notes(notes, width)


def _labelled_notes(notes: Iterable[tuple[str, str]], width: int) -> list[Row]:
    return [row for label, text in notes for row in labelled((fit(label, 7), "dim"), text, width, "dim")]


def _written(form: NcclForm, each: float) -> str:
    words = cost(form.level, form.subsys, float(f"{each:.2g}"), form.most_on_a_node)
    if words:
        return f"{words} per node{' (that rate is assumed)' if form.rate is None else ''}"
    if form.level == "TRACE":
        return "without limit if NCCL was built with TRACE, else the same as INFO"
    which = "" if form.chosen or form.level != "INFO" else f"{DEFAULT_SUBSYS} (none is chosen): "
    return f"{which}little once the job runs"


def _room(form: NcclForm, rate: float) -> str:
    disk = form.disk
    if disk is None:
        return "the free space is unknown"
    lasts = f": enough for {duration_short(disk.room / rate)}" if rate > 0 else ""
    return f"{size_short(disk.free)} of {size_short(disk.total)} free on {disk.name}{lasts}"


def _ends(form: NcclForm) -> str:
    """Return when the level ends."""
    after = "when you change it" if form.seconds is None else f"after {form.seconds:g} s"
    if not form.methods.live:
        after = "when you change it" if form.seconds is None else "at the next restart"
        return f"{after}; a flood of lines does not reset it, because these ranks cannot change it live"
    least = size_short(disk_reserve(form.disk.total)) if form.disk is not None else "5 %"
    return f"{after}; earlier above {FLOOD_BYTES / 1e6:.0f} MB/s per node, or with less than {least} of disk free"


def command(form: NcclForm, command_id: str) -> SetNccl:
    return SetNccl(
        id=command_id,
        level=form.level,
        subsys=form.subsys,
        ranks=form.ranks,
        seconds=form.seconds,
        restart=form.restart,
    )
