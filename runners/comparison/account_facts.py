"""Facts about a run or attempt for a comparison: texts by section, and the variables of its ranks. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ...presets.secrets import MASK
from ..diagnosis.applied_preset import applied
from ..diagnosis.nccl_facts import Communicator, NcclFacts
from ..run.formatting import spans_text
from ..run.journal import RunRecord
from ..run.launch_record import GitState
from ..run.model import FirstCause, RunPhase
from ..run.state import Attempt, Node, RunState
from .account import CAUSE, NONE, Facts
from .plan_facts import plan_value

# --- outcome and first cause ---


def chosen(state: RunState, number: int | None) -> Attempt | None:
    """Return the attempt with that number, by default the newest; None without one."""
    if number is None:
        return state.attempts[-1] if state.attempts else None
    return next((each for each in state.attempts if each.number == number), None)


def outcome_facts(state: RunState, number: int | None) -> Facts:
    """Return the outcome of the whole run or of one attempt."""
    attempt = chosen(state, number)
    facts: Facts = {"state": state.phase.words}
    if number is None:
        facts |= {"attempts": str(len(state.attempts))} if state.attempts else {}
        facts |= {"exit code": str(state.exit_code)} if state.exit_code is not None else {}
    elif attempt is not None:
        facts = {"state": str(attempt.outcome or state.phase.words), "begun by": attempt.cause}
    if attempt is not None and attempt.idle:
        facts["trained"] = attempt.idle
    acted = applied(state) if number in (None, state.attempt) else None
    if acted is not None:
        facts["preset acted"] = f"{acted.state}: {acted.text}"
    return facts


def cause_facts(state: RunState, number: int | None) -> Facts:
    """Return the first cause of the attempt, or of the run's newest failed attempt; "none" without a failure."""
    if number is None:
        causes = [each.first_cause for each in state.attempts if each.first_cause is not None]
        cause = causes[-1] if causes else None
    else:
        attempt = chosen(state, number)
        cause = None if attempt is None else attempt.first_cause
    if cause is not None:
        return _cause(cause)
    attempt = chosen(state, number)
    unclear = state.phase is RunPhase.LOST or (
        attempt is not None and str(attempt.outcome) in ("failed", "lost")
    )
    return {} if unclear else {CAUSE: NONE}


def _cause(cause: FirstCause) -> Facts:
    facts = {CAUSE: cause.text, "rank": str(cause.rank), "node": str(cause.node)}
    facts |= {"kind": cause.kind} if cause.kind else {}
    facts |= {"where": cause.where} if cause.where else {}
    facts |= {"exit code": str(cause.exit_code)} if cause.exit_code is not None else {}
    return facts | ({"signal": cause.signal} if cause.signal else {})


# --- code, versions, nodes, transports ---


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


# --- the environment ---

PORTS = ("NCCL_RAS_ADDR", "MASTER_PORT")
"""Variables that end with a port, which differs between runs."""


def environment_facts(
    values: Mapping[str, str], hidden: Iterable[str], changes: Mapping[str, str | None], record: RunRecord
) -> dict[str, str]:
    """Return the ranks' variables without names of the run. A change to None removes a variable."""
    env: dict[str, str | None] = {**values, **dict.fromkeys(hidden, MASK), **changes}
    own = {name: text for name, text in env.items() if text is not None and not name.startswith("DISTUI_")}
    return {name: _without_run(name, text, record) for name, text in sorted(own.items())}


def _without_run(name: str, text: str, record: RunRecord) -> str:
    text = text.replace(record.run, "<run>")
    return re.sub(r"\d+$", "<port>", text) if name in PORTS else text


def changes_until(state: RunState, number: int | None) -> dict[str, str | None]:
    """Return the variables that restarts have changed, up to an attempt."""
    if number is None:
        return dict(state.changes)
    changed: dict[str, str | None] = {}
    for attempt in state.attempts:
        if attempt.number <= number:
            changed |= attempt.env_diff
    return changed
