"""dump: stacks, memory and flight recorders of all ranks, as text and JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...presets.sanitize import clean_text
from ...presets.trusted_files import private_folder
from ...runners import file_io
from ...runners.diagnosis.recorder import merged_recorders, merged_stacks
from ...runners.errors import RunError
from ...runners.formatting import plural
from ...runners.local_agent import history, with_link
from ...runners.model import (
    CommandDone,
    Dump,
    RankPhase,
)
from ...runners.state import RunState
from ...runners.wire.client import Link, new_id
from ..rows.dumps import by_rank, memory_values, merged_rows
from ..rows.glyphs import plain
from .control import check_ranks

BATCH = 32
"""Ranks of one question: what they answer together has to fit into one line of the link."""
NAMES = {"stacks": "stacks-rank-{}.txt", "flight": "flight-rank-{}.json", "memory": "memory-rank-{}.json"}
"""Of the files that --out writes."""


def dump(options: argparse.Namespace) -> int:
    """Ask, and print what was answered: merged, as it came (--raw), as JSON, or into files. Raises RunError."""
    if options.record and options.what != "memory":
        raise RunError("--record is for memory: `distui dump RUN memory --record`")
    done = asyncio.run(with_link(options.run, lambda entry, link: _ask(link, options)))
    texts = by_rank(done.data)
    if options.json:
        sys.stdout.write(json.dumps(_document(options.what, done, texts)) + "\n")
    elif done.ok and options.record:
        sys.stdout.write("\n".join(f"rank {rank}: {texts[rank]}" for rank in sorted(texts)) + "\n")
    elif done.ok:
        lines = _raw(texts) if options.raw else shown(options.what, done.data)
        lines += ["", f"Not all have answered: {done.text}"] if "; " in done.text else []
        sys.stdout.write("\n".join(clean_text(line) for line in lines) + "\n")
    if done.ok and options.out is not None and not options.record:
        _write(Path(options.out), options.what, texts)
    if not done.ok:
        sys.stderr.write(f"distui: {clean_text(done.text)}\n")
    return 0 if done.ok else 1


async def _ask(link: Link, options: argparse.Namespace) -> CommandDone:
    """All ranks at once, some in each question."""
    what = "record" if options.record else options.what
    state = await history(link)
    if not state.phase.ended:
        check_ranks(state, options.rank)
    ranks = sorted(set(options.rank)) or _running(state)
    batches = [tuple(ranks[at : at + BATCH]) for at in range(0, len(ranks), BATCH)] or [()]
    if len(batches) == 1 and not options.rank:
        batches = [()]
    asked = [link.send(Dump(new_id(), what, batch)) for batch in batches]
    return together(await asyncio.gather(*asked))


def _running(state: RunState) -> list[int]:
    """Ranks of the newest attempt that have a process: of a question to one that is gone nothing would come."""
    return sorted(number for number, rank in state.ranks.items() if rank.phase is RankPhase.RUNNING)


def together(answers: Sequence[CommandDone]) -> CommandDone:
    """Several answers as one; it is one as soon as any rank has answered."""
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


def shown(what: str, data: Mapping[str, str]) -> list[str]:
    """What the ranks answered, merged. Raises RunError where that cannot be."""
    try:
        return plain(merged_rows(what, data))
    except ValueError as error:
        raise RunError(
            f"what a rank told of its {what} cannot be read ({error}): --raw prints it"
        ) from None


def values(what: str, texts: Mapping[int, str]) -> list[dict[str, Any]]:
    """The same for --json. Raises ValueError."""
    if what == "stacks":
        return [
            {"ranks": list(group.ranks), "frames": list(group.frames)} for group in merged_stacks(texts)
        ]
    return (
        memory_values(texts) if what == "memory" else [asdict(group) for group in merged_recorders(texts)]
    )


def _document(what: str, done: CommandDone, texts: Mapping[int, str]) -> dict[str, Any]:
    document: dict[str, Any] = {"ok": done.ok, "text": done.text, "data": done.data}
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


def _write(folder: Path, what: str, texts: Mapping[int, str]) -> None:
    """A file a rank, none of them replaced. Raises RunError."""
    paths = {rank: folder / NAMES[what].format(rank) for rank in sorted(texts)}
    there = next((path for path in paths.values() if path.exists()), None)
    if there is not None:
        raise RunError(f"{there} is there already: name another directory with --out")
    try:
        private_folder(folder)
        for rank, path in paths.items():
            file_io.write_atomically(path, texts[rank].encode())
    except OSError as error:
        raise RunError(
            f"{folder} cannot be written ({error.strerror}): name another directory with --out"
        ) from None
    sys.stderr.write(f"{plural(len(paths), 'file')} written in {folder}\n")
