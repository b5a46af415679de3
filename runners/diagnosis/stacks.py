"""Stacks of many ranks as one view: equal ones together, the larger group first, so that who differs stands out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_HEAD = re.compile(r"(Current thread|Thread) (0x[0-9a-fA-F]+)(?: \[(.*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_CUT = "..."
"""faulthandler's last line where there are more than 100 threads: the main one, the oldest, is among those left out."""


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread of a text that faulthandler wrote."""

    label: str
    """As it names the thread: "Thread 0x7f…", with its name where Python tells."""
    current: bool
    """Whether it is the thread that wrote the text."""
    frames: tuple[str, ...]
    """ "file:line function", innermost first; () where no Python runs in it."""


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks whose main threads are at the same place."""

    ranks: tuple[int, ...]
    frames: tuple[str, ...]
    """ "file:line function" of the main thread, innermost first; () when it is not known or runs no Python."""
    shared: int = 0
    """How many of the outermost frames are those of the first group; the one further in is where the ways part."""


def merged(texts: Mapping[int, str]) -> list[Group]:
    """Groups of equal main threads out of faulthandler's text of each rank: the largest first, then by rank.

    Only the last two parts of a path count, for nodes may keep the same files under different directories.
    """
    found: dict[tuple[str, ...], list[int]] = {}
    shown: dict[tuple[str, ...], tuple[str, ...]] = {}
    for rank in sorted(texts):
        frames = main_frames(texts[rank])
        key = _alike(frames)
        found.setdefault(key, []).append(rank)
        shown.setdefault(key, frames)
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[1][0]))
    return [Group(tuple(ranks), shown[key], _shared(key, ordered[0][0])) for key, ranks in ordered]


def main_frames(text: str) -> tuple[str, ...]:
    """Frames of the main thread, innermost first; () when the text does not hold it."""
    found = threads(text)
    if not found:
        return ()
    if text.rstrip().endswith("\n" + _CUT):
        # A signal is handled in the main thread; what the hook's own thread wrote does not hold it.
        return next((one.frames for one in found if one.current and not _hook(one)), ())
    return found[-1].frames  # Python keeps its threads newest first


def threads(text: str) -> list[Thread]:
    """All threads of the text, in its order; [] when it is none of faulthandler's."""
    found: list[tuple[str, bool, list[str]]] = []
    for line in text.splitlines():
        head = _HEAD.fullmatch(line)
        if head is not None:
            named = f" [{head[3]}]" if head[3] else ""
            found.append((f"Thread {head[2]}{named}", head[1] == "Current thread", []))
            continue
        frame = _FRAME.fullmatch(line)
        if frame is not None and found:
            found[-1][2].append(f"{frame[1]}:{frame[2]} {frame[3]}")
    return [Thread(label, current, tuple(frames)) for label, current, frames in found]


def _hook(thread: Thread) -> bool:
    return any("/inrank/hook.py:" in frame for frame in thread.frames)


def _alike(frames: Sequence[str]) -> tuple[str, ...]:
    """What makes two stacks the same."""
    return tuple("/".join(frame.rsplit("/", 2)[-2:]) for frame in frames)


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    number = 0
    for mine, its in zip(reversed(one), reversed(other), strict=False):
        if mine != its:
            break
        number += 1
    return number
