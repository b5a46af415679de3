"""The gathering of what a bundle holds: the files of a run with masked secrets."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import structs

from ... import __version__
from ...presets.masker import Masker, secrets_in
from ...presets.plurals import plural
from ..diagnosis.diagnosis_document import document
from ..diagnosis.first_cause import judge
from ..diagnosis.read_logs import judged_attempt, logs_of_run, read_run
from ..logs import line_times
from ..node.run_following import snapshot
from ..profile.rank_traces import FOLDER as PROFILES
from ..run import clock, file_io, journal, run_directories
from ..run.commands import ReadLog
from ..run.formatting import size_text, spans_text
from ..run.model import HUB, Stamped
from ..run.processes import environ_of
from ..run.state import RunState
from ..run.wire.client import Link, LinkError, Window
from ..telemetry.curves import directories
from ..telemetry.metrics_files import FOLDER, LEVELS, gathered
from .bundle_files import FORMAT, MOST_FILE, Manifest
from .bundle_writer import BundleWriter
from .cut_logs import Span, joined, placed, spans, tail_of
from .run_status import complete
from .status_document import standing_json, status_json

WINDOW = 1 << 20
"""Bytes per request."""
MOST_CURVES = 64 << 20
"""Maximum bytes of one level's curves per node; the newest are included."""


async def write_bundle(
    entry: run_directories.Entry, link: Link, path: Path, *, force: bool, log_bytes: int
) -> Manifest:
    """Write a run into a bundle; `force` replaces a file. Raises RunError.

    `log_bytes`: bytes kept of the end of each log, after its beginning.
    """
    state = await snapshot(link)
    if entry.record.kind == "node":  # the link leads to the hub of the whole run
        entry = run_directories.resolve(entry.record.whole)
    complete(state, entry, link)
    with BundleWriter(path, entry.record.run, force) as writer:
        return await Gathering(entry, link, state, writer, log_bytes).run()


