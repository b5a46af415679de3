"""The cockpit's access to one run that its owner shares: through the socket of the share, and to nothing else."""

from __future__ import annotations

from pathlib import Path

from ..runners.run.wire import shared_link
from ..runners.run.wire.client import Link
from .rows.runs import RunEntry
from .source import LocalSource


class SharedSource(LocalSource):
    """One shared run. Its id is the path of the socket, which is the name of no run of this account."""

    def __init__(self, path: Path, owner: int | None = None) -> None:
        """`owner`: uid of the account that shares; None for the one that shares when it is opened first."""
        super().__init__(readonly=True)
        self._path, self._owner = path, owner

    def runs(self) -> list[RunEntry]:
        """Return no runs: a share is of one run."""
        return []

    async def open(self, run_id: str) -> Link:
        """See LocalSource.open."""
        if self._owner is None:
            self._owner = shared_link.owner_at(self._path)
        return await shared_link.connect(self._path, self._owner)
