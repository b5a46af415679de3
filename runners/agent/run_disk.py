"""Check the free space of the disk of the run directory."""

from __future__ import annotations

import resource

from ...presets.finding import Finding
from ..run.formatting import size_text
from .runner_process import ServedRun

LOW_SHARE = 0.05
"""Share of free space below which a warning is raised."""
FULL_BYTES = 1 << 20
FULL, LOW = "disk-full", "disk-low"


class RunDisk:
    """Raises and clears the findings on the free space."""

    def __init__(self, run: ServedRun) -> None:
        self._run = run

    def check(self, free: int | None, total: int | None, refused: bool) -> None:
        """Check the free space.

        `refused`: a write failed, which a quota can also cause without a change in the free space.
        """
        if refused:
            self._raise_full("the journal or the metrics could not be written")
        elif free is None:
            return
        elif free < FULL_BYTES:
            self._raise_full(f"{size_text(free)} are free there")
        elif total:
            self._run.findings.clear(FULL, node=self._run.node)
            self._check_low(free, total)

    def _raise_full(self, evidence: str) -> None:
        text = "the disk of the run directory is full: log lines are lost, the run goes on"
        self._raise(FULL, "error", text, evidence)

    def _check_low(self, free: int, total: int) -> None:
        if free >= LOW_SHARE * total:
            self._run.findings.clear(LOW, node=self._run.node)
            return
        room = f"{size_text(free)} of {size_text(total)} are free there"
        self._raise(LOW, "warning", f"only {size_text(free)} are free where the run directory is", room)

    def _raise(self, name: str, severity: str, text: str, evidence: str) -> None:
        run = self._run
        remedy = f"free space on the file system of {run.run_dir}"
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if limit != resource.RLIM_INFINITY:
            remedy += f", or raise the limit on the size of a file, {size_text(limit)} here (`ulimit -f unlimited`)"
        finding = Finding(name, severity, text, remedy=remedy, node=run.node, evidence=(evidence,))
        run.findings.raise_once(finding)
