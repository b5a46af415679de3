"""A run on several nodes without a process: real agents, a real hub, and doubles of the runners, on one loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

from doubles.fake_runner import FakeRunner, FakeRunners
from doubles.served import FakeGpus
from msgspec import structs
from patience import HANG_S

from distui.presets.plan import Place, Plan, command_plan
from distui.presets.request import Request
from distui.runners.agent.node_agent import Agent
from distui.runners.agent.runner_process import Runner, ServedRun
from distui.runners.agent.server import AgentServer
from distui.runners.hub.__main__ import Hub
from distui.runners.node import routes
from distui.runners.node.routes import Route
from distui.runners.run.model import AttemptStarted, Event, RankChanged, RankPlace, RunEnded, RunPhase
from distui.runners.run.wire.client import SocketLink, ensure_socket_dir, stem

from .site import Site, Viewer, Whole


class NodeRunner(FakeRunner):
    """The runner of a node with one rank, whose number is that of the node."""

    def _report(self, event: Event) -> None:
        node = self._node
        if isinstance(event, AttemptStarted):
            event = structs.replace(event, ranks=(RankPlace(node, 0, node),), world_size=2)
        elif isinstance(event, RankChanged):
            event = structs.replace(event, rank=node, local_rank=0)
        elif isinstance(event, RunEnded) and event.phase is RunPhase.FAILED:
            event = structs.replace(event, exit_code=self._deaths.ends[0].exit_code)  # as of a command
        super()._report(event)

    def writes(self, rank: int, text: str, ending: str = "out") -> None:
        super().writes(self._node, text, ending)

    async def _begin(self) -> None:
        await super()._begin()
        self.hooks[0].env |= {"RANK": str(self._node), "WORLD_SIZE": "2"}
        self.writes(0, f"node {self._node} begins\ntick 1\n")


class Rehearsed(Whole):
    """See the module. `await begin()`, and steer the ranks by `runner(node)`."""

    def __init__(self, site: Site, hook: bool = False) -> None:
        """`hook`: whether the ranks have hooks, which count steps and tell where a rank stands."""
        self._hook = hook
        super().__init__(site, ("train",))
        self.runners = [FakeRunners(NodeRunner) for _ in self.parts]
        self.agents: dict[int, Served] = {}
        self.hub: Served | None = None

    def planned(self, command: tuple[str, ...], name: str, place: Place, nodes: int) -> Plan:
        request = Request(name=name, hook=self._hook, grace_s=2.0)
        return replace(command_plan(command, request, place), nnodes=nodes)

    def runner(self, node: int) -> FakeRunner:
        """The newest runner of a node."""
        return self.runners[node].newest

    async def begin(self, ways: Sequence[Route] | None = None) -> None:
        """Start every node's agent, and say how they are reached."""
        ensure_socket_dir()
        for node, part in enumerate(self.parts):
            (part.path / "agent.log").touch()
            await self.begin_agent(node)
        routes.write(self.entry.path, ways or self.unix())

    async def begin_agent(self, node: int) -> None:
        """Start the agent of a node, which finds what an earlier one has written."""

        def spawn(run: ServedRun, env: Mapping[str, str], cause: str = "") -> Runner:
            return Context().run(self.runners[node], run, env, cause)  # it outlives the agent

        agent = Agent(self.parts[node], self.part_plans[node], spawn_runner=spawn, gpu_source=FakeGpus)
        self.agents[node] = await Served.start(agent.run, agent.server)

    async def begin_hub(self) -> None:
        """Start the hub; it says that this process serves the run."""
        hub = Hub(self.entry, self.plan)
        self.hub = await Served.start(hub.serve, hub._server)
        self.hub.hub = hub

    def unix(self) -> list[Route]:
        """By names of their own for the sockets, as of nodes elsewhere: nobody starts an agent for these parts."""
        found = []
        for route in super().unix():
            path = self.site.root / "s" / f"of-node-{route.node}"
            if not path.is_symlink():
                path.symlink_to(route.target)
            found.append(Route(route.node, route.host, "unix", str(path)))
        return found

    async def kill_hub(self) -> None:
        assert self.hub is not None
        await self.hub.killed()

    @asynccontextmanager
    async def viewer(self) -> AsyncIterator[Viewer]:
        if self.hub is None or self.hub.task.done():
            await self.begin_hub()
        viewer = Viewer(await SocketLink.connect(Path(f"{stem(self.record.run8)}.sock")))
        try:
            yield viewer
        finally:
            await viewer.close()

    async def close(self) -> None:
        """End what is left of it."""
        for served in (*self.agents.values(), *filter(None, (self.hub,))):
            await served.killed()
        for runners in self.runners:
            for runner in runners.started:
                runner.dies()
        await asyncio.sleep(1.0)  # connections are closed


_owner: ContextVar[Served | None] = ContextVar("owner", default=None)


def _owned(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    """A task, which belongs to the agent or hub that has made it."""
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    owner = _owner.get()
    if owner is not None:
        owner.tasks.add(task)
    return task


class Served:
    """An agent or a hub that runs in this process."""

    task: asyncio.Task[None]

    def __init__(self, server: AgentServer) -> None:
        self.server = server
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.hub: Hub | None = None

    @classmethod
    async def start(cls, serve: Any, server: AgentServer) -> Served:
        served, ready, context = cls(server), asyncio.Event(), copy_context()
        asyncio.get_running_loop().set_task_factory(_owned)
        context.run(_owner.set, served)
        served.task = asyncio.create_task(serve(ready.set), context=context)
        waiting = asyncio.ensure_future(ready.wait())
        async with asyncio.timeout(HANG_S):
            await asyncio.wait({served.task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if served.task.done():
            served.task.result()
        return served

    async def killed(self) -> None:
        """Gone as after SIGKILL: connections are cut, nothing is written any more, and the socket stays."""
        for client in list(self.server._clients):
            client.writer.transport.abort()
        if self.server._server is not None:
            self.server._server.close()
        tasks = {self.task, *self.tasks}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for link in self.hub.links.by_node.values() if self.hub is not None else ():
            await link.drop()
