"""Read the logs of a run on several nodes: kept pieces of other nodes' logs, and complete logs of parts on this machine.

A *hub* is the process that merges the agents of all nodes. A *part* is the run directory of one node; if the node is
this machine, it is next to the hub's run directory. A *piece* is a range of a log that the hub has read from another
node and kept: `record/node-1/attempt-001/rank-0.out@65536` has the bytes of that file that start at byte 65,536. So
offsets stay correct, and bytes that were never read are known to be missing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from ..run.commands import ReadLog
from ..run.log_files import file_sizes, parse_file_id, part_of, whole_id
from ..run.opened_logs import LogError, opened
from ..run.wire.client import Window
from . import line_times
from .windows import ask_window, offset_at_time, spans_of, window_of

FOLDER = "record"
Pieces = dict[str, dict[int, int]]
"""{file ID: {first byte of a piece: its end byte}}, both sorted."""

CLOCK = "clock"
"""Name of the file next to a node's pieces. It has `Window.shift`: seconds to add to the times of that node."""


def pieces(run_dir: str | Path) -> Pieces:
    """Return all kept pieces of a run's logs."""
    root = Path(run_dir) / FOLDER
    kept: Pieces = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            file, at, begin = path.relative_to(root).as_posix().rpartition("@")
            if at and begin.isdecimal() and parse_file_id(file):
                kept.setdefault(file, {})[int(begin)] = int(begin) + path.stat().st_size
    return {file: dict(sorted(held.items())) for file, held in sorted(kept.items())}


def sizes(kept: Pieces) -> dict[str, int]:
    """Return the known size of each file in bytes."""
    return {file: max(held.values()) for file, held in kept.items()}


def all_sizes(run_dir: str | Path) -> dict[str, int]:
    """Return the size of every log that can be read here: the hub's, those of parts on this machine, and pieces."""
    root = Path(run_dir)
    by_file = sizes(pieces(root)) | file_sizes(root)
    for part in root.parent.glob(f"{root.name}.n*"):
        node = part.name.rpartition(".n")[2]
        if node.isdecimal():
            by_file |= {whole_id(file, int(node)): size for file, size in file_sizes(part).items()}
    return by_file


async def ask_anywhere(run_dir: str | Path, ask: ReadLog) -> Window:
    """Return a window of any node's or the hub's log, if it can be read here."""
    place = part_of(ask.file)
    if place is None:
        return await ask_window(run_dir, ask)
    node, file = place
    part = Path(f"{run_dir}.n{node}")
    if not part.is_dir():
        return await ask_window(run_dir, ask, read_piece)
    return replace(await ask_window(part, replace(ask, file=file)), file=ask.file)


def read_piece(run_dir: str | Path, ask: ReadLog) -> Window:
    """Return `read_window` of the kept pieces. If the offset is missing, the window begins with the next piece.

    Raises LogError.
    """
    file, offset = ask.file, ask.offset
    held = pieces_of(run_dir, file)
    if not held:
        raise LogError(f"nothing of {file} was read while its node answered")
    size, times = max(held.values()), line_times.kept(Path(run_dir) / FOLDER, file)
    if ask.at:
        offset = offset_at_time(times, ask)
    start = max(size + offset, 0) if offset < 0 else offset
    begin = _piece_after(held, start)
    if begin is None:
        return Window(file, min(start, size), size, size, b"")
    inside = max(start - begin, 0)  # offset in the piece
    if offset < 0 and inside:  # a negative offset, so that the window begins with a complete line
        inside = start - held[begin]
    with opened(run_dir, f"{FOLDER}/{file}@{begin}") as descriptor:
        window = window_of(descriptor, replace(ask, offset=inside))
    window = replace(
        window,
        offset=window.offset + begin,
        next=window.next + begin,
        size=size,
        starts=tuple(start + begin for start in window.starts),
        shift=kept_shift(run_dir, file),
    )
    return replace(window, times=line_times.within(times, spans_of(window, ask.grep)))


def _piece_after(held: Mapping[int, int], start: int) -> int | None:
    """Return the begin of the piece with this offset, else of the next piece; None without one."""
    return next((begin for begin, end in held.items() if end > start), None)


def kept_shift(run_dir: str | Path, file: str) -> float:
    """Return the seconds to add to the times of a file's node; 0.0 if they are not kept."""
    try:
        return float((Path(run_dir) / FOLDER / file.partition("/")[0] / CLOCK).read_bytes())
    except (OSError, ValueError):
        return 0.0


def pieces_of(run_dir: str | Path, file: str) -> dict[int, int]:
    """Return the end of each piece of one file, by its begin. Raises LogError."""
    if parse_file_id(file) is None:
        raise LogError(f"{file!r} is not a log of this run: `distui logs` prints their names")
    path = Path(run_dir) / FOLDER / file
    ends = {}
    for piece in path.parent.glob(f"{path.name}@*"):
        begin = piece.name.rpartition("@")[2]
        if begin.isdecimal():
            ends[int(begin)] = int(begin) + piece.stat().st_size
    return dict(sorted(ends.items()))
