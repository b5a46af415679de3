"""A script as `python SCRIPT ARG…` runs it, but for its end, which waits for gloo's threads as in a launched rank.

Without this CPython before 3.14 aborts some ranks of a bare torchrun when all of their work is done.
"""

import runpy
import sys

from distui.runners.inrank import gloo_workers

if __name__ == "__main__":
    del sys.argv[0]
    gloo_workers.arm()
    runpy.run_path(sys.argv[0], run_name="__main__")
