"""The runner's part in the relay, alone in a process: `carrier.py SOCKET NODE NNODES PORT`; node 0 holds the store.

Says the store's port on stdout; ends when stdin is closed.
"""

from __future__ import annotations

import sys

from distui.runners.inrank import coordinator
from distui.runners.inrank.control import Control
from distui.runners.inrank.relay import Relay

RUN = "20260101-000000-t-00000000"
KEY = b"the key of the runners' rendezvous"


def main(socket: str, node: int, nnodes: int, port: int) -> None:
    """Carry until stdin ends."""
    control = Control(socket, lambda request, peer: {"ok": True}, lambda peer: None)
    if node == 0:
        port = coordinator.start("127.0.0.1", port, KEY, (1, nnodes, 1.0))
    relay = Relay("127.0.0.1", port, KEY, RUN, node, nnodes)
    control.takers["relay"] = relay.serve
    control.start()  # an agent that was answered before would wait for ever
    print(port, flush=True)
    sys.stdin.read()
    relay.close()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
