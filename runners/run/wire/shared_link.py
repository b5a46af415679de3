"""Link to a run that its owner, another user of this host, shares read-only."""

from __future__ import annotations

import socket
from pathlib import Path

from ..errors import RunError
from ..shared_sockets import owner_of, peer_of
from .client import LinkError, SocketLink


def owner_at(path: Path) -> int:
    """Return the uid of the user who shares at this path. Raises LinkError."""
    try:
        return owner_of(path)
    except RunError as error:
        raise LinkError(str(error)) from None
    except OSError as error:
        raise LinkError(f"nothing is shared at {path} ({error.strerror}): the share has ended") from None


async def connect(path: Path, owner: int | None = None) -> SocketLink:
    """Connect to the socket of a share, which has to be of `owner` if it is given. Raises LinkError."""
    found = owner_at(path)
    if owner not in (None, found):
        raise LinkError(f"another user's socket is at {path} now: the share has ended")

    def is_of_owner(connection: socket.socket) -> bool:
        return peer_of(connection).uid == found

    try:
        return await SocketLink.connect(path, readonly=True, is_trusted=is_of_owner)
    except LinkError as error:
        raise LinkError(f"{error}: the share has ended, or is for another user or group") from None
