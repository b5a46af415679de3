"""Read-only shares of a run: sockets that one other user or one group may reach, opened by the run's owner.

They belong to the agent, or to the hub of a run on several nodes, and end with it. What may be requested on them is
decided by `read_only_refusal` of the server.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from ...presets.plurals import plural
from ..inrank.control import same_user
from ..run import shared_sockets
from ..run.command_executor import CommandRefused, Reply, reply
from ..run.commands import Share, Unshare
from ..run.errors import RunError
from ..run.model import Clause
from ..run.wire.frames import MAX_LINE

MOST_SHARES, MOST_GUESTS = 8, 16
"""Open shares of a run, and connections to each."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Answers the requests of one connection until it ends."""


def is_admitted(share: Share, connection: socket.socket) -> bool:
    """Return whether the peer is the user, or in the group, of a share; the owner and root always are."""
    if same_user(connection):
        return True
    peer = shared_sockets.peer_of(connection)
    if share.user is not None:
        return peer.uid == share.user
    return share.group in (peer.gid, *shared_sockets.groups_of(connection))


class OpenShare:
    """The socket of one share, and the connections to it."""

    def __init__(self, share: Share, folder: Path, serve: Serve) -> None:
        self.socket = str(folder / shared_sockets.NAME)
        self._share, self._folder, self._serve = share, folder, serve
        self._guests: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._is_closed = False

    async def open(self) -> None:
        """Listen, and then let the guests enter the directory. Raises OSError."""
        listener = shared_sockets.listen(self._folder)
        self._server = await asyncio.start_unix_server(self._welcome, sock=listener, limit=MAX_LINE)
        if self._is_closed:
            self._server.close()
            raise ConnectionAbortedError("the share was ended meanwhile")
        shared_sockets.let_in(self._folder, self._share.user, self._share.group)

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_full = len(self._guests) >= MOST_GUESTS
        if self._is_closed or is_full or not is_admitted(self._share, writer.get_extra_info("socket")):
            writer.close()
            return
        self._guests.add(writer)
        try:
            await self._serve(reader, writer)
        finally:
            self._guests.discard(writer)

    def close(self) -> None:
        """End the connections, and remove the socket. A connection accepted after that is refused."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        for guest in self._guests:
            guest.transport.abort()
        shared_sockets.remove(self._folder)


class Sharing:
    """The open shares of a run. Its two handlers execute Share and Unshare."""

    def __init__(self, run8: str, serve: Serve) -> None:
        self._run8, self._serve = run8, serve
        self._open: dict[str, OpenShare] = {}
        """Path of the socket → the share."""

    async def share(self, command: Share) -> Reply:
        """Open a socket for the guest of the command. Raises CommandRefused."""
        if shared_sockets.UNMAPPED in (command.user, command.group):
            raise CommandRefused(f"{command.guest} stands for every account that this host does not know")
        if len(self._open) >= MOST_SHARES:
            raise CommandRefused(f"the run has {MOST_SHARES} shares: `distui share RUN --off` ends them")
        try:
            folder = shared_sockets.make_folder(self._run8)
        except (OSError, RunError) as error:
            raise CommandRefused(f"no socket can be opened for {command.guest}: {error}") from None
        opened = OpenShare(command, folder, self._serve)
        self._open[opened.socket] = opened
        try:
            await opened.open()
        except OSError as error:
            self._close(opened.socket)
            opened.close()
            raise CommandRefused(f"no socket can be opened for {command.guest}: {error}") from None
        if command.seconds is not None:
            asyncio.get_running_loop().call_later(command.seconds, self._close, opened.socket)
        return Reply([Clause(f"shared read-only with {command.terms()}")], {"socket": opened.socket})

    async def unshare(self, command: Unshare) -> Reply:
        """Close the socket that the command names, or all."""
        paths = [command.socket] if command.socket else [*self._open]
        ended = [path for path in paths if self._close(path)]
        return reply(f"{plural(len(ended), 'share')} ended" if ended else "the run was not shared")

    def close(self) -> None:
        """Close all sockets, at the end of the run."""
        for path in [*self._open]:
            self._close(path)

    def _close(self, path: str) -> bool:
        opened = self._open.pop(path, None)
        if opened is not None:
            opened.close()
        return opened is not None
