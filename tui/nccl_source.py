"""Where the NCCL screen has its facts from: the nodes while a run lives, the logs on this machine once it has ended."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import msgspec

from ..runners import run_directories
from ..runners.diagnosis.nccl_facts import NcclFacts
from ..runners.errors import NoSuchRunError, RunError
from ..runners.state import RunState


class NodeFacts:
    """Facts of the nodes as one; decoded again only where a node has said something new."""

    def __init__(self) -> None:
        self._documents: tuple[bytes, ...] = ()
        self._facts: NcclFacts | None = None

    def of(self, state: RunState) -> NcclFacts | None:
        """What the nodes told so far; None where none has."""
        documents = tuple(node.nccl for _, node in sorted(state.nodes.items()) if node.nccl is not None)
        if documents != self._documents:
            self._documents, self._facts = documents, merged(documents)
        return self._facts


def merged(documents: Iterable[bytes]) -> NcclFacts | None:
    """The documents of several nodes as one; those that cannot be understood are left out."""
    facts: list[NcclFacts] = []
    for document in documents:
        try:
            facts.append(msgspec.json.decode(document, type=NcclFacts))
        except msgspec.DecodeError:  # of an agent of another version
            continue
    if len(facts) < 2:
        return facts[0] if facts else None
    from ..runners.diagnosis.live import merge  # only where there are several nodes

    return merge(facts)


def read_run(run: str, stop: threading.Event) -> NcclFacts | None:
    """Facts from the logs of a run; None when it was stopped. Takes as long as reading them. Raises RunError."""
    from ..runners.diagnosis import report  # the rules take a while to load
    from ..runners.diagnosis.live import collect

    away = "the logs of this run are not on this machine: `distui diagnose FILE` reads them where they are"
    try:
        files = report.of_run(run_directories.resolve(run))
    except NoSuchRunError:  # of a source that keeps its runs elsewhere
        raise RunError(away) from None
    if not files:
        raise RunError(away)
    reading, _ = report.read_run(files, stop.is_set)
    return None if stop.is_set() else collect(reading)
