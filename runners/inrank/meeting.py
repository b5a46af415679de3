"""Where a torchrun inside a managed command meets the others: by c10d, whatever it was told, so that it can restart."""

from __future__ import annotations

import os
import socket
from typing import Any

CONF = "join_timeout=600,last_call_timeout=5,read_timeout=60"


def meet(args: Any, plan: dict[str, Any]) -> None:
    """Change torchrun's parsed arguments. One node meets itself, several the others of the same run."""
    if str(args.nnodes).split(":")[-1] == "1":
        args.rdzv_backend, args.rdzv_endpoint = "c10d", "localhost:0"
        args.rdzv_id = "%s-%d" % (os.environ.get("DISTUI_RUN_ID", "run"), os.getpid())
        args.local_addr = args.local_addr or "127.0.0.1"
    elif args.rdzv_backend in ("static", "c10d"):
        _several(args, plan)


def _several(args: Any, plan: dict[str, Any]) -> None:
    """The static rendezvous becomes c10d on the port it names. Who is the host is said, and not guessed from names."""
    node = int(plan.get("node", 0))
    is_host = node == 0
    if args.rdzv_backend == "static":
        is_host = int(args.node_rank) == 0
        args.rdzv_endpoint = args.rdzv_endpoint or "%s:%s" % (args.master_addr, args.master_port)
        args.rdzv_backend = "c10d"
        args.rdzv_id = str(plan["run"]).rsplit(".n%d" % node, 1)[0]
    if "is_host" not in (args.rdzv_conf or ""):
        said = [args.rdzv_conf] if args.rdzv_conf else [CONF]
        args.rdzv_conf = ",".join(["is_host=%d" % is_host, *said])
    args.local_addr = args.local_addr or address_towards(args.rdzv_endpoint)


def address_towards(endpoint: str) -> str | None:
    """This node's address on the way to an endpoint; None when there is no way. Nothing is sent."""
    host = endpoint.rpartition(":")[0].strip("[]") or endpoint
    try:
        family, kind, _, _, there = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(there)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def several_nodes(nnodes: Any, plan: dict[str, Any]) -> bool | None:
    """Whether a torchrun with this `--nnodes` is one of several; None where the plan knows of no others."""
    if str(nnodes).split(":")[-1] == "1":
        return False
    return True if int(plan.get("nnodes", 1)) > 1 else None
