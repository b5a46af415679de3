"""Has the libnccl at argv[1] speak without a GPU, and changes its level as the hook does; prints its version."""

from __future__ import annotations

import ctypes
import os
import sys

UNIQUE = 128


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which is passed by value."""

    _fields_ = [("internal", ctypes.c_char * UNIQUE)]


def speak(library: ctypes.CDLL) -> None:
    """One rank alone, which fails for want of a GPU, and a communicator of -1 ranks."""
    raw, communicator = ctypes.create_string_buffer(UNIQUE), ctypes.c_void_p()
    library.ncclGetUniqueId(raw)
    library.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    library.ncclCommInitRank(ctypes.byref(communicator), 1, UniqueId.from_buffer_copy(raw), 0)
    library.ncclCommInitAll(ctypes.byref(communicator), -1, None)


def main() -> None:
    """Speak at INFO; where the library can, be silent for a while, then speak into a second file."""
    library = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
    number = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(number))
    speak(library)
    live = hasattr(library, "ncclResetDebugInit")
    for level, file in (("NONE", "silent"), ("WARN", "again")) if live else ():
        os.environ["NCCL_DEBUG"] = level
        os.environ["NCCL_DEBUG_FILE"] = sys.argv[2] + "." + file
        library.ncclResetDebugInit()
        speak(library)
    print(number.value, int(live))


if __name__ == "__main__":
    main()
