"""Search a log file for a regular expression in a separate process that can be killed."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..run import clock
from ..run.opened_logs import LogError
from ..run.proc import read_stat
from .gaps import Gap, stretches

SCAN_BYTES = 1 << 40
"""Maximum bytes per search. The next search continues from there."""
MOST_STRETCHES = 64
"""Maximum number of data pieces per search in a file with holes."""
SCAN_SECONDS = 0.3
"""CPU seconds before a search without a match returns its position."""
HIT_SECONDS = 0.1
"""CPU seconds before a search returns its matches."""
GREP_TIMEOUT = 3.0
"""Seconds before a pattern that backtracks endlessly is killed."""
BUSY = 0.25
"""Minimum CPU share of GREP_TIMEOUT before a search is killed. A search with less CPU time may continue."""
MOST_WAITS = 10
"""Maximum duration of a search as a multiple of GREP_TIMEOUT."""

_GREP = str(Path(__file__).with_name("grep.py"))
SEARCHES = ThreadPoolExecutor(max_workers=2, thread_name_prefix="log-search")
"""Limits concurrent searches, so that many viewers cannot take the node's cores from the training."""


def compile_grep(text: str) -> re.Pattern[str] | None:
    """Return the pattern of `--grep`; None for "". Raises LogError."""
    try:
        return re.compile(text) if text else None
    except (re.error, RecursionError, OverflowError) as error:
        raise LogError(f"--grep {text!r} is not a regular expression: {error}") from error


def search(
    descriptor: int, start: int, limit: int, pattern: str, gap: Gap | None = None
) -> tuple[bytes, tuple[int, ...], int]:
    """Return matching lines from `start` on, the offset of each, and where to continue. Raises LogError.

    Blocks for at most GREP_TIMEOUT, or MOST_WAITS times as long if the machine is overloaded.
    """
    if "\0" in pattern:
        raise LogError("the pattern holds a NUL character: write it as \\x00")
    passed, most = _passed(descriptor, start, gap)
    numbers = (str(value) for value in (start, limit, most, SCAN_SECONDS, HIT_SECONDS))
    try:
        status, out, problem = run_grep(descriptor, [*numbers, pattern, *map(str, passed)])
    except subprocess.TimeoutExpired as error:
        raise LogError(
            f"the pattern {pattern!r} was still searching after {GREP_TIMEOUT:.0f} s: "
            "nested repeats such as (a+)+ never end, write a simpler one"
        ) from error
    except (OSError, ValueError) as error:
        raise LogError(f"the search could not be started: {error}") from error
    if status:
        why = problem.strip().splitlines()
        raise LogError(
            f"the pattern {pattern!r} is not a regular expression: {why[-1] if why else 'it crashed'}"
        )
    position, starts, matches = out.split(b"\n", 2)
    return matches, tuple(map(int, starts.split())), int(position)


def _passed(descriptor: int, start: int, gap: Gap | None) -> tuple[list[int], int]:
    """Return begin and end of each skipped range in one list, and the number of bytes to search."""
    passed: list[int] = []
    end, pieces = start, stretches(descriptor, start, gap)
    for begin, stop in itertools.islice(pieces, MOST_STRETCHES):
        if begin > end:
            passed += [end, begin]
        end = stop
    if next(pieces, None) is not None:
        return passed, end - start
    size = os.fstat(descriptor).st_size
    return passed + ([end, size] if size > end else []), SCAN_BYTES


def run_grep(descriptor: int, argv: list[str]) -> tuple[int, bytes, str]:
    """Run `grep.answer` in another process. Raises subprocess.TimeoutExpired, OSError and ValueError."""
    command = [sys.executable, "-I", "-S", _GREP, *argv]
    with subprocess.Popen(
        command, stdin=descriptor, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        out, err = _result(process)
    return process.returncode, out, err.decode("utf-8", "replace")


def _result(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Return the search's output. Kill a search that does not end. Raises subprocess.TimeoutExpired."""
    end = clock.monotonic() + GREP_TIMEOUT * MOST_WAITS
    while True:
        try:
            return process.communicate(timeout=GREP_TIMEOUT)
        except subprocess.TimeoutExpired:
            stat = read_stat(process.pid)
            if clock.monotonic() > end or stat is None or stat.cpu_s >= GREP_TIMEOUT * BUSY:
                process.kill()
                raise
