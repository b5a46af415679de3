"""Rules that hold in a reading, with those that are derived from statements of several lines instead of one. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..run.formatting import agreeing, spans_text
from .nccl_facts import RankStage, requests_sockets
from .reading import Reading
from .rules import RuleHits, Tally
from .statements import CommunicatorPart, Statements

OF_OTHER_BUILDS = ("boot-mismatch", "boot-truncated", "sock-handshake")
"""Symptoms of ranks with different NCCL builds. They are causes only if the versions are equal or unknown."""


def fired(reading: Reading) -> Iterator[tuple[RuleHits, str]]:
    """Yield the rules that hold, in their order, each with the statement that shows a derived rule, else ""."""
    seen = derived(reading.statements, reading.tally) if reading.nccl_lines else {}
    mixed = "version-mismatch" in seen
    alone = several_nodes(reading.statements) is False
    for entry in reading.tally.entries:
        name = entry.rule.id
        if mixed and name in OF_OTHER_BUILDS:
            entry = replace(entry, rule=replace(entry.rule, role="symptom"))
        if (entry.count or name in seen) and not (alone and name == "sock-bad-interface-hint"):
            yield entry, seen.get(name, "")


RDMA_RULES = ("ofi-init-failed", "ofi-no-efa", "ofi-av", "ib-open-device")
"""Rules that show that an RDMA device exists or should exist."""


def derived(statements: Statements, tally: Tally) -> dict[str, str]:
    """Return a sentence of evidence for each derived rule that holds, by rule id."""
    texts = {
        "net-socket-fallback": _sockets(statements, tally),
        "gdr-asymmetric": _asymmetric_gdr(statements),
        "version-mismatch": _versions(statements),
        "p2p-hang": _hang(statements, tally),
    }
    return {rule: text for rule, text in texts.items() if text}


def several_nodes(statements: Statements) -> bool | None:
    """Whether a communicator spans several nodes; None if unknown."""
    communicators = statements.sessions.communicators
    if any(part.spans_nodes for part in communicators):
        return True
    whole = [part for part in communicators if part.nranks is not None]
    if whole and all(part.nnodes == 1 or len(part.ranks) == part.nranks for part in whole):
        return False
    return None


def _fired(tally: Tally, *ids: str) -> bool:
    return any(entry.count for entry in tally.entries if entry.rule.id in ids)


def _sockets(statements: Statements, tally: Tally) -> str:
    """Report TCP between nodes although an RDMA device exists and no variable requests TCP."""
    if not several_nodes(statements):
        return ""
    for node in statements.nodes.values():
        expected = node.hcas or "NCCL_IB_HCA" in node.env or _fired(tally, *RDMA_RULES)
        if "Socket" in node.networks and expected and not requests_sockets(node.env):
            why = f"it has {', '.join(sorted(node.hcas)[:4])}" if node.hcas else "RDMA was to be used"
            return f"{node.host} uses network Socket, and {why}"
    return ""


def _asymmetric_gdr(statements: Statements) -> str:
    for communicator in statements.sessions.all():
        for (source, target, channel), (sends, receives) in communicator.ends.items():
            if sends is not None and receives is not None and sends != receives:
                who = "sender" if sends else "receiver"
                return f"channel {channel} from rank {source} to rank {target}: only the {who} uses GPUDirect RDMA"
    return ""


def _versions(statements: Statements) -> str:
    """Report different NCCL versions among the hosts or the ranks of one communicator."""
    for communicator in statements.sessions.communicators:
        for versions in (_of_hosts(communicator, statements), _of_ranks(communicator, statements)):
            if len(versions) > 1:
                return ", ".join(f"{who} {version}" for version, who in sorted(versions.items())[:4])
    return ""


def _of_hosts(communicator: CommunicatorPart, statements: Statements) -> dict[str, str]:
    """Return the last host with each NCCL version, with a verb."""
    versions: dict[str, str] = {}
    for host in sorted(communicator.hosts):
        node = statements.nodes.get(host)
        if node is not None and len(node.versions) == 1:
            versions[next(iter(node.versions))] = f"{host} has"
    return versions


def _of_ranks(communicator: CommunicatorPart, statements: Statements) -> dict[str, str]:
    """Return the ranks with each NCCL version, with a verb."""
    ranks: dict[str, list[int]] = {}
    for part in communicator.ranks.values():
        if version := statements.version_of(part):
            ranks.setdefault(version, []).append(part.rank)
    return {
        version: f"{spans_text('rank', sorted(its))} {agreeing(its, 'has', 'have')}"
        for version, its in ranks.items()
    }


def _hang(statements: Statements, tally: Tally) -> str:
    """Report a timeout of the first collective on one node whose GPUs all use P2P and none NVLink SHARP."""
    seqs = [progress.seq for progress in tally.progress.values() if progress.seq is not None]
    if max(seqs, default=2) > 1 or any(entry.count for entry in tally.entries if entry.rule.explains):
        return ""
    for comm in statements.sessions.communicators:
        if _p2p_alone(comm) and comm.reached(RankStage.COMPLETE):
            return f"{comm.nranks} ranks on one node were ready, and collective {max(seqs)} timed out"
    return ""


def _p2p_alone(communicator: CommunicatorPart) -> bool:
    kinds = {kind for each in communicator.pairs.values() for kind in each}
    single_node = communicator.nnodes == 1 or (communicator.nnodes is None and len(communicator.hosts) == 1)
    p2p = bool(kinds) and all(kind.startswith("P2P/") for kind in kinds)
    return single_node and p2p and not communicator.uses_nvls
