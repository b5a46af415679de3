"""The launch that an advice names: as a request, and as a command line. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..known_names import known_names
from ..request import Named, Request
from .workload import NodeGpus


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchPlace:
    """The nodes of an advice."""

    gpus: NodeGpus
    nodes: int = 1
    on: str = ""
    """A place of SkyPilot, or "" for this machine if one node is enough, else for sky."""
    hosts: tuple[str, ...] = ()
    """The user's own hosts, or ()."""


def launch_request(
    place: LaunchPlace, preset: str, overrides: Sequence[str], adopt: bool, words: Sequence[str]
) -> Request:
    """Return the launch of a preset at a place. `words`: the script and its arguments."""
    script, *args = words
    count, nodes = place.gpus.count, place.nodes
    common = Request(
        preset=preset, overrides=tuple(overrides), adopt=adopt, script=script, args=tuple(args), on="local"
    )
    if place.hosts:
        return replace(common, hosts=tuple(Named(name) for name in place.hosts), nproc_per_node=count)
    if nodes == 1 and not place.on:
        return replace(common, nproc_per_node=count)
    best = nodes > 1 and place.gpus.name not in known_names("skypilot")["plain_gpus"]
    return replace(
        common,
        on=place.on or "sky",
        gpus=f"{place.gpus.name}:{count}",
        nnodes=nodes if nodes > 1 else None,
        network_tier="best" if best else None,
    )


def command_of(request: Request) -> str:
    """Return the command line of a request that `launch_request` returned."""
    words = ["distui", "launch", request.preset]
    for override in request.overrides:
        words += ["--set", override]
    if request.adopt:
        words.append("--adopt")
    options = {
        "--on": request.on if request.on != "local" else None,
        "--hosts": ",".join(host.destination for host in request.hosts) or None,
        "--gpus": request.gpus,
        "--nnodes": request.nnodes,
        "--network-tier": request.network_tier,
        "--nproc-per-node": request.nproc_per_node,
    }
    for name, value in options.items():
        if value is not None:
            words += [name, str(value)]
    return shlex.join([*words, "--", request.script or "", *request.args])
