"""watch: jobs that distui did not start."""

from __future__ import annotations

import argparse
import asyncio
import sys

from ...presets.plurals import plural
from ...runners.reports.watched_jobs import listed, state_of, watched
from ...runners.watch.foreign_jobs import WatchedJob, find_job, scan
from ..source import WATCH
from ..terminal import answer, interactive, typeable
from .cockpit import show
from .status import describe


def watch(options: argparse.Namespace) -> int:
    """Open one job in the cockpit, read-only, or list several; print text if there is no terminal."""
    seen = scan()
    jobs = list(seen.jobs.values())
    # `attach` opens distui's own jobs better than `watch` does: they count only if there is nothing else to watch.
    candidates = [job for job in jobs if job.run is None] or jobs
    pid = options.pid
    if pid is None:
        if len(candidates) > 1:
            return _list(jobs, options.json)
        pid = candidates[0].pid if candidates else None
    job = find_job(seen, pid)
    if not options.json and interactive():
        return show(f"{WATCH}{job.pid}", readonly=True, ascii_only=options.ascii)
    state = asyncio.run(state_of(job))
    document = watched(state)
    lines = describe(state).rstrip().splitlines()
    lines += ["", *(f"Missing: {sentence}." for sentence in document["missing"])]
    answer(options.json, document, lines)
    return 0


def _list(jobs: list[WatchedJob], as_json: bool) -> int:
    rows = list(map(listed, jobs))
    lines: list[str] = []
    for row in rows:
        whose = f"distui run {row.run}" if row.run else f"started by {row.launcher}"
        lines.append(f"{row.pid:>8}  {row.name}  {plural(row.ranks, 'rank')}  {whose}")
    answer(as_json, rows, [*lines, typeable("`distui watch PID` opens one of them", sys.stdout)])
    return 0
