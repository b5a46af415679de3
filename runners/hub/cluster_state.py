"""A cluster of SkyPilot's while a run is on it and afterwards: state, price, how it is left and taken down."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from .. import run_directories
from ..formatting import plural
from ..journal import Journal
from ..model import HUB, Cluster, ClusterChanged, Down, LinkState, RunEnded, RunPhase, SetAutostop, Stamped
from . import launch_order
from .launch_order import CloudError, SkyRequest
from .merged_run import MergedRun
from .sky_process import Sky, SkyError

POLL_SECONDS = 10.0
"""Between two questions while a node does not answer."""
CANCEL_SECONDS = 50.0
"""How long SkyPilot may take to cancel the job of a run that was stopped; see node/job.py."""
SLOW_SECONDS = 300.0
"""Between two while all do: autostop and price change seldom, and asking costs a process of 150 MB."""

JOBS_END: Mapping[str, str] = {
    "SUCCEEDED": "job {job} on {cluster} ended before its nodes were reached: see launch.log",
    "FAILED": "job {job} on {cluster} failed before its nodes were reached: launch.log has its last words",
    "FAILED_SETUP": "setup failed on {cluster}: launch.log has its output",
    "FAILED_DRIVER": "SkyPilot could not start job {job} on {cluster}: see launch.log and `sky logs {cluster} {job}`",
    "CANCELLED": "job {job} on {cluster} was cancelled through SkyPilot",
}
"""SkyPilot's last words for a job, as a sentence for a launch that waits for it."""


def described(
    about: Mapping[str, Any],
    cost: Mapping[str, float] | None = None,
    name: str = "",
    job: int | None = None,
) -> Cluster:
    """The cluster in what `describe` and `cost` of runners/sky answered."""
    price = None
    if cost is not None and cost["seconds"] > 0:
        price = cost["total"] / cost["seconds"] * 3600.0
    return Cluster(
        name=name,
        infra=about.get("infra", ""),
        resources=about.get("resources", ""),
        price_per_hour=price,
        job=job,
        state=about.get("state", ""),
        autostop_min=about.get("autostop_min"),
        since=about.get("since"),
    )


def may_cost(cluster: str, state: str, run: str) -> str:
    """What is left and how to be rid of it, as a sentence without its end."""
    if state == "STOPPED":
        return f"cluster {cluster} is stopped, its disks may be billed: `distui down {run}`"
    if state == "UP":
        return f"cluster {cluster} is up and is billed: `distui down {run}`"
    return f"cluster {cluster} is there in part and may be billed: `distui down {run}`"


def misfit(about: Mapping[str, Any], name: str, nodes: int) -> str | None:
    """Why an existing cluster cannot be used, as a sentence; None when it can."""
    if not about["ours"]:
        return f"cluster {name} is {about['user']}'s: choose another name with --cluster"
    if about["managed"]:
        return f"cluster {name} is a controller of SkyPilot's: choose another name with --cluster"
    if about["nodes"] and int(about["nodes"]) != nodes:
        there = int(about["nodes"])
        return f"cluster {name} has {there} nodes, and this run wants {nodes}: --nnodes {there}, or another --cluster"
    return None


