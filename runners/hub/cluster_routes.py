"""From a cluster's aliases to routes, and what is wrong with aliases behind which no agent of the run answers.

An alias of a Slurm cluster whose ssh config is not whole is the login host. Nobody's ranks are taken for ours there: an
agent says which node of which run it serves (see links.open_route). But why none answers has to be said.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Sequence

import msgspec

from ..wire import ssh
from .launch_order import CloudError
from .links import AT_ONCE
from .routes import Route, check

PROBE_SECONDS = 60.0
OPTIONS = ("-oConnectTimeout=30",)
"""More than other links have: the way through an API server starts a Python of its own, slowly where it is busy."""


class Probe(msgspec.Struct):
    """The part of a probe's answer that tells one node from another."""

    hostname: str


class UnreachedError(CloudError):
    """A node does not answer, which it may do later."""


class ClusterNodes(msgspec.Struct, frozen=True):
    """Of a cluster, by node."""

    aliases: tuple[str, ...]
    """For ssh."""
    hosts: tuple[str, ...] = ()
    """The names that the cloud has for them; () where it has none that a user knows."""


def routes(nodes: ClusterNodes, bundle: str, run8: str) -> list[Route]:
    """A route to each node. Raises RunError."""
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
    """A node's name without what SkyPilot puts before it ("job7-c1" on Slurm) and without its domain."""
    return re.sub(r"^job\d+-", "", host).partition(".")[0]


async def doubt(nodes: ClusterNodes, bundle: str) -> None:
    """Ask each who it is. Raises CloudError where one leads elsewhere, UnreachedError where one does not answer."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def ask(alias: str) -> str:
        async with gate:
            return (await probe(alias, bundle)).hostname

    problem = suspect(nodes, await asyncio.gather(*(ask(alias) for alias in nodes.aliases)))
    if problem is not None:
        raise CloudError(problem)


async def probe(alias: str, bundle: str) -> Probe:
    """Who answers behind an alias. Raises CloudError."""
    words = ssh.argv(alias, OPTIONS, ("sh", f"{bundle}/node.sh", "probe"))
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), PROBE_SECONDS)
    except (TimeoutError, asyncio.CancelledError) as error:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if isinstance(error, asyncio.CancelledError):
            raise
        raise UnreachedError(
            f"{alias} did not answer within {PROBE_SECONDS:g} s: try `ssh {alias}`"
        ) from None
    for line in out.splitlines():  # a login may print before it
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.json.decode(line, type=Probe)
    lines = err.decode(errors="replace").strip().splitlines()
    why = ssh.explain(lines, process.returncode, alias) or f"{alias} does not say who it is"
    raise UnreachedError(f"{why}: try `ssh {alias}`")


def suspect(nodes: ClusterNodes, answered: Sequence[str]) -> str | None:
    """Why the host names behind the aliases cannot be right, as a sentence; None when they can."""
    for alias, name, host in zip(nodes.aliases, answered, nodes.hosts, strict=False):
        if len(nodes.hosts) == len(nodes.aliases) and name.partition(".")[0] not in (host, short(host)):
            return (
                f"ssh {alias} leads to {name}, and that node is {host}: `sky status` mends the ssh config"
            )
    if len(set(answered)) < len(answered):
        twice = next(name for name in answered if list(answered).count(name) > 1)
        return f"several nodes' aliases lead to {twice}: `sky status` mends the ssh config"
    return None
