"""Ports that a test may name before anybody listens there."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """A TCP port that the kernel gives to nobody by itself: it is still free when somebody binds it later."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as server:
            server.bind(("", port))
            return port