class SkyCloud:
    """Satisfies seam.Cloud for a cluster that SkyPilot launched."""

    def __init__(self, run: MergedRun, ordered: SkyRequest, sky: Sky) -> None:
        self._run, self._order, self._sky = run, ordered, sky
        self._cancelling: asyncio.Task[Any] | None = None
        """One question for all who want the job cancelled; it is asked to its end, also when they no longer wait."""
        self._going = False
        """Whether the cluster is being taken down from here."""

    @property
    def _name(self) -> str:
        return self._order.cluster

    @property
    def _job(self) -> int | None:
        return launch_order.progress(self._run.run_dir).job

    async def watch(self) -> None:
        """Ask SkyPilot when a node is lost, and now and then; for ever. A stopped job is cancelled there, too."""
        asked = time.monotonic()
        try:
            while True:
                await asyncio.sleep(0.5)
                if self._stopped() and not self._going:
                    await self._cancel_quietly()
                    return
                every = POLL_SECONDS if self._worried() else SLOW_SECONDS
                if self._job is not None and not self._going and time.monotonic() - asked > every:
                    with contextlib.suppress(SkyError):
                        await self._refresh()
                    asked = time.monotonic()
                    if not self._worried() and self._cancelling is None:
                        await self._sky.close()
        finally:
            if self._cancelling is not None:
                await asyncio.wait({self._cancelling}, timeout=CANCEL_SECONDS)
            elif self._stopped():
                await self._cancel_quietly()
            await self._sky.close()

    def _stopped(self) -> bool:
        """Whether the ranks of every node have ended because the user wants it."""
        state = self._run.state
        asked = state.phase in (RunPhase.STOPPING, RunPhase.STOPPED)
        return asked and bool(state.nodes) and all(node.phase is not None for node in state.nodes.values())

    async def _cancel_quietly(self) -> None:
        """So that SkyPilot lists the job as cancelled, and not as one that failed."""
        with contextlib.suppress(SkyError, TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await self.cancel()

    def _worried(self) -> bool:
        return any(node.link is LinkState.LOST for node in self._run.state.nodes.values())

    async def _refresh(self) -> None:
        """What SkyPilot says now: of the cluster, and of the job, where its nodes do not answer."""
        about = await self._sky.call("describe", cluster=self._name, refresh=self._worried())
        before = self._run.state.cluster or Cluster(name=self._name)
        if about is None:
            now = msgspec.structs.replace(before, state="", down=True)
        else:
            now = described(about, await self._sky.call("cost", cluster=self._name), self._name, self._job)
        if now != before:
            self._run.emit(ClusterChanged(now))
        if self._worried() and not self._run.state.phase.ended:
            await self._ended_elsewhere(gone=about is None)

    async def _ended_elsewhere(self, gone: bool) -> None:
        """The run is over where SkyPilot says so and no node is there to say it."""
        if gone:
            text = (
                f"cluster {self._name} is gone, SkyPilot knows it no more: "
                f"`distui relaunch {self._run.record.name}` brings up another"
            )
            self._run.emit(RunEnded(RunPhase.LOST, None, text))
            return
        state = await self._sky.call("job_state", cluster=self._name, job=self._job)
        if state == "CANCELLED":
            text = f"job {self._job} on {self._name} was cancelled through SkyPilot"
            self._run.emit(RunEnded(RunPhase.STOPPED, None, text))
        elif state in JOBS_END:
            text = f"job {self._job} on {self._name} has ended ({state}), and its nodes do not answer"
            self._run.emit(RunEnded(RunPhase.LOST, None, text))

    async def cancel(self) -> str:
        """See seam.Cloud."""
        if self._job is None:
            return "no job was submitted yet"
        if self._cancelling is None or (self._cancelling.done() and self._cancelling.exception()):
            asking = self._sky.call("cancel", cluster=self._name, job=self._job)
            self._cancelling = asyncio.create_task(asking)
        await asyncio.shield(self._cancelling)
        return f"job {self._job} on {self._name} is cancelled"

    def check_down(self, cluster: str) -> None:
        """See seam.Cloud."""
        if cluster != self._name:
            raise CloudError(f"the cluster of this run is {self._name}, not {cluster!r}: nothing was done")

    async def down(self, cluster: str) -> str:
        """See seam.Cloud."""
        self.check_down(cluster)
        self._going = True
        try:
            await self._once("down", cluster=self._name)
        finally:
            self._going = False
        before = self._run.state.cluster or Cluster(name=self._name)
        self._run.emit(
            ClusterChanged(msgspec.structs.replace(before, state="", autostop_min=None, down=True))
        )
        return f"cluster {self._name} is down"

    async def set_autostop(self, minutes: int | None) -> str:
        """See seam.Cloud."""
        await self._once("autostop", cluster=self._name, minutes=minutes)
        before = self._run.state.cluster or Cluster(name=self._name)
        self._run.emit(ClusterChanged(msgspec.structs.replace(before, autostop_min=minutes)))
        return f"cluster {self._name} {stays(minutes)}"

    async def _once(self, verb: str, **args: Any) -> None:
        """Ask through a child of its own: `watch` ends the other one when it has no more use for it."""
        sky = Sky(self._order.python)
        try:
            await sky.call(verb, **args)
        finally:
            await sky.close()


# -----------------------------------------------------------------------------------------------------------
# What can still be done with the cluster of a run that has ended, when there is no hub any more.


async def carry_out(entry: run_directories.Entry, command: Down | SetAutostop) -> tuple[bool, str]:
    """Do it and write it down; whether it worked, and a sentence."""
    order = launch_order.read(entry.path)
    if order is None:
        return False, f"{entry.record.name} has no cluster"
    before = entry.state().cluster or Cluster(name=order.cluster)
    sky = Sky(order.python)
    try:
        match command:
            case Down(cluster=name):
                if name != order.cluster:
                    return (
                        False,
                        f"the cluster of this run is {order.cluster}, not {name!r}: nothing was done",
                    )
                await sky.call("down", cluster=name)
                after, text = (
                    msgspec.structs.replace(before, state="", down=True),
                    f"cluster {name} is down",
                )
            case SetAutostop(minutes=minutes):
                await sky.call("autostop", cluster=order.cluster, minutes=minutes)
                after = msgspec.structs.replace(before, autostop_min=minutes)
                text = f"cluster {order.cluster} {stays(minutes)}"
    except CloudError as error:
        return False, str(error)
    finally:
        await sky.close()
    _write(entry, after)
    return True, text


def stays(minutes: int | None) -> str:
    """How long a cluster stays, as the rest of a sentence."""
    if minutes is None:
        return "stays until it is taken down"
    return f"goes down after {plural(minutes, 'minute')} without a job"


def _write(entry: run_directories.Entry, cluster: Cluster) -> None:
    journal = Journal(entry.path)
    last = max((stamped.seq for stamped in journal.replay()), default=0)
    journal.append(Stamped(time.time(), ClusterChanged(cluster), last + 1, HUB))
    journal.close()
