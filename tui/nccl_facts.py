"""Where the NCCL screen has its facts from: the nodes while a run lives, the logs on this machine once it has ended."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import msgspec

from ..runners import registry
from ..runners.diagnosis.facts import Facts
from ..runners.errors import NoSuchRunError, RunError
from ..runners.state import RunState


class NodeFacts:
    """Facts of the nodes as one; decoded again only where a node has said something new."""

    def __init__(self) -> None:
        self._told: tuple[bytes, ...] = ()
        self._facts: Facts | None = None

    def of(self, state: RunState) -> Facts | None:
        """What the nodes told so far; None where none has."""
        told = tuple(node.nccl for _, node in sorted(state.nodes.items()) if node.nccl is not None)
        if told != self._told:
            self._told, self._facts = told, merged(told)
        return self._facts


def merged(documents: Iterable[bytes]) -> Facts | None:
    """The documents of several nodes as one; those that cannot be understood are left out."""
    found: list[Facts] = []
    for document in documents:
        try:
            found.append(msgspec.json.decode(document, type=Facts))
        except msgspec.DecodeError:  # of an agent of another version
            continue
    if len(found) < 2:
        return found[0] if found else None
    from ..runners.diagnosis.live import merge  # only where there are several nodes

    return merge(found)


def read_run(run: str, stop: threading.Event) -> Facts | None:
    """Facts from the logs of a run; None when it was stopped. Takes as long as reading them. Raises RunError."""
    from ..runners.diagnosis import sources  # the rules take a while to load
    from ..runners.diagnosis.live import collect

    away = "the logs of this run are not on this machine: `distui diagnose FILE` reads them where they are"
    try:
        files = sources.of_run(registry.resolve(run))
    except NoSuchRunError:  # of a source that keeps its runs elsewhere
        raise RunError(away) from None
    if not files:
        raise RunError(away)
    reading = sources.read_all(files, stop.is_set)
    return None if stop.is_set() else collect(reading)
