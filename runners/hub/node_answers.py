"""Answers of several nodes to one command, merged into one sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from ...presets.sanitize import sentence
from ..run.formatting import agreeing, duration_text
from ..run.model import Clause, CommandDone


@dataclass(frozen=True, slots=True)
class Answer:
    """One node's answer to its part of a command."""

    node: int
    name: str
    """Name on screens: "node 1 (host)"."""
    done: CommandDone | None
    """The CommandDone; None if the link broke before the answer."""
    text: str
    """Text of the answer; without an answer the reason, which begins with the node's name."""
    mute: bool = False
    """True if the link is up but the agent does not answer."""

    @property
    def ok(self) -> bool:
        return self.done is not None and self.done.ok

    @property
    def clauses(self) -> tuple[Clause, ...]:
        """The statements of the answer."""
        return (self.done.clauses if self.done is not None else ()) or (Clause(self.text),)

    def named(self, text: str) -> str:
        """Prefix one of its statements with the node's name, unless the text already has it (no answer)."""
        return text if self.done is None else f"{self.name}: {text}"


def route(ranks: Sequence[int], node_of: Mapping[int, int]) -> dict[int, tuple[int, ...]] | str:
    """Return node → ranks that the command goes to, () for all of its ranks; a sentence if a rank does not exist."""
    if not ranks:
        return dict.fromkeys(sorted(set(node_of.values())), ())
    chosen: dict[int, tuple[int, ...]] = {}
    for rank in ranks:
        if rank not in node_of:
            return f"there is no running rank {rank}"
        chosen[node_of[rank]] = (*chosen.get(node_of[rank], ()), rank)
    return chosen


def together(answers: Sequence[Answer]) -> str:
    """Merge all answers into one sentence: a clause of several answers appears once, with all their ranks."""
    groups: dict[str, list[tuple[Answer, Clause]]] = {}
    for answer in answers:
        for clause in answer.clauses:
            groups.setdefault(clause.text, []).append((answer, clause))
    parts: list[str] = []
    for text, group in groups.items():
        ranks = tuple(rank for _, clause in group for rank in clause.ranks)
        if ranks or len(group) == len(answers):
            parts.append(Clause(text, ranks).words())
        else:
            parts += [answer.named(text) for answer, _ in group]
    return "; ".join(dict.fromkeys(parts))


def beside(answers: Sequence[Answer]) -> str:
    """Merge the clauses after the first of each answer into one sentence."""
    rest = [
        replace(answer, done=structs.replace(answer.done, clauses=answer.done.clauses[1:]))
        for answer in answers
        if answer.done is not None and len(answer.done.clauses) > 1
    ]
    return together(rest)


def needs_all(silent: Sequence[str]) -> str:
    """Reason why a restart is refused."""
    why = sentence(f"a restart needs every node, and nothing was restarted: {'; '.join(silent)}")
    return f"{why} Wait for it, or go on without it with --reachable"


def not_running(attempt: int, missing: Sequence[str]) -> str:
    """Reason why a restart is not complete."""
    return "; ".join([f"attempt {attempt} is not running yet: see its logs", *missing])


def stopped_without(silent: Sequence[str], any_reached: bool, seconds: float | None) -> str:
    """Text of a stop without some nodes. The hub retries for `seconds`; None: no more."""
    names, single = ", ".join(silent), len(silent) == 1
    begin = "stopped on the nodes that answer" if any_reached else "no node was reached"
    if seconds is None:
        return f"{begin}; {names} did not answer: what runs there goes on until it is ended there"
    does, ordered = ("does", "it is told") if single else ("do", "they are told")
    without = (
        f"after {duration_text(seconds)} the run counts as stopped without {'it' if single else 'them'}"
    )
    return f"{begin}; {names} {does} not answer: {ordered} to stop on the first answer, {without}"


def not_stopped_yet(names: Sequence[str]) -> str:
    """Text of a stop that is not complete: these nodes still run."""
    verb = agreeing(names, "has", "have")
    return f"{', '.join(names)} {verb} not stopped yet: see agent.log there"
