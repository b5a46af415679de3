"""Hears from the kernel that something in a folder was written: inotify(7), each folder once until asked again.

One message a folder and then silence until `listen` is called again: ranks that write a flood cost no more than ranks
that write a line. Only this machine's writes are heard; what other nodes of a shared file system write is not.
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
"""struct inotify_event: watch, mask, cookie, length of the name behind it."""


class Notifier:
    """An inotify instance."""

    def __init__(self) -> None:
        """Raises OSError where the kernel gives none: there is a limit for each user."""
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            self._add, create = libc.inotify_add_watch, libc.inotify_init1
        except AttributeError:
            raise OSError("no inotify in this C library") from None
        self._add.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
        self.fd: int = create(os.O_NONBLOCK | os.O_CLOEXEC)
        """Readable when something was written in a folder that was listened to."""
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def listen(self, folders: Iterable[str]) -> None:
        """Hear the next write in each of these folders; those that are gone are skipped."""
        for folder in folders:
            self._add(self.fd, os.fsencode(folder), _WRITTEN | ONE_SHOT)

    def heard(self) -> bool:
        """Whether something was written since the last call; the end of a watch alone is nothing."""
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
        """Hear nothing any more."""
        os.close(self.fd)
