"""A launch on hosts that the user named: bundle, code and job document by ssh, then a job process on each host.

No other service is involved, so a hub that died during a launch repeats all of it: existing files stay, and a running
part is not started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from ...presets.plurals import plural
from ...presets.secrets import MASK, SECRET_WORDS
from ..inrank.secure_channel import KEY_FILE
from ..node import package as bundles
from ..node.job_document import HUB_FILE, Document, Start
from ..node.node_part import RELAY_KEY
from ..node.package import pack, send_bundle, send_work
from ..node.routes import Route, check
from ..run import file_io
from ..run.commands import Stop
from ..run.errors import RunError
from ..run.model import Cluster, ClusterChanged, LinkChanged, LinkState, Stage, StageChanged
from ..run.parts import in_background
from ..run.wire.client import LinkError, new_id
from ..run.wire.ssh import HostError, SshLink, Way, call, each
from .clouds import Cloud, CloudError, SetRoutes
from .merged_run import LAUNCH_FILE, MergedRun

KIND = "hosts"
START_SECONDS = 90.0
LINK_SECONDS = 60.0
REVIVE_SECONDS = 30.0


class HostsRequest(Struct, frozen=True, omit_defaults=True):
    """Content of launch.json for such a run."""

    kind: str
    hosts: tuple[str, ...]
    """Destinations for ssh, by node."""
    names: tuple[str, ...]
    """Names on screens."""
    addresses: tuple[str, ...]
    """Addresses that the nodes use among each other."""
    options: tuple[str, ...] = ()
    """Additional options for ssh."""
    workdir: str = ""
    """Local directory to copy to every host; "": the code is already there."""
    work: str = ""
    """Its destination, relative to ~/.distui on the hosts."""


def read(run_dir: Path) -> HostsRequest | None:
    """Read the request of a run; None without one for this module."""
    order = file_io.document_or_none(run_dir / LAUNCH_FILE, HostsRequest)
    return order if order is not None and order.kind == KIND else None


class Hosts(Cloud):
    not_ours = "distui did not provision these hosts: it neither tears them down nor pays for them"

    def __init__(self, run: MergedRun, order: HostsRequest) -> None:
        self._run, self._order = run, order
        self._nodes = range(len(order.hosts))
        self._bundle = Path()

    def _way(self, node: int) -> Way:
        return Way(self._order.hosts[node], self._order.options)

    async def launch(self, set_routes: SetRoutes) -> None:
        """Execute all stages; a failure names every host that failed."""
        self._run.emit(
            ClusterChanged(Cluster(infra=KIND, resources=plural(len(self._order.hosts), "host")))
        )
        self._introduce()
        try:
            await self._stage(Stage.SYNC, self._sync())
            await self._stage(Stage.START, self._start_all(set_routes))
        except HostError as error:
            await self._end_begun()
            self._run.fail(f"the launch failed: {error}")
            return
        self._run.emit(StageChanged(Stage.START, "done"))

    def _introduce(self) -> None:
        """Emit the names of the nodes before any other event about them."""
        for node, name in enumerate(self._order.names):
            if node not in self._run.state.nodes:
                self._run.emit(LinkChanged(LinkState.CONNECTING, name), node=node)

    async def _stage(self, stage: Stage, doing: Coroutine[object, object, None]) -> None:
        """Execute one stage; a stop of the run cancels it. Raises HostError."""
        self._run.emit(StageChanged(stage, "begun", plural(len(self._order.hosts), "host")))
        async with in_background(doing) as work:
            try:
                if not await self._run.done_or_stopped(work):
                    raise HostError("stopped")
                work.result()
            except HostError as error:
                self._run.emit(StageChanged(stage, "failed", str(error)))
                raise
        if stage is not Stage.START:
            self._run.emit(StageChanged(stage, "done"))

    async def _sync(self) -> None:
        data, code = await self._pack_bundle(), b""
        if self._order.workdir:
            code = await pack(Path(self._order.workdir), Path(self._order.work).name, only_code=True)
        self._raise_all(await each(self._nodes, lambda node: self._sync_node(node, data, code)))

    async def _pack_bundle(self) -> bytes:
        try:
            self._bundle = await asyncio.to_thread(bundles.build)
        except RunError as error:
            raise HostError(str(error)) from None
        return await pack(self._bundle, self._bundle.name, only_code=False)

    async def _sync_node(self, node: int, data: bytes, code: bytes) -> None:
        self._run.emit(StageChanged(Stage.SYNC, "begun"), node=node)
        await send_bundle(self._way(node), self._bundle, data)
        if code:
            await send_work(self._way(node), self._order.work, code)
        self._run.emit(StageChanged(Stage.SYNC, "done"), node=node)

    async def _start_all(self, set_routes: SetRoutes) -> None:
        self._raise_all(await each(self._nodes, self._start))
        set_routes([self._route(node) for node in self._nodes])
        await self._linked(list(self._nodes), LINK_SECONDS)

    async def _start(self, node: int) -> None:
        """Start the job process of a node, with secrets on its stdin instead of in a file. Raises HostError."""
        given = Start(self._document(), self._secrets())
        words = ("sh", f"~/.distui/{self._bundle.name}/node.sh", "start", self._run.record.run, str(node))
        await call(self._way(node), words, msgspec.json.encode(given), START_SECONDS)

    def _document(self) -> Document:
        return msgspec.json.decode((self._run.run_dir / HUB_FILE).read_bytes(), type=Document)

    def _secrets(self) -> dict[str, str]:
        """Secrets for the job process. Raises HostError."""
        try:
            key = (self._run.run_dir / KEY_FILE).read_text()
        except OSError as error:
            raise HostError(f"cannot read {error.filename}: {error.strerror}") from None
        names = [SECRET_WORDS, *(name for name, value in self._run.plan.env.items() if value == MASK)]
        return {RELAY_KEY: key, **{name: os.environ[name] for name in names if name in os.environ}}

    def _route(self, node: int) -> Route:
        remote = (
            "sh",
            f"~/.distui/{self._bundle.name}/node.sh",
            "attach",
            self._run.record.run8,
            str(node),
        )
        order = self._order
        return check(Route(node, order.names[node], "ssh", order.hosts[node], order.options, remote))

    async def _linked(self, nodes: Sequence[int], seconds: float) -> None:
        """Wait until these nodes' links are up or their parts have ended. Raises HostError after `seconds`."""
        good = (LinkState.UP, LinkState.ENDED)

        def missing() -> list[int]:
            by_node = self._run.state.nodes
            return [node for node in nodes if node not in by_node or by_node[node].link not in good]

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while missing():
                    await asyncio.sleep(0.05)
        if missing():
            names = ", ".join(self._order.hosts[node] for node in missing())
            raise HostError(f"{names} started, and its agent does not answer: see agent.log there")

    def _raise_all(self, answers: Sequence[object]) -> None:
        """Raise one HostError that names every host that failed."""
        errors = [str(answer) for answer in answers if isinstance(answer, HostError)]
        if errors:
            raise HostError("; ".join(errors))

    async def _end_begun(self) -> None:
        """End all started parts of a failed launch."""
        if self._bundle.name:
            await each(self._nodes, self._end)

    async def _end(self, node: int) -> None:
        route = self._route(node)
        try:
            link = await SshLink.open(route.target, route.options, route.remote)
        except LinkError:
            return  # not started
        try:
            async with asyncio.timeout(START_SECONDS):
                await asyncio.gather(link.send(Stop(new_id(), 2.0)))
        except (LinkError, TimeoutError):
            self._run.emit(StageChanged(Stage.START, "failed", "its part may still run"), node=node)
        finally:
            await link.close()

    async def revive(self, nodes: Sequence[int]) -> None:
        """Restart the parts of these nodes, if their hosts are back; the others stay silent."""
        data = await self._pack_bundle()

        async def again(node: int) -> None:
            await send_bundle(self._way(node), self._bundle, data)
            await self._start(node)

        answers = await each(nodes, again)
        back = [
            node for node, answer in zip(nodes, answers, strict=True) if not isinstance(answer, HostError)
        ]
        if back:
            with contextlib.suppress(HostError):
                await self._linked(back, REVIVE_SECONDS)

    async def stop(self, node: int, grace_s: float) -> None:
        """Run `distui stop` on a node without an answering agent. Raises HostError."""
        data = await self._pack_bundle()
        await send_bundle(self._way(node), self._bundle, data)
        words = (
            "sh",
            f"~/.distui/{self._bundle.name}/node.sh",
            "distui",
            "stop",
            self._run.record.run,
            "--yes",
        )
        await call(self._way(node), (*words, "--grace", f"{grace_s:g}"), b"", grace_s + START_SECONDS)

    async def cancel(self) -> str:
        raise CloudError("the hosts that do not answer stop as soon as they do")
