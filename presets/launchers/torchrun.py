"""The command-line arguments of torch's elastic launcher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MODULE = "torch.distributed.run"
"""Module for `python -m`."""

MAX_RESTARTS = 100
"""More than any restart policy: distui decides about restarts, and the launcher must not give up earlier."""

HEAD, LOCAL, IS_HEAD = "{head}", "{local}", "{is_head}"
"""Placeholders in a plan for several nodes: address of the head, address of this node, 1 on the head and 0 elsewhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """The command line of one node."""

    nnodes: int
    nproc_per_node: int
    run: str
    """Rendezvous ID."""
    host: str
    """Rendezvous address of a single node. Ignored for several nodes."""
    port: int
    """Rendezvous port on the head of several nodes. The runner of a single node opens no port."""
    monitor_interval_s: float
    command: tuple[str, ...]
    """The script and its arguments."""
    nnodes_min: int | None = None
    """Fewest nodes of an elastic group. None means `nnodes`."""
    module: bool = False
    no_python: bool = False
    extra: tuple[str, ...] = ()


def argv(launch: Launch) -> tuple[str, ...]:
    """Return the arguments after `python -m torch.distributed.run`.

    The local address is explicit, because torch otherwise guesses it from the host name. For several nodes, arguments
    that differ per node hold placeholders: see `placed`.
    """
    several = launch.nnodes > 1
    given = {
        "--nnodes": str(launch.nnodes)
        if launch.nnodes_min is None
        else f"{launch.nnodes_min}:{launch.nnodes}",
        "--nproc-per-node": str(launch.nproc_per_node),
        **_rendezvous(launch, several),
        "--local-addr": LOCAL if several else launch.host,
        "--max-restarts": str(MAX_RESTARTS),
        "--monitor-interval": f"{launch.monitor_interval_s:g}",
    }
    flags = []
    if launch.module:
        flags.append("-m")
    if launch.no_python:
        flags.append("--no-python")
    # argparse drops a "--" right after the script, unless an earlier one ended the options.
    if launch.command[1:2] == ("--",):
        flags.append("--")
    words = (part for pair in given.items() for part in pair if part)
    return (*words, *launch.extra, *flags, *launch.command)


def _rendezvous(launch: Launch, several: bool) -> dict[str, str]:
    """Return the rendezvous options, "" for one without a value. The head is explicit, because torch would guess it.

    torch's own launcher uses these options. distui's runner has another rendezvous (runners/inrank/rendezvous.py).
    """
    if not several:
        return {"--standalone": "", "--rdzv-id": launch.run}
    return {
        "--rdzv-backend": "c10d",
        "--rdzv-endpoint": endpoint(HEAD, launch.port),
        "--rdzv-id": launch.run,
        "--rdzv-conf": f"is_host={IS_HEAD},join_timeout=600,last_call_timeout=5,read_timeout=60",
    }


def placed(arguments: Sequence[str], head: str, local: str, node: int) -> tuple[str, ...]:
    """Replace the placeholders in `argv` of several nodes for one node. The script's own words stay unchanged."""
    filled = list(arguments)
    for option, placeholder, value in (
        ("--rdzv-endpoint", HEAD, f"[{head}]" if ":" in head else head),
        ("--rdzv-conf", IS_HEAD, str(int(node == 0))),
        ("--local-addr", LOCAL, local),
    ):
        # distui's options precede the user's, and --local-addr follows the other two.
        if option in filled[: filled.index("--local-addr") + 1]:
            at = filled.index(option) + 1
            filled[at] = filled[at].replace(placeholder, value)
    return tuple(filled)


def endpoint(host: str, port: int) -> str:
    """Return `HOST:PORT`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
