"""The bundle that brings distui to nodes with neither distui nor a package index; and directories sent to hosts.

    bundle-<hash>/   node.sh  boot.py  bridge.py  own_folders.py  distui.zip  wheels/  screens/

`distui.zip` has this installation's own files (a checkout's or a wheel's). `wheels/` has its compiled dependencies for
CPython 3.11 to 3.14 on x86_64 and aarch64, from `pip download`. Without an index they are this environment's installed
packages, for nodes with this Python and machine. `screens/` has the other packages of the cockpit for users who log in
on a node: pure Python, packed from this installation.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import shlex
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...presets import base_dirs, trusted_files
from ...presets.base_dirs import private_folder
from ..run import clock, file_io
from ..run.errors import RunError
from ..run.launch_record import git_output
from ..run.wire.ssh import HostError, Way, call
from . import wheels

ROOMS = ("presets", "runners", "tui")
TOP = ("node/node.sh", "node/boot.py", "run/wire/bridge.py", "inrank/own_folders.py")
"""Files outside the archive: a node executes them before any package can be imported."""


def cache_dir() -> Path:
    """Folder of bundles."""
    return base_dirs.base("XDG_CACHE_HOME", os.environ) / "distui" / "bundles"


def name() -> str:
    """Name of the bundle of exactly this distui, which may not exist yet. Raises OSError."""
    return _name(dict(_files()))


def build(cache: Path | None = None, report: wheels.Report = wheels.no_report) -> Path:
    """Return the directory of a bundle of exactly this distui, created if missing. Raises RunError.

    `report` is called with the progress of the downloads.
    """
    home = cache or cache_dir()
    try:
        private_folder(home)
        _check_ours(home)
        _drop_damaged(home)
        files = dict(_files())
        sections = {"wheels": wheels.gather(home, report), "screens": wheels.screen_wheels(home)}
        made = home / _name(files)
        if not made.is_dir():
            _make(made, files)
        for section, found in sections.items():
            _fill(made / section, found)
    except OSError as error:
        raise RunError(
            f"the bundle for the nodes cannot be written to {home} ({error.strerror}): "
            "free space or set XDG_CACHE_HOME to a directory you can write"
        ) from None
    return made


def _drop_damaged(home: Path) -> None:
    """Delete archives that a power cut damaged: they are made, or downloaded, again."""
    for archive in [*home.glob("bundle-*/distui.zip"), *home.glob("**/*.whl")]:
        if zipfile.is_zipfile(archive):
            continue
        if archive.name == "distui.zip":
            shutil.rmtree(archive.parent)
        else:
            archive.unlink(missing_ok=True)
            wheels.forget(archive.parent)


def _check_ours(home: Path) -> None:
    """Refuse a cache that others can write or move, because every node executes its files. Raises RunError."""
    way = trusted_files.walk(home, through=False)
    os.close(way.held)
    doubt, mode = way.fixed or way.doubt, way.status.st_mode
    if doubt is not None or (mode & 0o022 and not mode & 0o1000):
        why = doubt.why if doubt is not None else f"mode {mode & 0o7777:o}"
        raise RunError(
            f"{home}, where the bundle for the nodes is kept, can be changed by other users ({why}): set "
            "XDG_CACHE_HOME to a directory of your own"
        )


def lay(name: str, folder: Path) -> None:
    """Put the named bundle into a folder, with hard links if possible. Raises RunError."""
    source, target = cache_dir() / name, folder / name
    if target.is_dir():
        return
    if source.is_dir():
        _check_ours(source.parent)
    if not source.is_dir() and build() != source:
        raise RunError(f"{source} is gone, and distui has changed since: launch the run again")
    fresh = folder / f".{name}"
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(source, fresh, copy_function=_link)
        fresh.rename(target)
    except OSError as error:
        raise RunError(
            f"the bundle cannot be put into {folder} ({error.strerror}): free space there"
        ) from None


def _files() -> Iterator[tuple[str, bytes]]:
    """Yield this installation's files by their path in `distui.zip`."""
    package = Path(__file__).parents[2]  # not resolved: a checkout has links to the rooms in it
    paths = [*package.iterdir(), *(path for room in ROOMS for path in (package / room).rglob("*"))]
    for path in sorted(paths):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"distui/{path.relative_to(package).as_posix()}", path.read_bytes()


def _name(files: dict[str, bytes]) -> str:
    digest = hashlib.sha256("\0".join(wheels.requirements()).encode())
    for path, data in files.items():
        digest.update(f"{path}\0{len(data)}\0".encode() + data)
    return f"bundle-{digest.hexdigest()[:12]}"


