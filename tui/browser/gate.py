"""Decides which requests get in. Every account of the machine can connect to a port of the loopback interface.

The token in the printed address works once: the browser that brings it gets a cookie for the server's lifetime. The path
of the page is random, too, because browsers send cookies of a host to all its ports, but only below their path.

The address has a number, not `localhost`: that may also be ::1, where another account could listen at the same port.
"""

from __future__ import annotations

import hmac
import secrets

COOKIE = "distui"
LOOPBACK = "127.0.0.1"


def same(one: str, other: str) -> bool:
    """Compare two texts in constant time."""
    return hmac.compare_digest(one.encode(errors="replace"), other.encode(errors="replace"))


class Gate:
    """Secrets of one server, and its rules."""

    def __init__(self, port: int) -> None:
        self.host = f"{LOOPBACK}:{port}"
        self.origin = f"http://{self.host}"
        self.place = f"/{secrets.token_hex(8)}/"
        """Path of the page."""
        self.session = secrets.token_urlsafe(32)
        """Value of the cookie."""
        self._token = secrets.token_urlsafe(32)
        self._is_redeemed = False

    @property
    def address(self) -> str:
        """The address to open, with the token."""
        return f"{self.origin}/?token={self._token}"

    def is_ours(self, host: str, origin: str | None, is_websocket: bool) -> bool:
        """Return whether a request is for this server, and from no other site's page.

        A name that an attacker points to this machine fails by its host, a page of another site by its origin. Browsers
        always send the origin of a websocket.
        """
        if host != self.host:
            return False
        if origin is None:
            return not is_websocket
        return origin == self.origin

    def redeem(self, token: str) -> bool:
        """Return whether a token opens the page, which it does once."""
        if self._is_redeemed or not same(token, self._token):
            return False
        self._is_redeemed = True
        return True

    def knows(self, session: str) -> bool:
        """Return whether a cookie is that of the browser that brought the token."""
        return self._is_redeemed and same(session, self.session)
