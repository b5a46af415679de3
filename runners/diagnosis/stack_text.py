"""Stacks in faulthandler's output: frames, groups of ranks at one place, and source lines."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..run.file_io import FileError, content
from ..run.pulse import RankThread, Site
from ..run.state import RunState
from .activity import own_code
from .call_differences import alike
from .rank_dumps import short_site

_HEAD = re.compile(r"(Current thread|Thread) (0x[0-9a-fA-F]+)(?: \[(.*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_CUT = "..."
"""faulthandler's last line if there are more than 100 threads. It omits the oldest threads, so also the main one."""


MOST_THREADS, MOST_THREAD_FRAMES = 8, 6


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread in faulthandler's output."""

    label: str
    """faulthandler's label: "Thread 0x7f…", with the thread's name if it has one."""
    current: bool
    """Whether it is the thread that wrote the output."""
    frames: tuple[str, ...]
    """ "file:line function", innermost first; () if it runs no Python code."""


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks whose main threads are at the same place."""

    ranks: tuple[int, ...]
    frames: tuple[str, ...]
    """ "file:line function" of the main thread, innermost first; () if it is unknown or runs no Python code."""
    shared: int = 0
    """Number of outermost frames in common with the first group. The stacks differ from the next frame on."""


_IMPORTING = re.compile(r"<frozen (?:importlib|zipimport)\b")


def merged_stacks(texts: Mapping[int, str]) -> list[StackGroup]:
    """Group ranks by equal main threads in faulthandler's output: the largest group first, then by rank.

    Frames of Python's import system, five per module, are omitted. A stack that begins with one keeps the innermost.
    """
    frames = {rank: _without_imports(main_frames(text)) for rank, text in texts.items()}
    groups = alike({rank: tuple(map(short_site, own)) for rank, own in frames.items()})
    return [StackGroup(ranks, frames[ranks[0]], _shared(key, groups[0][0])) for key, ranks in groups]


def _without_imports(frames: tuple[str, ...]) -> tuple[str, ...]:
    return frames[:1] + tuple(frame for frame in frames[1:] if not _IMPORTING.match(frame))


def main_frames(text: str) -> tuple[str, ...]:
    """Return the frames of the main thread, innermost first; () if it is missing."""
    stacks = threads(text)
    if not stacks:
        return ()
    if text.rstrip().endswith("\n" + _CUT):
        # Signals are handled in the main thread. The output of the hook's own thread does not contain it.
        own = (
            thread for thread in stacks if not any("/inrank/hook.py:" in frame for frame in thread.frames)
        )
        return next((thread.frames for thread in own if thread.current), ())
    return stacks[-1].frames  # Python keeps its threads newest first


def other_threads(texts: Mapping[int, str]) -> list[StackGroup]:
    """Group the threads that run Python code by equal stacks, without main threads and distui's own."""
    ranks: dict[tuple[str, ...], list[int]] = {}
    for rank, text in texts.items():
        main = main_frames(text)
        for thread in threads(text):
            if (
                thread.frames
                and thread.frames != main
                and not any("/inrank/" in at for at in thread.frames)
            ):
                ranks.setdefault(thread.frames, []).append(rank)
    groups = [StackGroup(tuple(sorted(own)), frames) for frames, own in ranks.items()]
    return sorted(groups, key=lambda group: (not any(frame_of(at).own for at in group.frames), group.ranks))


def script_threads(text: str) -> tuple[RankThread, ...]:
    """Return the threads in the user's own code, without the main thread. Python before 3.14 writes no names."""
    main = main_frames(text)
    found: list[RankThread] = []
    for thread in threads(text):
        is_distui = any("/inrank/" in at for at in thread.frames)
        is_own = any(frame_of(at).own for at in thread.frames)
        if is_own and not is_distui and thread.frames != main:
            name = thread.label.partition("[")[2].rstrip("]")
            found.append(RankThread(name, _sites(thread.frames)[:MOST_THREAD_FRAMES]))
    return tuple(found[:MOST_THREADS])


def threads(text: str) -> list[Thread]:
    """Return all threads in order; [] if the text is not faulthandler's."""
    parts: list[tuple[str, bool, list[str]]] = []
    for line in text.splitlines():
        head = _HEAD.fullmatch(line)
        if head is not None:
            named = f" [{head[3]}]" if head[3] else ""
            parts.append((f"Thread {head[2]}{named}", head[1] == "Current thread", []))
            continue
        frame = _FRAME.fullmatch(line)
        if frame is not None and parts:
            parts[-1][2].append(f"{frame[1]}:{frame[2]} {frame[3]}")
    return [Thread(label, current, tuple(frames)) for label, current, frames in parts]


def _shared(frames: Sequence[str], first: Sequence[str]) -> int:
    number = 0
    for mine, its in zip(reversed(frames), reversed(first), strict=False):
        if mine != its:
            break
        number += 1
    return number


_FRAME_TEXT = re.compile(r"(.*):(\d+) (.*)", re.S)


class StackFrame(NamedTuple):
    path: str
    line: int
    function: str

    @property
    def own(self) -> bool:
        """Whether it is the user's own code."""
        return bool(self.path) and own_code(self.path)


def frame_of(text: str) -> StackFrame:
    """Parse "file:line function"."""
    match = _FRAME_TEXT.fullmatch(text)
    return StackFrame(match[1], int(match[2]), match[3]) if match else StackFrame("", 0, text)


MOST_SOURCE = 4 << 20
"""Maximum size in bytes of a source file."""


class SourceLines:
    """Source lines of frames, if the files are on this host and unchanged since the ranks began."""

    def __init__(self, state: RunState) -> None:
        hosts = {node.host for node in state.nodes.values()}
        self._here = hosts == {platform.node()}
        self._began = state.attempt_began
        self._files: dict[str, list[str]] = {}

    def of(self, frame: StackFrame) -> str:
        """Return the stripped source line; "" if unknown."""
        if frame.path not in self._files:
            self._files[frame.path] = self._read(Path(frame.path)) if self._here else []
        lines = self._files[frame.path]
        return lines[frame.line - 1].strip() if 0 < frame.line <= len(lines) else ""

    def _read(self, path: Path) -> list[str]:
        try:
            if not path.is_absolute() or path.stat().st_mtime > self._began:
                return []  # its directory or its earlier content is unknown
            return content(path, MOST_SOURCE).decode("utf-8", "replace").split("\n")
        except (FileError, OSError, ValueError):
            return []


_SITE = re.compile(r"(.*):(\d+|\?\?\?) (.*)")


def sites(text: str) -> tuple[Site, ...]:
    """Return the main thread's frames in faulthandler's text, innermost first, or () if it is missing."""
    return _sites(main_frames(text))


def crash_sites(text: str) -> tuple[Site, ...]:
    """Return the thread that a signal killed in faulthandler's text, or else the newest one with frames."""
    stacks = [thread for thread in threads(text) if thread.frames]
    at = next((thread for thread in stacks if thread.current), stacks[-1] if stacks else None)
    return _sites(at.frames) if at is not None else ()


def _sites(frames: Iterable[str]) -> tuple[Site, ...]:
    found: list[Site] = []
    for frame in frames:
        match = _SITE.fullmatch(frame)
        if match is not None:
            found.append(Site(match[1], int(match[2]) if match[2].isdigit() else 0, match[3]))
    return tuple(found)
