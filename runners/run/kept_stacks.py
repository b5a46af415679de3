"""Requested stacks, stored next to the logs, so that a viewer of that time shows them later, also after the end."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec import json

from . import file_io
from .formatting import time_of_day

FOLDER = "stacks"
"""Folder in a node's folder; one file per answer, with its unix milliseconds as name."""
MOST = 32
"""Maximum number of kept answers per node; the newest are kept."""


NONE = "no stacks were taken by then: `w` on the live screen, or `distui dump RUN stacks`, takes them"


class KeptStacks(NamedTuple):
    """Answers at one moment."""

    at: float
    """Unix time by the node's clock; for several nodes, of the newest answer."""
    data: dict[str, str]
    """Rank → its hook's answer, as in CommandDone.data."""


def keep(run_dir: Path, node: int, at: float, data: Mapping[str, str]) -> None:
    """Store an answer, unless the disk is full: the requester has it anyway."""
    folder = run_dir / f"node-{node}" / FOLDER
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        file_io.write_atomically(folder / f"{int(at * 1000):015d}.json", json.encode(dict(data)))
        for path in sorted(folder.glob("*.json"))[:-MOST]:
            path.unlink()


def newest(run_dir: Path, at: float, ranks: Collection[int] = ()) -> KeptStacks | None:
    """Merge the newest answers of all nodes up to a moment, only of `ranks` if any are given."""
    moments: list[float] = []
    data: dict[str, str] = {}
    for folder in sorted(run_dir.glob(f"node-*/{FOLDER}")):
        path = _last(folder, at)
        kept = None if path is None else file_io.document_or_none(path, dict[str, str])
        if path is None or kept is None:
            continue
        its = {rank: text for rank, text in kept.items() if not ranks or int(rank) in ranks}
        if its:
            moments.append(int(path.stem) / 1000)
            data |= its
    return KeptStacks(max(moments), data) if moments else None


def _last(folder: Path, at: float) -> Path | None:
    """Return the file of a folder's last answer up to a moment."""
    taken = [path for path in sorted(folder.glob("*.json")) if path.stem.isdigit()]
    return next((path for path in reversed(taken) if int(path.stem) <= at * 1000), None)


def text(kept: KeptStacks) -> str:
    """Sentence with the time of the stacks."""
    return f"stacks taken {time_of_day(kept.at)}"
