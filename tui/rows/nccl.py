"""The NCCL screen: findings, and NCCL's facts about nodes and communicators as cards. Pure.

Equal nodes share a card; differences are marked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from ...presets.plurals import plural
from ...presets.secrets import mask
from ...runners.diagnosis.nccl_facts import STAGES, Communicator, FactLine, Init, NcclFacts, NcclNode
from ...runners.diagnosis.status import foreign
from ...runners.run.formatting import NA, agreeing, listed, size_short, spans, spans_text
from ...runners.run.nccl_reach import uses_gloo
from ...runners.run.state import RunState
from . import glyphs
from .findings import QUIET, item_row, items
from .frame import Frame, short_host
from .glyphs import Cell, Row, clip, fit, labelled, row_width, wrap
from .run_status import launching

READY = STAGES.index("complete")

CARDS = 6
"""Maximum number of shown communicators, including the chosen one; the others are counted."""

_LABEL = 14


class StatementRow(NamedTuple):
    """A row, and the log line that is its source."""

    row: Row
    line: FactLine | None = None


class NodeGroup(Struct, frozen=True):
    """Nodes with equal NCCL facts."""

    nodes: tuple[NcclNode, ...]
    fields: Mapping[str, str]
    """Label → value; "" is unknown."""


def ranks_on(facts: NcclFacts, host: str) -> tuple[int, ...]:
    """Return the ranks of a host in its largest communicator."""
    own = [comm for comm in facts.communicators if host in comm.hosts]
    largest = max(own, key=lambda comm: comm.nranks or 0, default=None)
    return tuple(sorted(largest.hosts[host])) if largest else ()


def node_groups(facts: NcclFacts) -> list[NodeGroup]:
    """Return groups of equal nodes, the largest first; the others are unusual."""
    groups: dict[tuple[str, ...], list[NcclNode]] = {}
    fields: dict[tuple[str, ...], Mapping[str, str]] = {}
    for node in facts.nodes:
        compared = _compared(node)
        key = (*compared.values(), *(f"{name}={value}" for name, value in sorted(node.env.items())))
        groups.setdefault(key, []).append(node)
        fields.setdefault(key, compared)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [NodeGroup(tuple(nodes), fields[key]) for key, nodes in ordered]


def _compared(node: NcclNode) -> dict[str, str]:
    """Return the facts that must be equal on all nodes; addresses may differ."""
    hcas: dict[str, list[str]] = {}
    for name, kind in node.hcas.items():
        hcas.setdefault(kind, []).append(name)
    return {
        "NCCL": ", ".join(node.versions),
        "network": ", ".join(node.networks),
        "bootstrap": node.bootstrap.partition(":")[0],
        "interfaces": ", ".join(interface.partition(":")[0] for interface in node.interfaces),
        "HCAs": "; ".join(f"{', '.join(names)} ({kind})" for kind, names in hcas.items()),
        "plugins": ", ".join(node.plugins),
    }


_ALWAYS = ("NCCL", "network")
"""Fields that show n/a if they are unknown; other unknown fields are left out."""


def node_rows(facts: NcclFacts, width: int) -> list[StatementRow]:
    """Return one card per group of equal nodes."""
    groups = node_groups(facts)
    rows: list[StatementRow] = []
    for group in groups:
        rows += _card(facts, group, groups[0], width)
    return rows


def _card(facts: NcclFacts, group: NodeGroup, usual: NodeGroup, width: int) -> list[StatementRow]:
    hosts = [short_host(node.host) for node in group.nodes]
    ranks = [rank for node in group.nodes for rank in ranks_on(facts, node.host)]
    glyph, style = (glyphs.OK, "ok") if group is usual else (glyphs.WARN, "warn")
    count = f"  {len(hosts)} nodes alike" if len(hosts) > 1 else ""
    head: Row = ((f"{glyph} ", style), (listed([name or NA for name in hosts]), "head"), (count, "dim"))
    line = _line(facts, group.nodes[0].host)
    rows = _headed(head, agreeing(ranks, "rank", "ranks"), spans(ranks), width, line)
    return rows + _fields(facts, group, usual, width) + _variables(facts, group, usual, width)


def _fields(facts: NcclFacts, group: NodeGroup, usual: NodeGroup, width: int) -> list[StatementRow]:
    """Return the known fields, and those that differ from the usual nodes; a single node with its whole address."""
    host = group.nodes[0]
    texts = dict(group.fields)
    if len(group.nodes) == 1:
        texts["bootstrap"] = host.bootstrap
    rows: list[StatementRow] = []
    for label, value in group.fields.items():
        differs = value != usual.fields[label]
        if value or differs or label in _ALWAYS:
            others = f"   the others: {usual.fields[label] or NA}" if differs else ""
            line = _line(facts, host.host, label)
            rows += _field(label, texts[label] or NA, others, differs, width, line)
    return rows


def _headed(head: Row, label: str, text: str, width: int, line: FactLine | None) -> list[StatementRow]:
    """Return the first row of a card with one more field, which gets a separate row if it does not fit."""
    named = f"{label} {text}" if label.startswith("rank") else text
    whole: Row = (*head, (f"  {named}" if text else "", "dim"))
    if row_width(whole) <= width or not text:
        return [StatementRow(clip(whole, width), line)]
    return [StatementRow(clip(head, width), line), *_field(label, text, "", False, width, line)]


def _line(facts: NcclFacts, host: str, label: str = "") -> FactLine | None:
    """Return the source line of a field, else any line about the node."""
    kinds = {"NCCL": "version", "network": "network", "bootstrap": "bootstrap", "HCAs": "hcas"}
    order = [kinds[label]] if label in kinds else []
    lines = (facts.raw.get(f"{kind}:{host}") for kind in (*order, "host", "network", "version"))
    return next((line for line in lines if line is not None), None)


def _field(
    label: str, value: str, others: str, differs: bool, width: int, line: FactLine | None
) -> list[StatementRow]:
    mark, ink, style = (glyphs.WARN, "warn", "warn") if differs else (" ", "dim", "text")
    head = (fit(f"{mark} {label}", _LABEL), ink)
    return [StatementRow(row, line) for row in labelled(head, value + others, width, style)]


def _variables(facts: NcclFacts, group: NodeGroup, usual: NodeGroup, width: int) -> list[StatementRow]:
    """Return all variables of the usual nodes; of other nodes only those that differ."""
    own, common = group.nodes[0].env, usual.nodes[0].env
    line = _line(facts, group.nodes[0].host)
    if group is usual:
        text = "  ".join(f"{name}={mask(name, value)}" for name, value in sorted(own.items()))
        return _field("variables", text, "", False, width, line) if text else []
    rows: list[StatementRow] = []
    for name in sorted({*own, *common}):
        if own.get(name) != common.get(name):
            value = f"{name}={mask(name, own[name])}" if name in own else f"{name} is not set"
            others = f"   the others: {mask(name, common[name]) if name in common else 'not set'}"
            rows += _field("variable", value, others, True, width, line)
    return rows


def by_size(facts: NcclFacts) -> list[Communicator]:
    """Return communicators in the order of the screen: the largest first."""
    return sorted(facts.communicators, key=lambda comm: -(comm.nranks or 0))


def chosen_of(facts: NcclFacts, wanted: str | None) -> Communicator | None:
    """Return the communicator of this id; else one that is not ready, else the largest."""
    ordered = by_size(facts)
    named = next((comm for comm in ordered if comm.id == wanted), None)
    late = next((comm for comm in ordered if late_ranks(comm) or missing(comm)), None)
    return named or late or next(iter(ordered), None)


def late_ranks(comm: Communicator) -> dict[str, tuple[int, ...]]:
    """Map each stage to the ranks that are not ready although others are; {} if all are equal."""
    reached = [_stage(stage) for stage in comm.stages.values()]
    if not reached or max(reached) < READY:
        return {}
    late: dict[str, list[int]] = {}
    for rank, stage in sorted(comm.stages.items()):
        if _stage(stage) < READY or stage == "aborted":
            late.setdefault(stage, []).append(rank)
    return {stage: tuple(ranks) for stage, ranks in late.items()}


def missing(comm: Communicator) -> tuple[int, ...]:
    """Return ranks that appear in no log line; () if no rank does."""
    if comm.nranks is None or not comm.stages:
        return ()
    return tuple(rank for rank in range(comm.nranks) if rank not in comm.stages)


def _stage(stage: str) -> int:
    return STAGES.index(stage) if stage in STAGES else 0


def slowest(comm: Communicator) -> Init | None:
    """Return the rank with the longest init."""
    return max(comm.inits, key=lambda init: init.seconds, default=None)


def transports(comm: Communicator) -> dict[str, int]:
    """Map each transport to its number of pairs, as far as they are stored; the most frequent first."""
    kinds: dict[tuple[int, int], list[str]] = {}
    for pair in comm.pairs:
        kinds.setdefault((pair.source, pair.target), []).append(pair.kind)
    return dict(Counter(" and ".join(sorted(its)) for its in kinds.values()).most_common())


def communicator_name(comm: Communicator) -> str:
    """Return its id, or a text that it has none."""
    return comm.id or "of no named communicator"


def communicator_rows(facts: NcclFacts, chosen: Communicator, width: int) -> list[StatementRow]:
    """Return one card each; the chosen communicator is marked and shows all its facts."""
    ordered = by_size(facts)
    shown = _with_card(ordered, chosen)
    rows: list[StatementRow] = []
    left: list[Communicator] = []
    for comm in ordered:
        if comm in shown:
            rows += communicator_card(facts, comm, width, comm is chosen, len(ordered) > 1)
        else:
            left.append(comm)
    if left:
        sizes = Counter(plural(comm.nranks, "rank") if comm.nranks else NA for comm in left)
        summary = ", ".join(f"{count} of {size}" for size, count in sizes.items())
        rows.append(StatementRow(((f"  … {len(left)} more, all alike in their stages: {summary}", "dim"),)))
    return rows


def _with_card(ordered: Sequence[Communicator], chosen: Communicator) -> list[Communicator]:
    """Return at most CARDS communicators: the chosen one, those with late or missing ranks, then the largest."""
    wanted = [comm for comm in ordered if late_ranks(comm) or missing(comm) or comm is chosen]
    shown = [*wanted, *(comm for comm in ordered if comm not in wanted)][:CARDS]
    if chosen not in shown:
        shown[-1] = chosen
    return shown


def communicator_card(
    facts: NcclFacts, comm: Communicator, width: int, chosen: bool = True, several: bool = False
) -> list[StatementRow]:
    """Return name, size, stages and late ranks; the chosen one, marked among several, also has all other facts."""
    line = facts.raw.get(f"comm:{comm.id}")
    late, absent = late_ranks(comm), missing(comm)
    glyph, style = _state_mark(comm)
    mark = glyphs.MARK if chosen and several else " "
    head: Row = (
        (f"{glyph} ", style),
        (communicator_name(comm), "head"),
        (f" {mark}", "accent"),
        (_shape(comm), "text"),
    )
    rows = _headed(head, "stages", _counts(comm), width, line)
    for stage, ranks in late.items():
        rows += _field(
            "behind", f"{spans_text('rank', ranks)}: {stage}, not complete", "", True, width, line
        )
    if absent:
        rows += _field("missing", f"no line names {spans_text('rank', absent)}", "", True, width, line)
    if chosen:
        for label, text in _facts_of(comm):
            rows += _field(label, text, "", False, width, line) if text else []
    return rows


def _state_mark(comm: Communicator) -> Cell:
    if not any(_stage(stage) >= READY for stage in comm.stages.values()):
        return glyphs.STALE, "warn"
    return (glyphs.WARN, "warn") if late_ranks(comm) or missing(comm) else (glyphs.OK, "ok")


def _shape(comm: Communicator) -> str:
    if comm.nranks is None:
        return ""
    on = f"{plural(len(comm.hosts), 'host')} seen" if comm.nnodes is None else plural(comm.nnodes, "node")
    return f"  {plural(comm.nranks, 'rank')} on {on}"


def _counts(comm: Communicator) -> str:
    if comm.nranks is None:
        return ""
    counts = Counter(comm.stages.values())
    return ", ".join(f"{counts[stage]} {stage}" for stage in STAGES if counts[stage]) or f"stages {NA}"


def _facts_of(comm: Communicator) -> list[tuple[str, str]]:
    channels = [f"{number} {kind}" for kind, number in comm.channels.items() if number]
    channels += [plural(comm.ring_count, "ring")] if comm.ring_count else []
    channels += [plural(comm.trees, "tree")] if comm.trees else []
    channels += ["NVLink SHARP"] if comm.nvls else []
    return [
        ("init", _init_text(slowest(comm))),
        ("channels", ", ".join(channels)),
        ("pairs", ", ".join(f"{count:,} over {kind}" for kind, count in transports(comm).items())),
        ("tuned", _counted(comm.tuning)),
        ("called", _counted(comm.collectives)),
    ]


def _init_text(worst: Init | None) -> str:
    """Return the time of the slowest rank, and its phases."""
    if worst is None:
        return ""
    phases = sorted(worst.phases.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{name} {value:.2f}" for name, value in phases if value)
    return f"{worst.seconds:.2f} s, rank {worst.rank} the slowest{': ' + parts if parts else ''}"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,} ×" for name, count in Counter(counts).most_common(6))


FINDINGS = 4
"""Maximum number of findings on top; the findings pane shows all."""

OTHERS = ("hang-", "straggler", "died-", "oom-", "mem-", "start-")
"""Prefixes of findings with other sources than NCCL's log; the banner shows those."""


