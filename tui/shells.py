"""A shell on a node of a run on several nodes: the way by which the hub reaches it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..runners.errors import RunError
from ..runners.hub import routes


@dataclass(frozen=True, slots=True)
class Shell:
    """What opens a shell; `argv` () where nothing does."""

    argv: tuple[str, ...]
    text: str = ""
    """What the user should know of it, a sentence."""


def shell_on(run_dir: Path, node: int, environ: Mapping[str, str] = os.environ) -> Shell:
    """The shell on one node of the run that this hub's directory belongs to. Raises RunError."""
    route = next((one for one in routes.read(run_dir) if one.node == node), None)
    if route is None:
        raise RunError(f"no way to node {node} is known yet: wait until its link is up")
    if route.kind == "ssh":
        return Shell(("ssh", "-t", *route.options, "--", route.target))
    if route.kind == "unix":
        return Shell((environ.get("SHELL") or "/bin/sh",), f"{route.host} is this machine")
    why = "is reached through the agent of the head node, which carries no shell"
    return Shell((), f"{route.host} {why}: ssh {route.host}")
