"""Whom a command goes to, and what several nodes answered as one sentence. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..agent.commands import name_ranks
from ..model import CommandDone

_RANKS = re.compile(r"\branks? (\d+(?: to \d+|(?:, \d+)*))")


@dataclass(frozen=True, slots=True)
class Answer:
    """What one node said to its part of a command."""

    node: int
    name: str
    """As the screen calls it: "node 1 (host)"."""
    done: CommandDone | None
    """None: the link broke before it answered."""
    text: str

    @property
    def ok(self) -> bool:
        return self.done is not None and self.done.ok


def route(ranks: Sequence[int], node_of: Mapping[int, int]) -> dict[int, tuple[int, ...]] | str:
    """Which node is asked for which ranks (() for all of its own); a sentence when there is no such rank."""
    if not ranks:
        return dict.fromkeys(sorted(set(node_of.values())), ())
    chosen: dict[int, tuple[int, ...]] = {}
    for rank in ranks:
        if rank not in node_of:
            return f"there is no running rank {rank}"
        chosen[node_of[rank]] = (*chosen.get(node_of[rank], ()), rank)
    return chosen


def together(told: Sequence[Answer]) -> str:
    """One sentence of all answers: what several say of their ranks is said once, of all these ranks."""
    groups: dict[str, list[Answer]] = {}
    for answer in told:
        groups.setdefault(_RANKS.sub("%", answer.text), []).append(answer)
    parts = []
    for template, group in groups.items():
        if len(group) == 1 and len(groups) > 1 and group[0].done is not None:
            parts.append(f"{group[0].name}: {group[0].text}")
        elif template.count("%") == 1 and len(group) > 1:
            ranks = tuple(rank for answer in group for rank in ranks_in(answer.text))
            parts.append(_RANKS.sub(name_ranks(ranks), group[0].text))
        else:
            parts += list(dict.fromkeys(answer.text for answer in group))
    return "; ".join(parts)


def ranks_in(text: str) -> list[int]:
    """The ranks that a text like "live on ranks 0 to 7" names."""
    found: list[int] = []
    for match in _RANKS.finditer(text):
        first, to, last = match[1].partition(" to ")
        found += range(int(first), int(last) + 1) if to else map(int, first.split(", "))
    return found


def count(nodes: Sequence[int]) -> str:
    """ "1 node", "3 nodes"."""
    return "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"


def needs_all(silent: Sequence[str]) -> str:
    """Why nothing was restarted."""
    return (
        f"a restart needs every node, and nothing was restarted: {'; '.join(silent)}. "
        "Wait for it, or go on without it with --reachable"
    )


def not_running(attempt: int, missing: Sequence[str]) -> str:
    """Why a restart is not done."""
    return "; ".join([f"attempt {attempt} is not running yet: see its logs", *missing])


def stopped_without(silent: Sequence[str], any_reached: bool, seconds: float | None) -> str:
    """What a stop could not reach, and what becomes of it: for `seconds` more it is tried; None: no more."""
    names, one = ", ".join(silent), len(silent) == 1
    begin = "stopped on the nodes that answer" if any_reached else "no node was reached"
    if seconds is None:
        return f"{begin}; {names} did not answer: what runs there goes on until it is ended there"
    does, told = ("does", "it is told") if one else ("do", "they are told")
    limit = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
    without = f"after {limit} the run counts as stopped without {'it' if one else 'them'}"
    return f"{begin}; {names} {does} not answer: {told} to stop on the first answer, {without}"


def not_stopped_yet(names: Sequence[str]) -> str:
    """What nodes are that were told to stop and go on."""
    verb = "has" if len(names) == 1 else "have"
    return f"{', '.join(names)} {verb} not stopped yet: see agent.log there"
