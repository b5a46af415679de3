"""The part of a launch that SkyPilot's API server does: nodes, files, and a job that is submitted exactly once."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from ..model import ClusterChanged, Stage
from . import order
from .cloud import Sky, SkyError
from .clusters import described, misfit
from .order import Order
from .seam import CloudError, Hub
from .telling import Telling

TRIES = 5
"""How often a launch goes on after SkyPilot's API server, or whoever asks it, has gone away."""
AGAIN_SECONDS = 3.0
LOST = frozenset(
    {
        "gone",
        "ApiServerConnectionError",
        "ConnectionError",
        "ConnectTimeout",
        "ReadTimeout",
        "ChunkedEncodingError",
        "ProtocolError",
        "RemoteDisconnected",
        "HTTPError",
        "RequestInterruptedError",
        "ServerTemporarilyUnavailableError",
        "ExecutionRetryableError",
    }
)
"""Kinds of errors that say nothing of the launch, only that nobody is there to tell of it."""
FORGOTTEN = frozenset({"ClientError", "RequestNotFoundError"})
"""Kinds for a request that the API server does not know: another one worked at it."""


def lost(error: SkyError) -> bool:
    """Whether the API server, or the way to it, went away, and the next question may find another."""
    return error.kind in LOST or "API server process exited unexpectedly" in error.detail


class Submission:
    """Of one run. What it learns on the way is on disk at once, so that another hub goes on from there."""

    def __init__(self, hub: Hub, ordered: Order, sky: Sky, telling: Telling) -> None:
        self._hub, self._order, self._sky, self._telling = hub, ordered, sky, telling
        self._done = order.progress(hub.run_dir)

    @property
    def number(self) -> int | None:
        """SkyPilot's number of the job, once there is one."""
        return self._done.job

    async def job(self) -> int:
        """The job's number; everything before it, if it was not done."""
        if self._done.job is not None:
            self._telling.reached(Stage.SETUP)
            return self._done.job
        self._telling.reached(Stage.PROVISION, f"asking SkyPilot for {self._order.cluster}")
        for attempt in range(TRIES):
            try:
                await self._fits()
                found = await self._asked()
            except SkyError as error:
                if not lost(error) or attempt == TRIES - 1:
                    raise
                self._telling.hear(f"distui: {error}; asking again\n")
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return self._landed(found)
        raise CloudError("SkyPilot's API server goes away again and again: see `sky api status`")

    async def _asked(self) -> dict[str, Any]:
        """What SkyPilot says of the launch in the end, asked for or found on its way. Raises SkyError."""
        known = await self._known_job()
        if known is not None:
            return {"job": known}
        if self._done.request:
            try:
                return dict(await self._call("follow", request=self._done.request))
            except SkyError as error:
                if not lost(error) and error.kind not in FORGOTTEN:
                    raise
        return dict(
            await self._call(
                "launch",
                config=order.task(self._order),
                cluster=self._order.cluster,
                fast=self._order.fast,
                retry_until_up=self._order.retry_until_up,
            )
        )

    async def _call(self, verb: str, **args: Any) -> Any:
        """A verb that takes long: its text is heard, its request kept. Raises SkyError."""
        return await self._sky.call(verb, self._telling.hear, self._requested, **args)

    async def _known_job(self) -> int | None:
        """The job, where it was submitted before anybody here heard of it."""
        if not self._done.request:
            return None
        described_as = await self._sky.call("describe", cluster=self._order.cluster)
        if described_as is None or described_as["state"] != "UP":
            return None
        jobs = await self._sky.call("jobs", cluster=self._order.cluster)
        name = self._order.task.get("name")  # of this run alone
        return next((int(one["job"]) for one in jobs if one["name"] == name), None)

    async def _fits(self) -> None:
        """An existing cluster is ours, wanted, and of the right size. Raises CloudError."""
        about = await self._sky.call("describe", cluster=self._order.cluster)
        if about is None or self._done.request:
            return
        problem = misfit(about, self._order.cluster, int(self._order.task.get("num_nodes") or 1))
        if problem is not None:
            raise CloudError(problem)

    def _landed(self, found: dict[str, Any]) -> int:
        job = found.get("job") or self._telling.job
        if job is None:
            raise CloudError("SkyPilot submitted no job: see launch.log")
        self._keep(job=int(job))
        self._telling.reached(Stage.SETUP)
        return int(job)

    async def tell_of_cluster(self) -> None:
        """What it is and costs, now that it is there. Raises SkyError."""
        about = await self._sky.call("describe", cluster=self._order.cluster)
        cost = await self._sky.call("cost", cluster=self._order.cluster)
        if about is not None:
            cluster = described(about, cost, name=self._order.cluster, job=self.number)
            self._hub.emit(ClusterChanged(cluster))

    def _requested(self, request: str) -> None:
        self._keep(request=request)

    def _keep(self, **now: Any) -> None:
        self._done = msgspec.structs.replace(self._done, **now)
        order.keep(self._hub.run_dir, self._done)
