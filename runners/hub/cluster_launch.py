"""Launch through SkyPilot: provision, sync, submit exactly once, connect; and the routes to the cluster's nodes."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..node.routes import Route, check
from ..run import clock
from ..run.errors import RunError
from ..run.model import ClusterChanged, LinkState, Stage, StageChanged
from ..run.parts import in_background
from ..run.wire import ssh
from . import launch_order, managed_jobs, on_hosts
from .clouds import Cloud, CloudError, SetRoutes
from .launch_order import SkyRequest
from .launch_stages import LaunchReport
from .links import AT_ONCE
from .merged_run import MergedRun
from .sky_cloud import JOBS_END, SkyCloud, described, may_cost, misfit
from .sky_process import Sky, SkyError, elsewhere, parse

PROBE_SECONDS = 60.0
OPTIONS = ("-oConnectTimeout=30",)
"""A longer timeout than other links have: the proxy command of an API server starts a Python process."""


class Probe(msgspec.Struct):
    """The part of a probe's answer that identifies a node."""

    hostname: str


class UnreachedError(CloudError):
    """A node does not answer, but may answer later."""


class ClusterNodes(msgspec.Struct, frozen=True):
    """ssh aliases and names of a cluster's nodes, in node order."""

    aliases: tuple[str, ...]
    """ssh aliases."""
    hosts: tuple[str, ...] = ()
    """Names in the cloud; () if it has no names that a user knows."""


def routes(nodes: ClusterNodes, bundle: str, run8: str) -> list[Route]:
    """Return a route to each node; raise RunError if one is invalid."""
    names = [short(host) for host in nodes.hosts]
    if len(names) != len(nodes.aliases):
        names = list(nodes.aliases)
    return [
        check(
            Route(node, name, "ssh", alias, OPTIONS, ("sh", f"{bundle}/node.sh", "attach", run8, str(node)))
        )
        for node, (alias, name) in enumerate(zip(nodes.aliases, names, strict=True))
    ]


def short(host: str) -> str:
    """Return a node's name without SkyPilot's prefix ("job7-c1" on Slurm) and without its domain."""
    return re.sub(r"^job\d+-", "", host).partition(".")[0]


async def doubt(nodes: ClusterNodes, bundle: str) -> None:
    """Ask each node for its host name. Raises CloudError for a wrong node, UnreachedError without an answer."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def ask(alias: str) -> str:
        async with gate:
            return (await probe(alias, bundle)).hostname

    problem = suspect(nodes, await asyncio.gather(*(ask(alias) for alias in nodes.aliases)))
    if problem is not None:
        raise CloudError(problem)


async def probe(alias: str, bundle: str) -> Probe:
    """Identify the host of an ssh alias. Raises CloudError."""
    words = ("sh", f"{bundle}/node.sh", "probe")
    try:
        out = await ssh.call(ssh.Way(alias, OPTIONS), words, b"", PROBE_SECONDS)
    except ssh.HostError as error:
        raise UnreachedError(f"{error}: try `ssh {alias}`") from None
    for line in out.splitlines():  # a login may print lines before it
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.json.decode(line, type=Probe)
    raise UnreachedError(f"{alias} did not report its identity: try `ssh {alias}`")


def suspect(nodes: ClusterNodes, answered: Sequence[str]) -> str | None:
    """Sentence that says why the answered host names cannot be right; None if they can."""
    for alias, name, host in zip(nodes.aliases, answered, nodes.hosts, strict=False):
        if len(nodes.hosts) == len(nodes.aliases) and name.partition(".")[0] not in (host, short(host)):
            return (
                f"ssh {alias} leads to {name}, and that node is {host}: `sky status` mends the ssh config"
            )
    if len(set(answered)) < len(answered):
        twice = next(name for name in answered if list(answered).count(name) > 1)
        return f"several nodes' aliases lead to {twice}: `sky status` mends the ssh config"
    return None


TRIES = 5
"""Maximum number of tries after SkyPilot's API server, or the process that calls it, has ended."""
AGAIN_SECONDS = 3.0
_LOST = """
    gone ApiServerConnectionError ConnectionError ConnectTimeout ReadTimeout ChunkedEncodingError
    ProtocolError RemoteDisconnected HTTPError RequestInterruptedError ServerTemporarilyUnavailableError
    ExecutionRetryableError
"""
LOST = frozenset(_LOST.split())
"""Kinds of errors that say nothing about the launch, only that its server or process does not answer."""
FORGOTTEN = frozenset({"ClientError", "RequestNotFoundError"})
"""Kinds of errors for a request that the API server does not know: another server accepted it."""


def lost(error: SkyError) -> bool:
    """Whether the API server or its connection ended, so that a retry may succeed."""
    return error.kind in LOST or "API server process exited unexpectedly" in error.detail


