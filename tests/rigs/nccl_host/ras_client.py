"""Asks NCCL's RAS as its own client does: by lines, at a port that the ranks of a node share."""

from __future__ import annotations

import socket
import time

ANSWERS_S = 1.0
"""A process that is not stopped answers so soon …"""
STATUS_S = 20.0
"""… and has asked the others so soon, of which one may be stopped."""


def answer(port: int, limit: float) -> str:
    """The verbose status as JSON, from whichever rank answers. Raises TimeoutError."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        with socket.create_connection(("127.0.0.1", port), ANSWERS_S) as connection:
            lines = connection.makefile("rw", newline="\n")
            try:
                for line in ("CLIENT PROTOCOL 2", "TIMEOUT 3", "SET FORMAT json"):
                    lines.write(f"{line}\n")
                    lines.flush()
                    lines.readline()
                connection.settimeout(STATUS_S)
                lines.write("VERBOSE STATUS\n")
                lines.flush()
                return lines.read()
            except TimeoutError:
                continue  # the kernel chose a stopped process: the next connection is another's
    raise TimeoutError("no rank answers RAS")
