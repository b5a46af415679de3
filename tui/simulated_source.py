"""The cockpit's access to the simulated run of `distui demo`, next to the runs of this machine."""

from __future__ import annotations

from collections.abc import Callable

from ..runners.run.commands import Stop
from ..runners.run.model import CommandDone
from ..runners.run.wire.client import Link
from ..runners.watch.simulated_link import RUN, SimulatedLink
from ..runners.watch.simulated_training import Faults
from .source import LocalSource


class SimulatedSource(LocalSource):
    """One more run, which exists only while the cockpit is open."""

    simulated = True

    def __init__(self, faults: Faults, readonly: bool = False) -> None:
        super().__init__(readonly)
        self._faults = faults
        self._link: SimulatedLink | None = None

    async def open(self, run_id: str) -> Link:
        """See LocalSource.open."""
        if run_id != RUN:
            return await super().open(run_id)
        self._link = SimulatedLink(self._faults)
        return self._link

    async def stop(self, run_id: str, command: Stop, say: Callable[[str], None]) -> CommandDone:
        """See LocalSource.stop."""
        if run_id != RUN or self._link is None:
            return await super().stop(run_id, command, say)
        return await self._link.send(command)
