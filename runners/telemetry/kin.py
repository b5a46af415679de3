"""Whose child each process is, kept from one look at /proc to the next, so that only new ones are read."""

from __future__ import annotations

import os
from collections.abc import Iterable

from .proc import below, children, read_stat

AGAIN = 12
"""Looks after which everything is read anew: until then a pid given to another process may pass for the old one."""


class Kin:
    """The processes that can be seen; `look` about every few seconds (a listing of /proc, 10 µs a new process)."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._known: dict[int, tuple[int, int]] = {}
        """pid → parent, start time."""
        self._looks = 0

    def look(self) -> None:
        """See who came, who went, and who was given another parent because its own has ended."""
        if self._looks % AGAIN == 0:
            self._known.clear()
        self._looks += 1
        here = {int(name) for name in os.listdir(self._proc) if name.isdigit()}
        for pid in self._known.keys() - here:
            del self._known[pid]
        orphans = [pid for pid, (parent, _) in self._known.items() if parent and parent not in here]
        for pid in [*orphans, *(here - self._known.keys())]:
            self._read(pid)

    def _read(self, pid: int) -> None:
        stat = read_stat(pid, self._proc)
        if stat is None:
            self._known.pop(pid, None)
        else:
            self._known[pid] = stat.ppid, stat.started

    def below(self, roots: Iterable[int]) -> dict[int, dict[int, int]]:
        """For each of `roots` all that descend from it: pid → start time."""
        tree = children({pid: parent for pid, (parent, _) in self._known.items()})
        return {root: {pid: self._known[pid][1] for pid in below(tree, root)} for root in roots}