def _make(made: Path, files: dict[str, bytes]) -> None:
    """Create a bundle atomically, without wheels. Raises OSError."""
    fresh = Path(tempfile.mkdtemp(prefix=".bundle-", dir=made.parent))
    try:
        for path in TOP:
            file_io.write_atomically(fresh / Path(path).name, files[f"distui/runners/{path}"])
        (fresh / "node.sh").chmod(0o700)
        with (
            open(fresh / "distui.zip", "wb", opener=file_io.opener) as whole,
            zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for path, data in files.items():
                entry = zipfile.ZipInfo(path)
                entry.external_attr = (0o755 if data.startswith(b"#!") else 0o644) << 16
                archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
        fresh.rename(made)
    except OSError:
        if not made.is_dir():  # otherwise another process was faster
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _fill(section: Path, found: Sequence[Path]) -> None:
    """Make the section contain exactly these wheels; another download may have found more than the last one."""
    private_folder(section)
    there = {path.name for path in section.iterdir()}
    for name in there - {wheel.name for wheel in found}:
        (section / name).unlink(missing_ok=True)
    for wheel in found:
        if wheel.name not in there:
            with contextlib.suppress(FileExistsError):  # another process was faster
                _link(wheel, section / wheel.name)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


# -----------------------------------------------------------------------------------------------------------
# Directories sent to hosts: tar over ssh's stdin, unpacked atomically.


SEND_SECONDS = 600.0
LEFT_OUT = {".git", "__pycache__", ".venv", "node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
"""Names to omit in a directory without git; in a git checkout, git's ignored files are omitted."""
RECEIVE = r"""
mkdir -p "$HOME/.distui" && chmod 700 "$HOME/.distui" && cd "$HOME/.distui" || exit 2
cat > receive.sh.$$ <<'END'
# receive.sh NAME [replace]: unpack what comes on stdin as ~/.distui/NAME
cd "$HOME/.distui" || exit 2
fresh=".in-$(uname -n)-$$"
mkdir "$fresh" || exit 2
trap 'rm -rf "$fresh" "$fresh.old"' EXIT
tar -xzf - -C "$fresh" || { echo "distui: $(uname -n) could not unpack what was sent: is its disk full?" >&2; exit 2; }
mkdir -p "$(dirname "$1")"
if [ "$2" = replace ] && [ -d "$1" ]; then mv "$1" "$fresh.old"; fi
mv "$fresh/${1##*/}" "$(dirname "$1")/" 2>/dev/null || [ -d "$1" ] || exit 2
END
mv receive.sh.$$ receive.sh
if [ "$(ls "$name/wheels" 2>/dev/null | wc -l)" -ge "$wheels" ]; then echo DISTUI-THERE; else echo DISTUI-MISSING; fi
"""


def packed(root: Path, name: str, files: Iterator[Path]) -> bytes:
    """Pack files below `root` into a gzipped tar, below `name`. Raises OSError."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as archive:
        for path in files:
            archive.add(path, f"{name}/{path.relative_to(root).as_posix()}", recursive=False)
    return out.getvalue()


def everything(root: Path) -> Iterator[Path]:
    """Yield all files of a directory."""
    yield root
    yield from sorted(path for path in root.rglob("*"))


def code(root: Path) -> Iterator[Path]:
    """Yield a working directory's files: in a git checkout all that git does not ignore, else all but LEFT_OUT."""
    yield root
    words = ("ls-files", "-coz", "--exclude-standard")
    listed = git_output(str(root), words, clock.monotonic() + SEND_SECONDS)
    if listed is not None:
        names = [name for name in listed.decode("utf-8", "surrogateescape").split("\0") if name]
        yield from (path for name in names if (path := root / name).exists() or path.is_symlink())
        return
    for path in sorted(root.rglob("*")):
        if not LEFT_OUT.intersection(path.relative_to(root).parts):
            yield path


async def send_bundle(way: Way, bundle: Path, data: bytes) -> None:
    """Send a bundle to ~/.distui/, unless it exists there. Raises HostError."""
    wheels_here = len(list((bundle / "wheels").iterdir()))
    script = f"name={shlex.quote(bundle.name)}\nwheels={wheels_here}\n{RECEIVE}"
    answer = await call(way, ("sh",), script.encode(), SEND_SECONDS)
    if b"DISTUI-THERE" in answer:
        return
    if b"DISTUI-MISSING" not in answer:
        raise HostError(
            f"host {way.destination} runs no command in a shell: `ssh {way.destination} sh` has to work"
        )
    await call(way, ("sh", "~/.distui/receive.sh", bundle.name, "replace"), data, SEND_SECONDS)


async def send_work(way: Way, name: str, data: bytes) -> None:
    """Send a working directory to ~/.distui/NAME, in place of an earlier one. Raises HostError."""
    await call(way, ("sh", "~/.distui/receive.sh", name, "replace"), data, SEND_SECONDS)


async def pack(root: Path, name: str, only_code: bool) -> bytes:
    """Call `packed` in a thread. Raises HostError."""
    try:
        return await asyncio.to_thread(packed, root, name, code(root) if only_code else everything(root))
    except OSError as error:
        raise HostError(f"{error.filename or root} cannot be read ({error.strerror})") from None