class Submission:
    """Submission of one run. Its progress is on disk at once, so that another hub can continue."""

    def __init__(self, run: MergedRun, ordered: SkyRequest, sky: Sky, report: LaunchReport) -> None:
        self._run, self._order, self._sky, self._report = run, ordered, sky, report
        self._done = launch_order.progress(run.run_dir)

    @property
    def number(self) -> int | None:
        """SkyPilot's job number; None before the submission."""
        return self._done.job

    async def job(self) -> int:
        """Submit the job unless an earlier hub did, and return its number."""
        if self._done.job is not None:
            self._report.reached(Stage.SETUP)
            return self._done.job
        self._report.reached(Stage.PROVISION, f"asking SkyPilot for {self._order.cluster}")
        for attempt in range(TRIES):
            try:
                await self._fits()
                answer = await self._asked()
            except SkyError as error:
                if not lost(error) or attempt == TRIES - 1:
                    raise
                self._report.hear(f"distui: {error}; asking again\n")
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return self._landed(answer)
        raise CloudError("SkyPilot's API server keeps stopping: see `sky api status`")

    async def _asked(self) -> dict[str, Any]:
        """SkyPilot's answer to the launch, which begins now or is already running. Raises SkyError."""
        job = await self._submitted_job()
        if job is not None:
            return {"job": job}
        if self._done.request:
            try:
                return dict(await self._call("follow", request=self._done.request))
            except SkyError as error:
                if not lost(error) and error.kind not in FORGOTTEN:
                    raise
        return dict(
            await self._call(
                "launch",
                config=launch_order.task(self._order),
                cluster=self._order.cluster,
                fast=self._order.fast,
                retry_until_up=self._order.retry_until_up,
            )
        )

    async def _call(self, verb: str, **args: Any) -> Any:
        """Call a slow verb, forward its output, and keep its request id. Raises SkyError."""
        return await self._sky.call(
            verb, self._report.hear, lambda request: self._keep(request=request), **args
        )

    async def _submitted_job(self) -> int | None:
        """Return the number of a job whose submission the hub got no answer to; None if there is no such job."""
        if not self._done.request:
            return None
        described_as = await self._sky.call("describe", cluster=self._order.cluster)
        if described_as is None or described_as["state"] != "UP":
            return None
        jobs = await self._sky.call("jobs", cluster=self._order.cluster)
        name = self._order.task.get("name")  # unique to this run
        return next((int(job["job"]) for job in jobs if job["name"] == name), None)

    async def _fits(self) -> None:
        """Raise CloudError unless an existing cluster is the user's, wanted, and has enough nodes."""
        about = await self._sky.call("describe", cluster=self._order.cluster)
        if about is None or self._done.request:
            return
        problem = misfit(about, self._order.cluster, int(self._order.task.get("num_nodes") or 1))
        if problem is not None:
            raise CloudError(problem)

    def _landed(self, answer: dict[str, Any]) -> int:
        job = answer.get("job") or self._report.job
        if job is None:
            raise CloudError("SkyPilot submitted no job: see launch.log")
        self._keep(job=int(job))
        self._report.reached(Stage.SETUP)
        return int(job)

    async def describe_cluster(self) -> None:
        """Emit the cluster's data and price. Emit nothing if SkyPilot fails: `SkyCloud` asks again later."""
        with contextlib.suppress(SkyError):
            about = await self._sky.call("describe", cluster=self._order.cluster)
            cost = await self._sky.call("cost", cluster=self._order.cluster)
            if about is not None:
                cluster = described(about, cost, name=self._order.cluster, job=self.number)
                self._run.emit(ClusterChanged(cluster))

    def _keep(self, **now: Any) -> None:
        self._done = msgspec.structs.replace(self._done, **now)
        launch_order.keep(self._run.run_dir, self._done)


# A launch in the hub: PROVISION → SYNC → SETUP → START, each cancellable, each with a cause if it fails. SkyPilot's
# API server does the work. This class requests it and reports its progress. It continues after a restart of this
# process, of the process that calls SkyPilot, or of the API server.


LIMITS: dict[Stage, float] = {Stage.PROVISION: 3600.0, Stage.SYNC: 3600.0, Stage.SETUP: 3600.0}
"""Maximum seconds of a stage. PROVISION has no limit if the user asked to retry until up. START has none: the hub
follows a running job, even one without reachable nodes."""
POLL_SECONDS = 3.0
ASK_SECONDS = 5.0
DOUBT_SECONDS = 20.0
"""Seconds without a link to every node before the hub asks the nodes for their host names."""

T = TypeVar("T")


class LaunchStopped(Exception):
    """The user wants the run to end."""


