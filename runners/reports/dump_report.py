"""Dumps of the ranks: the request, and its merged answer as `distui dump --json` prints it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NotRequired, TypedDict

from ...presets.plurals import plural
from ..diagnosis.rank_dumps import by_rank, merged_recorders
from ..diagnosis.rank_memory import memory_values
from ..diagnosis.stack_text import merged_stacks
from ..node.local_agent import check_ranks
from ..node.run_following import history
from ..run.commands import Dump
from ..run.model import CommandDone, RankPhase
from ..run.state import RunState
from ..run.wire.client import Link, new_id

KINDS = ("stacks", "flight", "memory")
RECORD = "record"
"""Asks torch to record allocations for later snapshots of the memory."""
BATCH = 32
"""Maximum ranks per request, since their answers must fit into one line of the link."""


class Dumped(TypedDict):
    """`dump`."""

    ok: bool
    text: str
    data: Mapping[str, str]
    merged: NotRequired[list[dict[str, Any]] | None]


async def ask(link: Link, what: str, asked: Sequence[int]) -> tuple[CommandDone, RunState]:
    """Request a dump of ranks, () for all, in batches at the same time. Also return the run's state. Raises RunError."""
    state = await history(link)
    if not state.phase.ended:
        check_ranks(state, asked)
    ranks = sorted(set(asked)) or _running(state)
    batches = [tuple(ranks[at : at + BATCH]) for at in range(0, len(ranks), BATCH)] or [()]
    if len(batches) == 1 and not asked:
        batches = [()]
    requests = [link.send(Dump(new_id(), what, batch)) for batch in batches]
    return together(await asyncio.gather(*requests)), state


def _running(state: RunState) -> list[int]:
    """Return the ranks of the newest attempt with a process: a rank without one cannot answer."""
    return sorted(number for number, rank in state.ranks.items() if rank.phase is RankPhase.RUNNING)


def together(answers: Sequence[CommandDone]) -> CommandDone:
    """Merge several answers into one, which is ok if any rank has answered."""
    if len(answers) == 1:
        return answers[0]
    data = {rank: text for answer in answers for rank, text in answer.data.items()}
    problems = [answer.text.partition("; ")[2] if answer.ok else answer.text for answer in answers]
    reasons = list(dict.fromkeys(text for text in problems if text))
    if not data:
        return CommandDone(answers[0].id, False, "; ".join(reasons))
    return CommandDone(
        answers[0].id, True, "; ".join([f"{plural(len(data), 'rank')} answered", *reasons]), data
    )


def document(what: str, done: CommandDone) -> Dumped:
    """Return an answer as JSON values; `merged` is None if an answer cannot be parsed."""
    made, texts = Dumped(ok=done.ok, text=done.text, data=done.data), by_rank(done.data)
    if texts:
        try:
            made["merged"] = _merged(what, texts)
        except ValueError:
            made["merged"] = None  # RECORD answers with a sentence
    return made


def _merged(what: str, texts: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return the merged answers. Raises ValueError."""
    if what == "stacks":
        return [
            {"ranks": list(group.ranks), "frames": list(group.frames)} for group in merged_stacks(texts)
        ]
    if what == "memory":
        return memory_values(texts)
    return [asdict(group) for group in merged_recorders(texts)]
