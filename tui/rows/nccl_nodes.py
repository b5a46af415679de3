"""NCCL's facts about nodes as cards: equal nodes share a card, and differences are marked. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ...presets.secrets import mask
from ...runners.diagnosis.nccl_facts import FactLine, NcclFacts, NcclNode
from ...runners.run.formatting import NA, agreeing, listed, spans
from . import glyphs
from .frame import short_host
from .glyphs import Row
from .statements import StatementRow, field, headed


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
    rows = headed(head, agreeing(ranks, "rank", "ranks"), spans(ranks), width, line)
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
            rows += field(label, texts[label] or NA, others, differs, width, line)
    return rows


def _line(facts: NcclFacts, host: str, label: str = "") -> FactLine | None:
    """Return the source line of a field, else any line about the node."""
    kinds = {"NCCL": "version", "network": "network", "bootstrap": "bootstrap", "HCAs": "hcas"}
    order = [kinds[label]] if label in kinds else []
    lines = (facts.raw.get(f"{kind}:{host}") for kind in (*order, "host", "network", "version"))
    return next((line for line in lines if line is not None), None)


def _variables(facts: NcclFacts, group: NodeGroup, usual: NodeGroup, width: int) -> list[StatementRow]:
    """Return all variables of the usual nodes; of other nodes only those that differ."""
    own, common = group.nodes[0].env, usual.nodes[0].env
    line = _line(facts, group.nodes[0].host)
    if group is usual:
        text = "  ".join(f"{name}={mask(name, value)}" for name, value in sorted(own.items()))
        return field("variables", text, "", False, width, line) if text else []
    rows: list[StatementRow] = []
    for name in sorted({*own, *common}):
        if own.get(name) != common.get(name):
            value = f"{name}={mask(name, own[name])}" if name in own else f"{name} is not set"
            others = f"   the others: {mask(name, common[name]) if name in common else 'not set'}"
            rows += field("variable", value, others, True, width, line)
    return rows
