"""The Python interface under its short name: `from distui import api`. Its home is `distui.runners.api`."""

from .runners.api import *  # noqa: F403
from .runners.api import __all__ as __all__
