"""Jobs that distui did not start, as `distui watch --json` shows them."""

from __future__ import annotations

from msgspec import Struct

from ..diagnosis.missing_data import missing
from ..node.run_following import snapshot
from ..run.state import RunState
from ..watch.foreign_jobs import WatchedJob
from .status_document import WatchedStatus, status_json


class ListedJob(Struct, frozen=True):
    """A job in the list of `watch`."""

    pid: int
    name: str
    launcher: str
    ranks: int
    run: str | None


def listed(job: WatchedJob) -> ListedJob:
    """Return a job as a row of the list."""
    return ListedJob(job.pid, job.name, job.launcher, len(job.ranks), job.run)


async def state_of(job: WatchedJob) -> RunState:
    """Return the state of a job, from its processes. It takes some seconds longer if a rank is idle."""
    from ..watch.watch_link import WatchLink  # slow to import

    link = WatchLink(job)
    try:
        await link.look()
        return await snapshot(link)
    finally:
        await link.close()


def watched(state: RunState) -> WatchedStatus:
    """Return the JSON of `watch PID`. The output of a job is wherever its ranks write it, and is not searched."""
    return {**status_json(state), "missing": missing(state, None)}
