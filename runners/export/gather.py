"""Everything of a run that a bundle holds, read from its directory and through its link, masked, and written."""

from __future__ import annotations

import contextlib
import json
import os
import time
from importlib.metadata import version
from pathlib import Path

import msgspec

from .. import identity, journal, registry
from ..diagnosis import sources, standing
from ..diagnosis.document import document
from ..diagnosis.verdict import judge
from ..errors import RunError
from ..model import HUB
from ..state import RunState
from ..status import status
from ..telemetry.metrics import LEVELS
from ..wire.link import Link, LinkError
from . import cutting
from .bundle import FORMAT, Manifest, Writer
from .masking import Masker, secrets_in

WINDOW = 1 << 20
"""Bytes that are asked for at once."""


class Gathering:
    """One export."""

    def __init__(
        self, entry: registry.Entry, link: Link, state: RunState, writer: Writer, tail: int
    ) -> None:
        """`tail`: bytes of the end of each log."""
        self._entry, self._link, self._state, self._writer = entry, link, state, writer
        self._tail = cutting.tail_of(tail, len(state.log_sizes))
        self._masker = Masker(secrets(entry, state))
        self.missing: list[str] = []

    async def run(self) -> Manifest:
        """Write all of it. Raises RunError."""
        self._documents()
        self._metrics()
        for file, size in sorted(self._state.log_sizes.items()):
            await self._log(file, size)
        self._diagnosis()
        record, state = self._entry.record, self._state
        manifest = Manifest(
            FORMAT, version("distui"), time.time(), record.run, record.name, str(state.phase),
            not state.phase.ended, list(self._writer.files), self.missing, self._masker.count,
        )  # fmt: skip
        self._writer.finish(manifest)
        return manifest

    def _documents(self) -> None:
        for name in (registry.RUN_FILE, registry.PLAN_FILE):
            data = _file(self._entry.path / name)
            if data is None:
                self.missing.append(f"{name} is not there")
            else:
                self._writer.add(name, self._masker.document(data))
        whole, newline, _ = (_file(self._entry.path / journal.NAME) or b"").rpartition(b"\n")
        self._writer.add(journal.NAME, self._masker.lines(whole + newline))
        told = self._masker.value(msgspec.to_builtins(status(self._state)))
        self._json("status.json", told)
        self._json("findings.json", told["findings"])

    def _json(self, name: str, value: object) -> None:
        self._writer.add(name, json.dumps(value, indent=1).encode() + b"\n")

    def _metrics(self) -> None:
        """Curves of this run, and of those of its parts that are on this machine."""
        hub = self._entry.record.kind == "hub"
        parts = registry.parts(self._entry.record.run) if hub else []
        places = (
            {f"node-{part.record.node}/": part.path for part in parts} if hub else {"": self._entry.path}
        )
        for before, path in places.items():
            for level in LEVELS:
                for name in (f"metrics/{level.name}", f"metrics/{level.name}.1"):
                    data = _file(path / name)
                    if data is not None:
                        self._writer.add(before + name, data)
        here = {part.record.node for part in parts}
        absent = sorted(node for node in self._state.nodes if hub and node != HUB and node not in here)
        if absent:
            self.missing.append(f"the curves of {_nodes(absent)} are on other machines")

    async def _log(self, file: str, size: int) -> None:
        """One log, cut to size."""
        pieces: list[tuple[int, bytes]] = []
        problem = ""
        for span in cutting.spans(size, self._tail):
            at = span.begin
            while at < span.end and not problem:
                try:
                    window = await self._link.read_log(file, at, min(WINDOW, span.end - at))
                except LinkError as error:
                    problem = str(error)
                    break
                problem = window.error
                if window.data:
                    pieces.append((window.offset, window.data))
                if window.next <= at:
                    break
                at = window.next
        data, cut = cutting.joined(pieces, size)
        if problem:
            self.missing.append(f"{file}: {problem}")
        if pieces or not problem:
            self._writer.add(file, self._masker.text(data), size if cut else None)

    def _diagnosis(self) -> None:
        """What `distui diagnose --json` says of it; of the logs that are on this machine, whole."""
        files = sources.of_run(self._entry)
        try:
            reading = sources.read_all(files)
        except RunError as error:
            self.missing.append(f"diagnose.json: {error}")
            return
        told = document(reading, judge(reading)) | {"live": standing.document(self._state, len(files))}
        self.missing += [text for text in told["live"]["missing"] if text not in self.missing]
        self._json("diagnose.json", self._masker.value(told))


def _nodes(numbers: list[int]) -> str:
    return f"node{'' if len(numbers) == 1 else 's'} " + ", ".join(map(str, numbers))


def _file(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def secrets(entry: registry.Entry, state: RunState) -> set[str]:
    """Values of secret variables here, and of those processes of the run that are on this machine."""
    known = (identity.read(entry.path / name) for name in (registry.AGENT_FILE, registry.RUNNER_FILE))
    pids = [
        who.pid for who in known if who is not None and not identity.elsewhere(who) and identity.alive(who)
    ]
    here = os.uname().nodename
    for rank in state.ranks.values():
        node = state.nodes.get(rank.place.node)
        if rank.pid is not None and node is not None and node.host == here and not state.phase.ended:
            pids.append(rank.pid)
    return secrets_in(os.environ).union(*(secrets_in(environment(pid)) for pid in pids))


def environment(pid: int) -> dict[str, str]:
    """The variables that a process was started with; {} where it is gone or another user's."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, equals, value = entry.decode("utf-8", "replace").partition("=")
            if equals:
                found[name] = value
    return found
