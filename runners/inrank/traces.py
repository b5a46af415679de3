"""Stacks, uncaught exceptions, pulses and flight recorder dumps of one rank."""

from __future__ import annotations

import contextlib
import json
import opcode
import os
import pickle
import re
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any

from . import collectives
from .collectives import Collectives
from .output_filter import private

# -----------------------------------------------------------------------------------------------------------
# Exceptions that nobody caught: what a rank writes down of its own, and what a traceback in a log tells.


LONGEST = 2000
"""Characters of an exception's text that are kept, half of them from its end."""

_LIBRARY = re.compile(r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python\d[\d.]*[/\\]")
_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TAG = re.compile(r"^(?:\[[\w:.<>-]+\]:\s?)+")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$')
_LAST = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: ?(?P<text>.*))?$")
_ERROR = re.compile(r"(?:Error|Exception|Exit|Interrupt|Warning|Timeout|Expired)$|^[a-z_][\w.]*\.[A-Z]\w+$")
_LAUNCHERS = re.compile(
    r"ChildFailedError|CalledProcessError|ProcessRaisedException|ProcessExitedException"
)
"""What a launcher raises because its ranks failed."""

COMPILING = ("SyntaxError", "IndentationError", "TabError")

Frames = Iterable[tuple[str, int, str]]
"""File, line and function, outermost first."""