async def launch(run: MergedRun, set_routes: SetRoutes) -> None:
    """Start or resume the launch that launch.json describes."""
    hosts = on_hosts.read(run.run_dir)
    if hosts is not None:
        await on_hosts.Hosts(run, hosts).launch(set_routes)
        return
    order = launch_order.read(run.run_dir)
    if order is None:
        run.fail("launch.json is not readable: launch again")
        return
    sky = Sky(order.python)
    try:
        if order.managed:
            await managed_jobs.ManagedJob(run, order, sky).run()
        else:
            await ClusterLaunch(run, order, sky, set_routes).run()
    finally:
        await sky.close()
        launch_order.unload_cargo(run.run_dir)


def submitted(run_dir: Path) -> bool:
    """Whether SkyPilot already has the job: to continue means to follow it, and starts nothing."""
    return launch_order.read(run_dir) is not None and launch_order.progress(run_dir).job is not None


def cloud_of(run: MergedRun) -> Cloud | None:
    """Return the provider of the nodes; None without one."""
    hosts = on_hosts.read(run.run_dir)
    if hosts is not None:
        return on_hosts.Hosts(run, hosts)
    order = launch_order.read(run.run_dir)
    if order is None:
        return None
    return (
        managed_jobs.ManagedCloud(run.run_dir, Sky(order.python))
        if order.managed
        else SkyCloud(run, order, Sky(order.python))
    )


