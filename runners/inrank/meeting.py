"""Where the nodes meet so that they can restart: a torchrun inside a managed command by c10d, whatever it was told; ours
by what the preset says, the static rendezvous with rounds that torch's own does not have.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any

from .agreement import BROKEN

JOIN_S = 600.0
"""How long a node waits for the others in a new round, as c10d does."""
LOOK_S = 0.02
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


def alone(args: Any) -> None:
    """--standalone, as torchrun's own main function reads it: a rendezvous of this node's, on a free port."""
    args.rdzv_backend, args.rdzv_endpoint = "c10d", "localhost:0"
    args.rdzv_id = "%s-%d" % (os.environ.get("DISTUI_RUN_ID", "run"), os.getpid())


class Rounds:
    """torch's static rendezvous, for which there is one round ever, with as many as are asked for.

    Its ranks share the launchers' store, and a restarted group would read the addresses of the one before. Here each
    round has a part of that store for itself and a port of its own for the ranks; a node joins the next one where
    another has. Has what plugin.Handler asks of a RendezvousHandler.
    """

    use_agent_store = False

    def __init__(self, inner: Any, local_addr: str | None, stopping: Callable[[], bool]) -> None:
        self._inner, self._local_addr, self._stopping = inner, local_addr, stopping
        self._store: Any = None
        self._number = 0
        """Of the round that this node is in, from 1."""

    def next_rendezvous(self) -> Any:
        """Meet the others. Raises torch's RendezvousTimeoutError."""
        from torch.distributed import PrefixStore
        from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo

        info = self._inner.next_rendezvous()
        self._store, self._number = info.store, self._number + 1
        while self._came(self._number) >= info.world_size:
            self._number += 1  # a round without this node: its launcher was started anew
        self._await(self._came(self._number, 1), info.world_size)
        part = PrefixStore("distui/round/%d" % self._number, self._store)
        place = RendezvousStoreInfo.build(info.rank, part, self._local_addr)
        return RendezvousInfo(part, info.rank, info.world_size, place)

    def _await(self, came: int, wanted: int) -> None:
        from torch.distributed.elastic.rendezvous import RendezvousTimeoutError

        deadline = time.monotonic() + JOIN_S
        while came < wanted:
            if self._stopping() or time.monotonic() > deadline:
                raise RendezvousTimeoutError("%d of %d nodes came" % (came, wanted))
            time.sleep(LOOK_S)
            came = self._came(self._number)

    def _came(self, number: int, more: int = 0) -> int:
        return int(self._store.add("distui/came/%d" % number, more))

    def num_nodes_waiting(self) -> int:
        try:
            return self._came(self._number + 1) if self._store is not None else 0
        except BROKEN:  # the head has left: its ranks have ended, ours may still
            return 0

    def is_closed(self) -> bool:
        return bool(self._inner.is_closed())

    def set_closed(self) -> None:
        self._inner.set_closed()

    def get_run_id(self) -> str:
        return str(self._inner.get_run_id())

    def shutdown(self) -> bool:
        return bool(self._inner.shutdown())
