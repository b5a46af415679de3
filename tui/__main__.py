"""The command `distui`, also as `python -m distui.tui`."""

from __future__ import annotations

import gc
import sys


def main() -> int:
    """Run the command line and return the exit status; Ctrl-C during imports causes no traceback."""
    gc.disable()  # modules are no garbage; the collector is enabled when the verb starts
    try:
        from .cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130
    except RuntimeError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            return (
                130  # Python 3.11 wraps an interrupt inside __set_name__, as of an enum, in a RuntimeError
            )
        raise
    finally:
        gc.freeze()  # the process is about to end, so no collection is needed


if __name__ == "__main__":
    sys.exit(main())
