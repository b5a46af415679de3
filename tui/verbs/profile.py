"""profile: torch.profiler in ranks of a live run, at the same steps."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from pathlib import Path

from ...runners.node.local_agent import with_link
from ...runners.profile import rank_traces
from ...runners.profile.rank_traces import Fetched, RankTrace
from ...runners.reports.profile_report import checked, profiled, report
from ...runners.run.commands import Profile
from ...runners.run.model import CommandDone
from ...runners.run.wire.client import new_id
from ..rows.glyphs import plain
from ..rows.profiles import answer_rows
from ..terminal import answer, complain


def profile(options: argparse.Namespace) -> int:
    """Record, fetch and print a profile. Raises RunError."""
    ranks = tuple(sorted(set(options.rank)))
    out = None if options.out is None else Path(options.out)
    command = checked(Profile(new_id(), ranks, options.steps, options.timeout), out)
    done, answered, fetched = asyncio.run(
        with_link(options.run, lambda entry, link: profiled(entry, link, command, out))
    )
    return _show(done, answered, fetched, options.json)


def _show(done: CommandDone, answered: Mapping[int, RankTrace], fetched: Fetched, as_json: bool) -> int:
    document = report(done, answered, fetched)
    if done.ok or as_json:
        lines = [f"{rank_traces.title(answered)}.", "", *plain(answer_rows(done, answered, fetched))]
        answer(as_json, document, lines)
    if not done.ok:
        complain(done.text)
    return 0 if done.ok and document["files"] else 1
