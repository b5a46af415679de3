"""Name why a rank failed, with a remedy and whether a restart can help, from its exit, exception and last lines. Pure.

Exceptions and exits are matched against a table of causes, most specific first; its texts are from real ranks. The
restart policy and the ledger share this code, so a restart and the displayed cause agree.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from .known_causes import (
    ADVICE,
    ANYWHERE,
    CAUSES,
    FILE_LIMIT,
    LED_TO,
    LESS,
    LOST_WORKER,
    OF_EXITS,
    WORKER,
    Cause,
)
from .printed_traceback import last_raised, unwrapped
from .tracebacks import COMPILING, raised_in, shortened, untangled

LONGEST = 200
"""Longest quote of an exception in a sentence, in characters."""


class Death(NamedTuple):
    """A rank that exited abnormally."""

    rank: int
    exit_code: int | None
    """Negative for a signal, as in subprocess. None: unknown."""
    raised: Mapping[str, Any]
    """The hook's note of an uncaught exception (see tracebacks.note_of), or {}."""
    lines: Sequence[str] = ()
    """The last lines of its stderr."""
    pid: int | None = None
    at: float = 0.0
    """Unix time of its exit."""
    oom: str | None = None
    """Message of the kernel if its OOM killer killed the rank."""
    finished: bool = False
    """Whether its script had reached its end."""


class Failure(NamedTuple):
    rank: int
    kind: str
    text: str
    """One sentence."""
    remedy: str
    retry: str
    """Whether a restart can help: "no" (it would fail again), "maybe", "yes"."""
    symptom: bool = False
    """True if the failure only shows that another rank has exited or is late."""
    where: str = ""
    """File and line of the user's code that raised."""
    at: float = 0.0
    key: str = ""
    """Equal for failures of the same kind at the same place; "" if that is unknown."""
    step: int | None = None
    """Optimizer steps that the rank had made; 0 also for a script without an optimizer; None: unknown."""
    untrained: bool = False
    """True if an optimizer existed and had made no step."""


def first_of(failures: Sequence[Failure]) -> Failure | None:
    """Return the earliest failure that is no symptom, else the earliest symptom."""
    return min(failures, key=lambda failure: (failure.symptom, failure.at), default=None)


PEERS = ("peer-gone", "timeout", "connect-timeout")
"""Kinds of failures that show that another rank has exited."""
UNEVEN = (
    "give every rank the same number of batches: drop_last=True with a DistributedSampler, or torch's Join; "
    "or let every rank take part in the last collectives"
)


def left_early(first: Failure | None, done: Mapping[int, tuple[float, int | None]]) -> Failure | None:
    """Name the rank that exited early with code 0 as the failure, if the others only lost their connection to it.

    `done`: rank → unix time of the exit and steps, of the ranks that exited with code 0.
    """
    if first is None or not first.symptom or first.kind not in PEERS or not done:
        return None
    rank = min(done, key=lambda each: (done[each][0], each))
    at, step = done[rank]
    text = "rank %d ended with exit code 0 before the others were done" % rank
    return Failure(rank, "left-early", text, UNEVEN, "maybe", at=at, key="left-early", step=step)


