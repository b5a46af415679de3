"""`slow_link.py HOST PORT DELAY_MS MBIT`: joins stdio with a TCP port as a long, narrow line does. A ProxyCommand.

Each direction carries `MBIT` megabits a second and delivers `DELAY_MS` later; what does not fit waits in a queue of
QUEUE bytes, as in the router before such a line, and then whoever sends has to wait.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable

PIECE = 1448
"""Bytes of a segment on Ethernet."""
QUEUE = 128 << 10


def carry(
    take: Callable[[int], bytes], give: Callable[[bytes], object], delay_s: float, rate: float
) -> None:
    """One direction, until `take` has nothing more; `rate` in bytes a second."""
    line: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
    out = threading.Thread(target=deliver, args=(line, give), daemon=True)
    out.start()
    free = 0.0  # when the line has sent what it was given
    while True:
        data = take(PIECE)
        now = time.monotonic()
        free = max(now, free) + len(data) / rate
        line.put((free + delay_s, data))
        if not data:
            break
        time.sleep(max(0.0, free - now - QUEUE / rate))
    out.join()


def deliver(line: queue.SimpleQueue[tuple[float, bytes]], give: Callable[[bytes], object]) -> None:
    """Hand on each piece when it is due."""
    while True:
        due, data = line.get()
        time.sleep(max(0.0, due - time.monotonic()))
        if not data:
            return
        try:
            give(data)
        except OSError:
            return


def write_all(data: bytes) -> None:
    """All of `data` to stdout. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def main(argv: list[str]) -> int:
    """Ends when either side has ended, and what it said has arrived."""
    host, port, delay_ms, mbit = argv
    there = socket.socket()
    there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, QUEUE // 2)  # the loopback's own holds megabytes
    there.connect((host, int(port)))
    there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    delay_s, rate = float(delay_ms) / 1000, float(mbit) * 1e6 / 8
    ended = threading.Event()

    def one_way(take: Callable[[int], bytes], give: Callable[[bytes], object]) -> None:
        try:
            carry(take, give, delay_s, rate)
        except OSError:
            pass  # the other side has left, which is an end like any other
        finally:
            ended.set()

    for ends in ((lambda size: os.read(0, size), there.sendall), (there.recv, write_all)):
        threading.Thread(target=one_way, args=ends, daemon=True).start()
    ended.wait()
    return 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # a thread may be in a read that nothing ends