def note_of(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> dict[str, Any]:
    """What is kept of an exception as JSON values: type, text, where, importing, errno, path, python, before."""
    frames = list(_frames_of(trace))
    where, importing = place(frames)
    if isinstance(value, SyntaxError) and value.filename and not value.filename.startswith("<"):
        where, importing = "%s:%d" % (value.filename, value.lineno or 0), True
    named = value.filename if isinstance(value, OSError) and isinstance(value.filename, str) else None
    return {
        "type": kind.__name__,
        "text": shortened(str(value)),
        "where": where,
        "importing": importing,
        "errno": value.errno if isinstance(value, OSError) else None,
        "path": named,
        "python": sys.executable,
        "before": _before(value),
    }


def _frames_of(trace: TracebackType | None) -> Frames:
    while trace is not None:
        code = trace.tb_frame.f_code
        yield code.co_filename, trace.tb_lineno, code.co_name
        trace = trace.tb_next


def _before(value: BaseException) -> list[str]:
    """The exceptions that led to this one, newest first."""
    causes: list[str] = []
    seen = {id(value)}
    earlier = value.__cause__ or value.__context__
    while earlier is not None and id(earlier) not in seen and len(causes) < 3:
        seen.add(id(earlier))
        causes.append(("%s: %s" % (type(earlier).__name__, earlier))[:300])
        earlier = earlier.__cause__ or earlier.__context__
    return causes


def place(frames: Iterable[tuple[str, int, str]]) -> tuple[str, bool]:
    """ "file:line" of the innermost frame of the user's own code, and whether a module was being imported there."""
    outside = [frame for frame in frames if not frame[0].startswith(("<", _OWN))]
    users = [frame for frame in outside if not _LIBRARY.search(frame[0])]
    innermost = (users or outside)[-1:]
    importing = sum(1 for _, _, name in outside if name == "<module>") > 1
    return ("%s:%d" % innermost[0][:2] if innermost else ""), importing


def shortened(text: str) -> str:
    """A long text without its middle: the cause of a wrapped exception stands at its end."""
    if len(text) <= LONGEST:
        return text
    return text[: LONGEST // 2] + " … " + text[-LONGEST // 2 :]


def unwrapped(raised: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a worker process of a data loader raised, where the rank's own exception only carries that."""
    text = str(raised.get("text", ""))
    carried = in_lines(text.splitlines()) if "Original Traceback" in text else {}
    return {**raised, **carried, "importing": False} if carried else raised


def raised_in(line: str) -> str | None:
    """The type of exception that the last line of a traceback names; None for any other line."""
    last = _LAST.match(_TAG.sub("", line.rstrip()))
    return last["type"] if last and _ERROR.search(last["type"]) else None


def of_launcher(kind: str) -> bool:
    """Whether launchers raise it because their ranks failed."""
    return _LAUNCHERS.search(kind) is not None


def in_lines(lines: Sequence[str]) -> dict[str, Any]:
    """The last exception that stands in lines of a log, as `note_of` has it, a launcher's own left out; {} for none."""
    note: dict[str, Any] = {}
    frames: list[tuple[str, int, str]] = []
    within = False
    for raw in lines:
        line = _TAG.sub("", raw.rstrip())
        frame = _FRAME.match(line)
        if "Traceback (most recent call last)" in line:
            within, frames = True, []
        elif frame:
            within = True
            frames.append((frame["file"], int(frame["line"]), frame["name"] or "<module>"))
        elif within and line and not line[0].isspace():
            kind = raised_in(line)
            if kind is not None:
                if not of_launcher(kind):
                    note = _carried(kind, line[len(kind) :].removeprefix(":").removeprefix(" "), frames)
                within, frames = False, []
    return note


def _carried(kind: str, text: str, frames: Sequence[tuple[str, int, str]]) -> dict[str, Any]:
    where, importing = place(frames)
    name = kind.rpartition(".")[2]
    compiling = name in COMPILING and bool(frames) and not frames[-1][0].startswith("<")
    return {"type": name, "text": text, "where": where, "importing": importing or compiling}


# -----------------------------------------------------------------------------------------------------------
# What this rank is doing now, in the form of runners/model.py: stack, CPU time, steps, collectives.


FRAMES, INNERMOST, DEPTH = 24, 8, 400
"""Frames that are told, how many of them are the innermost whatever they are, and how deep is looked."""
SAMPLES, APART_S = 20, 0.02
UNREADABLE = (
    OSError,
    RuntimeError,
    AttributeError,
    ValueError,
    LookupError,
    TypeError,
    pickle.PickleError,
    EOFError,
)
"""What reading torch's insides may raise in a version that nobody has seen yet."""


class PulseSampler:
    """Looks at this process; what one look has to know of the one before is kept."""

    def __init__(self) -> None:
        self._collectives = Collectives()

    def take(
        self, count: int, last: float, samples: int = 1, whole: bool = False, sites: bool = False
    ) -> dict[str, Any]:
        """One look. `count`, `last`: optimizer steps and unix time of the newest; the rest: see Collectives.sample."""
        main = threading.main_thread().ident
        seen: set[Any] = set()
        stack: list[list[Any]] = []
        samples = max(1, min(samples, SAMPLES))
        loops = 0
        for number in range(samples):
            if number:
                time.sleep(APART_S)
            loops += jumps_back(main)
            stack = stack_of(main)
            seen.add(tuple(stack[0]) if stack else None)
        taken: dict[str, Any] = {
            "stack": stack,
            "sites": len(seen),
            "samples": samples,
            "loops": loops,
            "cpu_s": thread_seconds(main),
            "process_s": time.process_time(),
            "torch": "torch.distributed" in sys.modules,
            "step": count,
            "last_step": last or None,
            "world_size": os.environ.get("WORLD_SIZE"),
            "master": master(),
        }
        try:
            taken.update(self._collectives.sample(whole, sites))
        except UNREADABLE:
            taken["recorder"] = False
        return taken


def master() -> str | None:
    """MASTER_ADDR:MASTER_PORT as the script has it now."""
    address = os.environ.get("MASTER_ADDR")
    return None if address is None else "%s:%s" % (address, os.environ.get("MASTER_PORT", ""))


def thread_seconds(thread: int | None) -> float | None:
    """Processor seconds of a living thread so far."""
    return None if thread is None else time.clock_gettime(time.pthread_getcpuclockid(thread))


def jumps_back(thread: int | None) -> bool:
    """Whether a thread is at the end of a loop's body: of a loop that calls nothing, every sample shows it there.

    Another thread runs only between two instructions that ask for it: calls, and jumps backwards.
    """
    frame = sys._current_frames().get(thread or 0)
    if frame is None or frame.f_lasti < 0:
        return False
    name = opcode.opname[frame.f_code.co_code[frame.f_lasti]]
    return "JUMP_BACKWARD" in name or (sys.version_info < (3, 11) and "JUMP" in name)


def stack_of(thread: int | None) -> list[list[Any]]:
    """[file, line, function] of a thread's frames, innermost first; of a deep stack without torch's in the middle."""
    frame: FrameType | None = sys._current_frames().get(thread or 0)
    stack: list[list[Any]] = []
    while frame is not None and len(stack) < DEPTH:
        code = frame.f_code
        stack.append([code.co_filename, frame.f_lineno or 0, code.co_name])
        frame = frame.f_back
    if len(stack) > FRAMES:
        home = os.path.dirname(getattr(sys.modules.get("torch"), "__file__", None) or "/no/torch") + os.sep
        stack[INNERMOST:] = [site for site in stack[INNERMOST:] if not site[0].startswith(home)]
    return stack[:FRAMES]


# -----------------------------------------------------------------------------------------------------------
# What a rank tells of itself when it is asked to: its flight recorders, and what its memory holds.


def flight(newest: int = 128) -> str:
    """torch's flight recorders as JSON text: "recorders", each in torch's own layout, and "members" of the groups.

    Of 2,000 entries the `newest` ones, with the last 8 of each group and all that have not completed; of their stacks
    the frames outside torch, innermost first. Raises RuntimeError without a recorder or a process group.
    """
    import pickle

    core = getattr(getattr(sys.modules.get("torch"), "_C", None), "_distributed_c10d", None)
    kinds = [kind for kind in collectives.RECORDERS if hasattr(core, "_dump_%s_trace" % kind)]
    if not kinds:
        raise RuntimeError("this torch has no flight recorder, or is not imported yet")
    distributed = sys.modules.get("torch.distributed")
    # to look would fix the recorder's settings before the script has made its own
    if not getattr(distributed, "is_initialized", bool)():
        raise RuntimeError("there is no process group yet, and so no flight recorder")
    recorders: list[dict[str, Any]] = []
    members = {name: ranks for name, ranks, _ in collectives.members()}
    for kind in kinds:
        dump = getattr(core, "_dump_%s_trace" % kind)
        header = dict(pickle.loads(dump(False, False, False)), kind=kind)  # our own process wrote it
        entries = collectives.dumped(dump, True)
        kept = [_brief(entry) for entry in _wanted(entries, newest) if _lives(entry, members)]
        recorders.append(dict(header, entries=kept, left_out=len(entries) - len(kept)))
    return json.dumps({"recorders": recorders, "members": members}, default=str)


def _wanted(entries: list[dict[str, Any]], newest: int) -> list[dict[str, Any]]:
    left: dict[Any, int] = {}
    kept = []
    for place, entry in enumerate(reversed(entries)):
        group = entry.get("pg_id")
        left[group] = left.get(group, 8) - 1
        if place < newest or left[group] >= 0 or not collectives.completed(entry):
            kept.append(entry)
    return kept[::-1]


def _lives(entry: dict[str, Any], members: dict[str, tuple[int, ...]]) -> bool:
    """What a group left behind that was destroyed waits for nobody."""
    return not members or collectives.completed(entry) or str(entry["process_group"][0]) in members


_BRIEF = (
    "record_id", "pg_id", "process_group", "collective_seq_id", "p2p_seq_id", "op_id", "profiling_name", "is_p2p",
    "time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns", "duration_ms",
    "input_sizes", "input_dtypes", "output_sizes", "output_dtypes", "state", "retired",
)  # fmt: skip


def _brief(entry: dict[str, Any], most: int = 6) -> dict[str, Any]:
    brief = {name: entry[name] for name in _BRIEF if entry.get(name) is not None}
    frames = entry.get("frames") or []
    inside = os.path.dirname(getattr(sys.modules.get("torch"), "__file__", None) or "/nonexistent/torch")
    outside = [frame for frame in frames if not str(frame.get("filename")).startswith(inside + os.sep)]
    brief["frames"] = (outside or frames)[:most]
    return brief


_STATS = (
    "allocated_bytes.all.current", "allocated_bytes.all.peak", "reserved_bytes.all.current",
    "reserved_bytes.all.peak", "inactive_split_bytes.all.current", "active_bytes.all.current",
    "requested_bytes.all.current", "num_alloc_retries", "num_ooms",
)  # fmt: skip


def memory() -> str:
    """What this process holds, as JSON text: resident bytes and their peak, and of each CUDA device it uses the
    allocator's numbers, with the path of torch's own snapshot of them."""
    import resource

    held, peak = resident(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    # the kernel's two counters lag by different amounts
    facts: dict[str, Any] = {"max_rss_bytes": max(held, peak), "rss_bytes": held}
    cuda = _cuda()
    if cuda is None:
        facts["note"] = NO_CUDA
        return json.dumps(facts)
    stats = {device: cuda.memory_stats(device) for device in range(cuda.device_count())}
    facts["cuda"] = {
        str(device): dict({name: its.get(name) for name in _STATS}, total_bytes=_total(cuda, device))
        for device, its in stats.items()
        if its.get("reserved_bytes.all.peak")
    }
    facts["recording"] = _recording
    facts.update(_snapshot(cuda))
    return json.dumps(facts)


NO_CUDA = "no CUDA in this rank: there is no allocator to take a snapshot of"
_recording = False
"""Whether torch keeps the history of allocations for the next snapshot."""


def record(entries: int = 100_000) -> str:
    """Have torch keep its last `entries` allocations, so that the next snapshot holds their curve; what came of it.

    Costs some microseconds an allocation, and goes on until the process ends. Raises RuntimeError without CUDA.
    """
    global _recording
    cuda = _cuda()
    start = getattr(getattr(cuda, "memory", None), "_record_memory_history", None)
    if start is None:
        raise RuntimeError(NO_CUDA)
    start(max_entries=entries)
    _recording = True
    return "allocations are recorded from now on: the next dump of memory has their curve"


def resident() -> int:
    """Resident bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _cuda() -> Any:
    """torch.cuda where this process has used it; None where not: asking must not start it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _total(cuda: Any, device: int) -> int | None:
    try:
        return int(cuda.get_device_properties(device).total_memory)
    except (RuntimeError, AssertionError):
        return None


def _snapshot(cuda: Any) -> dict[str, str]:
    """{"snapshot": path} of a new file that pytorch.org/memory_viz opens, or {"snapshot_error": why there is none}."""
    import pickle

    take = getattr(getattr(cuda, "memory", None), "_snapshot", None)
    if take is None:
        return {"snapshot_error": "this torch takes no snapshots"}
    path = "%s.memory-%d.pickle" % (os.environ["DISTUI_RANK_FILES"], time.time_ns() // 1_000_000)
    try:
        with open(path + ".tmp", "xb", opener=private) as file:
            pickle.dump(take(), file)
        os.rename(path + ".tmp", path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(path + ".tmp")
        return {"snapshot_error": "%s could not be written: %s" % (path, error.strerror)}
    return {"snapshot": path}
