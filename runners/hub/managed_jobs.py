"""A managed job of SkyPilot, from its submission to its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..run import clock
from ..run.errors import RunError
from ..run.model import Cluster, ClusterChanged, RunEnded, RunPhase, Stage, StageChanged
from ..run.parts import in_background
from . import launch_order
from .clouds import CANCEL_SECONDS, Cloud, CloudError
from .launch_order import LaunchProgress, SkyRequest
from .launch_stages import LaunchLog
from .merged_run import MergedRun
from .sky_process import Sky, SkyError

JOB_POLL_SECONDS = 10.0
"""Seconds between two polls of the job."""
MANAGED_CANCEL_SECONDS = CANCEL_SECONDS - 5.0
"""Maximum seconds of a cancellation before it is reported as open; less than a launch has to give up."""
HURRY_SECONDS = 1.0
"""`JOB_POLL_SECONDS` during a cancellation."""
LAST_WORDS_SECONDS = 15.0
"""Maximum seconds to wait for the last output of an ended job."""
ENDS: Mapping[str, RunPhase] = {
    "SUCCEEDED": RunPhase.SUCCEEDED,
    "CANCELLED": RunPhase.STOPPED,
    "FAILED": RunPhase.FAILED,
    "FAILED_SETUP": RunPhase.FAILED,
    "FAILED_PRECHECKS": RunPhase.FAILED,
    "FAILED_NO_RESOURCE": RunPhase.FAILED,
    "FAILED_CONTROLLER": RunPhase.FAILED,
}


class ManagedJob:
    """One managed job, from its submission to its end."""

    def __init__(self, run: MergedRun, ordered: SkyRequest, sky: Sky) -> None:
        self._run, self._order, self._sky = run, ordered, sky
        self._done = launch_order.progress(run.run_dir)
        self._poll_s, self._poll_now = JOB_POLL_SECONDS, asyncio.Event()
        self._log = LaunchLog(run.run_dir)
        self._heard = False
        """Whether the job has printed anything."""

    async def run(self) -> None:
        """Submit the job unless an earlier hub did, then follow it. Handles every error of a launch."""
        async with in_background(self._follow()) as following:
            try:
                if await self._run.done_or_stopped(following):
                    following.result()
                elif self._done.job is not None:
                    await self._cancel(self._done.job, following)
            except (CloudError, RunError) as error:
                self._run.emit(StageChanged(Stage.PROVISION, "failed", str(error)))
                self._run.fail(f"the managed job failed: {error}")

    async def _cancel(self, job: int, following: asyncio.Task[None]) -> None:
        """Cancel the job and wait for its end; at the time limit end the run with the job's current state."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MANAGED_CANCEL_SECONDS):
                await self._sky.call("managed_cancel", job=job)
                self._poll_s = HURRY_SECONDS
                self._poll_now.set()
                await asyncio.wait({following})
                return
        cluster = self._run.state.cluster
        state = "not listed yet" if cluster is None else f"still {cluster.state}"
        text = f"managed job {job} was ordered to stop and is {state}: `sky jobs queue` shows its end"
        self._run.emit(RunEnded(RunPhase.STOPPED, 1, text))

    async def _follow(self) -> None:
        job = self._done.job if self._done.job is not None else await self._submit()
        async with in_background(self._tail(job)) as tail:
            while True:
                about = next(iter(await self._sky.call("managed_jobs", job=job)), None)
                if about is not None:
                    self._report(about)
                    if about["state"] in ENDS:
                        await asyncio.wait({tail}, timeout=LAST_WORDS_SECONDS)
                        return self._end(about)
                await clock.wait_set(self._poll_now, self._poll_s)
                self._poll_now.clear()

    async def _submit(self) -> int:
        self._run.emit(StageChanged(Stage.PROVISION, "begun", "submitting a managed job"))
        launch_order.load_cargo(self._order, self._run.run_dir)
        task = launch_order.task(self._order)
        answer = await self._sky.call(
            "managed_launch", self._log.add, config=task, name=self._order.cluster
        )
        if answer["job"] is None:
            raise CloudError("SkyPilot submitted no job: see launch.log")
        self._done = LaunchProgress(job=int(answer["job"]))
        launch_order.keep(self._run.run_dir, self._done)
        return int(answer["job"])

    def _report(self, about: dict[str, Any]) -> None:
        """Emit the job's state if it has changed."""
        now = Cluster(
            name=self._order.cluster,
            job=about["job"],
            managed=True,
            state=about["state"],
            recoveries=about["recoveries"] or 0,
        )
        if now != self._run.state.cluster:
            self._run.emit(ClusterChanged(now))
            stages = self._run.state.stages
            if about["state"] == "RUNNING" and not any(key[0] is Stage.START for key in stages):
                self._run.emit(StageChanged(Stage.PROVISION, "done"))
                self._run.emit(StageChanged(Stage.START, "begun", "SkyPilot runs the managed job"))
                self._run.emit(StageChanged(Stage.START, "done"))

    def _end(self, about: dict[str, Any]) -> None:
        phase = ENDS[about["state"]]
        why = f": {about['why']}" if about["why"] else ""
        text = f"managed job {about['job']} ended as {about['state']}{why}"
        self._run.emit(RunEnded(phase, 0 if phase is RunPhase.SUCCEEDED else 1, text))

    async def _tail(self, job: int) -> None:
        """Copy the job's output to launch.log; retry, because SkyPilot gives up on a job that begins late."""
        while not self._heard:
            with contextlib.suppress(SkyError):
                await self._sky.call("managed_tail", self._hear, job=job)
            if not self._heard:
                await asyncio.sleep(JOB_POLL_SECONDS)

    def _hear(self, text: str) -> None:
        self._heard = True
        self._log.add(text)


class ManagedCloud(Cloud):
    """A managed job, which `ManagedJob` follows."""

    not_ours = "SkyPilot takes the cluster of a managed job down itself: `distui stop` ends the job"

    def __init__(self, run_dir: Path, sky: Sky) -> None:
        self._run_dir, self._sky = run_dir, sky

    async def cancel(self) -> str:
        job = launch_order.progress(self._run_dir).job
        if job is None:
            return "no job was submitted yet"
        try:
            await self._sky.call("managed_cancel", job=job)
        finally:
            await self._sky.close()
        return f"managed job {job} is cancelled"

    async def set_autostop(self, minutes: int | None) -> str:
        raise CloudError("a managed job has no autostop: SkyPilot tears its cluster down with the job")
