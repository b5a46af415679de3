"""A cluster of SkyPilot: its price, cancellation and teardown."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec

from ...presets.finding import Finding
from ...presets.plurals import plural
from ..run import clock, run_directories
from ..run.commands import Down, SetAutostop
from ..run.journal import Journal
from ..run.model import HUB, Cluster, ClusterChanged, FindingRaised, LinkState, RunEnded, RunPhase, Stamped
from . import launch_order
from .clouds import CANCEL, Cloud, CloudError
from .launch_order import SkyRequest
from .merged_run import MergedRun
from .sky_process import Sky, SkyError

POLL_SECONDS = 10.0
"""Seconds between two polls while a node does not answer."""
CANCELLING_SECONDS = 150.0
"""Maximum seconds for SkyPilot to cancel the job of a stopped run; see node/job.py."""
CANCEL_TRIES = 3
CANCEL_AGAIN_SECONDS = 3.0
"""Seconds between two tries."""
SLOW_SECONDS = 300.0
"""Seconds between two polls while all nodes answer: changes are rare, and a poll needs a process of 150 MB."""

JOBS_END: Mapping[str, str] = {
    "SUCCEEDED": "job {job} on {cluster} ended before its nodes were reached: see launch.log",
    "FAILED": "job {job} on {cluster} failed before its nodes were reached: launch.log has its last words",
    "FAILED_SETUP": "setup failed on {cluster}: launch.log has its output",
    "FAILED_DRIVER": "SkyPilot could not start job {job} on {cluster}: see launch.log and `sky logs {cluster} {job}`",
    "CANCELLED": "job {job} on {cluster} was cancelled through SkyPilot",
}
"""SkyPilot's final state of a job → sentence for a launch that waits for it."""


def described(
    about: Mapping[str, Any],
    cost: Mapping[str, float] | None = None,
    name: str = "",
    job: int | None = None,
) -> Cluster:
    """Build the cluster from the answers of `describe` and `cost` in runners/sky."""
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
    """Remaining cluster and the command to remove it, as a sentence without its end."""
    if state == "STOPPED":
        return f"cluster {cluster} is stopped, its disks may be billed: `distui down {run}`"
    if state == "UP":
        return f"cluster {cluster} is up and is billed: `distui down {run}`"
    return f"cluster {cluster} is there in part and may be billed: `distui down {run}`"


def misfit(about: Mapping[str, Any], name: str, nodes: int) -> str | None:
    """Why an existing cluster is not usable, as a sentence; None if it is."""
    if not about["ours"]:
        return f"cluster {name} is {about['user']}'s: choose another name with --cluster"
    if about["managed"]:
        return f"cluster {name} is a controller of SkyPilot's: choose another name with --cluster"
    if about["nodes"] and int(about["nodes"]) != nodes:
        there = int(about["nodes"])
        return f"cluster {name} has {there} nodes, and this run wants {nodes}: --nnodes {there}, or another --cluster"
    return None


