"""watch: jobs that distui did not start."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from ...runners.diagnosis.standing import missing
from ...runners.state import RunState
from ...runners.status import status
from ...runners.watch.discover import Job, find_job, scan
from ...runners.watch.link import WatchLink
from ..connect import snapshot
from ..source import WATCH, first_pid, job_name
from ..text import describe


def watch(options: argparse.Namespace) -> int:
    """One job in the cockpit, read-only; several as a list; as text where there is no terminal."""
    jobs = list(scan().jobs.values())
    if options.pid is None and len(jobs) > 1:
        return _list(jobs, options.json)
    job = find_job(scan(), options.pid)
    if not options.json and sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty():
        from .cockpit import show

        return show(f"{WATCH}{first_pid(job)}", True, options.ascii)
    state = asyncio.run(_once(job))
    lacks = missing(state, 1)  # its output is where its ranks write it, and is not searched
    if options.json:
        sys.stdout.write(json.dumps(status(state) | {"missing": lacks}) + "\n")
    else:
        sys.stdout.write(
            "\n".join([describe(state).rstrip(), "", *(f"Missing: {one}." for one in lacks)]) + "\n"
        )
    return 0


async def _once(job: Job) -> RunState:
    link = WatchLink(job)
    try:
        return await snapshot(link)
    finally:
        await link.close()


def _list(jobs: list[Job], as_json: bool) -> int:
    told = [
        {
            "pid": first_pid(job),
            "name": job_name(job),
            "launcher": job.launcher,
            "ranks": len(job.ranks),
            "run": job.run,
        }
        for job in jobs
    ]
    if as_json:
        sys.stdout.write(json.dumps(told) + "\n")
        return 0
    for one in told:
        whose = f"distui run {one['run']}" if one["run"] else f"started by {one['launcher']}"
        sys.stdout.write(f"{one['pid']:>8}  {one['name']}  {one['ranks']} ranks  {whose}\n")
    sys.stdout.write("`distui watch PID` opens one of them\n")
    return 0
