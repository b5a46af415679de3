"""What `distui export` gathers of a run, with secrets masked."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from ..presets.secrets import MASK, holds_secret, is_secret, mask_text, mask_value
from . import bundle_file, file_io, journal, run_directories
from .bundle_file import FORMAT, MOST_FILE, BundleWriter, Manifest
from .diagnosis import report
from .diagnosis.report import document
from .diagnosis.verdict import judge
from .formatting import spans_text
from .model import HUB, Stamped
from .state import RunState
from .status import standing_json, status_json
from .telemetry.metrics import LEVELS, Row
from .wire.link import Link, LinkError

# -----------------------------------------------------------------------------------------------------------
# Secrets taken out of what leaves this machine: by the rules of presets/secrets.py, and by value. Pure.


SHORTEST = 6
"""Characters of a value that is looked for everywhere: a shorter one would be found in innocent words."""

_NUMBER = re.compile(r"-?[\d.]{1,7}")


class Masker:
    """Masks texts and JSON values; `count` says how often something was."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """`secrets`: values that are masked wherever they stand."""
        self.count = 0
        forms = {form for value in secrets if _tells(value) for form in _forms(value)}
        ordered = sorted((form.encode() for form in forms), key=len, reverse=True)
        self._values = re.compile(b"|".join(map(re.escape, ordered))) if ordered else None

    def _hide(self, value: str) -> str:
        self.count += 1
        return MASK

    def text(self, data: bytes) -> bytes:
        """A text of any kind and encoding."""
        # Latin-1 keeps every byte; the rules are about ASCII.
        return mask_text(self._without_values(data).decode("latin-1"), self._hide).encode("latin-1")

    def _without_values(self, data: bytes) -> bytes:
        if self._values is None:
            return data
        data, number = self._values.subn(MASK.encode(), data)
        self.count += number
        return data

    def value(self, value: Any) -> Any:
        """A JSON value: texts in it, command lines in lists, and whole texts whose name is that of a secret."""
        return mask_value(self._plain(value), self._hide)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._without_values(value.encode("utf-8", "replace")).decode("utf-8", "replace")
        if isinstance(value, list):
            return [self._plain(part) for part in value]
        if isinstance(value, dict):
            return {key: self._plain(part) for key, part in value.items()}
        return value

    def document(self, data: bytes) -> bytes:
        """A JSON document; as text where it is none."""
        try:
            return json.dumps(self.value(json.loads(data)), indent=1).encode()
        except (ValueError, RecursionError):
            return self.text(data)

    def lines(self, data: bytes) -> bytes:
        """JSON, one object a line; what is none is left out, as a reader of the journal would."""
        return b"".join(self._line(line) for line in data.splitlines())

    def _line(self, line: bytes) -> bytes:
        try:
            return json.dumps(self.value(json.loads(line)), separators=(",", ":")).encode() + b"\n"
        except (ValueError, RecursionError):
            return b""


def _tells(value: str) -> bool:
    harmless = value.lower() in ("none", "null", "true", "false") or _NUMBER.fullmatch(value)
    return len(value) >= SHORTEST and not harmless


def _forms(value: str) -> set[str]:
    """The value as it stands in a text and in JSON."""
    return {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}


def secrets_in(env: Mapping[str, str]) -> set[str]:
    """Values of the variables that hold secrets, and the passwords in others' URLs."""
    values = {value for name, value in env.items() if is_secret(name) and _tells(value)}
    parts: set[str] = set()

    def noted(value: str) -> str:
        parts.add(value)
        return MASK

    for name, value in env.items():
        if not is_secret(name) and holds_secret(name, value):
            mask_text(value, noted)
    return values | {part for whole in parts for part in (whole, whole.partition(":")[2]) if _tells(part)}


# -----------------------------------------------------------------------------------------------------------
# Everything of a run that a bundle holds, read from its directory and through its link, masked, and written.


WINDOW = 1 << 20
"""Bytes that are asked for at once."""
_ROW = msgspec.json.Decoder(Row)