FROM_OUTSIDE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals with which users and schedulers end a process. A second one says nothing about the script."""


def classify(death: Death) -> Failure:
    raised = death.raised
    if not raised and death.exit_code in (1, -signal.SIGABRT):
        raised = last_raised(death.lines)
    raised = unwrapped(raised)
    number = signal_of(death.exit_code)
    if death.oom:
        case = _FailureClass(
            "host-oom", "ran out of host memory, and the kernel killed it (%s)" % death.oom, LESS, "maybe"
        )
    elif raised and _without_worker(raised, death.lines):
        case = _FailureClass("signal", LOST_WORKER.says, LOST_WORKER.remedy, "maybe")
    elif raised:
        case = _of_exception(raised, death.exit_code)
    elif number is not None:
        case = _of_signal(number, death)
    else:
        case = _of_code(death)
    return _failure_of(case, death, raised)


_LOST = ("ConnectionResetError", "ConnectionRefusedError", "EOFError", "BrokenPipeError")


def _without_worker(raised: Mapping[str, Any], lines: Sequence[str]) -> bool:
    """Return whether the read of a batch failed because its DataLoader worker had exited.

    torch detects the worker's exit in its SIGCHLD handler, which may run after the failed read.
    """
    if raised.get("type") not in _LOST or WORKER.search(" ".join(raised.get("before") or ())):
        return False
    return any("torch/utils/data/dataloader.py" in line for line in lines)


def of_line(line: str) -> Failure | None:
    """Return the failure that a message of one or more lines reports; None if the table has no cause for it."""
    line = untangled(shortened(line))
    kind = raised_in(line.partition("\n")[0])
    raised: dict[str, Any] = {}
    case = None
    if kind is None:
        case = _in_last_lines([line])
    else:
        raised = {"type": kind.rpartition(".")[2], "text": line[len(kind) :].lstrip(": ")}
        case = _first_cause(CAUSES, [line], raised)
    return None if case is None else _failure_of(case, Death(0, None, raised), raised)


class _FailureClass(NamedTuple):
    kind: str
    says: str
    remedy: str
    retry: str
    symptom: bool = False


_LINE = "check what the script does at that line"
_IMPORT = "correct that module, or install versions that fit each other"


def _failure_of(case: _FailureClass, death: Death, raised: Mapping[str, Any]) -> Failure:
    where = str(raised.get("where") or "")
    at = min(death.at, raised.get("time", death.at)) if death.at else raised.get("time", 0.0)
    step = raised.get("step")
    if case.symptom:
        key = ""
    elif raised:
        key = _key(raised, where)
    else:
        key = _crash_key(death)
    return Failure(
        rank=death.rank,
        kind=case.kind,
        text="rank %d %s" % (death.rank, case.says),
        remedy=case.remedy,
        retry=case.retry,
        symptom=case.symptom,
        where=where,
        at=at,
        key=key,
        step=step if isinstance(step, int) else None,
        untrained=bool(raised.get("untrained")),
    )


def _key(raised: Mapping[str, Any], where: str) -> str:
    """Return type, text and place, without the numbers and addresses that differ between attempts."""
    text = re.sub(r"0x[0-9a-fA-F]+|\d+", "#", str(raised.get("text", "")))
    return "%s|%s|%s" % (raised.get("type"), text, where)


def _crash_key(death: Death) -> str:
    number = signal_of(death.exit_code)
    return "" if number is None or number in FROM_OUTSIDE else "signal %d" % number


def _of_exception(raised: Mapping[str, Any], code: int | None) -> _FailureClass:
    kind = str(raised.get("type", ""))
    head = "%s: %s" % (kind, raised.get("text", ""))
    if kind == "KeyboardInterrupt":
        return _FailureClass("terminated", "was interrupted (SIGINT)", _OUTSIDE, "yes")
    before = raised.get("before") or ()
    workers = [earlier for earlier in before if WORKER.search(earlier)]
    case = _first_cause(CAUSES, workers[:1], raised) if workers else None
    case = case or _first_cause(CAUSES, [head], raised)
    for earlier in before:
        case = case or _first_cause(LED_TO, [earlier], raised)
    return case or _unknown(kind, head, raised, code)


def _first_cause(
    causes: Iterable[Cause], texts: Sequence[str], raised: Mapping[str, Any]
) -> _FailureClass | None:
    """Return the first of these causes that a text matches."""
    for cause in causes:
        for text in texts:
            if cause.needles and cause.lacks_needles(text):
                continue
            match = cause.pattern.search(text)
            if match:
                return _filled(cause, match, raised, text)
    return None


def _unknown(kind: str, head: str, raised: Mapping[str, Any], code: int | None) -> _FailureClass:
    """Classify an exception that the table does not list. After a step only an ImportError is an import crash."""
    at = "" if kind in COMPILING else _at(raised)  # a syntax error's text names the file
    says = "raised %s%s" % (_line(head), at)
    if kind == "ImportError" or (raised.get("importing") and not raised.get("step")):
        return _import_crash(head, says, raised, code)
    named = "assertion" if kind == "AssertionError" else "exception"
    return _FailureClass(named, says + _code(code), advice_of(head, raised) or _LINE, "maybe")


def _import_crash(head: str, says: str, raised: Mapping[str, Any], code: int | None) -> _FailureClass:
    """Classify an exception during an import. It comes again for sure if no step was made before."""
    kind = str(raised.get("type", ""))
    sure = kind in ("ImportError", *COMPILING) or (kind in _PLAIN and raised.get("step") == 0)
    if raised.get("importing") and kind not in COMPILING:
        says += " while a module was imported"
    remedy = advice_of(head, raised) or _IMPORT
    return _FailureClass("import-crash", says + _code(code), remedy, "no" if sure else "maybe")


def advice_of(head: str, raised: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return the remedy of an exception ("Type: text") that explains nothing; "" if the table has none."""
    for cause in ADVICE:
        if cause.needles and cause.lacks_needles(head):
            continue
        match = cause.pattern.search(head)
        if match:
            return _filled(cause, match, raised, head).remedy
    return ""


_PLAIN = (
    "NameError",
    "AttributeError",
    "TypeError",
    "ValueError",
    "KeyError",
    "IndexError",
    "AssertionError",
)
"""Exceptions that the same code raises again if it fails before the first step."""


def _filled(cause: Cause, match: re.Match[str], raised: Mapping[str, Any], head: str) -> _FailureClass:
    groups = [_cut(group).strip(" .") for group in match.groups() if group]
    named = [*groups, "it", "it"]
    words = dict(_words_of_path(str(raised.get("path") or _path_in(head))), line=_line(head))
    python = str(raised.get("python") or "")
    remedy = dict(words, python=python or "python")
    words["python"] = python or "its Python"
    says = " ".join(cause.says.format(*(groups or [""]), **words).split()).rstrip(": ")
    if raised.get("where"):
        says += " (%s)" % os.path.basename(str(raised["where"]))
    retry = "no" if cause.deterministic and raised.get("untrained") else cause.retry
    return _FailureClass(cause.kind, says, cause.remedy.format(*named, **remedy), retry, cause.symptom)


