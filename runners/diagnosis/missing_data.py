"""Name the data that the findings of a run lack, one sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..run.formatting import spans_text
from ..run.log_files import parse_file_id
from ..run.model import LinkState, RankPhase
from ..run.state import RunState

UNTIMED = "TORCH_NCCL_ENABLE_TIMING=1 has torch record how long collectives take: without it no slow rank is detected"
"""Text for NCCL, because ranks enqueue a collective long before it runs."""


def missing(state: RunState, logs: Sequence[str] | None) -> list[str]:
    """Return the data that a diagnosis lacks, one sentence each.

    `logs`: ids of the logs that were read; None if none are needed.
    """
    gaps: list[str] = []
    if logs is not None:
        gaps += _unread(state, logs)
        if not logs and not gaps:
            gaps = ["no logs of the newest attempt are on this machine"]
    return gaps if state.phase.ended else [*gaps, *_missing_values(state)]


def _missing_values(state: RunState) -> Iterator[str]:
    """Yield sentences about data that nodes and ranks of a live run do not report."""
    for node in state.nodes.values():
        if node.link is LinkState.LOST:
            yield f"{node.host or f'node {node.node}'} does not answer: its values are old"
    yield from _hookless(state)
    if untimed(state):
        yield UNTIMED


def _hookless(state: RunState) -> Iterator[str]:
    """Yield a sentence about the running ranks whose hook does not answer."""
    running = {number: rank for number, rank in state.ranks.items() if rank.phase is RankPhase.RUNNING}
    blind = {number: rank.pulse for number, rank in sorted(running.items()) if not rank.hook}
    if blind:
        has_stacks = all(pulse is not None and pulse.stack for pulse in blind.values())
        lacking = "no flight recorder" if has_stacks else "no stack, no flight recorder"
        yield f"no hook answers in {spans_text('rank', blind)}: {lacking}"


def untimed(state: RunState) -> bool:
    """Whether NCCL collectives are known, but none of them has a duration."""
    if state.plan is None or state.plan.backend != "nccl":
        return False
    durations: set[float | None] = set()
    for rank in state.ranks.values():
        if rank.pulse is not None:
            durations.update(call.duration_ms for call in rank.pulse.recent if not call.p2p)
    return durations == {None}


def _unread(state: RunState, logs: Sequence[str]) -> Iterator[str]:
    """Unread logs on nodes: during a run, a hub keeps only logs that a viewer requested."""
    if state.phase.ended or not state.merged:
        return
    files = filter(None, map(parse_file_id, logs))
    here = {file.node for file in files if file.attempt == state.attempt}
    running = {rank.place.node for rank in state.ranks.values() if rank.phase is RankPhase.RUNNING}
    if absent := sorted(running - here):
        where = f"of attempt {state.attempt} on {spans_text('node', absent)}"
        yield f"the logs {where} were not read yet: `distui logs {state.name}` fetches them"
