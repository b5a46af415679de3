"""Write a run's metrics for node_exporter's textfile collector, if the settings name a directory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from pathlib import Path

from ...presets.finding import Finding
from ..run import clock, file_io
from ..telemetry import export_settings
from ..telemetry.exported_samples import samples_of
from ..telemetry.prometheus_text import text_of
from .runner_process import ServedRun

EVERY_S = 5.0
END_S = 5.0
"""Seconds that the end of a run waits for a directory that hangs."""
KEPT_S = 3600.0
"""Seconds that the file of an ended run stays, at least. The next run removes it."""
FAILED = "metrics-export"


class MetricsWriter:
    """Replaces the run's file every EVERY_S seconds. Its last content has the state at the run's end."""

    def __init__(self, run: ServedRun) -> None:
        self._run = run
        part = f"-node{run.node}" if run.record.kind == "node" else ""
        self._name = f"distui-{run.record.run}{part}.prom"
        self._writing: asyncio.Task[str] | None = None

    async def run(self) -> None:
        """Write until cancelled."""
        if self._run.state.phase.ended:
            return  # served for a reader: write nothing
        settings = await asyncio.to_thread(export_settings.load)
        self._report("; ".join(settings.problems))
        if settings.directory is None:
            return
        await asyncio.to_thread(sweep, settings.directory, clock.now())
        try:
            while True:
                self._writing = asyncio.create_task(self._write(settings.directory))
                self._report(await asyncio.shield(self._writing))
                await asyncio.sleep(EVERY_S)
        finally:
            await self._finish(settings.directory)

    async def _write(self, directory: Path) -> str:
        """Write once. Return the reason for a failure, or ""."""
        samples = samples_of(self._run.state, self._run.record.run, self._run.node, clock.now())
        return await asyncio.to_thread(write, directory / self._name, text_of(samples))

    async def _finish(self, directory: Path) -> None:
        """Write the last content of an ended run. If only its agent ends, remove the file, which would become stale."""
        if self._writing is not None and not self._writing.done():  # it must finish before the last one
            await asyncio.wait({self._writing}, timeout=END_S)
        if self._run.state.phase.ended:
            last = self._run.parts.once(FAILED, self._write(directory))
        else:
            last = self._run.parts.once(FAILED, asyncio.to_thread(remove, directory / self._name))
        await asyncio.wait({last}, timeout=END_S)

    def _report(self, why: str) -> None:
        remedy = "correct [export] of settings.toml, or make the directory and let your user write into it"
        report(self._run, FAILED, why and f"metrics are not written: {why}", remedy)


def report(run: ServedRun, name: str, text: str, remedy: str) -> None:
    """Raise a finding with this text, or clear it for "". Do nothing after the end of a run, its last event."""
    if run.state.phase.ended:
        return
    if not text:
        run.findings.clear(name, node=run.node)
        return
    run.findings.raise_finding(Finding(name, "warning", text, node=run.node, role="fact", remedy=remedy))


def write(path: Path, text: bytes) -> str:
    """Replace a file that all users may read. Return the reason for a failure, or ""."""
    try:
        file_io.write_atomically(path, text, mode=0o644)
    except OSError as error:
        return f"{path.parent}: {error.strerror or error}"
    return ""


def remove(path: Path) -> str:
    """Remove a file, and return ""."""
    with contextlib.suppress(OSError):
        path.unlink()
    return ""


def sweep(directory: Path, now: float) -> None:
    """Remove this user's files of runs that ended long ago, and of runs whose agent was killed."""
    with contextlib.suppress(OSError):
        for path in directory.glob("distui-*.prom"):
            with contextlib.suppress(OSError):
                seen = path.lstat()
                own = stat.S_ISREG(seen.st_mode) and seen.st_uid == os.geteuid()
                if own and now - seen.st_mtime > KEPT_S:
                    path.unlink()
