"""Notifications of writes in a folder by inotify(7).

Each folder reports once and then stays silent until the next call of `listen`, so a rank that writes a flood costs no
more than a rank that writes a line. inotify reports only writes of this machine, not of other nodes on a shared file
system.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

MODIFIED, MOVED_HERE, CREATED, ONE_SHOT = 0x2, 0x80, 0x100, 0x80000000
"""IN_MODIFY, IN_MOVED_TO, IN_CREATE, IN_ONESHOT of linux/inotify.h."""
_WRITTEN = MODIFIED | MOVED_HERE | CREATED
_READ = 64 << 10
_HEAD = struct.Struct("iIII")
"""struct inotify_event: watch, mask, cookie, length of the name that follows."""


class Notifier:
    """An inotify instance."""

    def __init__(self) -> None:
        """Open an inotify instance; raise OSError if the kernel refuses: there is a limit per user."""
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            self._add, create = libc.inotify_add_watch, libc.inotify_init1
        except AttributeError:
            raise OSError("no inotify in this C library") from None
        self._add.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
        self.fd: int = create(os.O_NONBLOCK | os.O_CLOEXEC)
        """Readable after a write in a watched folder."""
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def listen(self, folders: Iterable[str]) -> None:
        """Watch each of these folders for its next write. Missing folders are skipped."""
        for folder in folders:
            self._add(self.fd, os.fsencode(folder), _WRITTEN | ONE_SHOT)

    def heard(self) -> bool:
        """Return whether a write was reported since the last call. The end of a watch does not count."""
        try:
            data = os.read(self.fd, _READ)
        except BlockingIOError:
            return False
        at, masks = 0, 0
        while at < len(data):
            _, mask, _, length = _HEAD.unpack_from(data, at)
            masks |= mask
            at += _HEAD.size + length
        return bool(masks & _WRITTEN)

    def close(self) -> None:
        """End all watches."""
        os.close(self.fd)
