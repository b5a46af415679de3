"""The diagnostic bundle of `distui export`: the files of a run with masked secrets; and its opening.

A bundle is a tar file of regular files below one folder, compressed with gzip; the manifest is last. Reading trusts
nothing: it accepts only names that a bundle can have and regular files, and verifies sizes and hashes.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec
from msgspec import Struct, structs

from ...presets.plurals import plural
from ...presets.secrets import Masker, secrets_in
from ...presets.trusted_files import private_folder
from ..diagnosis.diagnosis_document import document
from ..diagnosis.first_cause import judge
from ..diagnosis.read_logs import logs_of_run, read_run
from ..diagnosis.status import judged_attempt
from ..logs import line_times
from ..profile.profiling import FOLDER as PROFILES
from ..run import clock, file_io, journal, run_directories
from ..run.errors import RunError
from ..run.formatting import size_text, spans_text, time_of_day
from ..run.log_files import parse_file_id
from ..run.model import HUB, Event, RankSample, RankTick, ReadLog, RunEnded, RunPhase, Stamped
from ..run.processes import environ_of
from ..run.state import RunState
from ..run.wire.client import Link, LinkError, Window
from ..telemetry.curves import directories
from ..telemetry.metrics_files import FOLDER, LEVELS, gathered
from .status_document import standing_json, status_json

HEAD = 256 << 10
"""Bytes from a log's beginning."""
ALL_LOGS = 1 << 30
"""Maximum bytes of all logs' ends together; many logs get less each."""
LEAST_TAIL = 64 << 10


