"""Where the logs are that a diagnosis reads: files, packed files, and the newest attempt of a run."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from .. import registry
from ..errors import RunError
from ..logs import pieces
from ..logs.files import list_files, parse_file_id, whole_id
from .lines import BLOCK, lines_in, lines_of
from .reading import Reading

Named = tuple[str, Path]
"""What a file is called in findings, and where it is."""
PACKED = b"\x1f\x8b"


def read_all(files: Iterable[Named], stopped: Callable[[], bool] = bool) -> Reading:
    """Each file to its end, packed by gzip or not; pieces of one file follow one another. Raises RunError.

    `stopped` is asked at each block: once it says so, no more is read.
    """
    reading, before = Reading(), ""
    for name, path in files:
        if name != before:
            reading.open(name)
        before = name
        for lines in packed_lines(path) if is_packed(path) else lines_of(path):
            if stopped():
                return reading
            reading.feed(lines)
    return reading


def of_run(entry: registry.Entry) -> list[Named]:
    """The logs of the newest attempt that are on this machine: the run's, its parts', and what a hub has kept."""
    found: dict[str, list[Path]] = {file.id: [entry.path / file.id] for file in list_files(entry.path)}
    for part in registry.parts(entry.record.run) if entry.record.kind == "hub" else ():
        node = part.record.node
        found |= {whole_id(file.id, node): [part.path / file.id] for file in list_files(part.path)}
    for kept, held in pieces.pieces(entry.path).items():
        found.setdefault(kept, [entry.path / pieces.FOLDER / f"{kept}@{begin}" for begin in held])
    known = [
        file for name in found if (file := parse_file_id(name)) is not None and file.attempt is not None
    ]
    newest = max((file.attempt or 0 for file in known), default=0)
    chosen = sorted((file for file in known if file.attempt == newest), key=lambda file: file.order)
    return [(file.id, path) for file in chosen for path in found[file.id]]


def is_packed(path: Path) -> bool:
    """Whether a file begins as gzip's do; what cannot be read is said by whoever reads it.

    A pipe is none: what was read of it is gone.
    """
    if not os.path.isfile(path):  # also of a name too long for a file
        return False
    try:
        with path.open("rb") as file:
            return file.read(2) == PACKED
    except OSError:
        return False


def packed_lines(path: Path) -> Iterator[list[str]]:
    """Lines of a text that gzip packed, some at a time; of a long one its beginning. Raises RunError."""

    def check(block: bytes) -> None:
        if b"\0" in block[:8192]:
            raise RunError(f"{path} holds no text: give the logs themselves")

    try:
        with gzip.open(path) as file:
            yield from lines_in(partial(file.read, BLOCK), check)
    except (OSError, EOFError, zlib.error) as error:
        raise RunError(f"{path} cannot be unpacked ({str(error).lower()}): have it copied again") from None
