"""The NCCL_DEBUG dialog and the NCCL screen as rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from statistics import median

from ...presets.nccl import (
    DEFAULT_SUBSYS,
    FLOOD_BYTES,
    LEVELS,
    Subsystem,
    cost,
    disk_reserve,
    flood_rate,
    subsystems,
)
from ...runners.diagnosis.nccl_facts import Communicator, FactLine, NcclFacts
from ...runners.formatting import duration_short, plural, size_short, spans_text
from ...runners.model import SetNccl
from ...runners.state import RunState
from . import glyphs
from .findings import QUIET, item_row, items
from .frame import Frame
from .glyphs import Row, fit, wrap
from .launching import init_rows, launching, ring_rows
from .matrix import matrix_rows
from .nccl_cards import StatementRow, communicator_name, communicator_rows, node_rows
from .status import name_of

# -----------------------------------------------------------------------------------------------------------
# The NCCL_DEBUG dialog as a value: what can be chosen, what is possible live, and why not.


SECONDS: tuple[float | None, ...] = (None, 5.0, 10.0, 30.0, 60.0, 300.0)
"""How long a level can last, as the dialog offers it; `:nccl` takes any number."""

ENDS_S = 60.0
"""How long a level that writes for every collective lasts, unless somebody says otherwise."""

USUAL = 200.0
"""Collectives a second, where nobody knows how many there are."""

_HEAD = 3
"""Rows before the subsystems: level, duration, way."""


@dataclass(frozen=True, slots=True)
class Ways:
    """What is possible now."""

    live: bool
    text: str
    """One sentence for the dialog."""


def ways(state: RunState) -> Ways:
    """Live where every rank's NCCL allows it; an honest restart otherwise."""
    if state.plan is not None and state.plan.backend == "gloo":
        return Ways(False, "this run uses gloo: NCCL_DEBUG changes nothing here")
    if not state.ranks:
        return Ways(False, "no rank has started yet")
    unknown = [number for number, rank in state.ranks.items() if rank.nccl_live is None]
    refused = [number for number, rank in state.ranks.items() if rank.nccl_live is False]
    versions = sorted({rank.nccl_version for rank in state.ranks.values() if rank.nccl_version})
    version = f"NCCL {', '.join(versions)}" if versions else "this NCCL"
    if refused:
        where = spans_text("rank", refused)
        return Ways(False, f"{version} cannot change it live on {where} (2.24 or newer can): restart")
    if len(unknown) == len(state.ranks):
        return Ways(False, "no rank has loaded NCCL yet, or the hook is off: only a restart can change it")
    if unknown:
        return Ways(True, f"{version} changes it live; not yet known for {spans_text('rank', unknown)}")
    return Ways(True, f"{version} changes it live on every rank")


@dataclass(frozen=True, slots=True)
class Disk:
    """The node with the least room."""

    name: str
    free: int
    total: int
    """Bytes both."""

    @property
    def room(self) -> int:
        """Bytes that may be written."""
        return max(0, self.free - disk_reserve(self.total))


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclForm:
    """What is chosen so far."""

    level: str
    seconds: float | None = None
    restart: bool = False
    chosen: frozenset[str] = frozenset()
    offered: tuple[Subsystem, ...] = ()
    """Subsystems that this NCCL has."""
    ways: Ways = field(default_factory=lambda: Ways(False, ""))
    ranks: tuple[int, ...] = ()
    """() means all."""
    timed: bool = True
    """Whether the duration follows the choice: until somebody chooses one."""
    rate: float | None = None
    """Collectives a second of a rank, as the flight recorder tells; None: unknown."""
    together: int = 1
    """Most of these ranks on one node."""
    disk: Disk | None = None

    @property
    def subsys(self) -> str:
        """What is chosen, as NCCL_DEBUG_SUBSYS takes it."""
        return ",".join(flag.name for flag in self.offered if flag.name in self.chosen)

    @property
    def floods(self) -> bool:
        """Whether it writes for every collective, or is TRACE."""
        return self.level == "TRACE" or flood_rate(self.level, self.subsys, 1.0, 1) > 0


