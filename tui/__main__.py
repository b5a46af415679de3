"""The command `distui`, also as `python -m distui.tui`."""

from __future__ import annotations

import gc
import sys


def main() -> int:
    """Run the command line and return the exit status; Ctrl-C while modules are loaded is no traceback."""
    gc.disable()  # modules are no garbage: what a verb makes is collected from its beginning on
    try:
        from .cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130
    except RuntimeError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            return 130  # Python 3.11 makes a RuntimeError of it where it comes in a __set_name__, as of an enum
        raise
    finally:
        gc.freeze()  # the process ends, and its memory with it: nothing in it is looked through for garbage


if __name__ == "__main__":
    sys.exit(main())
