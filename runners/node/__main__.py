"""`python -m distui.runners.node job RUN | start RUN NODE | probe`: what `node.sh` executes."""

from __future__ import annotations

import sys


def main(argv: list[str]) -> int:
    """Exit code of the verb; 2 with a sentence for wrong words."""
    if argv == ["probe"]:
        from .probe import probe

        sys.stdout.write(probe() + "\n")
        return 0
    if argv[:1] == ["job"] and len(argv) in (2, 3):
        from .job import main as job

        return job(argv[1:])
    if argv[:1] == ["start"] and len(argv) == 3:
        from .start import main as start

        return start(argv[1:])
    sys.stderr.write("usage: node.sh job RUN | start RUN NODE | attach RUN8 NODE | probe | distui …\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
