"""The command that installs Python packages into an environment, and the packages of distui's extras.

Messages name the packages, not `distui[EXTRA]`: pip would look for that in an index, where distui may be another's.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Mapping

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "sky": ("skypilot>=0.14,<0.15", "click<8.2", "uvicorn<0.36"),
    "mcp": ("mcp>=2.1,<3",),
    "otlp": ("opentelemetry-proto>=1.37,<2",),
    "notify": ("apprise>=2.3,<3",),
    "zstd": ("backports.zstd>=1.0",),
    "serve": ("textual-serve>=1.1,<2",),
}
"""The requirements of each extra of pyproject.toml that a message may ask for."""


def install_command(python: str, *requirements: str) -> str:
    """Return the command that installs requirements for an interpreter; environments of uv have no pip."""
    pip = [python, "-m", "pip", "install"]
    if same_environment(python, sys.executable) and importlib.util.find_spec("pip") is None:
        pip = ["uv", "pip", "install", "--python", python]
    return shlex.join([*pip, *requirements])


def install_extra(extra: str, python: str = sys.executable) -> str:
    """Return the command that installs an extra of distui, in backquotes."""
    return f"`{install_command(python, *EXTRAS[extra])}`"


def same_environment(python: str, other: str) -> bool:
    """Whether two paths in one folder are one interpreter: `python` and `python3` of an environment."""
    here, there = os.path.abspath(python), os.path.abspath(other)
    return os.path.dirname(here) == os.path.dirname(there) and os.path.samefile(here, there)