class Gathering:
    """One export."""

    def __init__(
        self,
        entry: run_directories.Entry,
        link: Link,
        state: RunState,
        writer: BundleWriter,
        tail: int,
    ) -> None:
        """`tail`: bytes from the end of each log."""
        self._entry, self._link, self._state, self._writer = entry, link, state, writer
        self._tail = tail_of(tail, len(state.log_sizes))
        self._masker = Masker(secrets_of(entry, state))
        self._history = entry.history()
        self.missing = list(self._history.problems)

    async def run(self) -> Manifest:
        """Write the whole bundle. Raises RunError."""
        self._documents()
        self._metrics()
        for file, size in sorted(self._state.log_sizes.items()):
            await self._log(file, size)
        self._traces()
        self._diagnosis()
        record, state = self._entry.record, self._state
        missing = [self._masker.value(text) for text in self.missing]
        manifest = Manifest(
            FORMAT,
            __version__,
            clock.now(),
            record.run,
            record.name,
            str(state.phase),
            not state.phase.ended,
            list(self._writer.files),
            missing,
            self._masker.count,
        )
        self._writer.finish(manifest)
        return manifest

    def _documents(self) -> None:
        # run.json may be damaged, but a bundle cannot be opened without one.
        record = msgspec.json.encode(structs.replace(self._entry.record, fingerprints={}))
        self._writer.add(run_directories.RUN_FILE, self._masker.document(record))
        plan = self._file(self._entry.path / run_directories.PLAN_FILE)
        if plan is not None:
            self._writer.add(run_directories.PLAN_FILE, self._masker.document(plan))
        self._writer.add(journal.NAME, self._masker.lines(self._journal()))
        status = self._masker.value(msgspec.to_builtins(status_json(self._state)))
        self._json("status.json", status)
        self._json("findings.json", status["findings"])

    def _journal(self) -> bytes:
        """Return the journal, or, if it is not the whole history, all events: a bundle lacks their other files."""
        events = self._history.events
        if not all(event.seq for event in events):
            return b"\n".join(map(msgspec.json.encode, numbered(events)))
        whole, newline, _ = (self._file(self._entry.path / journal.NAME) or b"").rpartition(b"\n")
        return whole + newline

    def _file(self, path: Path, name: str = "", optional: bool = False) -> bytes | None:
        """Content of a file of the run. If it cannot be read: None, and noted as missing unless `optional`."""
        try:
            return file_io.content(path, MOST_FILE)
        except file_io.FileError as error:
            if not (optional and error.missing):
                self._lacks(f"{name or error.name} {error.why}")
            return None

    def _lacks(self, *texts: str) -> None:
        """Note each text once."""
        self.missing += [text for text in texts if text not in self.missing]

    def _json(self, name: str, value: object) -> None:
        self._writer.add(name, json.dumps(value, indent=1).encode() + b"\n")

    def _metrics(self) -> None:
        """Add the curves of this run and of its parts on this machine: one file per level, not compressed twice."""
        hub = self._entry.record.kind == "hub"
        by_node = directories(self._entry)
        for node, path in by_node.items():
            before = f"node-{node}/" if hub else ""
            for level in LEVELS:
                name = f"{FOLDER}/{level.name}"
                data, damaged = gathered(path, level, MOST_CURVES)
                if data or damaged:
                    self._writer.add(before + name, data)
                if damaged:
                    self._lacks(f"{before}{name} has lines that are damaged")
        absent = self._state.nodes.keys() - by_node.keys() - {HUB}
        if hub and absent:
            self.missing.append(f"the curves of {spans_text('node', absent)} are on other machines")

    async def _log(self, file: str, size: int) -> None:
        """Add one log, cut to size."""
        pieces: list[tuple[int, bytes]] = []
        times: set[line_times.Record] = set()
        problem = ""
        try:
            async for window in self._windows(file, spans(size, self._tail)):
                if window.data:
                    pieces.append((window.offset, window.data))
                    times.update(window.times)
                if window.error:
                    problem = window.error
                    break
        except LinkError as error:
            problem = str(error)
        data, cut = joined(pieces, size)
        if problem:
            self.missing.append(f"{file}: {problem}")
        if pieces or not problem:
            masked = self._masker.text(data)
            self._writer.add(file, masked, size if cut else None)
            records = line_times.moved(placed(pieces, size), sorted(times), data, masked)
            if records:
                self._writer.add(f"{line_times.FOLDER}/{file}", line_times.packed(records))

    async def _windows(self, file: str, ranges: Iterable[Span]) -> AsyncIterator[Window]:
        """Yield the windows of a log in these ranges. Raises LinkError."""
        for span in ranges:
            at = span.begin
            while at < span.end:
                window = await self._link.read_log(ReadLog(file, at, min(WINDOW, span.end - at)))
                yield window
                if window.next <= at:
                    break
                at = window.next

    def _traces(self) -> None:
        """Note the traces of profiles, which are not packed."""
        folder = self._entry.path
        traces = [*folder.glob(f"{PROFILES}/*/*.gz"), *folder.glob(f"node-*/{PROFILES}/*/*.gz")]
        if traces:
            size = size_text(sum(trace.lstat().st_size for trace in traces))
            self.missing.append(f"{plural(len(traces), 'trace')} of profiles, {size}, in {folder}")

    def _diagnosis(self) -> None:
        """Add the output of `distui diagnose --json`, from the whole logs on this machine."""
        files = logs_of_run(self._entry, judged_attempt(self._entry, self._state))
        reading, unread = read_run(files)
        live = standing_json(self._state, [name for name, _ in files])
        self._lacks(*live["missing"], *unread)
        self._json("diagnose.json", self._masker.value({**document(reading, judge(reading)), "live": live}))


def numbered(events: Iterable[Stamped]) -> Iterator[Stamped]:
    """Yield events with increasing seq: events that are in no journal have none. Pure."""
    last = 0
    for event in events:
        last = max(event.seq, last + 1)
        yield structs.replace(event, seq=last)


def secrets_of(entry: run_directories.Entry, state: RunState) -> set[str]:
    """Values of secret variables in this process and in the run's processes on this machine."""
    pids: list[int] = []
    for name in (run_directories.AGENT_FILE, run_directories.RUNNER_FILE):
        process = file_io.read(entry.path / name)
        if process is not None and not file_io.elsewhere(process) and file_io.alive(process):
            pids.append(process.pid)
    if not state.phase.ended:
        pids += _ranks_here(state)
    return secrets_in(os.environ).union(*(secrets_in(environ_of(pid)) for pid in pids))


def _ranks_here(state: RunState) -> Iterator[int]:
    """Yield the pids of the ranks on this machine."""
    here = {number for number, node in state.nodes.items() if node.host == os.uname().nodename}
    for rank in state.ranks.values():
        if rank.pid is not None and rank.place.node in here:
            yield rank.pid
