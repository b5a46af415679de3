"""watch: jobs that distui did not start."""

from __future__ import annotations

import argparse
import asyncio
import sys

from msgspec import Struct

from ...presets.plurals import plural
from ...runners.diagnosis.missing_data import missing
from ...runners.node.run_following import snapshot
from ...runners.reports.status_document import WatchedStatus, status_json
from ...runners.run.state import RunState
from ...runners.watch.foreign_jobs import WatchedJob, find_job, scan
from ..source import WATCH, first_pid, job_name
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
        pid = first_pid(candidates[0]) if candidates else None
    job = find_job(seen, pid)
    if not options.json and interactive():
        return show(f"{WATCH}{first_pid(job)}", readonly=True, ascii_only=options.ascii)
    state = asyncio.run(_once(job))
    lacks = missing(state, None)  # its output is wherever its ranks write it, and is not searched
    lines = [*describe(state).rstrip().splitlines(), "", *(f"Missing: {sentence}." for sentence in lacks)]
    document: WatchedStatus = {**status_json(state), "missing": lacks}
    answer(options.json, document, lines)
    return 0


async def _once(job: WatchedJob) -> RunState:
    from ...runners.watch.watch_link import WatchLink  # slow to import

    link = WatchLink(job)
    try:
        return await snapshot(link)
    finally:
        await link.close()


class ListedJob(Struct, frozen=True):
    """A job in the list of `watch`."""

    pid: int
    name: str
    launcher: str
    ranks: int
    run: str | None


def _list(jobs: list[WatchedJob], as_json: bool) -> int:
    rows = [ListedJob(first_pid(job), job_name(job), job.launcher, len(job.ranks), job.run) for job in jobs]
    lines: list[str] = []
    for row in rows:
        whose = f"distui run {row.run}" if row.run else f"started by {row.launcher}"
        lines.append(f"{row.pid:>8}  {row.name}  {plural(row.ranks, 'rank')}  {whose}")
    answer(as_json, rows, [*lines, typeable("`distui watch PID` opens one of them", sys.stdout)])
    return 0
