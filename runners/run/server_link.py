"""Link to the server of a run; without an answer, its pid and a command to type."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from ..inrank import own_folders
from . import clock, file_io
from .processes import send_signal, state_of
from .wire.client import LinkError, NoListenerError, SilentError, SocketLink

SILENT_S = {"T": 1.0, "t": 1.0, "D": 4.0}
"""Maximum seconds of silence by process state; in other states the limit of `SocketLink.greet` applies."""
EVERY_S, RESTORE_S = 0.25, 4.0
"""Seconds between two checks of the process; seconds for it to bind its socket again."""
STATES = {
    "T": "stopped",
    "t": "stopped by a debugger",
    "D": "waits in the kernel, mostly for a disk or a network file system",
}


async def connect(who: file_io.Identity, readonly: bool = False) -> SocketLink:
    """Open a link to an agent or hub, after asking it to bind a removed socket again. Raises LinkError.

    A request that waits on the link fails if the process is stopped.
    """
    link = await _connected(who, readonly)
    link.silent = Silence(who)
    return link


class Silence:
    """Reason why an agent or hub does not answer, polled repeatedly; "" while it may still answer."""

    def __init__(self, who: file_io.Identity) -> None:
        self._who = who
        self._since: float | None = None

    def __call__(self) -> str:
        if state_of(self._who.pid) not in ("T", "t"):
            self._since = None
            return ""
        now = clock.monotonic()
        self._since = now if self._since is None else self._since
        return f"{unanswered(self._who)}: {remedy(self._who)}" if now - self._since > SILENT_S["T"] else ""


async def _connected(who: file_io.Identity, readonly: bool) -> SocketLink:
    try:
        return await _greeted(who, readonly)
    except NoListenerError:
        if not file_io.alive(who):
            raise
    send_signal(who.pid, signal.SIGHUP)
    deadline = asyncio.get_running_loop().time() + RESTORE_S
    while file_io.alive(who):
        try:
            return await _greeted(who, readonly)
        except NoListenerError as error:
            if asyncio.get_running_loop().time() > deadline:
                raise LinkError(_unbound(who, error)) from None
        await asyncio.sleep(0.1)
    raise LinkError(f"the agent (pid {who.pid}) has ended")


def _unbound(who: file_io.Identity, error: LinkError) -> str:
    folder = os.path.dirname(own_folders.place_of(who.socket))
    why = own_folders.unfit(folder)
    if why:
        mend = "remove it" if os.path.lexists(folder) else f"`mkdir -p -m 700 {folder}`"
        return f"the agent (pid {who.pid}) lives, but {folder} {why}: {mend}, and it opens its socket there again"
    return f"{error}, though its process (pid {who.pid}) lives: {remedy(who)}"


async def _greeted(who: file_io.Identity, readonly: bool) -> SocketLink:
    """Connect. Raises LinkError, early if the process cannot answer."""
    connecting = asyncio.ensure_future(SocketLink.connect(Path(who.socket), readonly))
    silent_s = 0.0
    while not (await asyncio.wait({connecting}, timeout=EVERY_S))[0]:
        limit = SILENT_S.get(state_of(who.pid) or "")
        silent_s = 0.0 if limit is None else silent_s + EVERY_S
        if limit is not None and silent_s >= limit:
            connecting.cancel()
            await asyncio.wait({connecting})
            raise LinkError(f"{unanswered(who)}: {remedy(who)}")
    try:
        return connecting.result()
    except SilentError:
        raise LinkError(f"{unanswered(who)}: {remedy(who)}") from None


def unanswered(who: file_io.Identity) -> str:
    """Sentence about the process that does not answer, with its state in the kernel."""
    state = state_of(who.pid)
    about = STATES.get(state or "", "it sends nothing")
    return f"the agent (pid {who.pid}) does not answer: {about} (state {state or 'n/a'})"


def remedy(who: file_io.Identity) -> str:
    """Command to type; the ranks do not notice the end of an agent."""
    end = f"`kill -KILL {who.pid}` ends it without harm to the ranks, and the next command starts another"
    if state_of(who.pid) in ("T", "t"):
        return f"`kill -CONT {who.pid}` has it go on; {end}"
    return end
