"""What this rank is doing now, in the form of runners/model/pulse.py: stack, processor time, steps, collectives."""

from __future__ import annotations

import opcode
import os
import pickle
import sys
import threading
import time
from types import FrameType
from typing import Any

from .collectives import Collectives

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


class Pulse:
    """Looks at this process; what one look has to know of the one before is kept."""

    def __init__(self) -> None:
        self._collectives = Collectives()

    def take(
        self, count: int, last: float, samples: int = 1, whole: bool = False, sites: bool = False
    ) -> dict[str, Any]:
        """One look. `count`, `last`: optimizer steps and unix time of the newest; the rest: see Collectives.look."""
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
            taken.update(self._collectives.look(whole, sites))
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
    """Whether a thread is at the end of a loop's body: of a loop that calls nothing, every look finds it there.

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
    found: list[list[Any]] = []
    while frame is not None and len(found) < DEPTH:
        code = frame.f_code
        found.append([code.co_filename, frame.f_lineno or 0, code.co_name])
        frame = frame.f_back
    if len(found) > FRAMES:
        home = os.path.dirname(getattr(sys.modules.get("torch"), "__file__", None) or "/no/torch") + os.sep
        found[INNERMOST:] = [site for site in found[INNERMOST:] if not site[0].startswith(home)]
    return found[:FRAMES]
