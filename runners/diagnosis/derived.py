"""Findings that no single line says: from statements, and from what the rules found."""

from __future__ import annotations

from .parts import Communicator, Stage
from .statements import Statements
from .tally import Tally

RDMA_RULES = ("ofi-init-failed", "ofi-no-efa", "ofi-av", "ib-open-device")
"""Where one of these fired there is, or should be, an RDMA device."""


def derived(statements: Statements, tally: Tally) -> dict[str, str]:
    """Id of a rule → what it was seen by, a sentence."""
    found = {
        "net-socket-fallback": _sockets(statements, tally),
        "gdr-asymmetric": _one_sided(statements),
        "version-mismatch": _versions(statements),
        "p2p-hang": _hang(statements, tally),
    }
    return {rule: text for rule, text in found.items() if text}


def several_nodes(statements: Statements) -> bool | None:
    """Whether a communicator spans nodes; None where nothing says so."""
    said = [one.nnodes for one in statements.sessions.communicators if one.nnodes is not None]
    if any(len(one.hosts) > 1 for one in statements.sessions.communicators) or any(one > 1 for one in said):
        return True
    whole = [one for one in statements.sessions.communicators if one.nranks is not None]
    alone = bool(whole) and all(one.nnodes == 1 or len(one.ranks) == one.nranks for one in whole)
    return False if alone else None


def _fired(tally: Tally, *ids: str) -> bool:
    return any(entry.count for entry in tally.entries if entry.rule.id in ids)


def _sockets(statements: Statements, tally: Tally) -> str:
    """Traffic between nodes over TCP where an RDMA device is there, and nobody asked for TCP."""
    if not several_nodes(statements):
        return ""
    for node in statements.nodes.values():
        asked = (
            node.env.get("NCCL_IB_DISABLE", "0") != "0" or node.env.get("NCCL_NET", "").lower() == "socket"
        )
        expected = node.hcas or "NCCL_IB_HCA" in node.env or _fired(tally, *RDMA_RULES)
        if "Socket" in node.networks and expected and not asked:
            why = f"it has {', '.join(sorted(node.hcas)[:4])}" if node.hcas else "RDMA was to be used"
            return f"{node.host} uses network Socket, and {why}"
    return ""


def _one_sided(statements: Statements) -> str:
    for communicator in statements.sessions.all():
        for (source, target, channel), (sends, receives) in communicator.ends.items():
            if sends is not None and receives is not None and sends != receives:
                who = "sender" if sends else "receiver"
                return f"channel {channel} from rank {source} to rank {target}: only the {who} uses GPUDirect RDMA"
    return ""


def _versions(statements: Statements) -> str:
    """Hosts of one communicator that say different versions."""
    for communicator in statements.sessions.communicators:
        said = {
            next(iter(node.versions)): host
            for host in sorted(communicator.hosts)
            if (node := statements.nodes.get(host)) is not None and len(node.versions) == 1
        }
        if len(said) > 1:
            return ", ".join(f"{host} has {version}" for version, host in sorted(said.items())[:4])
    return ""


def _hang(statements: Statements, tally: Tally) -> str:
    """The first collective timed out on one node, all of whose GPUs are connected by P2P and none by NVLink SHARP."""
    causes = any(
        entry.count
        for entry in tally.entries
        if entry.rule.role == "cause" and entry.rule.severity == "error"
    )
    seqs = [one.seq for one in tally.progress.values() if one.seq is not None]
    if causes or not seqs or max(seqs) > 1:
        return ""
    for one in statements.sessions.communicators:
        if _p2p_alone(one) and one.reached(Stage.COMPLETE):
            return f"{one.nranks} ranks on one node were ready, and collective {max(seqs)} timed out"
    return ""


def _p2p_alone(communicator: Communicator) -> bool:
    kinds = {kind for one in communicator.pairs.values() for kind in one}
    one_node = communicator.nnodes == 1 or (communicator.nnodes is None and len(communicator.hosts) == 1)
    nvls = communicator.nvls or communicator.channels.get("nvls", 0) > 0
    return one_node and bool(kinds) and all(kind.startswith("P2P/") for kind in kinds) and not nvls
