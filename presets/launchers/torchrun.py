"""The arguments of torch's elastic launcher, as text.

Option names: `torch.distributed.run.get_args_parser`, the same from torch 2.7 to 2.15.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MODULE = "torch.distributed.run"
"""What `python -m` executes."""

MAX_RESTARTS = 100
"""More than any policy asks for: whether to restart is distui's decision, the launcher must only not
give up before it."""

HEAD, LOCAL, IS_HEAD = "{head}", "{local}", "{is_head}"
"""What stands in the plan for several nodes where each node has its own: address of the head, address of
this node, 1 on the head and 0 elsewhere."""

OWN_OPTIONS = frozenset(
    {
        "nnodes",
        "nproc-per-node",
        "rdzv-backend",
        "rdzv-endpoint",
        "rdzv-id",
        "rdzv-conf",
        "standalone",
        "node-rank",
        "master-addr",
        "master-port",
        "local-addr",
        "max-restarts",
        "monitor-interval",
        "module",
        "no-python",
        "log-dir",
        "redirects",
        "tee",
        "logs-specs",
    }
)
"""Options that distui sets itself, or that would break what it sets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """What the command line of one node says."""

    nnodes: int
    nproc_per_node: int
    run: str
    """Rendezvous id."""
    host: str
    """Address of the rendezvous, which this node can also bind; ignored where there are several nodes."""
    port: int
    """Port of the rendezvous, found free by the caller: a foreign listener there hangs the start."""
    monitor_interval_s: float
    command: tuple[str, ...]
    """The script and its arguments."""
    is_head: bool = True
    """Whether this node holds the rendezvous."""
    nnodes_min: int | None = None
    """Fewest nodes an elastic group goes on with; None: `nnodes`."""
    local_addr: str = ""
    """Address of this node; "" means `host`."""
    module: bool = False
    no_python: bool = False
    extra: tuple[str, ...] = ()


def argv(launch: Launch) -> tuple[str, ...]:
    """Everything after `python -m torch.distributed.run`.

    Rendezvous is c10d for a fixed size too: the static one always shares its store with the ranks, and a
    restarted group then reads the addresses of the one before. `is_host` and the local address are given
    because torch guesses both from the host name. For several nodes the words that differ from node to node
    hold placeholders, which `placed` fills.
    """
    several = launch.nnodes > 1
    is_host = IS_HEAD if several else str(int(launch.is_head))
    host = HEAD if several else launch.host
    options = {
        "--nnodes": str(launch.nnodes)
        if launch.nnodes_min is None
        else f"{launch.nnodes_min}:{launch.nnodes}",
        "--nproc-per-node": str(launch.nproc_per_node),
        "--rdzv-backend": "c10d",
        "--rdzv-endpoint": endpoint(host, launch.port),
        "--rdzv-id": launch.run,
        "--rdzv-conf": f"is_host={is_host},join_timeout=600,last_call_timeout=5,read_timeout=60",
        "--local-addr": LOCAL if several else launch.local_addr or launch.host,
        "--max-restarts": str(MAX_RESTARTS),
        "--monitor-interval": f"{launch.monitor_interval_s:g}",
    }
    flags = ("-m",) * launch.module + ("--no-python",) * launch.no_python
    # argparse drops a "--" right after the script, unless one before it has ended the options already.
    flags += ("--",) * (launch.command[1:2] == ("--",))
    return (*(part for pair in options.items() for part in pair), *launch.extra, *flags, *launch.command)


def placed(arguments: Sequence[str], head: str, local: str, is_head: bool) -> tuple[str, ...]:
    """`argv` of a launch on several nodes, for one of them; the script's own words are left alone."""
    filled = list(arguments)
    for option, placeholder, value in (
        ("--rdzv-endpoint", HEAD, f"[{head}]" if ":" in head else head),
        ("--rdzv-conf", IS_HEAD, str(int(is_head))),
        ("--local-addr", LOCAL, local),
    ):
        at = filled.index(option) + 1  # ours come before whatever the user wrote
        filled[at] = filled[at].replace(placeholder, value)
    return tuple(filled)


def endpoint(host: str, port: int) -> str:
    """`HOST:PORT`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def own_option(arguments: Sequence[str]) -> str | None:
    """The first of `arguments` that distui sets itself, or None. Both `--a-b` and `--a_b` count."""
    for argument in arguments:
        name = argument.split("=", 1)[0]
        if name == "-m" or (name.startswith("--") and name[2:].replace("_", "-") in OWN_OPTIONS):
            return name
    return None
