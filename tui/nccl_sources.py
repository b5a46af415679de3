"""NCCL's facts of a run: from its nodes, or from its logs."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import msgspec

from ..runners.diagnosis.nccl_facts import NcclFacts, merge
from ..runners.run import run_directories
from ..runners.run.errors import NoSuchRunError, RunError
from ..runners.run.state import RunState


class NodeFacts:
    """Merged NCCL facts of all nodes; decoded again only if a node has reported new facts."""

    def __init__(self) -> None:
        self._documents: tuple[bytes, ...] = ()
        self._facts: NcclFacts | None = None

    def of(self, state: RunState) -> NcclFacts | None:
        """Return the facts that the nodes have reported so far; None if no node has."""
        documents = tuple(node.nccl for _, node in sorted(state.nodes.items()) if node.nccl is not None)
        if documents != self._documents:
            self._documents, self._facts = documents, merged(documents)
        return self._facts


def merged(documents: Iterable[bytes]) -> NcclFacts | None:
    """Merge the documents of several nodes; invalid ones are left out."""
    facts: list[NcclFacts] = []
    for document in documents:
        try:
            facts.append(msgspec.json.decode(document, type=NcclFacts))
        except msgspec.DecodeError:  # written by an agent of another version
            continue
    if len(facts) < 2:
        return facts[0] if facts else None
    return merge(facts)


def read_run(run: str, state: RunState, stop: threading.Event) -> NcclFacts | None:
    """Return facts from the logs of a run; None if `stop` was set. Slow. Raises RunError."""
    from ..runners.diagnosis.read_logs import (  # the rules are slow to load
        judged_attempt,
        logs_of_run,
        read_run,
    )

    away = "the logs of this run are not on this machine: `distui diagnose FILE` reads them where they are"
    try:
        entry = run_directories.resolve(run)
        files = logs_of_run(entry, judged_attempt(entry, state))
    except NoSuchRunError:  # the run belongs to another machine
        raise RunError(away) from None
    if not files:
        raise RunError(away)
    reading, _ = read_run(files, stop.is_set)
    return None if stop.is_set() else reading.facts()