def _words_of_path(path: str) -> dict[str, str]:
    if not path:
        return {"path": "", "at_path": "", "for_path": " to open a file"}
    return {"path": path, "at_path": " at %s" % path, "for_path": " for %s" % path}


def _path_in(head: str) -> str:
    """Return the path at the end of an OSError's text, or ""."""
    match = re.search(r"'(/?[^'\n]+)'\s*$", head)
    return match.group(1) if match else ""


def _line(head: str) -> str:
    """Return the first line of "Type: text", at most LONGEST characters."""
    return _cut((head.strip().splitlines() or [""])[0].rstrip(": "))


_END = 80
"""Characters of the end of a longer quote: the reason or the exit status is often there."""


def _cut(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return text[: LONGEST - 3 - _END] + " … " + text[-_END:]


def _at(raised: Mapping[str, Any]) -> str:
    where = str(raised.get("where") or "")
    return " at %s" % os.path.basename(where) if where else ""


def _code(code: int | None) -> str:
    return " (exit code %d)" % code if code is not None and code >= 0 else ""


_OUTSIDE = "check what kills processes there: the scheduler's limits, preemption, an administrator"


def signal_of(code: int | None) -> int | None:
    """Return the signal of an exit code (negative, or 128 + signal as shells report it), or None."""
    if code is None:
        return None
    number = -code if code < 0 else code - 128
    return number if 0 < number <= 64 and number in {int(valid) for valid in signal.Signals} else None


def _of_signal(number: int, death: Death) -> _FailureClass:
    name = signal.Signals(number).name
    who = "(pid %d) " % death.pid if death.pid is not None else ""
    if number == signal.SIGKILL:
        remedy = _OUTSIDE + ", a daemon that guards memory"
        return _FailureClass("killed", who + "was killed by SIGKILL from outside", remedy, "yes")
    if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        says = who + "was killed by %s, not sent by distui" % name
        return _FailureClass("terminated", says, _OUTSIDE, "yes")
    if _at_exit(number, death):
        says = who + "crashed at interpreter exit (%s), after its script had ended" % name
        remedy = "nothing of the training is lost; destroy the process group before the end of the script"
        return _FailureClass("exit-abort", says, remedy, "no" if death.finished else "maybe")
    case = _in_last_lines(death.lines)
    if case is not None:
        return case._replace(says="%s (%s)" % (case.says, name))
    if number == signal.SIGXFSZ:
        says = (
            who + "was killed by SIGXFSZ: a file that it wrote has reached the limit on the size of a file"
        )
        return _FailureClass("file-limit", says, FILE_LIMIT, "maybe")
    if number in (signal.SIGSEGV, signal.SIGBUS):
        return _FailureClass(
            "segfault", who + "was killed by %s: %s" % (name, _CRASH[number][0]), _CRASH[number][1], "maybe"
        )
    kind = "abort" if number == signal.SIGABRT else "signal"
    return _FailureClass(kind, who + "was killed by %s" % name, "see the last lines of its stderr", "maybe")


_CRASH = {
    int(signal.SIGSEGV): (
        "native code touched memory that is not its own",
        "its Python stack names the call; look for libraries built for another torch or CUDA",
    ),
    int(signal.SIGBUS): (
        "a file mapped into memory had no room or went away",
        "most often /dev/shm is too small: enlarge it (docker --shm-size), or take fewer data-loader workers",
    ),
}


def _at_exit(number: int, death: Death) -> bool:
    """Return whether the crash came after the script's end. Measured: gloo's threads may abort the process then."""
    last = death.lines[-1] if death.lines else ""
    aborted = number == signal.SIGABRT and "terminate called without an active exception" in last
    return aborted or (death.finished and number in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS))


def _in_last_lines(lines: Sequence[str]) -> _FailureClass | None:
    """Return the first cause of the table that a line matches. Only for causes whose text scripts do not print."""
    return _first_cause(ANYWHERE, lines, {})


def _of_code(death: Death) -> _FailureClass:
    code, text = death.exit_code, "\n".join(death.lines)
    if code is None:
        return _FailureClass("lost", "ended; exit status unknown", "see its last lines", "maybe")
    known = _first_cause([cause for cause in OF_EXITS if cause.exit_code == code], [text], {})
    if known is not None:
        return known
    if code in (126, 127):
        says = "could not execute a command (exit code %d)%s" % (code, _because(death.lines))
        remedy = "install it on that node, correct its path, or make it executable"
        return _FailureClass("not-executable", says, remedy, "no")
    case = _in_last_lines(death.lines)
    if case is not None and case.symptom:
        return case
    remedy = "see the last lines of its stderr, and what it wrote to other files"
    return _FailureClass("exit-silent", "ended with exit code %d" % code, remedy, "maybe")


def _because(lines: Sequence[str]) -> str:
    reasons = [
        line
        for line in lines
        if re.search(r"not found|[Pp]ermission denied|No such file|format error", line)
    ]
    return ": %s" % _line(reasons[-1]) if reasons else ""
