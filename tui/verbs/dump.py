"""dump: stacks, memory and flight recorders of all ranks."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping

from ...presets.sanitize import clean_text
from ...runners.diagnosis.rank_dumps import by_rank
from ...runners.node.local_agent import with_link
from ...runners.reports.dump_report import RECORD, ask, document
from ...runners.run.errors import RunError
from ...runners.run.model import CommandDone
from ..rows.dumps import Source, merged_rows, source_of
from ..rows.glyphs import plain
from ..terminal import complain


def dump(options: argparse.Namespace) -> int:
    """Request a dump; print it merged, raw (--raw) or as JSON. Raises RunError."""
    if options.record and options.what != "memory":
        raise RunError("--record is for memory: `distui dump RUN memory --record`")
    what = RECORD if options.record else options.what
    done, state = asyncio.run(with_link(options.run, lambda entry, link: ask(link, what, options.rank)))
    if options.json:
        sys.stdout.write(json.dumps(document(options.what, done)) + "\n")
    elif done.ok:
        sys.stdout.write("\n".join(_answers(options, done, source_of(state))) + "\n")
    if not done.ok:
        complain(done.text)
    return 0 if done.ok else 1


def _answers(options: argparse.Namespace, done: CommandDone, source: Source) -> list[str]:
    """Return the dump as lines, with the reason if a rank has not answered."""
    texts = by_rank(done.data)
    if options.record:
        return [f"rank {rank}: {texts[rank]}" for rank in sorted(texts)]
    lines = _raw(texts) if options.raw else _shown(options.what, done.data, source)
    lines += ["", f"Not all have answered: {done.text}"] if "; " in done.text else []
    return [clean_text(line) for line in lines]


def _shown(what: str, data: Mapping[str, str], source: Source) -> list[str]:
    """Return the merged answers of the ranks. Raises RunError if they cannot be parsed."""
    try:
        return plain(merged_rows(what, data, source))
    except ValueError as error:
        raise RunError(
            f"what a rank reported of its {what} cannot be read ({error}): --raw prints it"
        ) from None


def _raw(texts: Mapping[int, str]) -> list[str]:
    lines: list[str] = []
    for rank in sorted(texts):
        lines += [f"--- rank {rank}", *texts[rank].rstrip().splitlines()]
    return lines
