"""Has the real libnccl at argv[1] fail, four times a second: each failure is one of its own WARN lines."""

from __future__ import annotations

import ctypes
import sys
import time


def main() -> None:
    """Ask for a communicator of -1 ranks: NCCL refuses it before it looks for a GPU."""
    library = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
    unique, communicator = ctypes.create_string_buffer(128), ctypes.c_void_p()
    while True:
        library.ncclGetUniqueId(unique)
        library.ncclCommInitAll(ctypes.byref(communicator), -1, None)
        time.sleep(0.25)


if __name__ == "__main__":
    main()