def tail_of(wanted: int, files: int) -> int:
    """Bytes from the end of each log, for this number of logs."""
    return min(wanted, max(LEAST_TAIL, ALL_LOGS // max(files, 1)))


@dataclass(frozen=True, slots=True)
class Span:
    """A range of a file, in bytes."""

    begin: int
    end: int


def spans(size: int, tail: int) -> list[Span]:
    """Ranges of a file to include: the whole file, or its beginning and its end."""
    return [Span(0, size)] if size <= HEAD + tail else [Span(0, HEAD), Span(size - tail, size)]


def marker(begin: int, end: int, size: int) -> bytes:
    """Line in place of omitted bytes."""
    return (
        f"[distui export left out {end - begin:,} bytes here: {begin:,} to {end:,} of {size:,}]\n".encode()
    )


def joined(pieces: list[tuple[int, bytes]], size: int) -> tuple[bytes, bool]:
    """Join pieces (offset, bytes) into one text with markers, and return it with whether it was cut."""
    text, at, cut = b"", 0, False
    for begin, data in pieces:
        if begin > at:
            text += (b"\n" if text and not text.endswith(b"\n") else b"") + marker(at, begin, size)
            cut = True
        elif begin < at:  # a window that begins at a line start repeats bytes
            begin, data = at, data[at - begin :]
        text += data
        at = begin + len(data)
    return text, cut


def placed(pieces: list[tuple[int, bytes]], size: int) -> list[line_times.CutPiece]:
    """Position of each piece in the text of `joined`. Pure."""
    return [
        line_times.CutPiece(begin, begin + len(data), len(joined(pieces[:count], size)[0]))
        for count, (begin, data) in enumerate(pieces, 1)
    ]


WINDOW = 1 << 20
"""Bytes per request."""
MANIFEST = run_directories.MANIFEST
FORMAT = 1
MOST_FILE = 256 << 20
MOST_CURVES = 64 << 20
"""Maximum bytes of one level's curves per node; the newest are included."""
MOST_BYTES = 8 << 30
MOST_FILES = 200_000
MOST_RATIO, FREE_OF_RATIO = 500, 64 << 20
"""Maximum compression ratio of a bundle, checked above this size: logs reach 300, zeros 1000."""
BLOCK = 512
"""Bytes of a tar block."""

_TOP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FIXED = re.compile(
    r"plan\.json|run\.json|journal\.jsonl|status\.json|findings\.json|diagnose\.json|MANIFEST\.json"
    r"|(?:node-\d{1,6}/)?metrics/(?:1|10|60|600)s\.jsonl(?:\.1)?"
)


class File(Struct, frozen=True, omit_defaults=True):
    """A file of a bundle, as listed in its manifest."""

    name: str
    bytes: int
    sha256: str
    of: int | None = None
    """Size of a cut file on its node, in bytes; None for a whole file."""


class Manifest(Struct, frozen=True):
    """Content of the last file of a bundle."""

    format: int
    distui: str
    """Version of distui that wrote it."""
    created: float
    """Unix time."""
    run: str
    name: str
    state: str
    live: bool
    """Whether the run had not ended yet."""
    files: list[File]
    missing: list[str]
    """Files of the run that are not included: one sentence each."""
    masked: int
    """Number of masked secrets."""


class BundleWriter:
    """Writes a bundle atomically. As a context manager it writes to a temporary name until it is finished."""

    def __init__(self, path: Path, top: str, force: bool = False) -> None:
        """`top` is the folder inside. Raises RunError if the file exists, unless `force`."""
        self._path, self._top, self._force = path, top, force
        if not _TOP.fullmatch(top):
            raise RunError(
                f"a bundle of a run cannot be opened whose directory is called {top!r}: rename the directory, with "
                "letters, digits, '.', '_' and '-' only"
            )
        self.files: list[File] = []
        self._at = clock.now()
        if path.is_dir() or (path.exists() and not force):
            raise RunError(_is_there(path))
        if path.exists() and not path.is_file():
            raise RunError(
                f"{path} is a device or a pipe, and no file that may be replaced: name another one"
            )
        # The name is chosen before the file is created, so that a signal at any moment leaves no file.
        self._temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp"

    def __enter__(self) -> BundleWriter:
        """Create the temporary file. Raises RunError."""
        made = False
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file = os.fdopen(os.open(self._temporary, flags, 0o600), "wb")
            self._packed = gzip.GzipFile("", "wb", compresslevel=6, fileobj=self._file)
            self._tar = tarfile.TarFile(fileobj=self._packed, mode="w", format=tarfile.USTAR_FORMAT)
            made = True
        except OSError as error:
            raise RunError(_unwritable(self._path, error)) from None
        finally:
            if not made:
                self._temporary.unlink(missing_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None
    ) -> None:
        """Remove the temporary file if the bundle is not finished."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._temporary.unlink(missing_ok=True)

    def add(self, name: str, data: bytes, of: int | None = None) -> None:
        """Add one file. Raises RunError if the disk refuses."""
        info = tarfile.TarInfo(f"{self._top}/{name}")
        info.size, info.mtime, info.mode = len(data), int(self._at), 0o600
        try:
            self._tar.addfile(info, io.BytesIO(data))
        except OSError as error:
            raise RunError(_unwritable(self._path, error)) from None
        self.files.append(File(name, len(data), hashlib.sha256(data).hexdigest(), of))

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest and give the file its final name. Raises RunError."""
        self.add(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        try:
            self._tar.close()
            self._packed.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._name()
        except FileExistsError:
            raise RunError(_is_there(self._path)) from None
        except OSError as error:
            raise RunError(_unwritable(self._path, error)) from None

    def _name(self) -> None:
        """Rename the file. Without `force`, a hard link fails if a file has appeared at the path."""
        if self._force:
            self._temporary.replace(self._path)
            return
        try:
            os.link(self._temporary, self._path)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            if self._path.exists():
                raise FileExistsError from None
            self._temporary.replace(self._path)


def is_bundle(path: Path) -> bool:
    """Whether a file begins like a bundle; False for a pipe, because the bytes read from it would be lost."""
    try:
        with file_io.opened(path) as file, gzip.GzipFile(fileobj=file) as packed:
            head = packed.read(BLOCK)
        return _header(head, path) is not None
    except (file_io.FileError, OSError, EOFError, ValueError, zlib.error, RunError):
        return False


def unpack(path: Path, folder: Path) -> Manifest:
    """Write a bundle's files below `folder`/RUN and return its manifest. Raises RunError, which leaves files behind."""
    try:
        with path.open("rb") as file, gzip.GzipFile(fileobj=file) as packed:
            hashes = _extracted(path, file, packed, folder)
    except (OSError, EOFError, zlib.error) as error:
        raise RunError(
            f"file {path} cannot be read ({_words(error)}): have it exported or copied again"
        ) from None
    top, manifest = _manifest(path, folder, list(hashes))
    if manifest.format != FORMAT:
        raise RunError(
            f"{path} is of distui {manifest.distui}, in a form that this version does not read: use that one"
        )
    listed = {f"{top}/{file.name}": file.sha256 for file in manifest.files}
    del hashes[f"{top}/{MANIFEST}"]
    if manifest.run != top or listed != hashes:
        raise RunError(
            f"{path} is not what was exported: its files differ from its manifest; have it exported again"
        )
    return manifest


def _manifest(path: Path, folder: Path, names: list[str]) -> tuple[str, Manifest]:
    """Return the folder inside the bundle, and the manifest, which is its last file. Raises RunError."""
    tops = {name.partition("/")[0] for name in names}
    if len(tops) > 1:
        raise RunError(_no_bundle(path, "it holds several runs"))
    try:
        if names and names[-1].rpartition("/")[2] == MANIFEST:
            data = (folder / names[-1]).read_bytes()
            return tops.pop(), msgspec.json.decode(data, type=Manifest)
    except (OSError, msgspec.MsgspecError):
        pass
    raise RunError(_no_bundle(path, "it has no manifest, or was cut off"))


def _extracted(path: Path, file: IO[bytes], packed: gzip.GzipFile, folder: Path) -> dict[str, str]:
    """Write each file below `folder`, and return the hashes by name.

    Raises RunError, OSError, EOFError and zlib.error.
    """
    hashes: dict[str, str] = {}
    whole = 0
    while (info := _header(packed.read(BLOCK), path)) is not None:
        whole += info.size
        if len(hashes) == MOST_FILES or info.size > MOST_FILE or whole > MOST_BYTES:
            limit = f"it unpacks to more than {MOST_BYTES >> 30} GiB, or {info.name} is too large"
            raise RunError(_no_bundle(path, limit))
        if info.name in hashes:
            raise RunError(_no_bundle(path, f"{info.name} is in it twice"))
        target = folder / info.name
        private_folder(target.parent)
        _check_room(path, target.parent, info.size)
        hashes[info.name] = _copy(packed, target, info.size)
        _check_ratio(path, packed.tell(), file.tell())
    rest = packed.read(tarfile.RECORDSIZE + 1)  # at most the padding of the last record
    if len(rest) > tarfile.RECORDSIZE or rest.strip(b"\0"):
        raise RunError(_no_bundle(path, "something follows its end"))
    return hashes


def _check_room(path: Path, folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > free:
        where = tempfile.gettempdir()
        raise RunError(
            f"{path} does not fit into {where}, of which {size_text(free)} are free: free space there, or set TMPDIR"
        )


def _check_ratio(path: Path, unpacked: int, packed: int) -> None:
    if unpacked > FREE_OF_RATIO and unpacked > MOST_RATIO * packed:
        raise RunError(_no_bundle(path, f"it unpacks to more than {MOST_RATIO} times its size"))


def _copy(packed: gzip.GzipFile, target: Path, size: int) -> str:
    digest, left = hashlib.sha256(), size
    with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
        while left:
            data = packed.read(min(left, 1 << 20))
            if not data:
                raise EOFError("it ends too early")
            digest.update(data)
            file.write(data)
            left -= len(data)
    packed.read(-size % BLOCK)
    return digest.hexdigest()


def _header(block: bytes, path: Path) -> tarfile.TarInfo | None:
    """Header of the next file; None at the end. tarfile only parses headers, so no format extension takes effect."""
    if not block.strip(b"\0"):
        return None
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError):
        raise RunError(_no_bundle(path, "it is no tar file")) from None
    top, _, name = info.name.partition("/")
    log = name.removeprefix(f"{line_times.FOLDER}/")
    belongs = _FIXED.fullmatch(name) is not None or parse_file_id(log) is not None
    if (
        info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE)
        or not _TOP.fullmatch(top)
        or not belongs
        or info.size < 0
    ):
        raise RunError(_no_bundle(path, f"{info.name!r} belongs into no bundle"))
    return info


def _is_there(path: Path) -> str:
    return f"{path} is there already: name another file, or replace it with --force"


def _unwritable(path: Path, error: OSError) -> str:
    return f"{path} cannot be written ({(error.strerror or str(error)).lower()}): name a file where there is room"


def _no_bundle(path: Path, why: str) -> str:
    return f"{path} is no bundle of `distui export`: {why}"


def _words(error: BaseException) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


STATE_HOME = "XDG_STATE_HOME"


@contextmanager
def opened(path: Path) -> Iterator[Manifest]:
    """Open a bundle as the only run of the registry, in a temporary folder. Raises RunError."""
    before = os.environ.get(STATE_HOME)
    with tempfile.TemporaryDirectory(prefix="distui-replay-") as folder:
        os.environ[STATE_HOME] = folder
        try:
            runs = run_directories.runs_dir()
            yield _settle(path, unpack(path, runs), runs)
        except RunError as error:  # the folder will be removed: the message names the bundle and its member
            error.args = (re.sub(rf"{re.escape(folder)}/distui/runs/[^/\s]+", str(path), str(error)),)
            raise
        finally:
            if before is None:
                del os.environ[STATE_HOME]
            else:
                os.environ[STATE_HOME] = before


@contextmanager
def unpacked(path: Path) -> Iterator[run_directories.Entry]:
    """Open a bundle's run outside the registry, which keeps its own runs. Raises RunError."""
    with tempfile.TemporaryDirectory(prefix="distui-bundle-") as folder:
        manifest = _settle(path, unpack(path, Path(folder)), Path(folder))
        entry = run_directories.served(Path(folder) / manifest.run)
        if entry is None:
            raise RunError(_no_bundle(path, "its run.json cannot be read"))
        yield entry


def _settle(path: Path, manifest: Manifest, runs: Path) -> Manifest:
    """Turn the unpacked run into an ended local run, so that no agent is needed."""
    entry = run_directories.served(runs / manifest.run)
    if entry is None:
        raise RunError(f"{path} holds no run.json that can be read: have it exported again")
    record = structs.replace(entry.record, kind="local", whole="")
    file_io.write_atomically(entry.path / run_directories.RUN_FILE, msgspec.json.encode(record))
    state = entry.state()
    if not state.phase.ended:
        status = file_io.document_or_none(entry.path / "status.json", _Status) or _Status()
        node = HUB if state.merged else min(state.nodes, default=0)
        with (entry.path / journal.NAME).open("ab") as file:
            for number, event in enumerate(_closing(status, manifest), state.seq + 1):
                at = manifest.created if status.ended is None else status.ended
                file.write(msgspec.json.encode(Stamped(at, event, number, node)) + b"\n")
    return manifest


class _Status(msgspec.Struct):
    """The required fields of the exported status."""

    text: str = ""
    exit_code: int | None = None
    ended: float | None = None
    ranks: tuple[RankSample, ...] = ()


def _closing(status: _Status, manifest: Manifest) -> list[Event]:
    """Return the last samples, which a living run's journal lacks, and the state at the time of the export."""
    samples = [RankTick(status.ranks)] if status.ranks else []
    for phase in RunPhase:
        if phase.ended and phase == manifest.state:
            return [*samples, RunEnded(phase, status.exit_code, status.text)]
    when = time_of_day(manifest.created, utc=True, date=True)
    text = f"it was {manifest.state} when it was exported, {when}"
    return [*samples, RunEnded(RunPhase.EXPORTED, None, text)]


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
            version("distui"),
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
