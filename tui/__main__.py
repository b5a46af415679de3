"""`python -m distui.tui` is the command `distui`."""

import sys

from .cli import main

sys.exit(main())
