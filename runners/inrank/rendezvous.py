"""Where the nodes of a run meet: one node in its own memory, several at the coordinator."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
from typing import Any

from . import coordinator, membership
from .secure_channel import KEY_FILE, read_key

# -----------------------------------------------------------------------------------------------------------
# Where the nodes of a run meet: a single node in its own memory, several at the coordinator on the first of them.
# Both have what plugin.make_handler asks of a RendezvousHandler of torch's. Rank 0 opens the store of its group
# itself, on a port of its own in each round: ranks that shared a store of ours would read the addresses of the group
# before.


OURS = ("distui", "c10d", "static")
"""Backends of torchrun's whose part the rendezvous here takes; any other stays torch's."""
LOOPBACK = "127.0.0.1"


class Alone:
    """The rendezvous of one node: nobody to wait for, and no port."""

    use_agent_store = False

    def __init__(self, run_id: str, local_addr: str | None) -> None:
        from torch.distributed import HashStore

        self._run_id, self._local_addr = run_id, local_addr or LOOPBACK
        self._store, self._round, self._closed = HashStore(), 0, False

    def next_rendezvous(self) -> Any:
        from torch.distributed import PrefixStore
        from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo

        self._round += 1
        part = PrefixStore("round/%d" % self._round, self._store)
        return RendezvousInfo(part, 0, 1, RendezvousStoreInfo.build(0, part, self._local_addr))

    def num_nodes_waiting(self) -> int:
        return 0

    def is_closed(self) -> bool:
        return self._closed

    def set_closed(self) -> None:
        self._closed = True

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        self._closed = True
        return True


def prepare(config: Any, run_dir: str) -> membership.CoordinatorAddress | None:
    """On several nodes: how this one reaches the coordinator, which is started here where this is the head.

    None where there is nobody to meet, or where the rendezvous is torch's. Raises ValueError with a sentence.
    """
    if config.max_nodes == 1 or config.rdzv_backend not in OURS:
        return None
    host, port = split(config.rdzv_endpoint)
    key = read_key(run_dir, config.run_id)
    if key is None:
        raise ValueError(
            "%s is missing, by which the nodes of a run know each other: launch the run again"
            % os.path.join(run_dir, KEY_FILE)
        )
    conf = config.rdzv_configs
    place = membership.CoordinatorAddress(
        host, port, key, config.run_id, config.local_addr, int(conf.get("order", 0))
    )
    place.patience_s = {
        name: float(conf.get(name + "_timeout", usual)) for name, usual in membership.PATIENCE_S.items()
    }
    if str(conf.get("is_host", "")).lower() in ("1", "true", "yes", "t", "y"):
        limits = (config.min_nodes, config.max_nodes, place.patience_s["last_call"])
        coordinator.start(host, port, key, limits, config.local_addr)
    return place


def split(endpoint: str) -> tuple[str, int]:
    """Host and port of HOST:PORT or [IPV6]:PORT. Raises ValueError with a sentence."""
    host, _, port = endpoint.strip().rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError("the rendezvous endpoint %r is not HOST:PORT" % endpoint)
    return host.strip("[]"), int(port)


def handler(params: Any, place: membership.CoordinatorAddress | None) -> Any:
    """What the nodes meet by; `params`: torch's RendezvousParameters, which name the backend that was asked for."""
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    if place is not None:
        return membership.Among(place)
    if params.max_nodes == 1:
        return Alone(params.run_id, params.local_addr)
    return get_rendezvous_handler(params)


# -----------------------------------------------------------------------------------------------------------
# What runners tell each other through the rendezvous: the number of an attempt, and that a restart was asked for.
# Each round comes with a store of its own, which a runner waits at no longer than PATIENCE_S.


PATIENCE_S = 10.0
"""How long the others may take to say their number; who does not is no runner of ours, or is gone again."""
BROKEN = (RuntimeError, OSError, ValueError)
"""What a store raises whose other end has gone (DistNetworkError is a RuntimeError)."""


class Round:
    """The newest round of the rendezvous, as one of its nodes sees it."""

    def __init__(self) -> None:
        self._store: Any = None
        self._size = 1
        self._announced = False

    def begin(self, info: Any, number: int) -> int:
        """A round was agreed on, in which this node would count `number`; what all of them count: the greatest."""
        self._store, self._size, self._announced = info.store, info.world_size, False
        if self._size == 1:
            return number
        keys = ["distui/attempt/%d" % rank for rank in range(self._size)]
        try:
            self._store.set(keys[info.rank], str(number))
            self._await(keys)
            numbers = [int(self._store.get(key)) for key in keys if self._store.check([key])]
        except BROKEN:
            return number
        return max([number, *numbers])

    def _await(self, keys: list[str]) -> None:
        with contextlib.suppress(*BROKEN):
            self._store.wait(keys, datetime.timedelta(seconds=PATIENCE_S))

    def announce_restart(self) -> None:
        """Before this node ends its ranks for a restart: the others will see theirs fail of it."""
        if self._size > 1 and not self._announced:
            self._announced = True
            try:
                self._store.set("distui/restart", "1")
            except BROKEN:
                return

    def restart_announced(self) -> bool:
        """Whether a node of this round ended its ranks because it was asked to."""
        try:
            return self._size > 1 and bool(self._store.check(["distui/restart"]))
        except BROKEN:
            return False


# -----------------------------------------------------------------------------------------------------------
# Which rendezvous a torchrun's arguments mean: distui's own, wherever the nodes are of one run (see rendezvous.py).


def meet(args: Any, plan: dict[str, Any]) -> None:
    """Change torchrun's parsed arguments. One node meets itself, several the others of the same run."""
    if str(args.nnodes).split(":")[-1] == "1":
        run = os.environ.get("DISTUI_RUN_ID", "run")
        args.rdzv_backend, args.rdzv_endpoint = "distui", ""
        vars(args).pop(
            "master_addr", None
        )  # of which torch would warn in every log that it has no use for it
        args.rdzv_id = "%s-%d" % (run, os.getpid()) if plan.get("standalone") else run
        args.local_addr = args.local_addr or LOOPBACK
    elif args.rdzv_backend in OURS:
        _several(args, plan)


def _several(args: Any, plan: dict[str, Any]) -> None:
    """On the port that was named for another rendezvous. Who is the head is said, and not guessed from names."""
    node = int(plan.get("node", 0))
    if args.rdzv_backend == "static":
        node = int(args.node_rank)
        args.rdzv_endpoint = args.rdzv_endpoint or "%s:%s" % (args.master_addr, args.master_port)
        args.rdzv_id = str(plan["run"]).rsplit(".n%d" % int(plan.get("node", 0)), 1)[0]
    conf = [] if "is_host" in (args.rdzv_conf or "") else ["is_host=%d" % (node == 0)]
    args.rdzv_conf = ",".join([*conf, *filter(None, [args.rdzv_conf]), "order=%d" % node])
    args.rdzv_backend = "distui"
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
