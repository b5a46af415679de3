"""Uncaught exceptions: a rank's note of its exception, and the names by which printed ones are known."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Any

LONGEST = 2000
"""Most characters that are kept of an exception's text, half of them from its end."""
QUOTED = 120
"""Maximum length of a quoted source line, in characters."""
_LIBRARY = re.compile(r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python\d[\d.]*[/\\]")
_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
TAG = re.compile(r"^(?:\[[\w:.<>-]+\]:\s?)+")
"""Prefixes of launchers and torch, such as "[rank3]: "."""
_LAST = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: ?(?P<text>.*))?$")
_ERROR = re.compile(
    r"(?:Error|Exception|Exit|Interrupt|Warning|Timeout|Expired)$|^Stop(?:Async)?Iteration$|^[a-z_][\w.]*\.[A-Z]\w+$"
)
_LAUNCHERS = re.compile(
    r"ChildFailedError|CalledProcessError|ProcessRaisedException|ProcessExitedException|TrainingFailedError|WorkerGroupError"
)
"""Exceptions that a launcher raises because its ranks failed."""
_SPAWNED = re.compile(
    r"^-- Process \d+ terminated with |^(?:RuntimeError: )?Distributed job exited with exception\."
)
"""Texts of exceptions that torch.multiprocessing.spawn and MindSpore's msrun raise because a process failed."""
_COMMAND = re.compile(r"\bCommand [\['\"( ]*(?P<program>[^\s'\",\])]+)")
_STARTERS = re.compile(
    r"python|pypy|torchrun|accelerate|deepspeed|mpi|srun|ray$|bash$|s?sh$|pdsh$|env$|numactl"
)
"""Programs that start ranks."""
_UNREACHED = re.compile(r"\bssh .*exit status 255\b")
"""A failure of ssh, not of the remote command."""
COMPILING = ("SyntaxError", "IndentationError", "TabError")
Frames = Iterable[tuple[str, int, str]]
"""File, line and function, outermost first."""


def note_of(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> dict[str, Any]:
    """Return type, text, where, importing, path, python and before of an exception, as JSON values."""
    frames = list(frames_of(trace))
    where, importing = place(frames)
    if isinstance(value, SyntaxError) and value.filename and not value.filename.startswith("<"):
        where, importing = "%s:%d" % (value.filename, value.lineno or 0), True
    named = value.filename if isinstance(value, OSError) and isinstance(value.filename, str) else None
    return {
        "type": kind.__name__,
        "text": shortened(str(value) or _asserted(value, trace)),
        "where": where,
        "importing": importing,
        "path": named,
        "python": sys.executable,
        "before": _before(value),
    }


def _asserted(value: BaseException, trace: TracebackType | None) -> str:
    """Return the source line of an assertion without a message, else ""."""
    if not isinstance(value, AssertionError):
        return ""
    files = [(file, line) for file, line, _ in frames_of(trace)]
    source = linecache.getline(*files[-1]).strip() if files else ""
    return source[:QUOTED] if source.startswith("assert ") else ""


def frames_of(trace: TracebackType | None) -> Frames:
    """Yield (file, line, function) of a traceback's frames, outermost first."""
    while trace is not None:
        code = trace.tb_frame.f_code
        yield code.co_filename, trace.tb_lineno, code.co_name
        trace = trace.tb_next


def _before(value: BaseException) -> list[str]:
    """Return the texts of at most 3 exceptions that led to this one, newest first."""
    causes: list[str] = []
    seen = {id(value)}
    earlier = value.__cause__ or value.__context__
    while earlier is not None and id(earlier) not in seen and len(causes) < 3:
        seen.add(id(earlier))
        causes.append(("%s: %s" % (type(earlier).__name__, earlier))[:300])
        earlier = earlier.__cause__ or earlier.__context__
    return causes


def place(frames: Frames) -> tuple[str, bool]:
    """Return "file:line" of the innermost frame in user code (else in a library), and whether an import was running."""
    outside = [frame for frame in frames if not frame[0].startswith(("<", _OWN))]
    users = [frame for frame in outside if not _LIBRARY.search(frame[0])]
    innermost = (users or outside)[-1:]
    importing = sum(1 for _, _, name in outside if name == "<module>") > 1
    return ("%s:%d" % innermost[0][:2] if innermost else ""), importing


def shortened(text: str, longest: int = LONGEST) -> str:
    """Cut the middle out of a long text: the end has the cause of a wrapped exception."""
    if len(text) <= longest:
        return text
    return text[: longest // 2] + " … " + text[-longest // 2 :]


_TANGLED = re.compile(
    r"^(?P<type>(?:[a-z_]\w*\.)*[A-Z]\w*?(?:Error|Exception))(?:: ?)?(?:(?P=type)(?:: ?)?)+"
)


def untangled(line: str) -> str:
    """Return an exception's line without the repetitions of its type: several ranks wrote into one line."""
    match = _TANGLED.match(line)
    return line if match is None else "%s: %s" % (match["type"], line[match.end() :])


def raised_in(line: str) -> str | None:
    """Return the exception type in the last line of a traceback; None for any other line."""
    last = _LAST.match(TAG.sub("", line.rstrip()))
    return last["type"] if last and _ERROR.search(last["type"]) else None


def of_launcher(kind: str, text: str = "") -> bool:
    """Return whether launchers raise this exception because their ranks failed. `text` may name a command."""
    return _SPAWNED.match(text) is not None or (_LAUNCHERS.search(kind) is not None and not of_tool(text))


def of_tool(text: str) -> bool:
    """Return whether a CalledProcessError names a program that starts no ranks (a compiler), or a failure of ssh."""
    command = _COMMAND.search(text)
    if command is None:
        return False
    program = os.path.basename(command["program"])
    if program.startswith("-"):
        return False  # the text was shortened and lacks the program
    return _STARTERS.match(program) is None or _UNREACHED.search(text) is not None
