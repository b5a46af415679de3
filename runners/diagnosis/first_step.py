"""Describe what ranks do before their first optimizer step, which may take minutes, from their newest stacks.

It names imports, downloads, builds, compilations, datasets, and waits for ranks that do these. Pure.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from ..run.formatting import spans_text
from ..run.freshness import PULSE_S, holds
from ..run.model import RankPhase
from ..run.pulse import Pulse, Site
from ..run.state import Rank, RunState
from ..telemetry.progress import current
from .activity import Kind, frame_rules, position_of

AFTER_S = 5.0
"""Minimum age of an attempt in seconds, since every Python process imports at first."""


_KINDS = {
    Kind.COMPILE: "compiling",
    Kind.CHECKPOINT: "loading or saving weights",
    Kind.IMPORT: "importing modules",
    Kind.NETWORK: "waiting for the network",
    Kind.LOADER: "filling its data loader",
    Kind.SUBPROCESS: "waiting for a program that it started",
    Kind.STORE: "waiting for the other ranks to join",
}
"""Used if no sign matches: by the stack's position, see activity.position_of."""


def no_step_yet(state: RunState, now: float) -> str:
    """ "compiling (ranks 0-6), importing modules (rank 7)"; "" after the first step or without evidence.

    `now`: Unix time on the clock of `state`.
    """
    attempt = state.newest
    if attempt is None or state.phase.ended or now - attempt.began < AFTER_S:
        return ""
    if has_step(state, attempt.began):
        return ""
    groups: dict[str, list[int]] = {}
    for number, words in _each(state, now):
        groups.setdefault(words, []).append(number)
    running = sum(rank.phase is RankPhase.RUNNING for rank in state.ranks.values())
    if len(groups) == 1 and len(*groups.values()) == running:
        return next(iter(groups))
    return ", ".join(f"{words} ({spans_text('rank', ranks)})" for words, ranks in groups.items())


def has_step(state: RunState, began: float) -> bool:
    """Whether a rank has counted or reported a step since that time."""
    if any(rank.sample is not None and rank.sample.step for rank in state.ranks.values()):
        return True
    return any(sample.at >= began and sample.step for sample in current(state))


def _each(state: RunState, now: float) -> Iterator[tuple[int, str]]:
    for number, rank in sorted(state.ranks.items()):
        if rank.phase is not RankPhase.RUNNING or rank.pulse is None:
            continue
        if holds(now - rank.pulse.at, PULSE_S):
            words = _lock(state.ranks, rank.pulse) or doing_words(rank.pulse.stack)
            if words:
                yield number, words


def _lock(ranks: dict[int, Rank], pulse: Pulse) -> str:
    """Describe the file lock that a rank waits for, and its holder; "" without one."""
    if pulse.call != "lock" or not pulse.on:
        return ""
    holder = next((number for number, rank in ranks.items() if rank.pid == pulse.holder), None)
    name = pulse.on.rpartition("/")[2]
    if pulse.holder is None:
        return f"waiting for the lock on {name}"
    who = f"pid {pulse.holder}" if holder is None else f"rank {holder}"
    return f"waiting for the lock on {name}, which {who} holds"


@functools.lru_cache(maxsize=2048)
def doing_words(stack: tuple[Site, ...]) -> str:
    """Describe a stack (innermost first) as a participle; "" for the user's own code."""
    for sign in frame_rules("start"):
        if any(sign.fits(site.file, site.name) for site in stack):
            return sign.kind
    return _KINDS.get(position_of(stack).kind, "")
