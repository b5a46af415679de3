"""The choice of a run's log files by rank, stream, attempt and node. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..run.errors import RunError
from ..run.formatting import spans_text
from ..run.log_files import LogFile
from ..run.state import RunState


def choose(
    files: Iterable[LogFile],
    ranks: Collection[int] = (),
    streams: Collection[str] = ("out", "err"),
    attempt: int | None = None,
    node: int | None = None,
) -> list[LogFile]:
    """Return the files to show. Defaults: every attempt, every rank and every node.

    The stream "log" selects runner and agent logs, which belong to no attempt.
    """
    return [file for file in files if _is_wanted(file, ranks, streams, attempt, node)]


def _is_wanted(
    file: LogFile,
    ranks: Collection[int],
    streams: Collection[str],
    attempt: int | None,
    node: int | None,
) -> bool:
    return (
        file.stream in streams
        and (node is None or file.node == node)
        and (not ranks or file.rank in ranks)
        and (attempt is None or file.attempt in (attempt, None))
    )


def check_there(
    state: RunState,
    files: Iterable[LogFile],
    ranks: Collection[int] = (),
    attempt: int | None = None,
    node: int | None = None,
) -> None:
    """Raise RunError for a rank, attempt or node that the run does not have, unless an attempt may still start."""
    if not state.attempts and not state.phase.ended:
        return
    existing = _numbers(state, files)
    wanted: dict[str, Collection[int]] = {
        "rank": ranks,
        "attempt": () if attempt is None else (attempt,),
        "node": () if node is None else (node,),
    }
    for kind, asked in wanted.items():
        there = existing[kind]
        missing = [number for number in asked if number not in there]
        if missing:
            has = spans_text(kind, there) if there else f"no {kind}"
            raise RunError(f"{state.name}: no {kind} {missing[0]}, it has {has}")


def _numbers(state: RunState, files: Iterable[LogFile]) -> dict[str, set[int]]:
    """Return the ranks, attempts and nodes of a run and of its logs."""
    numbers = {
        "rank": {place.rank for each in state.attempts for place in each.ranks},
        "attempt": {each.number for each in state.attempts},
        "node": set(state.nodes),
    }
    for file in files:
        numbers["node"].add(file.node)
        if file.rank is not None:
            numbers["rank"].add(file.rank)
    return numbers