def begin(state: RunState, marked: frozenset[int]) -> NcclForm:
    """The dialog as it opens: the level that the ranks have now."""
    levels = {rank.nccl_debug for rank in state.ranks.values()}
    versions = {rank.nccl_version for rank in state.ranks.values() if rank.nccl_version}
    possible = ways(state)
    ranks = tuple(sorted(marked & set(state.ranks)))
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
    """Of the rank in the middle; None where no flight recorder tells."""
    rates = []
    for rank in state.ranks.values():
        done = rank.pulse.recent if rank.pulse is not None else ()
        if len(done) > 1 and (took := done[-1].created - done[0].created) > 0:
            rates.append((len(done) - 1) / took)
    return median(rates) if rates else None


def _fullest(state: RunState, nodes: set[int]) -> Disk | None:
    """The disk with the least room of those that these nodes write to; None where none is known."""
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
    """The form after the value of a row was changed: the next (1) or previous (-1) one.

    What floods gets an end, as long as nobody chose the duration.
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
    return replace(form, seconds=ENDS_S if form.floods else None) if form.timed else form


def form_rows(form: NcclForm, width: int) -> list[Row]:
    """One row a choice; what is chosen is told by brackets, not by colour."""
    level = "  ".join(f"({'x' if name == form.level else ' '}) {name}" for name in LEVELS)
    seconds = "  ".join(f"({'x' if end == form.seconds else ' '}) {_lasting(end)}" for end in SECONDS)
    live = "(x) live  ( ) restart" if not form.restart else "( ) live  (x) restart"
    how = live if form.ways.live else "(x) restart of the worker group"
    rows: list[Row] = [
        ((fit("level", 7), "dim"), (level, "text")),
        ((fit("for", 7), "dim"), (seconds, "text")),
        ((fit("how", 7), "dim"), (how, "text")),
    ]
    for flag in form.offered:
        on = flag.name in form.chosen
        head = f"[{'x' if on else ' '}] {fit(flag.name, 10)} "
        rows.append(((head, "head" if on else "text"), (fit(flag.text, max(10, width - len(head))), "dim")))
    return rows


def _lasting(seconds: float | None) -> str:
    return "ever" if seconds is None else f"{seconds:g}s"


def note_rows(form: NcclForm, width: int) -> list[Row]:
    """Below the choices: what is possible, what it writes, the disk, and what ends it."""
    each = USUAL if form.rate is None else max(form.rate, 0.1)
    rate = flood_rate(form.level, form.subsys, each, form.together)
    notes = (
        ("live", form.ways.text),
        ("writes", _written(form, each)),
        ("disk", _room(form, rate)),
        ("ends", _ends(form)),
    )
    return [
        ((fit(label if not at else "", 7), "dim"), *row)
        for label, text in notes
        for at, row in enumerate(wrap(text, width - 7, "dim"))
    ]


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
    """What ends a flood."""
    after = "when somebody changes it" if form.seconds is None else f"after {form.seconds:g} s"
    if not form.ways.live:
        return f"{after}; nothing takes it back earlier, because it cannot be changed live"
    least = size_short(disk_reserve(form.disk.total)) if form.disk is not None else "5 %"
    return f"{after}; earlier above {FLOOD_BYTES / 1e6:.0f} MB/s a node, or with less than {least} of disk free"


def command(form: NcclForm, command_id: str) -> SetNccl:
    """What the form asks for."""
    return SetNccl(
        id=command_id,
        level=form.level,
        subsys=form.subsys,
        ranks=form.ranks,
        seconds=form.seconds,
        restart=form.restart,
    )


# -----------------------------------------------------------------------------------------------------------
# The NCCL screen's rows: findings, nodes, communicators; and of the chosen one its pairs, rings and init. Pure.


FINDINGS = 4
"""Most findings on top; the pane of findings has all."""

OTHERS = ("hang-", "straggler", "died-", "oom-", "mem-", "start-")
"""How findings begin that rest on something else than NCCL's words: the banner has them."""


