"""The cockpit's access to one run that its owner shares: through the socket of the share, and to nothing else."""

from __future__ import annotations

from pathlib import Path

from ..runners.run.wire import shared_link
from ..runners.run.wire.client import Link
from .rows.runs import RunEntry
from .source import LocalSource


class SharedSource(LocalSource):
    """One shared run. Its id is the path of the socket, which is the name of no run of this account."""

    def __init__(self, path: Path) -> None:
        super().__init__(readonly=True)
        self._path = path

    def runs(self) -> list[RunEntry]:
        """Return no runs: a share is of one run."""
        return []

    async def open(self, run_id: str) -> Link:
        """See LocalSource.open."""
        return await shared_link.connect(self._path)