class Gathering:
    """One export."""

    def __init__(
        self, entry: run_directories.Entry, link: Link, state: RunState, writer: BundleWriter, tail: int
    ) -> None:
        """`tail`: bytes of the end of each log."""
        self._entry, self._link, self._state, self._writer = entry, link, state, writer
        self._tail = bundle_file.tail_of(tail, len(state.log_sizes))
        self._masker = Masker(secrets(entry, state))
        self._history = entry.history()
        self.missing = list(self._history.problems)

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
        # run.json may be damaged, and nothing opens without.
        record = msgspec.json.encode(self._entry.record)
        self._writer.add(run_directories.RUN_FILE, self._masker.document(record))
        plan = self._file(self._entry.path / run_directories.PLAN_FILE)
        if plan is not None:
            self._writer.add(run_directories.PLAN_FILE, self._masker.document(plan))
        self._writer.add(journal.NAME, self._masker.lines(self._journal()))
        status = self._masker.value(msgspec.to_builtins(status_json(self._state)))
        self._json("status.json", status)
        self._json("findings.json", status["findings"])

    def _journal(self) -> bytes:
        """The journal; with what other files say where it is not the whole history, as no bundle has those."""
        events = self._history.events
        if not all(event.seq for event in events):
            return b"\n".join(map(msgspec.json.encode, numbered(events)))
        whole, newline, _ = (self._file(self._entry.path / journal.NAME) or b"").rpartition(b"\n")
        return whole + newline

    def _file(self, path: Path, name: str = "", optional: bool = False) -> bytes | None:
        """A file of the run; None, and named as missing unless it is `optional`, where it cannot be read."""
        try:
            return file_io.content(path, MOST_FILE)
        except file_io.FileError as error:
            if not (optional and error.missing):
                self._lacks(f"{name or error.name} {error.why}")
            return None

    def _lacks(self, *texts: str) -> None:
        """Each is said once."""
        self.missing += [text for text in texts if text not in self.missing]

    def _json(self, name: str, value: object) -> None:
        self._writer.add(name, json.dumps(value, indent=1).encode() + b"\n")

    def _metrics(self) -> None:
        """Curves of this run, and of those of its parts that are on this machine."""
        hub = self._entry.record.kind == "hub"
        parts = run_directories.parts(self._entry.record.run) if hub else []
        places = (
            {f"node-{part.record.node}/": part.path for part in parts} if hub else {"": self._entry.path}
        )
        for before, path in places.items():
            for level in LEVELS:
                for name in (f"metrics/{level.name}", f"metrics/{level.name}.1"):
                    data = self._file(path / name, before + name, optional=True)
                    if data is not None:
                        self._writer.add(before + name, data)
                        self._lacks(*([f"{before}{name} has lines that are damaged"] * (not curves(data))))
        here = {part.record.node for part in parts}
        absent = sorted(node for node in self._state.nodes if hub and node != HUB and node not in here)
        if absent:
            self.missing.append(f"the curves of {spans_text('node', absent)} are on other machines")

    async def _log(self, file: str, size: int) -> None:
        """One log, cut to size."""
        pieces: list[tuple[int, bytes]] = []
        problem = ""
        for span in bundle_file.spans(size, self._tail):
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
        data, cut = bundle_file.joined(pieces, size)
        if problem:
            self.missing.append(f"{file}: {problem}")
        if pieces or not problem:
            self._writer.add(file, self._masker.text(data), size if cut else None)

    def _diagnosis(self) -> None:
        """What `distui diagnose --json` says of it; of the logs that are on this machine, whole."""
        files = report.of_run(self._entry)
        reading, unread = report.read_run(files)
        diagnosis = document(reading, judge(reading)) | {"live": standing_json(self._state, len(files))}
        self._lacks(*diagnosis["live"]["missing"], *unread)
        self._json("diagnose.json", self._masker.value(diagnosis))


def numbered(events: Iterable[Stamped]) -> Iterator[Stamped]:
    """Each with a number beyond the one before: what no journal held has none. Pure."""
    last = 0
    for event in events:
        last = max(event.seq, last + 1)
        yield structs.replace(event, seq=last)


def curves(data: bytes) -> bool:
    """Whether every whole line is a row of curves. Pure."""
    lines = (data.rpartition(b"\n")[0] or data).splitlines()
    return all(file_io.decoded(_ROW, line) is not None for line in lines if line)


def secrets(entry: run_directories.Entry, state: RunState) -> set[str]:
    """Values of secret variables here, and of those processes of the run that are on this machine."""
    named = (
        file_io.read(entry.path / name)
        for name in (run_directories.AGENT_FILE, run_directories.RUNNER_FILE)
    )
    pids = [
        who.pid for who in named if who is not None and not file_io.elsewhere(who) and file_io.alive(who)
    ]
    here = os.uname().nodename
    for rank in state.ranks.values():
        node = state.nodes.get(rank.place.node)
        if rank.pid is not None and node is not None and node.host == here and not state.phase.ended:
            pids.append(rank.pid)
    return secrets_in(os.environ).union(*(secrets_in(environment(pid)) for pid in pids))


def environment(pid: int) -> dict[str, str]:
    """The variables that a process was started with; {} where it is gone or another user's."""
    variables: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, equals, value = entry.decode("utf-8", "replace").partition("=")
            if equals:
                variables[name] = value
    return variables
