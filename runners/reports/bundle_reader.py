"""The reading of a bundle, which trusts nothing: only names that a bundle can have, regular files, sizes and hashes."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec
from msgspec import structs

from ...presets.base_dirs import private_folder
from ..run import file_io, journal, run_directories
from ..run.errors import RunError
from ..run.formatting import size_text, time_of_day
from ..run.model import HUB, Event, RankTick, RunEnded, RunPhase, Stamped
from ..run.samples import RankSample
from .bundle_files import FORMAT, MANIFEST, MOST_FILE, TOP, Manifest, belongs

MOST_BYTES = 8 << 30
MOST_FILES = 200_000
MOST_RATIO, FREE_OF_RATIO = 500, 64 << 20
"""Maximum compression ratio of a bundle, checked above this size: logs reach 300, zeros 1000."""
BLOCK = 512
"""Bytes of a tar block."""
STATE_HOME = "XDG_STATE_HOME"


def is_bundle(path: Path) -> bool:
    """Whether a file begins like a bundle; False for a pipe, because the bytes read from it would be lost."""
    try:
        with file_io.opened(path) as file, gzip.GzipFile(fileobj=file) as packed:
            head = packed.read(BLOCK)
        return _header(head, path) is not None
    except (file_io.FileError, OSError, EOFError, ValueError, zlib.error, RunError):
        return False


def unpack(path: Path, folder: Path) -> Manifest:
    """Write a bundle's files below `folder`/RUN and return its manifest. Raises RunError, and leaves files then."""
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
        _check_ratio(path, whole, os.fstat(file.fileno()).st_size)
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
        raise RunError(_no_bundle(path, "it is not a tar file")) from None
    top, _, name = info.name.partition("/")
    if (
        info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE)
        or not TOP.fullmatch(top)
        or not belongs(name)
        or info.size < 0
    ):
        raise RunError(_no_bundle(path, f"{info.name!r} belongs in no bundle"))
    return info


def _no_bundle(path: Path, why: str) -> str:
    return f"{path} is not a bundle of `distui export`: {why}"


def _words(error: BaseException) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


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