class ClusterLaunch:
    def __init__(self, run: MergedRun, ordered: SkyRequest, sky: Sky, set_routes: SetRoutes) -> None:
        self._run, self._order, self._sky, self._set_routes = run, ordered, sky, set_routes
        self._report = LaunchReport(run)
        self._submission = Submission(run, ordered, sky, self._report)
        self._runs = asyncio.Event()
        """Set once the job's processes run."""

    async def run(self) -> None:
        """Execute all stages, or emit why they failed. Handles every error of a launch."""
        try:
            launch_order.load_cargo(self._order, self._run.run_dir)
            await self._sky.start()
            async with in_background(self._find()) as finding:
                job = await self._within(self._submission.job())
                async with (
                    in_background(self._tail(job)) as tail,
                    in_background(self._submission.describe_cluster()) as describing,
                    in_background(self._routed(job, finding)) as routing,
                ):
                    await self._within(self._running(job, tail))
                    self._report.reached(Stage.START)
                    self._runs.set()
                    await self._within(self._linked(job, routing))
                    await asyncio.wait({describing}, timeout=ASK_SECONDS)
            self._run.emit(StageChanged(Stage.START, "done"))
        except LaunchStopped:
            self._report.failed(f"stopped{await self._given_up()}{await self._remains()}")
        except (CloudError, RunError) as error:
            if not self._reached():
                self._set_routes([])
            text = f"{error}{await self._elsewhere(error)}"
            remains = await self._remains()
            self._report.failed(f"{text}{remains}")
            self._run.fail(f"the launch failed: {text}{remains}")

    async def _running(self, job: int, tail: asyncio.Task[None]) -> None:
        """Wait until the job's processes run, by its output or by SkyPilot. Raises CloudError if the job ends first."""
        async with (
            in_background(self._report.started.wait()) as started,
            in_background(self._running_by_state(job, tail)) as asking,
        ):
            await asyncio.wait({started, asking}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                asking.result()

    async def _running_by_state(self, job: int, tail: asyncio.Task[None]) -> None:
        while (state := await self._state(job)) != "RUNNING":
            if state is not None and state in JOBS_END:
                await asyncio.wait({tail}, timeout=5.0)  # for its last output
                raise self._ended(job, state)
            await asyncio.sleep(POLL_SECONDS)

    def _ended(self, job: int, state: str) -> CloudError:
        return CloudError(JOBS_END[state].format(job=job, cluster=self._order.cluster))

    async def _find(self) -> ClusterNodes:
        """Find the nodes once they are provisioned, while files are still copied. Raises CloudError."""
        await self._report.provisioned.wait()
        tries = 0
        while True:
            try:
                answer = await self._sky.call("reach", cluster=self._order.cluster)
                return ClusterNodes(tuple(answer["aliases"]), tuple(answer["hosts"]))
            except SkyError as error:
                # Before the submission, the launch itself reports the error.
                if self._submission.number is not None:
                    tries += 1
                    self._report.hear(f"distui: {error}; asking again\n")
                if tries == TRIES:
                    raise
                await asyncio.sleep(AGAIN_SECONDS)

    async def _routed(self, job: int, finding: asyncio.Task[ClusterNodes]) -> ClusterNodes:
        """Set the routes: before the start if there is no setup, because a login takes longer than the start of a job.

        Raises CloudError.
        """
        if not self._order.fast or self._run.record.nnodes > AT_ONCE:
            await self._runs.wait()
        nodes = await self._nodes(job, finding)
        self._set_routes(routes(nodes, self._order.bundle, self._run.record.run8))
        return nodes

    async def _nodes(self, job: int, finding: asyncio.Task[ClusterNodes]) -> ClusterNodes:
        """Wait for the nodes and return them; raise CloudError, also if the job ends first."""
        while not finding.done():
            await asyncio.wait({finding}, timeout=ASK_SECONDS)
            state = None if finding.done() else await self._state(job)
            if state is not None and state in JOBS_END:
                raise self._ended(job, state)
        return finding.result()

    async def _linked(self, job: int, routing: asyncio.Task[ClusterNodes]) -> None:
        """Wait until every node's link is up or its part has ended. Raises CloudError if the job ends first."""
        nodes = await routing
        began = asked = clock.monotonic()
        doubted = False
        while not self._all_up():
            await asyncio.sleep(0.1)
            if clock.monotonic() - asked > ASK_SECONDS:
                asked = clock.monotonic()
                state = await self._state(job)
                if state is not None and state in JOBS_END and not self._all_up():
                    raise self._ended(job, state)
            if not doubted and clock.monotonic() - began > DOUBT_SECONDS:
                doubted = True
                await self._doubt(nodes)

    async def _doubt(self, nodes: ClusterNodes) -> None:
        """Check that the aliases lead to the right nodes. Raises CloudError if one does not."""
        try:
            await doubt(nodes, self._order.bundle)
        except UnreachedError as error:
            self._report.hear(f"distui: {error}; the links try on\n")
            self._report.problem(str(error))

    def _all_up(self) -> bool:
        nodes = self._run.state.nodes
        good = (LinkState.UP, LinkState.ENDED)
        return all(node in nodes and nodes[node].link in good for node in range(self._run.record.nnodes))

    async def _state(self, job: int) -> str | None:
        """SkyPilot's state of the job; None while its server does not answer."""
        try:
            state = await self._sky.call("job_state", cluster=self._order.cluster, job=job)
        except SkyError as error:
            if lost(error):
                return None
            raise
        return None if state is None else str(state)

    async def _tail(self, job: int) -> None:
        """Copy the job's own output to launch.log while the nodes themselves cannot be read."""
        with contextlib.suppress(SkyError):
            await self._sky.call("tail", self._report.hear, cluster=self._order.cluster, job=job)

    def _reached(self) -> bool:
        """Whether any node ever answered."""
        return any(node.link is not LinkState.CONNECTING for node in self._run.state.nodes.values())

    async def _given_up(self) -> str:
        """Cancel the job if no node can be asked to stop, and return a part of a sentence."""
        if self._submission.number is None or self._reached():
            return ""
        self._set_routes([])
        try:
            await self._sky.call("cancel", cluster=self._order.cluster, job=self._submission.number)
        except SkyError as error:
            return f"; job {self._submission.number} could not be cancelled ({error})"
        return f"; job {self._submission.number} is cancelled"

    async def _elsewhere(self, error: Exception) -> str:
        """Other places with such nodes, if the user's place has none; a part of a sentence."""
        wanted = dict(self._order.task.get("resources") or {})
        tried = str(wanted.pop("infra", ""))
        if not tried or not isinstance(error, SkyError) or error.kind != "ResourcesUnavailableError":
            return ""
        config = {"num_nodes": self._order.task.get("num_nodes", 1), "resources": wanted, "run": "true"}
        try:
            answer = await self._sky.call("candidates", config=config)
        except SkyError:
            return ""
        return elsewhere(parse(answer["text"]), tried)

    async def _remains(self) -> str:
        """Resources that remain after a failed launch, as the rest of a sentence."""
        try:
            about = await self._sky.call("describe", cluster=self._order.cluster)
        except SkyError:
            return (
                f"; whether cluster {self._order.cluster} exists could not be asked: `sky status` shows it"
            )
        if about is None:
            return ""
        self._run.emit(
            ClusterChanged(described(about, None, name=self._order.cluster, job=self._submission.number))
        )
        return f"; {may_cost(self._order.cluster, about['state'], self._run.record.name)}"

    async def _within(self, work: Coroutine[Any, Any, T]) -> T:
        """Await the work. Raises LaunchStopped if the user stops the run, CloudError if its stage takes too long."""
        async with in_background(work) as task:
            while not await self._run.done_or_stopped(task, 1.0):
                if self._run.stop_asked.is_set():
                    raise LaunchStopped
                self._in_time()
            return task.result()

    def _in_time(self) -> None:
        stage, seconds = self._report.at, self._report.seconds
        if stage not in LIMITS or (stage is Stage.PROVISION and self._order.retry_until_up):
            return
        if seconds > LIMITS[stage]:
            raise CloudError(f"{stage} took longer than {LIMITS[stage] / 60:.0f} minutes: see launch.log")
