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

VALUES = frozenset(
    {
        "nnodes",
        "nproc-per-node",
        "rdzv-backend",
        "rdzv-endpoint",
        "rdzv-id",
        "rdzv-conf",
        "max-restarts",
        "monitor-interval",
        "start-method",
        "event-log-handler",
        "role",
        "log-dir",
        "redirects",
        "tee",
        "local-ranks-filter",
        "duplicate-stdout-filters",
        "duplicate-stderr-filters",
        "node-rank",
        "master-addr",
        "master-port",
        "local-addr",
        "logs-specs",
        "numa-binding",
        "signals-to-handle",
        "shutdown-timeout",
        "log-line-prefix-template",
    }
)
"""Options with a value, of torch 2.7 to 2.15; `_` does for `-`."""
SWITCHES = frozenset(
    {"standalone", "module", "no-python", "run-path", "virtual-local-rank", "print-completion", "help"}
)
NEWER = frozenset({"log-line-prefix-template", "print-completion"})
"""Those that torch 2.13 does not have yet."""
SHORT = {"-r": "redirects", "-t": "tee"}

IDLE = frozenset({"local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters"})
"""Options that are passed on and do nothing: they choose among the ranks' output, which distui keeps all of."""

FREE = IDLE | {
    "role",
    "numa-binding",
    "event-log-handler",
    "start-method",
    "signals-to-handle",
    "shutdown-timeout",
    "virtual-local-rank",
}
"""The other options of torchrun (2.13) that are passed on."""

OWN_OPTIONS = (VALUES | SWITCHES) - FREE - NEWER - {"help"}
"""Options that distui sets itself, or that would break what it sets (`--run-path`: the ranks would not carry their
environment from their start)."""

OWN_LETTERS = frozenset("mrt")
"""The same as single letters, which may stand before their value or before each other: -m, -r, -t."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """What the command line of one node says."""

    nnodes: int
    nproc_per_node: int
    run: str
    """Rendezvous id."""
    host: str
    """Address by which the ranks of a single node meet; ignored where there are several nodes."""
    port: int
    """Port of the rendezvous on the head of several nodes; the runner of a single node opens none."""
    monitor_interval_s: float
    command: tuple[str, ...]
    """The script and its arguments."""
    nnodes_min: int | None = None
    """Fewest nodes an elastic group goes on with; None: `nnodes`."""
    local_addr: str = ""
    """Address of this node; "" means `host`."""
    module: bool = False
    no_python: bool = False
    extra: tuple[str, ...] = ()


def argv(launch: Launch) -> tuple[str, ...]:
    """Everything after `python -m torch.distributed.run`.

    The local address is given because torch guesses it from the host name. For several nodes the words that differ
    from node to node hold placeholders, which `placed` fills.
    """
    several = launch.nnodes > 1
    options = {
        "--nnodes": str(launch.nnodes)
        if launch.nnodes_min is None
        else f"{launch.nnodes_min}:{launch.nnodes}",
        "--nproc-per-node": str(launch.nproc_per_node),
        **_rendezvous(launch, several),
        "--local-addr": LOCAL if several else launch.local_addr or launch.host,
        "--max-restarts": str(MAX_RESTARTS),
        "--monitor-interval": f"{launch.monitor_interval_s:g}",
    }
    flags = []
    if launch.module:
        flags.append("-m")
    if launch.no_python:
        flags.append("--no-python")
    # argparse drops a "--" right after the script, unless one before it has ended the options already.
    if launch.command[1:2] == ("--",):
        flags.append("--")
    words = (part for pair in options.items() for part in pair if part)
    return (*words, *launch.extra, *flags, *launch.command)


def _rendezvous(launch: Launch, several: bool) -> dict[str, str]:
    """Options of the rendezvous; "" for one without a value. Who is the head is said: torch guesses that.

    torch's own launcher understands them; distui's runner meets in a way of its own (runners/inrank/rendezvous.py).
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
    """`argv` of a launch on several nodes, for one of them; the script's own words are left alone."""
    filled = list(arguments)
    for option, placeholder, value in (
        ("--rdzv-endpoint", HEAD, f"[{head}]" if ":" in head else head),
        ("--rdzv-conf", IS_HEAD, str(int(node == 0))),
        ("--local-addr", LOCAL, local),
    ):
        # Ours come before whatever the user wrote, and --local-addr after all the others here.
        if option in filled[: filled.index("--local-addr") + 1]:
            at = filled.index(option) + 1
            filled[at] = filled[at].replace(placeholder, value)
    return tuple(filled)


def endpoint(host: str, port: int) -> str:
    """`HOST:PORT`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def own_option(arguments: Sequence[str]) -> str | None:
    """The first of `arguments` that distui sets itself, or None. Both `--a-b` and `--a_b` count, and what argparse
    takes for one of them: a beginning of it, and single letters with a value behind.
    """
    for argument in arguments:
        name = argument.split("=", 1)[0]
        if name.startswith("--"):
            option = name[2:].replace("_", "-")
            if option and any(own.startswith(option) for own in OWN_OPTIONS) and option not in FREE:
                return name
        elif name[:1] == "-" and name[1:2] in OWN_LETTERS:
            return name
    return None
