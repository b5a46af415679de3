"""dump: stacks, memory and flight recorders of all ranks."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NotRequired, TypedDict

from ...presets.plurals import plural
from ...presets.sanitize import clean_text
from ...runners.diagnosis.rank_dumps import merged_recorders
from ...runners.diagnosis.stack_text import merged_stacks
from ...runners.node.local_agent import check_ranks, with_link
from ...runners.node.run_following import history
from ...runners.run.errors import RunError
from ...runners.run.model import CommandDone, Dump, RankPhase
from ...runners.run.state import RunState
from ...runners.run.wire.client import Link, new_id
from ..rows.dumps import Source, by_rank, memory_values, merged_rows, no_source, source_of
from ..rows.glyphs import plain
from ..terminal import complain

BATCH = 32
"""Maximum ranks per request, since their answers must fit into one line of the link."""


def dump(options: argparse.Namespace) -> int:
    """Request a dump; print it merged, raw (--raw) or as JSON. Raises RunError."""
    if options.record and options.what != "memory":
        raise RunError("--record is for memory: `distui dump RUN memory --record`")
    done, source = asyncio.run(with_link(options.run, lambda entry, link: _ask(link, options)))
    texts = by_rank(done.data)
    if options.json:
        sys.stdout.write(json.dumps(_document(options.what, done, texts)) + "\n")
    elif done.ok:
        sys.stdout.write("\n".join(_answers(options, done, texts, source)) + "\n")
    if not done.ok:
        complain(done.text)
    return 0 if done.ok else 1


def _answers(
    options: argparse.Namespace, done: CommandDone, texts: Mapping[int, str], source: Source
) -> list[str]:
    """Return the dump as lines, with the reason if a rank has not answered."""
    if options.record:
        return [f"rank {rank}: {texts[rank]}" for rank in sorted(texts)]
    lines = _raw(texts) if options.raw else shown(options.what, done.data, source)
    lines += ["", f"Not all have answered: {done.text}"] if "; " in done.text else []
    return [clean_text(line) for line in lines]


async def _ask(link: Link, options: argparse.Namespace) -> tuple[CommandDone, Source]:
    """Send the request in batches of ranks, all at the same time; also return the source of frames."""
    what = "record" if options.record else options.what
    state = await history(link)
    if not state.phase.ended:
        check_ranks(state, options.rank)
    ranks = sorted(set(options.rank)) or _running(state)
    batches = [tuple(ranks[at : at + BATCH]) for at in range(0, len(ranks), BATCH)] or [()]
    if len(batches) == 1 and not options.rank:
        batches = [()]
    asked = [link.send(Dump(new_id(), what, batch)) for batch in batches]
    return together(await asyncio.gather(*asked)), source_of(state)


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


def shown(what: str, data: Mapping[str, str], source: Source = no_source) -> list[str]:
    """Return the merged answers of the ranks. Raises RunError if they cannot be parsed."""
    try:
        return plain(merged_rows(what, data, source))
    except ValueError as error:
        raise RunError(
            f"what a rank reported of its {what} cannot be read ({error}): --raw prints it"
        ) from None


def values(what: str, texts: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return the merged answers for --json. Raises ValueError."""
    if what == "stacks":
        return [
            {"ranks": list(group.ranks), "frames": list(group.frames)} for group in merged_stacks(texts)
        ]
    return (
        memory_values(texts) if what == "memory" else [asdict(group) for group in merged_recorders(texts)]
    )


class Dumped(TypedDict):
    """`dump`."""

    ok: bool
    text: str
    data: Mapping[str, str]
    merged: NotRequired[list[dict[str, Any]] | None]


def _document(what: str, done: CommandDone, texts: Mapping[int, str]) -> Dumped:
    document = Dumped(ok=done.ok, text=done.text, data=done.data)
    if texts:
        try:
            document["merged"] = values(what, texts)
        except ValueError:
            document["merged"] = None  # --record answers with a sentence
    return document


def _raw(texts: Mapping[int, str]) -> list[str]:
    return [
        line for rank in sorted(texts) for line in (f"--- rank {rank}", *texts[rank].rstrip().splitlines())
    ]
