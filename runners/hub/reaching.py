"""From a cluster's aliases to routes that can be trusted: each is asked who it is first.

An alias of a Slurm cluster whose ssh config is not whole is the login host: the ranks of another user's node, or
nobody's, would be taken for ours.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec

from ..wire import ssh
from .routes import Route, check
from .seam import CloudError

PROBE_SECONDS = 60.0
OPTIONS = ("-oConnectTimeout=30",)
"""More than other links have: the way through an API server starts a Python of its own, slowly where it is busy."""
AT_ONCE = 8


class Probe(msgspec.Struct):
    """The part of a probe's answer that tells one node from another."""

    hostname: str
    home: str = ""


class UnreachedError(CloudError):
    """A node does not answer, which it may do later."""


async def routes(aliases: Sequence[str], hosts: Sequence[str], bundle: str, run8: str) -> list[Route]:
    """A route to each node, none of which leads elsewhere. Raises CloudError, UnreachedError where to try again.

    `hosts`: the nodes' names as the cloud knows them, where it does.
    """
    gate = asyncio.Semaphore(AT_ONCE)

    async def ask(alias: str) -> Probe:
        async with gate:
            return await probe(alias, bundle)

    found = await asyncio.gather(*(ask(alias) for alias in aliases))
    problem = suspect(aliases, [one.hostname for one in found], hosts)
    if problem is not None:
        raise CloudError(problem)
    return [
        check(
            Route(
                node,
                one.hostname,
                "ssh",
                alias,
                OPTIONS,
                ("sh", f"{bundle}/node.sh", "attach", run8, str(node)),
            )
        )
        for node, (alias, one) in enumerate(zip(aliases, found, strict=True))
    ]


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
    said = err.decode(errors="replace").strip().splitlines()
    why = ssh.explain(said, process.returncode, alias) or f"{alias} does not say who it is"
    raise UnreachedError(f"{why}: try `ssh {alias}`")


def suspect(aliases: Sequence[str], answered: Sequence[str], hosts: Sequence[str]) -> str | None:
    """Why the host names behind the aliases cannot be right, as a sentence; None when they can.

    SkyPilot names the nodes of a Slurm cluster "job7-c1": what stands behind the job's number.
    """
    for alias, name, known in zip(aliases, answered, hosts, strict=False):
        short = name.partition(".")[0]
        if len(hosts) == len(aliases) and short not in (known, known.split("-", 1)[-1].partition(".")[0]):
            return (
                f"ssh {alias} leads to {name}, and that node is {known}: `sky status` mends the ssh config"
            )
    if len(set(answered)) < len(answered):
        twice = next(name for name in answered if list(answered).count(name) > 1)
        return f"several nodes' aliases lead to {twice}: `sky status` mends the ssh config"
    return None