def why_empty(state: RunState, reading: str = "") -> str:
    """Return why the screen is empty and what to do; `reading` is the current activity, if any."""
    if uses_gloo(state):
        return "This run uses gloo: NCCL is not used, so it logs nothing."
    if reading:
        return reading
    if launching(state) or not state.ranks:
        return "No rank has started yet: NCCL speaks when the ranks meet."
    if state.phase.ended:
        return "Nothing of NCCL is in the logs of this run."
    if foreign(state):
        return "distui did not start this job: it reads no NCCL statements of it, and cannot change its NCCL_DEBUG."
    levels = {rank.nccl_debug for rank in state.ranks.values()}
    if levels <= QUIET:
        level = next(filter(None, levels), "WARN")
        return (
            f"NCCL_DEBUG is {level}, and NCCL's statements need INFO: press d. "
            "Its init messages need a restart; later messages come live."
        )
    return "NCCL has logged nothing yet: it starts when the first communicator is created."


def title(facts: NcclFacts | None) -> str:
    """Return the numbers of nodes, communicators and log lines."""
    if facts is None:
        return "NCCL"
    parts = [plural(len(facts.nodes), "node"), plural(len(facts.communicators), "communicator")]
    return " · ".join(["NCCL", *parts, f"{facts.nccl_lines:,} lines"])


