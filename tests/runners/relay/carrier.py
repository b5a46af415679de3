"""The runner's part in the relay, alone in a process: `carrier.py SOCKET NODE NNODES PORT`; node 0 holds the store.

Says the store's port on stdout; ends when stdin is closed.
"""

from __future__ import annotations

import sys
from datetime import timedelta

from distui.runners.inrank.control import Control
from distui.runners.inrank.quiet import errors_alone
from distui.runners.inrank.relay import Relay

with errors_alone():  # as the runner does
    from torch.distributed import TCPStore

RUN = "20260101-000000-t-00000000"


def main(socket: str, node: int, nnodes: int, port: int) -> None:
    """Carry until stdin ends."""
    control = Control(socket, lambda request, peer: {"ok": True}, lambda peer: None)
    control.start()
    patience = timedelta(seconds=20)
    store = TCPStore("127.0.0.1", port, is_master=node == 0, wait_for_workers=False, timeout=patience)
    port = store.port
    relay = Relay("127.0.0.1", port, RUN, node, nnodes)
    control.takers["relay"] = relay.serve
    print(port, flush=True)
    sys.stdin.read()
    relay.close()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
