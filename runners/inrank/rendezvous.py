"""The rendezvous of a run: of a single node in memory, of several nodes at the coordinator on the first node.

Both classes have the methods of torch's RendezvousHandler that elastic.make_handler uses. In each round rank 0 opens the
store of the process group on a new port: in a shared store, ranks would read the addresses of the previous group.
"""

from __future__ import annotations

import datetime
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from . import coordinator
from .coordinator import POLL_S, address_towards
from .secure_channel import KEY_FILE, Broken, Channel, dial, read_key

OURS = ("distui", "c10d", "static")
"""Backends of torchrun that this rendezvous replaces; torch implements any other."""
LOOPBACK = "127.0.0.1"


def set_rendezvous(args: Any, plan: dict[str, Any]) -> None:
    """Change torchrun's parsed arguments to the rendezvous of this module."""
    if str(args.nnodes).split(":")[-1] == "1":
        run = os.environ.get("DISTUI_RUN_ID", "run")
        args.rdzv_backend, args.rdzv_endpoint = "distui", ""
        vars(args).pop("master_addr", None)  # torch would warn in every log that it ignores it
        args.rdzv_id = "%s-%d" % (run, os.getpid()) if plan.get("standalone") else run
        args.local_addr = args.local_addr or LOOPBACK
    elif args.rdzv_backend in OURS:
        _several(args, plan)


def _several(args: Any, plan: dict[str, Any]) -> None:
    """Set the arguments for several nodes. Keeps the port, and sets is_host instead of guessing it from host names."""
    node = int(plan.get("node", 0))
    if args.rdzv_backend == "static":
        node = int(args.node_rank)
        args.rdzv_endpoint = args.rdzv_endpoint or "%s:%s" % (args.master_addr, args.master_port)
        args.rdzv_id = str(plan["run"]).rsplit(".n%d" % int(plan.get("node", 0)), 1)[0]
    conf = [] if "is_host" in (args.rdzv_conf or "") else ["is_host=%d" % (node == 0)]
    args.rdzv_conf = ",".join([*conf, *filter(None, [args.rdzv_conf]), "order=%d" % node])
    args.rdzv_backend = "distui"
    args.local_addr = args.local_addr or address_towards(args.rdzv_endpoint)


def several_nodes(nnodes: Any, plan: dict[str, Any]) -> bool | None:
    """Return whether a torchrun with this `--nnodes` has several nodes; None if they are not the plan's."""
    if str(nnodes).split(":")[-1] == "1":
        return False
    return True if int(plan.get("nnodes", 1)) > 1 else None


def prepare(config: Any, run_dir: str) -> CoordinatorAddress | None:
    """Return how this node reaches the coordinator of several nodes. Start it if this is the first node.

    Returns None on a single node, and if torch implements the rendezvous. Raises ValueError with a sentence.
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
    place = CoordinatorAddress(host, port, key, config.run_id, config.local_addr, int(conf.get("order", 0)))
    place.patience_s = {
        name: float(conf.get(name + "_timeout", usual)) for name, usual in PATIENCE_S.items()
    }
    if str(conf.get("is_host", "")).lower() in ("1", "true", "yes", "t", "y"):
        limits = (config.min_nodes, config.max_nodes, place.patience_s["last_call"])
        coordinator.start(host, port, key, limits, config.local_addr)
    return place


def split(endpoint: str) -> tuple[str, int]:
    """Split HOST:PORT or [IPV6]:PORT into host and port. Raises ValueError with a sentence."""
    host, _, port = endpoint.strip().rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError("the rendezvous endpoint %r is not HOST:PORT" % endpoint)
    return host.strip("[]"), int(port)


def handler(params: Any, place: CoordinatorAddress | None) -> Any:
    """Return the RendezvousHandler. `params`: torch's RendezvousParameters with the requested backend."""
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    if place is not None:
        return CoordinatedRendezvous(place)
    if params.max_nodes == 1:
        return SingleNodeRendezvous(params.run_id, params.local_addr)
    return get_rendezvous_handler(params)


class SingleNodeRendezvous:
    """The rendezvous of a single node, without a wait and without a port."""

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


Ask = Callable[..., "list[bytes]"]
"""Sends a request to the coordinator and returns the answer. Raises OSError."""


