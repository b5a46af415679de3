"""What is kept of a run: logs of which the lines that repeat are left out."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

LIKE = 2
"""Lines of one shape that are kept of a rank: channels and collectives repeat by the dozen."""
_SHAPES = (
    (re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{6,}\b"), "0x"),
    (re.compile(r"-?\d+"), "#"),
    (re.compile(r"(# ?)+"), "#"),
)
_FOLDERS = re.compile(r"/[\w./+-]*/(?=rank\.py|libnccl|topology\.xml|meet)")


def shape(line: str) -> str:
    """A line without its numbers."""
    for pattern, text in _SHAPES:
        line = pattern.sub(text, line)
    return line


def trimmed(text: str) -> str:
    """The first lines of each shape, without the folders of this machine; blank ones are left out."""
    seen = Counter[str]()
    kept = []
    for line in text.splitlines():
        seen[shape(line)] += 1
        if line and (seen[shape(line)] <= LIKE or " NCCL INFO " not in line):
            kept.append(_FOLDERS.sub("/job/", line))
    return "\n".join(kept) + "\n"


def keep(folder: Path, target: Path) -> None:
    """Write what the corpus holds of a run."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for log in sorted(folder.glob("rank*.log")):
        (target / log.name).write_text(trimmed(log.read_text("utf-8", "replace")))
