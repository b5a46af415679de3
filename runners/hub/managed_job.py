"""A managed job: SkyPilot brings it up and recovers it, here it is only looked at, because no ssh leads to its nodes."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...presets.sanitize import clean_lines
from ...presets.secrets import mask_text
from ..errors import RunError
from ..file_io import opener
from ..model import Cluster, ClusterChanged, RunEnded, RunPhase, Stage, StageChanged
from . import launch_order
from .launch_order import CANCEL_SECONDS, LOG_FILE, CloudError, LaunchProgress, SkyRequest
from .merged_run import MergedRun
from .sky_process import Sky, SkyError

if TYPE_CHECKING:
    from collections.abc import Mapping

POLL_SECONDS = 10.0
"""Between two questions where the job stands."""
HURRY_SECONDS = 1.0
"""The same for a job that is being cancelled."""
LAST_WORDS_SECONDS = 15.0
"""How long the end of a job's text is waited for once the job has ended."""
NOT_OURS = "SkyPilot takes the cluster of a managed job down itself: `distui stop` ends the job"
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
        self._poll_s, self._poll_now = POLL_SECONDS, asyncio.Event()
        self._heard = False
        """Whether the job has printed anything."""

    async def run(self) -> None:
        """Submit it if that was not done, then follow it. Raises nothing that a launch can meet."""
        following = asyncio.create_task(self._follow())
        stop = asyncio.create_task(self._run.stop_asked.wait())
        try:
            await asyncio.wait({following, stop}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
            elif self._done.job is not None:
                await self._cancel(self._done.job, following)
        except (CloudError, RunError) as error:
            self._run.emit(StageChanged(Stage.PROVISION, "failed", str(error)))
            self._run.fail(f"the managed job failed: {error}")
        finally:
            for task in (following, stop):
                task.cancel()
            await asyncio.gather(following, stop, return_exceptions=True)

    async def _cancel(self, job: int, following: asyncio.Task[None]) -> None:
        """Have SkyPilot cancel it, and hear from it that this was done."""
        await self._sky.call("managed_cancel", job=job)
        self._poll_s = HURRY_SECONDS
        self._poll_now.set()
        await asyncio.wait({following}, timeout=CANCEL_SECONDS)

    async def _follow(self) -> None:
        job = self._done.job if self._done.job is not None else await self._submit()
        tail = asyncio.create_task(self._tail(job))
        try:
            while True:
                about = next(iter(await self._sky.call("managed_jobs", job=job)), None)
                if about is not None:
                    self._report(about)
                    if about["state"] in ENDS:
                        await asyncio.wait({tail}, timeout=LAST_WORDS_SECONDS)
                        return self._end(about)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._poll_s):
                        await self._poll_now.wait()
                self._poll_now.clear()
        finally:
            tail.cancel()
            await asyncio.gather(tail, return_exceptions=True)

    async def _submit(self) -> int:
        self._run.emit(StageChanged(Stage.PROVISION, "begun", "submitting a managed job"))
        launch_order.load_cargo(self._order, self._run.run_dir)
        task = launch_order.task(self._order)
        answer = await self._sky.call("managed_launch", self._log, config=task, name=self._order.cluster)
        if answer["job"] is None:
            raise CloudError("SkyPilot submitted no job: see launch.log")
        self._done = LaunchProgress(job=int(answer["job"]))
        launch_order.keep(self._run.run_dir, self._done)
        return int(answer["job"])

    def _report(self, about: dict[str, Any]) -> None:
        """Where it stands, when that changed."""
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
        """All that it prints; SkyPilot gives up on a job that takes its time to begin."""
        while not self._heard:
            with contextlib.suppress(SkyError):
                await self._sky.call("managed_tail", self._hear, job=job)
            if not self._heard:
                await asyncio.sleep(POLL_SECONDS)

    def _hear(self, text: str) -> None:
        self._heard = True
        self._log(text)

    def _log(self, text: str) -> None:
        with open(self._run.run_dir / LOG_FILE, "a", encoding="utf-8", opener=opener) as file:
            file.writelines(f"{line}\n" for line in clean_lines(mask_text(text).encode("utf-8", "replace")))


class ManagedCloud:
    """Satisfies seam.Cloud for a managed job, which `ManagedJob` follows."""

    def __init__(self, run_dir: Path, sky: Sky) -> None:
        self._run_dir, self._sky = run_dir, sky

    async def watch(self) -> None:
        """Nothing but the job itself is looked at."""
        await asyncio.Event().wait()

    async def cancel(self) -> str:
        """See seam.Cloud."""
        job = launch_order.progress(self._run_dir).job
        if job is None:
            return "no job was submitted yet"
        try:
            await self._sky.call("managed_cancel", job=job)
        finally:
            await self._sky.close()
        return f"managed job {job} is cancelled"

    def check_down(self, cluster: str) -> None:
        """See seam.Cloud. Raises CloudError."""
        raise CloudError(NOT_OURS)

    async def down(self, cluster: str) -> str:
        """See seam.Cloud. Raises CloudError."""
        raise CloudError(NOT_OURS)

    async def set_autostop(self, minutes: int | None) -> str:
        """See seam.Cloud."""
        raise CloudError("the cluster of a managed job goes down with the job: there is no autostop to set")