class SharedStore:
    """The coordinator's store with the methods of torch's Store, for the elastic agent of a node.

    The methods raise DistNetworkError and DistStoreError, as torch's stores do.
    """

    def __init__(self, ask: Ask, prefix: bytes, patience_s: float) -> None:
        """`prefix`: prefix of all keys in the coordinator."""
        self._coordinator, self._prefix = ask, prefix
        self._patience = datetime.timedelta(seconds=patience_s)

    @property
    def timeout(self) -> datetime.timedelta:
        return self._patience

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._patience = timeout

    def set(self, key: str, value: str | bytes) -> None:
        self.multi_set([key], [value])

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        pairs = zip(map(self._named, keys), map(plain, values))
        self._ask(b"set", *(part for pair in pairs for part in pair))

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._await(keys, self._patience)

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        self._await(keys, self._patience if timeout is None else timeout)

    def check(self, keys: list[str]) -> bool:
        return all(self._ask(b"peek", *map(self._named, keys))[1:])

    def add(self, key: str, value: int) -> int:
        return int(self._ask(b"add", self._named(key), b"%d" % value)[1])

    def delete_key(self, key: str) -> bool:
        return self._ask(b"delete", self._named(key))[1] == b"1"

    def num_keys(self) -> int:
        return int(self._ask(b"count")[1])

    def _await(self, keys: Iterable[str], patience: datetime.timedelta) -> list[bytes]:
        from torch.distributed import DistStoreError

        names = [self._named(key) for key in keys]
        deadline = time.monotonic() + patience.total_seconds()
        while True:
            answer = self._ask(b"get", b"%d" % max(0, round(1000 * (deadline - time.monotonic()))), *names)
            if answer[0] == b"ok":
                return answer[1:]
            if time.monotonic() >= deadline:
                raise DistStoreError("no %s after %s" % (b" ".join(names).decode(), patience))

    def _ask(self, *parts: bytes) -> list[bytes]:
        from torch.distributed import DistNetworkError

        try:
            return self._coordinator(*parts)
        except OSError as error:
            raise DistNetworkError("the rendezvous is gone: %s" % error) from None

    def _named(self, key: str) -> bytes:
        return self._prefix + key.encode()


