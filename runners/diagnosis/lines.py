"""Text files as lines, block by block, however long they are."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from ..errors import RunError

BLOCK = 1 << 20
LONGEST = 1 << 16
"""Bytes of a line that are looked at."""

_ELSE = bytes(range(9)) + bytes(range(14, 27)) + bytes(range(28, 32))
"""Bytes that no text holds."""


def lines_of(path: Path) -> Iterator[list[str]]:
    """Lines of a text file, some at a time; of a long one its beginning. Raises RunError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise RunError(_why(path, error)) from None
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise RunError(f"{path} is a directory: name the log files in it, as in {path}/*.log")
        yield from lines_in(partial(os.read, descriptor, BLOCK), _Text(path).check)
    except OSError as error:
        raise RunError(_why(path, error)) from None
    finally:
        os.close(descriptor)


def lines_in(read: Callable[[], bytes], check: Callable[[bytes], None]) -> Iterator[list[str]]:
    """Lines of a text that `read` gives in blocks, b"" at its end; `check` sees each block before it is used."""
    rest, skipping = b"", False
    while block := read():
        check(block)
        if skipping:  # the rest of a line whose beginning is in `rest`
            if (at := block.find(b"\n")) < 0:
                continue
            block, skipping = block[at:], False
        whole, newline, tail = block.rpartition(b"\n")
        if newline:
            yield decoded(rest + whole)
            rest = tail
        else:
            rest += tail
        if len(rest) > LONGEST:
            rest, skipping = rest[:LONGEST], True
    if rest:
        yield decoded(rest)


def decoded(data: bytes) -> list[str]:
    """Whole lines, each cut where it is too long."""
    lines = data.replace(b"\r\n", b"\n").decode("utf-8", "replace").split("\n")
    if len(data) > LONGEST and max(map(len, lines)) > LONGEST:
        return [line[:LONGEST] for line in lines]
    return lines


class _Text:
    """Whether a file is one, by how it begins."""

    def __init__(self, path: Path) -> None:
        self._path, self._begun = path, False

    def check(self, block: bytes) -> None:
        if not self._begun and _binary(block[:8192]):
            raise RunError(f"{self._path} is no text: give the logs themselves, unpacked")
        self._begun = True


def _binary(sample: bytes) -> bool:
    """Whether more than a few bytes are none of a text."""
    return len(sample) - len(sample.translate(None, _ELSE)) > len(sample) // 20


def _why(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path} does not exist: name log files, or a run (`distui ls` lists them)"
    return f"{path} cannot be read ({(error.strerror or str(error)).lower()}): name log files that you may read"
