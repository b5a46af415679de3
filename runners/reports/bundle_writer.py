"""The writing of a bundle: atomically, file by file, the manifest last."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import secrets
import tarfile
from pathlib import Path
from types import TracebackType

import msgspec

from ..run import clock
from ..run.errors import RunError
from .bundle_files import MANIFEST, TOP, File, Manifest


class BundleWriter:
    """Writes a bundle atomically. As a context manager it writes to a temporary name until it is finished."""

    def __init__(self, path: Path, top: str, force: bool = False) -> None:
        """`top` is the folder inside. Raises RunError if the file exists, unless `force`."""
        self._path, self._top, self._force = path, top, force
        if not TOP.fullmatch(top):
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


def _is_there(path: Path) -> str:
    return f"{path} is there already: name another file, or replace it with --force"


def _unwritable(path: Path, error: OSError) -> str:
    return f"{path} cannot be written ({(error.strerror or str(error)).lower()}): name a file where there is room"
