"""`bridge.py RUN8 NODE [SECONDS]`: connects stdio with the socket of a node's agent.

It uses only the standard library of any Python 3. ssh executes it, so it must start quickly, and only the agent's bytes
may go to stdout.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...inrank import own_folders
else:
    import own_folders  # a module next to this script

CHUNK = 1 << 16
GRACE_S = 2.0
"""Maximum seconds that the agent may still send after the end of stdin."""
POLL_S = 0.05
NO_AGENT = 4
"""Exit code; equal to that of every verb for an unreachable node."""


def connect(path: str) -> socket.socket:
    """Connect to an agent of this user. Raises OSError."""
    why = own_folders.unfit(os.path.dirname(path))
    if why:
        raise OSError(13, f"its directory {why}")
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    agent.connect(path)
    peer = struct.unpack("3i", agent.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if peer[1] not in (os.getuid(), 0):
        raise OSError(13, "another user listens there")
    return agent


def path_of(run8: str) -> str:
    """Return the current path of the agent's socket."""
    return os.path.join(own_folders.find(run8), run8 + ".sock")


def connect_within(run8: str, seconds: float) -> socket.socket:
    """Connect once an agent listens, for at most `seconds`: a job may just be starting it. Raises OSError."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return connect(path_of(run8))
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)


def copy(take: Callable[[int], bytes], give: Callable[[bytes], None], *done: threading.Event) -> None:
    """Copy until `take` returns nothing or either end closes; then set `done`."""
    try:
        while True:
            data = take(CHUNK)
            if not data:
                break
            give(data)
    except OSError:
        pass  # the other end closed: a normal end
    finally:
        for event in done:
            event.set()


def hang_up(agent: socket.socket) -> None:
    """Send nothing more; the agent's remaining bytes are still read."""
    try:
        agent.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the agent closed first


def read(size: int) -> bytes:
    """Read at most `size` bytes of stdin."""
    return os.read(0, size)


def write_all(data: bytes) -> None:
    """Write all of `data` to stdout. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def main(argv: list[str]) -> int:
    """Return 0 after the agent's end, or GRACE_S after stdin's; 4 with a sentence if there is no agent."""
    wait = argv[2] if len(argv) > 2 else "0"
    if len(argv) not in (2, 3) or not (argv[0] + argv[1]).isalnum() or not wait.isdigit():
        sys.stderr.write("usage: node.sh attach RUN8 NODE [SECONDS]\n")
        return 2
    run8 = argv[0] + "n" + argv[1]
    try:
        agent = connect_within(run8, float(wait))
    except OSError as error:
        why = error.strerror or error
        path = path_of(run8)
        sys.stderr.write(f"distui: no agent answers on {path} of {os.uname().nodename} ({why})\n")
        return NO_AGENT
    asked, answered = threading.Event(), threading.Event()
    threading.Thread(target=copy, args=(read, agent.sendall, asked), daemon=True).start()
    threading.Thread(target=copy, args=(agent.recv, write_all, answered, asked), daemon=True).start()
    asked.wait()
    hang_up(agent)
    answered.wait(GRACE_S)
    return 0


if __name__ == "__main__":
    CODE = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(CODE)  # a thread may be blocked in an endless read
