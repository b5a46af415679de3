"""Match a user's patterns of training signals in a separate process, which is killed if a pattern takes too long."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ...presets.signal_patterns import FIELDS
from ..run import clock
from ..run.proc import read_stat
from ..telemetry import match_signals
from ..telemetry.rank_signals import OWN_PATTERN
from ..telemetry.signal_names import ReportedValue, plausible

PATIENCE_S = 2.0
"""Seconds for one batch of lines, which normally takes microseconds."""
MOST_PATIENCE_S = 60.0
"""Seconds if the process gets no CPU time, so that the pattern is not the reason."""
BUSY = 0.25
"""Share of the patience, in CPU time, that an endless pattern uses even on a busy node."""
ANSWER = 1 << 20
_SCALES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "%": 1.0}

Matched = Callable[[int, list[ReportedValue], float], None]
"""Receives rank, signals (oldest first), and the Unix time of the read of their lines."""


class SignalPatterns:
    """The patterns of one run.

    One batch of lines is matched at a time, and later batches of a rank replace each other.
    """

    def __init__(self, patterns: Sequence[str], matched: Matched, failed: Callable[[], None]) -> None:
        """`failed` is called once if a pattern took too long and matching has stopped."""
        self._patterns, self._matched, self._failed = patterns, matched, failed
        self._waiting: dict[int, tuple[list[str], float]] = {}
        self._came = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._ended = not patterns
        self._forgotten = 0
        """Number of calls of `forget`."""

    def put(self, rank: int, lines: list[str], at: float) -> None:
        """Queue lines of a rank that were read at a Unix time."""
        if self._ended:
            return
        self._waiting[rank] = lines, at
        self._came.set()

    def forget(self) -> None:
        """Discard all earlier lines, because their attempt has ended."""
        self._waiting.clear()
        self._forgotten += 1

    async def run(self) -> None:
        """Match until a pattern takes too long. Cancel to stop. Raises OSError if the process fails."""
        try:
            while not self._ended:
                await self._came.wait()
                self._came.clear()
                await self._match()
        finally:
            self._kill()

    async def _match(self) -> None:
        while self._waiting:
            rank = next(iter(self._waiting))
            (lines, at), forgotten = self._waiting.pop(rank), self._forgotten
            try:
                matches = await self._ask(lines)
            except TimeoutError:
                self._ended = True
                self._failed()
                return
            if forgotten == self._forgotten:
                self._matched(rank, [signal for match in matches for signal in _signals(match)], at)

    async def _ask(self, lines: list[str]) -> list[dict[str, str]]:
        """Return the matches. Raises TimeoutError if the patterns take too long, and OSError if the process fails."""
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                str(Path(match_signals.__file__)),
                *self._patterns,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=ANSWER,
            )
        process = self._process
        asking = asyncio.create_task(_exchange(process, json.dumps(lines).encode() + b"\n"))
        began, before = clock.monotonic(), _cpu_s(process.pid)
        try:
            while not (await asyncio.wait({asking}, timeout=PATIENCE_S))[0]:
                busy = _cpu_s(process.pid) - before >= PATIENCE_S * BUSY
                if busy or clock.monotonic() - began >= MOST_PATIENCE_S:
                    raise TimeoutError
            matches: list[dict[str, str]] = json.loads(asking.result())
        finally:
            asking.cancel()
        return matches

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process = None


async def _exchange(process: asyncio.subprocess.Process, request: bytes) -> bytes:
    """Return the answer to a request. Raises OSError, also for an answer that is too long."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(request)
    try:
        await process.stdin.drain()
        answer = await process.stdout.readline()
    except ConnectionError:
        answer = b""
    except ValueError:
        raise OSError(f"the patterns of --signal match more than {ANSWER >> 20} MiB at once") from None
    if not answer.endswith(b"\n"):
        raise ChildProcessError(f"the process that matches --signal (pid {process.pid}) has ended")
    return answer


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process, or 0 if it has exited."""
    stat = read_stat(pid)
    return stat.cpu_s if stat is not None else 0.0


def _signals(match: dict[str, str]) -> list[ReportedValue]:
    """Return the numeric groups of one match, step first, as in lines."""
    signals = []
    for name in sorted(match, key=lambda name: name != "step"):
        value = _number(match[name])
        if value is not None:
            field = name if name in FIELDS and plausible(name, value) else ""
            signals.append(ReportedValue(field, name, value, OWN_PATTERN))
    return signals


def _number(text: str) -> float | None:
    """Parse "1,234", "91.2k", "3e-4" or "nan". Return None for other text."""
    plain = text.strip().replace(",", "").replace("_", "")
    scale = _SCALES.get(plain[-1:], 1.0)
    try:
        return float(plain.rstrip("kKMG% ")) * scale
    except ValueError:
        return None