def plain(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def make_store(ask: Ask, prefix: bytes, patience_s: float) -> Any:
    """Return a SharedStore that is an instance of torch's Store. torch's C++ code cannot call its methods."""
    from torch.distributed import Store

    class RunStore(SharedStore, Store):  # type: ignore[misc]  # torch has no types here
        def __init__(self) -> None:
            Store.__init__(self)
            SharedStore.__init__(self, ask, prefix, patience_s)

    return RunStore()


PATIENCE_S = {"join": 600.0, "last_call": 5.0, "read": 60.0}
"""Timeouts in seconds: for enough nodes, for further nodes after that, and for a silent coordinator. Set them as for
torch's c10d rendezvous, with --rdzv-conf NAME_timeout=SECONDS."""
ANSWER_S = POLL_S + 10.0
CLOSED_S = 3.0
"""Timeout of a silent coordinator in seconds, after the rendezvous was closed."""
RETURN_S = 20.0
"""Timeout in seconds for the return of a coordinator that closed its connections: its runner may be replaced."""
AGAIN_S = 0.1


@dataclass
class CoordinatorAddress:
    """The coordinator's address, and this node's registration."""

    host: str
    port: int
    key: bytes
    run_id: str
    local_addr: str | None
    order: int
    """Sort key for the ranks of a round."""
    patience_s: dict[str, float] = field(default_factory=lambda: dict(PATIENCE_S))


class CoordinatorLink:
    """Requests to the coordinator over one connection, which the first request opens."""

    def __init__(self, place: CoordinatorAddress) -> None:
        self._place = place
        self._channel: Channel | None = None
        self._lock = threading.Lock()

    def ask(self, *parts: bytes) -> list[bytes]:
        """Send a request and return the answer. Raises OSError.

        If an old connection was broken, repeat the request over a new one, except for an "add".
        """
        with self._lock:
            if self._channel is not None and not self._channel.idle():
                self._hang_up()
            fresh = self._channel is None
            try:
                return self._once(parts)
            except OSError:
                if fresh or parts[0] == b"add":
                    raise
            return self._once(parts)

    def _once(self, parts: tuple[bytes, ...]) -> list[bytes]:
        if self._channel is None:
            self._channel = dial(self._place.host, self._place.port, self._place.key)
        answered = False
        try:
            answer = self._channel.ask(parts, ANSWER_S)
            answered = True
            return answer
        finally:
            if not answered:  # also after a signal: the next request must not read this answer
                self._hang_up()

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def close(self) -> None:
        with self._lock:
            self._hang_up()


class CoordinatedRendezvous:
    """The rendezvous of several nodes at the coordinator."""

    use_agent_store = False

    def __init__(self, place: CoordinatorAddress) -> None:
        self._place, self._line = place, CoordinatorLink(place)
        self._token = os.urandom(16).hex().encode()
        self._turn = 0
        self._waiting, self._closed, self._gone = 0, False, ""
        self._staying: threading.Thread | None = None
        self._left = threading.Event()

    def next_rendezvous(self) -> Any:
        """Wait for a complete round. Raises torch's RendezvousErrors."""
        from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo

        self._turn += 1
        number, rank, size = self._join()
        self._waiting = 0
        store = make_store(self._line.ask, b"round/%d/" % number, self._place.patience_s["read"])
        self._stay()
        return RendezvousInfo(
            store, rank, size, RendezvousStoreInfo.build(rank, store, self._place.local_addr)
        )

    def _join(self) -> tuple[int, int, int]:
        from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousTimeoutError

        deadline = time.monotonic() + self._place.patience_s["join"]
        while time.monotonic() < deadline:
            answer = self._reach(b"join", self._token, b"%d" % self._place.order, b"%d" % self._turn)
            if answer[0] == b"ok":
                number, rank, size = map(int, answer[1:4])
                return number, rank, size
            if answer[0] == b"closed":
                raise RendezvousClosedError
        raise RendezvousTimeoutError("not enough nodes came in %g s" % self._place.patience_s["join"])

    def _reach(self, *parts: bytes) -> list[bytes]:
        """Repeat a request until the coordinator has started and answers. Raises torch's RendezvousConnectionError."""
        from torch.distributed.elastic.rendezvous import RendezvousConnectionError

        patience = self._place.patience_s["read"]
        deadline = time.monotonic() + (min(patience, RETURN_S) if self._staying else patience)
        while True:
            try:
                return self._line.ask(*parts)
            except OSError as error:
                if time.monotonic() > deadline:
                    where = "%s:%d" % (self._place.host, self._place.port)
                    raise RendezvousConnectionError("no rendezvous at %s: %s" % (where, error)) from None
            time.sleep(AGAIN_S)

    def _stay(self) -> None:
        if self._staying is None or not self._staying.is_alive():
            self._gone = ""
            self._staying = threading.Thread(target=self._beat, name="distui-beat", daemon=True)
            self._staying.start()

    def _beat(self) -> None:
        """Report to the coordinator that this node is alive, and receive the number of waiting nodes as it changes."""
        line, version, silent_since = CoordinatorLink(self._place), b"0", 0.0
        while not self._left.is_set():
            try:
                answer = line.ask(b"beat", self._token, version)
            except OSError as error:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > self._silence_s(error):
                    self._gone = "the first node has ended the rendezvous: %s" % error
                    return
                self._left.wait(AGAIN_S)
                continue
            silent_since = 0.0
            if answer[0] == b"ok":
                version, self._waiting, self._closed = answer[1], int(answer[2]), answer[3] == b"1"
            else:  # the first node's runner was restarted, and waits
                version, self._waiting = b"0", 1
                self._left.wait(POLL_S)
        line.close()

    def _silence_s(self, error: OSError) -> float:
        if self._closed:
            return CLOSED_S
        hung_up = isinstance(error, (ConnectionError, Broken))
        return RETURN_S if hung_up else self._place.patience_s["read"]

    def num_nodes_waiting(self) -> int:
        """Return the number of waiting nodes. Raises torch's RendezvousConnectionError if the coordinator was lost."""
        from torch.distributed.elastic.rendezvous import RendezvousConnectionError

        if self._gone:
            raise RendezvousConnectionError(self._gone)
        return self._waiting

    def is_closed(self) -> bool:
        return self._closed

    def set_closed(self) -> None:
        """Close the rendezvous for all nodes. Raises OSError."""
        self._closed = True
        self._line.ask(b"close")

    def get_run_id(self) -> str:
        return self._place.run_id

    def shutdown(self) -> bool:
        self._left.set()
        try:
            self.set_closed()
        except OSError:
            return False  # the first node has already left
        return True