def statement_rows(
    frame: Frame, facts: NcclFacts, chosen: Communicator | None, width: int
) -> list[StatementRow]:
    """Return findings, notes on unread logs, one card per group of nodes and per communicator."""
    rows = [*_findings(frame, facts, width), *(StatementRow(row) for row in _unread(facts, width))]
    if facts.nodes:
        rows += [_head("nodes"), *node_rows(facts, width)]
    if chosen is not None:
        many = len(facts.communicators) > 1
        rows += [StatementRow(()), _head("communicators", "c chooses the next" if many else "")]
        rows += communicator_rows(facts, chosen, width)
    else:
        text = "no line names a communicator: NCCL_DEBUG=INFO logs them when the ranks meet"
        rows += [StatementRow(()), *(StatementRow(row) for row in wrap(text, width, "dim"))]
    return rows


def _head(text: str, hint: str = "") -> StatementRow:
    return StatementRow(((text, "accent"), (f"   {hint}" if hint else "", "dim")))


def _findings(frame: Frame, facts: NcclFacts, width: int) -> list[StatementRow]:
    about = (finding for finding in frame.state.findings.values() if not finding.id.startswith(OTHERS))
    alarms = [item for item in items(about) if item.first.alarm]
    rows = [
        StatementRow(item_row(frame, item, width), facts.raw.get(f"rule:{item.first.id}"))
        for item in alarms[:FINDINGS]
    ]
    if len(alarms) > FINDINGS:
        rows.append(StatementRow(((f"… {len(alarms) - FINDINGS} more: i shows all", "dim"),)))
    return [*rows, StatementRow(())] if rows else []


def _unread(facts: NcclFacts, width: int) -> list[Row]:
    rows: list[Row] = []
    if facts.behind:
        text = f"{size_short(facts.behind)} of NCCL's logs are not read yet: what is here may be old"
        rows.append(((f"{glyphs.STALE} ", "warn"), (text, "text")))
    if facts.sampled:
        text = "parts of the logs were left out, because they grew faster than they are read; the files are whole"
        rows += labelled((f"{glyphs.WARN} ", "warn"), text, width)
    return rows
