"""How the ranks of a communicator are connected: the transport of each pair; below it the rings and init. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from ...presets.plurals import plural
from ...runners.diagnosis.nccl_facts import Communicator, FactLine, NcclFacts
from ...runners.run.formatting import listed
from . import glyphs
from .communicators import communicator_name, host_of, hosts_in_order
from .frame import fit_name, short_host
from .glyphs import Cell, Row, clip, fit, joined, labelled, wrap
from .nccl_init import init_rows
from .nccl_rings import ring_rows
from .statements import StatementRow, heading

MOST_RANKS = 64
"""Maximum number of ranks with separate rows; more are folded to nodes."""

LETTERS = "PVCGSN?T"
"""Best first: P2P, NVLink SHARP, CollNet, network with GPUDirect, shared memory, network, unknown, TCP."""

_STYLE = {"P": "ok", "V": "ok", "C": "ok", "G": "accent", "S": "text", "N": "text", "?": "dim", "T": "warn"}
_SELF = "\\"

ODD = 4
"""Maximum number of unusually bad connections that are named."""


def letter(kind: str) -> str:
    """Return the letter of a transport in NCCL's notation; of several transports the worst."""
    return max((_letter(part) for part in kind.split(" and ")), key=LETTERS.index)


def _letter(kind: str) -> str:
    head = kind.partition("/")[0].upper()
    if head in ("P2P", "SHM", "NVLS", "COLLNET"):
        return {"P2P": "P", "SHM": "S", "NVLS": "V", "COLLNET": "C"}[head]
    if head != "NET":
        return "?"
    if "GDRDMA" in kind:
        return "G"
    return "T" if "/Socket" in kind else "N"


class Unit(Struct, frozen=True):
    """The subject of one row and one column: a rank, ranks, a node or nodes."""

    label: str
    group: int
    """A gap separates groups."""
    number: int
    """The number above its column."""


class Grid(Struct):
    """Units, and the letters of the pairs between them."""

    units: list[Unit]
    of_rank: dict[int, int]
    noun: str
    """The kind of a unit: "rank", "node", "3 nodes"."""
    cells: dict[tuple[int, int], Counter[str]] = field(default_factory=dict)

    @property
    def single(self) -> bool:
        """Whether every unit is one rank."""
        return self.noun == "rank"


def _members(comm: Communicator) -> list[int]:
    """Return its ranks, including those that only log lines name."""
    ranks = {rank for pair in comm.pairs for rank in (pair.source, pair.target)} | set(comm.stages)
    return sorted(ranks | set(range(comm.nranks or 0)))


def grid(comm: Communicator, width: int) -> Grid:
    """Return a grid of ranks if they fit, else of nodes, else of as many nodes per unit as needed."""
    ranks, hosts, at = _members(comm), hosts_in_order(comm), host_of(comm)
    index = {host: number for number, host in enumerate(hosts)}
    labels = [_rank_label(rank, at, hosts) for rank in ranks]
    if len(ranks) <= MOST_RANKS and _room(width, labels, len(hosts)) >= len(ranks):
        made = Grid([], {}, "rank")
        for place, (rank, label) in enumerate(zip(ranks, labels, strict=True)):
            made.units.append(Unit(label, index.get(at.get(rank, ""), 0), rank))
            made.of_rank[rank] = place
    elif len(hosts) > 1:
        made = _by_nodes(hosts, index, at, width)
    else:
        made = _by_ranks(ranks, width)
    for pair in comm.pairs:
        if pair.source in made.of_rank and pair.target in made.of_rank:
            cell = made.of_rank[pair.source], made.of_rank[pair.target]
            made.cells.setdefault(cell, Counter())[letter(pair.kind)] += 1
    return made


def _rank_label(rank: int, at: Mapping[int, str], hosts: Sequence[str]) -> str:
    return f"{short_host(at[rank])} r{rank}" if len(hosts) > 1 and rank in at else f"r{rank}"


