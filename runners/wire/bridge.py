"""`bridge.py RUN8 NODE [SECONDS]`: joins stdio with the socket of that node's agent.

Standard library only, any Python 3. It is what ssh executes: nothing but these bytes may go to stdout, and it must be
there at once.
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

    from ..inrank import own_folders
else:
    import own_folders  # this is a script, and that lies beside it

CHUNK = 1 << 16
GRACE_S = 2.0
"""How long the agent may still send after stdin has ended."""
POLL_S = 0.05
NO_AGENT = 4
"""Exit code: the same that every verb gives for a node that cannot be reached."""


def connect(path: str) -> socket.socket:
    """A connection to an agent of this user. Raises OSError."""
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
    """The agent's socket, wherever it is by now."""
    return os.path.join(own_folders.find(run8), run8 + ".sock")


def connect_within(run8: str, seconds: float) -> socket.socket:
    """The same as soon as an agent listens there, which a job that starts just now has yet to do. Raises OSError."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return connect(path_of(run8))
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)


def copy(take: Callable[[int], bytes], give: Callable[[bytes], None], *done: threading.Event) -> None:
    """Until `take` has nothing more, or `give` takes nothing more; then set `done`."""
    try:
        while True:
            data = take(CHUNK)
            if not data:
                break
            give(data)
    except OSError:
        pass  # the other end has left, which is an end like any other
    finally:
        for event in done:
            event.set()


def hang_up(agent: socket.socket) -> None:
    """Send nothing more; what the agent still sends is read."""
    try:
        agent.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # it was quicker


def read(size: int) -> bytes:
    """At most `size` bytes of stdin."""
    return os.read(0, size)


def write_all(data: bytes) -> None:
    """All of `data` to stdout. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def main(argv: list[str]) -> int:
    """Exit code 0 when the agent ended, or GRACE_S after stdin did; 4 with a sentence when there is no agent."""
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
    os._exit(CODE)  # a thread may be in a read that nothing ends