class SkyCloud(Cloud):
    """A cluster that SkyPilot launched."""

    def __init__(self, run: MergedRun, ordered: SkyRequest, sky: Sky) -> None:
        self._run, self._order, self._sky = run, ordered, sky
        self._cancelling: asyncio.Task[Any] | None = None
        """One cancellation shared by all callers; it continues even if they stop waiting."""
        self._closing: asyncio.Task[None] | None = None
        """Cancels the job of a stopped run; it continues after the run's end."""
        self._going = False
        """Whether this hub is taking the cluster down."""

    @property
    def _name(self) -> str:
        return self._order.cluster

    @property
    def _job(self) -> int | None:
        return launch_order.progress(self._run.run_dir).job

    async def watch(self) -> None:
        """Poll SkyPilot, more often after a lost node, until cancelled. Also cancels the job of a stopped run."""
        asked = clock.monotonic()
        try:
            while True:
                await asyncio.sleep(0.5)
                if self._stopped() and not self._going:
                    self._closing = self._run.parts.once(CANCEL, self._close_job())
                    await asyncio.wait({self._closing})
                    return
                if self._is_due(clock.monotonic() - asked):
                    await self._poll()
                    asked = clock.monotonic()
        finally:
            await self._leave()

    def _is_due(self, seconds: float) -> bool:
        """Whether a poll is due, so long after the last one."""
        every = POLL_SECONDS if self._worried() else SLOW_SECONDS
        return self._job is not None and not self._going and seconds > every

    async def _poll(self) -> None:
        with contextlib.suppress(SkyError):
            await self._refresh()
        if not self._worried() and self._cancelling is None:
            await self._sky.close()

    async def _leave(self) -> None:
        """Wait for a cancellation, which a stopped run gets in any case."""
        if self._closing is None and self._stopped():
            self._closing = self._run.parts.once(CANCEL, self._close_job())
        last = self._closing or self._cancelling
        if last is not None:
            await asyncio.wait({last}, timeout=CANCELLING_SECONDS)
            last.cancel()
        await self._sky.close()

    def _stopped(self) -> bool:
        """Whether the user stopped the run and the parts of all nodes have ended."""
        state = self._run.state
        asked = state.phase in (RunPhase.STOPPING, RunPhase.STOPPED)
        return asked and bool(state.nodes) and all(node.phase is not None for node in state.nodes.values())

    async def _close_job(self) -> None:
        """Let SkyPilot list the job as cancelled, and raise a finding if it lists another end."""
        problem = ""
        for number in range(CANCEL_TRIES):
            if self._run.state.cluster is not None and self._run.state.cluster.down:
                return
            await asyncio.sleep(CANCEL_AGAIN_SECONDS if number else 0.0)
            try:
                await self.cancel()
                listed = await self._sky.call("job_state", cluster=self._name, job=self._job)
            except SkyError as error:
                problem = f"could not be cancelled through SkyPilot ({error})"
                continue
            if listed in (None, "CANCELLED"):
                return
            problem = (
                f"is listed by SkyPilot as {listed}, not as CANCELLED: it ended before it was cancelled"
            )
            if listed in JOBS_END:
                break
            self._cancelling = None
        text = f"job {self._job} on {self._name} {problem}; the run was stopped as asked"
        self._run.emit(FindingRaised(Finding("stopped-job", "note", text)))

    def _worried(self) -> bool:
        return any(node.link is LinkState.LOST for node in self._run.state.nodes.values())

    async def _refresh(self) -> None:
        """Poll the cluster, and if nodes do not answer also the job."""
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
        """End the run if SkyPilot reports its end and no node answers."""
        if gone:
            text = (
                f"cluster {self._name} is gone, SkyPilot no longer knows it: "
                f"`distui rerun {self._run.record.name}` brings up another"
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
        if self._job is None:
            return "no job was submitted yet"
        if self._cancelling is None or (self._cancelling.done() and self._cancelling.exception()):
            asking = self._sky.call("cancel", cluster=self._name, job=self._job)
            self._cancelling = asyncio.create_task(asking)
        await asyncio.shield(self._cancelling)
        return f"job {self._job} on {self._name} is cancelled"

    def check_down(self, cluster: str) -> None:
        if cluster != self._name:
            raise CloudError(_another(self._order, cluster))

    async def down(self, cluster: str) -> str:
        self.check_down(cluster)
        self._going = True
        try:
            return await self._change(Down("", cluster))
        finally:
            self._going = False

    async def set_autostop(self, minutes: int | None) -> str:
        return await self._change(SetAutostop("", minutes))

    async def _change(self, command: Down | SetAutostop) -> str:
        after, text = await _asked(self._order, command, self._run.state.cluster)
        self._run.emit(ClusterChanged(after))
        return text


async def carry_out(entry: run_directories.Entry, command: Down | SetAutostop) -> tuple[bool, str]:
    """Execute the command and journal it; return whether it succeeded, and a sentence."""
    order = launch_order.read(entry.path)
    if order is None:
        return False, f"run {entry.record.name} has no cluster"
    if isinstance(command, Down) and command.cluster != order.cluster:
        return False, _another(order, command.cluster)
    try:
        after, text = await _asked(order, command, entry.state().cluster)
    except CloudError as error:
        return False, str(error)
    _write(entry, after)
    return True, text


async def _asked(
    order: SkyRequest, command: Down | SetAutostop, before: Cluster | None
) -> tuple[Cluster, str]:
    """Execute the command in its own SkyPilot process; return the changed cluster, and a sentence. Raises CloudError."""
    before, sky = before or Cluster(name=order.cluster), Sky(order.python)
    try:
        if isinstance(command, Down):
            await sky.call("down", cluster=order.cluster)
            after, text = msgspec.structs.replace(before, state="", autostop_min=None, down=True), "is down"
        else:
            await sky.call("autostop", cluster=order.cluster, minutes=command.minutes)
            after = msgspec.structs.replace(before, autostop_min=command.minutes)
            text = stays(command.minutes)
    finally:
        await sky.close()
    return after, f"cluster {order.cluster} {text}"


def _another(order: SkyRequest, name: str) -> str:
    return f"the cluster of this run is {order.cluster}, not {name!r}: nothing was done"


def stays(minutes: int | None) -> str:
    """Lifetime of a cluster, as the rest of a sentence."""
    if minutes is None:
        return "stays until it is taken down"
    return f"goes down after {plural(minutes, 'minute')} without a job"


def _write(entry: run_directories.Entry, cluster: Cluster) -> None:
    journal = Journal(entry.path)
    last = max((stamped.seq for stamped in journal.replay()), default=0)
    journal.append(Stamped(clock.now(), ClusterChanged(cluster), last + 1, HUB))
    journal.close()
