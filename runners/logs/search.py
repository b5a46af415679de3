"""Searching a log file for a regular expression, in a process of its own that can be killed."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .gaps import Gap
from .log_files import LogError

SCAN_BYTES = 1 << 40
"""Most bytes that one search reads; the next one goes on from there."""
SCAN_SECONDS = 0.3
"""When a search that finds nothing reports how far it came."""
HIT_SECONDS = 0.1
"""When a search gives what it has found."""
GREP_TIMEOUT = 3.0
"""When a pattern that backtracks without end is killed."""

_GREP = str(Path(__file__).with_name("grep.py"))
SEARCHES = ThreadPoolExecutor(max_workers=2, thread_name_prefix="log-search")
"""Searches wait for each other, so that no number of viewers can take the node's cores from the training."""


def search(
    descriptor: int, start: int, limit: int, pattern: str, gap: Gap | None = None
) -> tuple[bytes, tuple[int, ...], int]:
    """Matching lines from `start` on, where each begins, and where to go on. Blocks at most 3 s. Raises LogError."""
    if "\0" in pattern:
        raise LogError("the pattern holds a NUL character: write it as \\x00")
    numbers = (str(value) for value in (start, limit, SCAN_BYTES, SCAN_SECONDS, HIT_SECONDS))
    hole = (gap.begin, gap.end) if gap is not None else (0, 0)
    argv = [sys.executable, "-I", "-S", _GREP, *numbers, pattern, *map(str, hole)]
    try:
        done = subprocess.run(
            argv, stdin=descriptor, capture_output=True, timeout=GREP_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise LogError(
            f"the pattern {pattern!r} was still searching after {GREP_TIMEOUT:.0f} s: "
            "nested repeats such as (a+)+ never end, write a simpler one"
        ) from error
    except (OSError, ValueError) as error:
        raise LogError(f"the search could not be started: {error}") from error
    if done.returncode:
        why = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise LogError(
            f"the pattern {pattern!r} is not a regular expression: {why[-1] if why else 'it crashed'}"
        )
    position, starts, matches = done.stdout.split(b"\n", 2)
    return matches, tuple(map(int, starts.split())), int(position)
