"""Logs of a run on several nodes: pieces that a hub has read and kept, and the files themselves where they are here.

`record/node-1/attempt-001/rank-0.out@65536` holds the bytes of that file from 65,536 on, as many as it is long. So no
offset is ever wrong, and what was not read is known to be missing. The part of a node that is this machine has its
files beside, in a run directory of its own.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

from ..wire.link import Window
from .files import LogError, file_sizes, opened, parse_file_id, part_of, whole_id
from .window import MAX_LIMIT, REACH, ask_window, window_of

FOLDER = "record"
Pieces = dict[str, dict[int, int]]
"""By file id: where each piece begins → where it ends, in order."""


def pieces(run_dir: str | Path) -> Pieces:
    """Everything that is kept of a run's logs."""
    root = Path(run_dir) / FOLDER
    found: Pieces = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            file, at, begin = path.relative_to(root).as_posix().rpartition("@")
            if at and begin.isdecimal() and parse_file_id(file):
                found.setdefault(file, {})[int(begin)] = int(begin) + path.stat().st_size
    return {file: dict(sorted(held.items())) for file, held in sorted(found.items())}


def sizes(kept: Pieces) -> dict[str, int]:
    """Bytes that each file had, as far as that is known."""
    return {file: max(held.values()) for file, held in kept.items()}


def all_sizes(run_dir: str | Path) -> dict[str, int]:
    """Bytes of every log that can be read here: the hub's own, those of parts on this machine, and pieces."""
    root = Path(run_dir)
    found = sizes(pieces(root)) | file_sizes(root)
    for part in root.parent.glob(f"{root.name}.n*"):
        node = part.name.rpartition(".n")[2]
        if node.isdecimal():
            found |= {whole_id(file, int(node)): size for file, size in file_sizes(part).items()}
    return found


async def ask_anywhere(run_dir: str | Path, file: str, offset: int, limit: int, grep: str = "") -> Window:
    """A window of a log of any node, or of the hub's own, as far as it can be read here."""
    place = part_of(file)
    if place is None:
        return await ask_window(run_dir, file, offset, limit, grep)
    part = Path(f"{run_dir}.n{place[0]}")
    if part.is_dir():
        window = await ask_window(part, place[1], offset, limit, grep)
        return replace(window, file=file)
    return await ask_piece(run_dir, file, offset, limit, grep)


async def ask_piece(run_dir: str | Path, file: str, offset: int, limit: int, grep: str = "") -> Window:
    """`read_piece` off the event loop, a LogError told in `Window.error`."""

    def read() -> Window:
        try:
            return read_piece(run_dir, file, offset, limit, grep)
        except LogError as error:
            return Window(file, max(offset, 0), max(offset, 0), 0, b"", str(error))

    return await asyncio.get_running_loop().run_in_executor(None, read)


def read_piece(run_dir: str | Path, file: str, offset: int, limit: int = REACH, grep: str = "") -> Window:
    """As `window.read_window`, of what is kept: where nothing is, the window begins at the next byte that is.

    Raises LogError.
    """
    held = pieces_of(run_dir, file)
    if not held:
        raise LogError(f"nothing of {file} was read while its node answered")
    size = max(held.values())
    start = max(size + offset, 0) if offset < 0 else offset
    begin = next((begin for begin, end in held.items() if end > start), None)
    if begin is None:
        return Window(file, min(start, size), size, size, b"")
    limit = min(max(limit, 1), MAX_LIMIT)
    inside = max(start - begin, 0)
    if offset < 0 and inside:
        inside = start - held[begin]  # from the end, so that the window begins with a whole line
    with opened(run_dir, f"{FOLDER}/{file}@{begin}") as descriptor:
        window = window_of(descriptor, file, inside, limit, grep)
    return replace(window, offset=window.offset + begin, next=window.next + begin, size=size)


def pieces_of(run_dir: str | Path, file: str) -> dict[int, int]:
    """Where the pieces of one file begin and end."""
    if parse_file_id(file) is None:
        raise LogError(f"{file!r} is not a log of this run: `distui logs` names them")
    path = Path(run_dir) / FOLDER / file
    found = {}
    for piece in path.parent.glob(f"{path.name}@*"):
        begin = piece.name.rpartition("@")[2]
        if begin.isdecimal():
            found[int(begin)] = int(begin) + piece.stat().st_size
    return dict(sorted(found.items()))
