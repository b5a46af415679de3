"""Runs inside the ranks: a script that knows nothing of distui, with what the hook does for `--adopt`.

armed.py SCRIPT [ARGUMENT …]
"""

import runpy
import sys

from distui.runners.inrank import gloo_workers
from distui.runners.inrank.adopt import arming

if __name__ == "__main__":
    gloo_workers.arm()
    arming.arm()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