def why_empty(state: RunState, reading: str = "") -> str:
    """Why there is nothing to show, and what to do, in a sentence; `reading`: what is being done about it."""
    if state.plan is not None and state.plan.backend == "gloo":
        return "This run uses gloo: NCCL is not used, so there is nothing that it could say."
    if reading:
        return reading
    if launching(state) or not state.ranks:
        return "No rank has started yet: NCCL speaks when the ranks meet."
    if state.phase.ended:
        return "Nothing of NCCL is in the logs of this run."
    levels = {rank.nccl_debug for rank in state.ranks.values()}
    if levels <= QUIET:
        level = next((level for level in levels if level), "WARN")
        return (
            f"NCCL_DEBUG is {level}, and NCCL's statements need INFO: press d. "
            "What it says while ranks meet comes with a restart; what it says later comes live."
        )
    return "NCCL has said nothing yet: its statements come when the first communicator is made."


def title(facts: NcclFacts | None) -> str:
    """How much was read of how many."""
    if facts is None:
        return "NCCL"
    parts = [plural(len(facts.nodes), "node"), plural(len(facts.communicators), "communicator")]
    return " · ".join(["NCCL", *parts, f"{facts.nccl_lines:,} lines"])


def statement_rows(
    frame: Frame, facts: NcclFacts, chosen: Communicator | None, width: int
) -> list[StatementRow]:
    """Findings, what is not read, a card for nodes that are alike, a card a communicator."""
    rows = [*_findings(frame, facts, width), *(StatementRow(row) for row in _unread(facts, width))]
    if facts.nodes:
        rows += [_head("nodes"), *node_rows(facts, width)]
    if chosen is not None:
        many = len(facts.communicators) > 1
        rows += [StatementRow(()), _head("communicators", "c chooses the next" if many else "")]
        rows += communicator_rows(facts, chosen, width)
    else:
        text = "no line tells of a communicator: NCCL_DEBUG=INFO tells it when the ranks meet"
        rows += [StatementRow(()), *(StatementRow(row) for row in wrap(text, width, "dim"))]
    return rows


def _head(text: str, hint: str = "") -> StatementRow:
    return StatementRow(((text, "accent"), (f"   {hint}" if hint else "", "dim")))


def _findings(frame: Frame, facts: NcclFacts, width: int) -> list[StatementRow]:
    about = (finding for finding in frame.state.findings.values() if not finding.id.startswith(OTHERS))
    alarms = [item for item in items(about) if item.first.alarm]
    rows = [
        StatementRow(item_row(frame, item, width), _evidence(facts, item.first.id))
        for item in alarms[:FINDINGS]
    ]
    if len(alarms) > FINDINGS:
        rows.append(StatementRow(((f"… {len(alarms) - FINDINGS} more: i shows all", "dim"),)))
    return [*rows, StatementRow(())] if rows else []


def _evidence(facts: NcclFacts, rule: str) -> FactLine | None:
    return facts.raw.get(f"rule:{rule}")


def _unread(facts: NcclFacts, width: int) -> list[Row]:
    rows: list[Row] = []
    if facts.behind:
        text = f"{size_short(facts.behind)} of NCCL's logs are not read yet: what is here may be old"
        rows.append(((f"{glyphs.STALE} ", "warn"), (text, "text")))
    if facts.sampled:
        text = "parts of the logs were left out, because they grew faster than they are read; the files are whole"
        rows += [
            ((f"{glyphs.WARN} " if not at else "  ", "warn"), *row)
            for at, row in enumerate(wrap(text, width - 2))
        ]
    return rows


def map_rows(facts: NcclFacts, comm: Communicator | None, width: int) -> list[StatementRow]:
    """Of one communicator: the matrix, the rings, the timeline of init."""
    if comm is None:
        return []
    return [
        _head("transport of each pair", communicator_name(comm)),
        *matrix_rows(comm, width, facts.raw),
        StatementRow(()),
        _head("rings"),
        *(StatementRow(row) for row in ring_rows(comm, width)),
        StatementRow(()),
        _head("init"),
        *(StatementRow(row) for row in init_rows(comm, width)),
    ]
