"""A training script as far as NCCL's debug output goes: calls the library at argv[1] every 10 ms until ended."""

from __future__ import annotations

import ctypes
import sys
import time


def main() -> None:
    """Load the library as torch does, and have it log one collective a step."""
    library = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
    while True:
        library.fakeAllReduce()
        time.sleep(0.01)


if __name__ == "__main__":
    main()
