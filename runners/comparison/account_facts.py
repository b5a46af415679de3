"""Code, versions, nodes and transports of a run for a comparison. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..diagnosis.nccl_facts import Communicator, NcclFacts
from ..run.formatting import spans_text
from ..run.launch_record import GitState
from ..run.state import Attempt, Node, RunState
from .account import Facts
from .plan_facts import plan_value


def code_facts(git: GitState | None, attempt: Attempt | None) -> Facts:
    """Return the state of the repository at the launch, and the script's files at the attempt's beginning."""
    facts: Facts = {}
    if git is not None:
        facts |= {"commit": git.commit, "branch": git.branch or "no branch"}
        if git.dirty is not None:
            facts["uncommitted changes"] = f"yes ({git.changes})" if git.dirty else "no"
    files = attempt.code if attempt is not None else {}
    return facts | {f"file {path}": digest for path, digest in files.items()}


def version_facts(state: RunState, facts: NcclFacts | None) -> Facts:
    """Return the versions of torch, NCCL, the driver and distui."""
    loaded = {rank.nccl_version for rank in state.ranks.values() if rank.nccl_version}
    logged = () if facts is None else (node.versions for node in facts.nodes)
    drivers = {node.driver for node in state.nodes.values() if node.driver}
    return _given(
        {
            "torch": state.torch,
            "NCCL": _listed([loaded]) or _listed(logged),
            "driver": _listed([drivers]),
            "distui": state.release,
        }
    )


def _listed(names: Iterable[Iterable[str]]) -> str:
    return ", ".join(sorted(set[str]().union(*names)))


def _given(facts: Mapping[str, str | None]) -> Facts:
    """Return the facts that have a text."""
    return {name: text for name, text in facts.items() if text}


def node_facts(state: RunState, attempt: Attempt | None) -> Facts:
    """Return the number of nodes, the hosts and the GPUs."""
    placed = () if attempt is None else attempt.ranks
    numbers = set(state.nodes) if attempt is None else {place.node for place in placed}
    facts: dict[str, str | None] = {"nodes": str(len(numbers)) if numbers else ""}
    for number in sorted(numbers & state.nodes.keys()):
        node = state.nodes[number]
        ranks = [place.rank for place in placed if place.node == number]
        facts[f"node {number}"] = node.host
        facts[f"node {number} ranks"] = spans_text("rank", ranks) if ranks else ""
        facts[f"node {number} GPUs"] = _gpus_text(node)
    if state.cluster is not None:
        facts |= {"infra": state.cluster.infra, "resources": state.cluster.resources}
    return _given(facts)


def _gpus_text(node: Node) -> str:
    models = Counter(node.models or [gpu.name for gpu in node.gpus])
    return ", ".join(f"{count}x {name}" for name, count in models.items())


def transport_facts(facts: NcclFacts | None) -> Facts:
    """Return the transports between NCCL's ranks, from its logs."""
    if facts is None:
        return {}
    kinds = Counter(pair.kind for comm in facts.communicators for pair in comm.pairs)
    named = {
        "network": _listed(node.networks for node in facts.nodes),
        "plugins": _listed(node.plugins for node in facts.nodes),
        "interfaces": _listed(node.interfaces for node in facts.nodes),
        "HCAs": _listed(node.hcas for node in facts.nodes),
    }
    connections = {f"connections by {kind}": str(count) for kind, count in sorted(kinds.items())}
    return connections | _given(named) | _communicator_facts(facts.communicators)


def _communicator_facts(communicators: Sequence[Communicator]) -> Facts:
    """Return the number of communicators, and the rings and channels of the widest."""
    if not communicators:
        return {}
    widest = communicators[0]
    facts = {
        "communicators": str(len(communicators)),
        "rings": str(widest.ring_count or ""),
        **{f"channels: {name}": str(count) for name, count in sorted(widest.channels.items())},
        "NVLS": "" if widest.nvls is None else plan_value(widest.nvls),
    }
    return _given(facts)
