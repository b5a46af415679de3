"""dump: what the ranks are doing, asked now of all at once and told as one view."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...runners import identity
from ...runners.errors import RunError
from ...runners.logs.clean import clean_text
from ...runners.model import CommandDone, Dump, RankPhase
from ...runners.state import RunState
from ...runners.wire.client import new_id
from ...runners.wire.link import Link
from ..connect import with_link
from . import dumped

BATCH = 32
"""Ranks of one question: what they answer together has to fit into one line of the link."""
NAMES = {"stacks": "stacks-rank-{}.txt", "flight": "flight-rank-{}.json", "memory": "memory-rank-{}.json"}
"""Of the files that --out writes."""


def dump(options: argparse.Namespace) -> int:
    """Ask, and print what was answered: merged, as it came (--raw), as JSON, or into files. Raises RunError."""
    if options.record and options.what != "memory":
        raise RunError("--record is for memory: `distui dump RUN memory --record`")
    done = asyncio.run(with_link(options.run, lambda entry, link: _ask(link, options)))
    texts = {int(rank): text for rank, text in done.data.items()}
    if options.json:
        sys.stdout.write(json.dumps(_document(options.what, done, texts)) + "\n")
    elif done.ok and options.record:
        sys.stdout.write("\n".join(f"rank {rank}: {texts[rank]}" for rank in sorted(texts)) + "\n")
    elif done.ok:
        lines = _raw(texts) if options.raw else shown(options.what, texts)
        lines += ["", f"Not all have answered: {done.text}"] if "; " in done.text else []
        sys.stdout.write("\n".join(clean_text(line) for line in lines) + "\n")
    if done.ok and options.out is not None and not options.record:
        _write(Path(options.out), options.what, texts)
    if not done.ok:
        sys.stderr.write(f"distui: {done.text}\n")
    return 0 if done.ok else 1


async def _ask(link: Link, options: argparse.Namespace) -> CommandDone:
    """All ranks at once, some in each question."""
    what = "record" if options.record else options.what
    ranks = sorted(set(options.rank)) or await _ranks(link)
    batches = [tuple(ranks[at : at + BATCH]) for at in range(0, len(ranks), BATCH)] or [()]
    if len(batches) == 1 and not options.rank:
        batches = [()]
    asked = [link.send(Dump(new_id(), what, batch)) for batch in batches]
    return together(await asyncio.gather(*asked))


async def _ranks(link: Link) -> list[int]:
    """Ranks of the newest attempt that have a process: of a question to one that is gone nothing would come."""
    state = RunState()
    async for stamped in link.events():
        state.apply(stamped)
        if state.live:
            break
    return sorted(number for number, rank in state.ranks.items() if rank.phase is RankPhase.RUNNING)


def together(told: Sequence[CommandDone]) -> CommandDone:
    """Several answers as one; it is one as soon as any rank has answered."""
    if len(told) == 1:
        return told[0]
    data = {rank: text for one in told for rank, text in one.data.items()}
    problems = [one.text.partition("; ")[2] if one.ok else one.text for one in told]
    said = list(dict.fromkeys(text for text in problems if text))
    if not data:
        return CommandDone(told[0].id, False, "; ".join(said))
    return CommandDone(told[0].id, True, "; ".join([f"{len(data)} ranks answered", *said]), data)


def shown(what: str, texts: Mapping[int, str]) -> list[str]:
    """What the ranks answered, merged. Raises RunError where that cannot be."""
    try:
        return _MERGED[what](texts)
    except ValueError as error:
        raise RunError(
            f"what a rank told of its {what} cannot be read ({error}): --raw prints it"
        ) from None


_MERGED = {"stacks": dumped.stacks, "flight": dumped.flight, "memory": dumped.memory}


def _document(what: str, done: CommandDone, texts: Mapping[int, str]) -> dict[str, Any]:
    told: dict[str, Any] = {"ok": done.ok, "text": done.text, "data": done.data}
    if what in dumped.VALUES and texts:
        try:
            told["merged"] = dumped.VALUES[what](texts)
        except ValueError:
            told["merged"] = None  # --record answers with a sentence
    return told


def _raw(texts: Mapping[int, str]) -> list[str]:
    return [
        line for rank in sorted(texts) for line in (f"--- rank {rank}", *texts[rank].rstrip().splitlines())
    ]


def _write(folder: Path, what: str, texts: Mapping[int, str]) -> None:
    """A file a rank, none of them replaced. Raises RunError."""
    paths = {rank: folder / NAMES[what].format(rank) for rank in sorted(texts)}
    there = next((path for path in paths.values() if path.exists()), None)
    if there is not None:
        raise RunError(f"{there} is there already: name another directory with --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for rank, path in paths.items():
            identity.write_atomically(path, texts[rank].encode())
    except OSError as error:
        raise RunError(
            f"{folder} cannot be written ({error.strerror}): name another directory with --out"
        ) from None
    sys.stderr.write(f"{len(paths)} files written in {folder}\n")
