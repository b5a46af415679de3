"""Quote lines that ranks wrote and that may explain why they are late, as evidence. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..run.formatting import duration_text, time_of_day
from ..run.pulse import OwnLine, Pulse
from .prefixes import writer
from .view import View

MOST = 3
"""Maximum number of quoted ranks per finding."""


def unlike(by_rank: Mapping[int, Sequence[OwnLine]]) -> dict[int, tuple[OwnLine, ...]]:
    """Remove lines that several ranks wrote: they do not explain why one of them is late."""
    writers = Counter[str]()
    for lines in by_rank.values():
        writers.update({_bare(line) for line in lines})
    kept: dict[int, tuple[OwnLine, ...]] = {}
    for rank, lines in by_rank.items():
        own = tuple(line for line in lines if writers[_bare(line)] == 1)
        if own:
            kept[rank] = own
    return kept


def _bare(line: OwnLine) -> str:
    """Return the line without its logger's prefix, which differs between ranks."""
    return writer(line.text, None).text


def quoted(
    view: View, ranks: Sequence[int], others: Iterable[int], began: float | None = None
) -> list[str]:
    """ "rank 1 wrote at 12:40:58 UTC: skipping batch 17": lines that only one rank wrote.

    `began`: Unix time at which the others began to wait.
    """
    newest = {rank: view.newest(rank) for rank in (*ranks, *others)}
    here = {rank: pulse.wrote for rank, pulse in newest.items() if pulse is not None}
    if not any(here.get(rank) for rank in ranks):
        return []
    apart = unlike(here)
    return [_sentence(rank, line, began) for rank in ranks[:MOST] for line in apart.get(rank, ())]


_NUMBERS = re.compile(r"\d+")


def repeats(pulse: Pulse) -> bool:
    """Whether the last warnings of a rank differ in numbers only, as those of a loop that tries again do."""
    lines = {_NUMBERS.sub("0", _bare(line)) for line in pulse.wrote}
    return len(pulse.wrote) > 1 and len(lines) == 1


def _sentence(rank: int, line: OwnLine, began: float | None) -> str:
    if line.at is None:
        return f"rank {rank} wrote: {line.text}"
    at = time_of_day(line.at, utc=True)
    if began is None or began < line.at:
        return f"rank {rank} wrote at {at}: {line.text}"
    return f"rank {rank} wrote at {at}, {duration_text(began - line.at)} before the others began to wait: {line.text}"