def _by_ranks(ranks: Sequence[int], width: int) -> Grid:
    """Return a grid of several ranks per unit, if no hosts are known."""
    step = -(-len(ranks) // max(1, min(MOST_RANKS, width - 16)))
    parts = [ranks[low : low + step] for low in range(0, len(ranks), step)]
    units = [Unit(f"r{part[0]}-{part[-1]}", 0, at) for at, part in enumerate(parts)]
    return Grid(units, {rank: at for at, part in enumerate(parts) for rank in part}, plural(step, "rank"))


def _by_nodes(hosts: Sequence[str], index: dict[str, int], at: dict[int, str], width: int) -> Grid:
    named = [short_host(host) for host in hosts]
    step = -(-len(hosts) // max(1, _room(width, named, 1)))
    if step > 1:  # a label then names two nodes
        step = -(-len(hosts) // max(1, _room(width, [f"{name}…{name}" for name in named], 1)))
    units = [
        Unit(
            named[low] if step == 1 else f"{named[low]}…{named[min(low + step, len(hosts)) - 1]}",
            0,
            low // step,
        )
        for low in range(0, len(hosts), step)
    ]
    noun = "node" if step == 1 else plural(step, "node")
    return Grid(units, {rank: index[host] // step for rank, host in at.items()}, noun)


def _room(width: int, labels: Sequence[str], groups: int) -> int:
    """Return the columns for cells after the labels, without the gaps between groups."""
    return width - _label_width(labels) - 1 - max(0, groups - 1)


def _label_width(labels: Sequence[str]) -> int:
    return min(16, max(map(len, labels), default=0))


def cell_text(counts: Counter[str] | None) -> Cell:
    """Return the letter of the worst transport, in lower case if other pairs are better."""
    if not counts:
        return glyphs.MISSING, "dim"
    worst = max(counts, key=LETTERS.index)
    return (worst if len(counts) == 1 else worst.lower()), _STYLE[worst]


def matrix_rows(comm: Communicator, width: int, raw: Mapping[str, FactLine]) -> list[StatementRow]:
    """Return the legend, then the matrix; a sentence if no connection is known. For `raw` see NcclFacts.raw."""
    if not comm.pairs:
        text = "connections unknown: restart with NCCL_DEBUG=INFO (subsystems INIT,P2P,SHM,NET)"
        return [StatementRow(row) for row in wrap(text, width, "dim")]
    made = grid(comm, width)
    edge, count = _label_width([unit.label for unit in made.units]), len(made.units)
    groups = len({unit.group for unit in made.units})
    step = 2 if edge + 1 + 2 * count + groups - 1 <= width else 1
    rows = _header(made, edge, step)
    for number, unit in enumerate(made.units):
        if step == 2 and _gap(made, number):
            rows.append(())
        rows.append(((fit_name(unit.label, edge) + " ", "dim"), *_line_of(made, number, step)))
    return [*_legend(comm, made, width, raw), StatementRow(()), *(StatementRow(row) for row in rows)]


def _line_of(made: Grid, row: int, step: int) -> Row:
    """Return the cells of one row."""
    cells: list[Cell] = []
    for column in range(len(made.units)):
        gap = _gap(made, column)
        own = made.single and row == column
        text, style = (_SELF, "dim") if own else cell_text(made.cells.get((row, column)))
        cells.append((gap + text + " " * (step - 1), style))
    return joined(cells)


def _gap(made: Grid, column: int) -> str:
    """Return a blank for the first column of each further group, else ""."""
    if column == 0 or made.units[column].group == made.units[column - 1].group:
        return ""
    return " "


def wanted_width(comm: Communicator) -> int:
    """Return the columns of the matrix of ranks, or of nodes if there are too many ranks."""
    made = grid(comm, 10_000)
    step = 2 if len(made.units) <= MOST_RANKS else 1
    groups = len({unit.group for unit in made.units})
    return _label_width([unit.label for unit in made.units]) + 1 + step * len(made.units) + groups - 1


def _header(made: Grid, edge: int, step: int) -> list[Row]:
    """Return the number of each column, read from top to bottom. Higher digits appear only if they change."""
    rows: list[Row] = []
    highest = max(unit.number for unit in made.units)
    for power in (1000, 100, 10, 1):
        if power > max(1, highest):
            continue
        text, before = "", 0
        for at, unit in enumerate(made.units):
            gap = _gap(made, at)
            shown = power == 1 or unit.number // power != before
            text += gap + (str(unit.number // power % 10) if shown else " ") + " " * (step - 1)
            before = unit.number // power
        rows.append(((" " * (edge + 1) + text.rstrip(), "dim"),))
    return rows


def _legend(comm: Communicator, made: Grid, width: int, raw: Mapping[str, FactLine]) -> list[StatementRow]:
    """Return the meaning and count of each letter, then the connections that are worse than the usual."""
    kinds = Counter(pair.kind for pair in comm.pairs)
    best = sorted(kinds, key=lambda kind: (LETTERS.index(letter(kind)), -kinds[kind]))
    edge = max(map(len, best))
    rows = [
        StatementRow(
            clip(
                (
                    (f"{letter(kind)}  ", _STYLE[letter(kind)]),
                    (fit(kind, edge) + "  ", "text"),
                    (plural(kinds[kind], "pair"), "dim"),
                ),
                width,
            ),
            raw.get(f"pair:{comm.id}:{kind}"),
        )
        for kind in best
    ]
    folded = f"; {comm.folded:,} more pairs of the same nodes and kinds" if comm.folded else ""
    sends = f"a {made.noun} that sends" if made.noun in ("rank", "node") else f"{made.noun} that send"
    meaning = f"each row is {sends}{_small(made)}{folded}"
    rows += [StatementRow(row) for row in wrap(meaning, width, "dim")]
    odd = odd_ones(comm, made)
    if odd:
        text = f"worse than the usual: {listed(odd, ODD)}"
        rows += [StatementRow(row) for row in labelled((f"{glyphs.WARN} ", "warn"), text, width)]
    return rows


def _small(made: Grid) -> str:
    mixed = any(len(counts) > 1 for counts in made.cells.values())
    small = "; a small letter: the worst of several kinds" if mixed else ""
    return f"{small}; {glyphs.MISSING} no connection seen"


def odd_ones(comm: Communicator, made: Grid) -> list[str]:
    """Return connections that are worse than the most frequent kind inside nodes or between them."""
    at = host_of(comm)
    kinds: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for pair in comm.pairs:
        kinds[at.get(pair.source) == at.get(pair.target)][letter(pair.kind)] += 1
    usual = {
        inside: max(counts, key=lambda name: (counts[name], -LETTERS.index(name)))
        for inside, counts in kinds.items()
        if counts
    }
    odd: dict[tuple[str, str, str], int] = {}
    for pair in comm.pairs:
        inside = at.get(pair.source) == at.get(pair.target)
        if LETTERS.index(letter(pair.kind)) > LETTERS.index(usual[inside]):
            ends = _ends(pair.source, pair.target, at, made)
            odd[(*ends, pair.kind)] = odd.get((*ends, pair.kind), 0) + 1
    return [
        f"{source} → {target} {kind}{f' ({count} pairs)' if count > 1 else ''}"
        for (source, target, kind), count in odd.items()
    ]


def _ends(source: int, target: int, at: dict[int, str], made: Grid) -> tuple[str, str]:
    if made.single:
        return f"r{source}", f"r{target}"
    return short_host(at.get(source, f"r{source}")), short_host(at.get(target, f"r{target}"))


def map_rows(facts: NcclFacts, comm: Communicator | None, width: int) -> list[StatementRow]:
    """Return the matrix, the rings and the init timeline of one communicator."""
    if comm is None:
        return []
    return [
        heading("transport of each pair", communicator_name(comm)),
        *matrix_rows(comm, width, facts.raw),
        StatementRow(()),
        heading("rings"),
        *(StatementRow(row) for row in ring_rows(comm, width)),
        StatementRow(()),
        heading("init"),
        *(StatementRow(row) for row in init_rows(comm, width)),
    ]
