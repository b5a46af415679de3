"""mcp: serves the verbs as tools of the Model Context Protocol on stdin and stdout, and prints the skill for distui."""

from __future__ import annotations

import argparse
import sys

from ...runners.run.errors import RunError
from ...runners.run.packages import install_extra
from ..mcp import skill
from ..terminal import complain

WAITS = "an MCP client starts this and talks to it on stdin; Ctrl-D ends it, `distui mcp --help` has the options"


def mcp(options: argparse.Namespace) -> int:
    """Serve until stdin is closed, or print the skill. Raises RunError."""
    if options.skill:
        if options.allow_control:
            raise RunError("--skill only prints: leave out --allow-control")
        sys.stdout.write(skill())
        return 0
    if options.readonly and options.allow_control:
        raise RunError("--readonly and --allow-control exclude each other: leave out one")
    try:
        from ..mcp.tools import serve_tools
    except ImportError as error:
        if not (error.name or "").startswith(("mcp", "pydantic", "anyio")):
            raise
        raise RunError(f"`distui mcp` needs the package mcp: {install_extra('mcp')}") from None
    if sys.stdin.isatty():
        complain(WAITS)
    return serve_tools(control=options.allow_control)
