"""`python -m distui.runners.sky`: the same process as start.py begins, where one interpreter has both."""

import sys

from .serve import main

if __name__ == "__main__":
    sys.exit(main())
