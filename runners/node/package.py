"""The bundle that brings distui to a node which has neither distui nor a package index; directories sent to hosts.

    bundle-<hash>/   node.sh  boot.py  bridge.py  socket_folders.py  distui.zip  wheels/  screens/

`distui.zip` holds this installation's own files (a checkout's or a wheel's), `wheels/` what they need that is
compiled: for CPython 3.11 to 3.14 on x86_64 and aarch64, as `pip download` finds it. Without an index it is this
environment's own installed packages, good for the same Python and machine. `screens/` is what the cockpit needs
beside that, for whoever logs in on a node: pure Python, packed as it is installed here.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from ...presets import trusted_files
from ...presets.trusted_files import private_folder
from .. import clock
from ..errors import RunError
from ..wire.ssh import HostError, Way, call

ROOMS = ("presets", "runners", "tui")
TOP = ("node/node.sh", "node/boot.py", "wire/bridge.py", "wire/socket_folders.py")
"""Files of the runners beside the archive: what a node executes before any package can be imported."""
NEEDED = ("msgspec", "psutil", "nvidia-ml-py")
SCREENS = (
    *("textual", "rich", "markdown-it-py", "mdurl", "mdit-py-plugins", "linkify-it-py", "uc-micro-py"),
    *("pygments", "platformdirs", "typing-extensions", "pyyaml"),
)
"""Textual and what it needs, as far as it is installed; and PyYAML, which works without its compiled part."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")
DOWNLOAD_SECONDS = 60.0
RETRY_SECONDS = 6 * 3600.0
"""After so long an index that did not have everything is asked again."""
DONE = "complete"
TRIED = "tried"


def cache_dir() -> Path:
    """Where bundles are kept."""
    return trusted_files.base("XDG_CACHE_HOME", os.environ) / "distui" / "bundles"


def build(cache: Path | None = None) -> Path:
    """The directory of a bundle of exactly this distui, made when there is none yet. Raises RunError."""
    home = cache or cache_dir()
    try:
        private_folder(home)
        for folder in (home.parent, home):
            _check_ours(folder)
        files = dict(_files())
        sections = {"wheels": _wheels(home), "screens": _screens(home)}
        made = home / f"bundle-{_hash(files, [wheel for wheels in sections.values() for wheel in wheels])}"
        if not made.is_dir():
            _make(made, files, sections)
    except OSError as error:
        raise RunError(
            f"the bundle for the nodes cannot be written to {home} ({error.strerror}): "
            "free space or set XDG_CACHE_HOME to a directory you can write"
        ) from None
    return made


def _check_ours(folder: Path) -> None:
    """What lies in a cache is executed on every node: refuse one that others can write. Raises RunError and OSError."""
    info = folder.stat()
    loose = info.st_mode & 0o022 and not info.st_mode & 0o1000
    if info.st_uid not in (0, os.geteuid()) or loose:
        raise RunError(
            f"{folder}, where the bundle for the nodes is kept, is not yours alone (owner {info.st_uid}, mode "
            f"{info.st_mode & 0o7777:o}): set XDG_CACHE_HOME to a directory of your own"
        )


def lay(name: str, folder: Path) -> None:
    """Put the bundle of this name into a folder, without copying where the file system can do so. Raises RunError."""
    source, target = cache_dir() / name, folder / name
    if target.is_dir():
        return
    if not source.is_dir() and build() != source:
        raise RunError(f"{source} is gone, and distui has changed since it was made: launch the run anew")
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
    """This installation's files by their path in `distui.zip`, and the words by which Python knows its version."""
    runners = Path(__file__).resolve().parent.parent
    for room in ROOMS:
        root = runners.parent / room
        for path in sorted(root.rglob("*")):
            if "__pycache__" not in path.parts and path.is_file():
                yield f"distui/{room}/{path.relative_to(root).as_posix()}", path.read_bytes()
    version = metadata.version("distui")
    about = f"Metadata-Version: 2.1\nName: distui\nVersion: {version}\n"
    yield f"distui-{version}.dist-info/METADATA", about.encode()


def _hash(files: dict[str, bytes], wheels: list[Path]) -> str:
    digest = hashlib.sha256()
    for name, data in files.items():
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    for wheel in wheels:
        digest.update(wheel.name.encode() + b"\0")
    return digest.hexdigest()[:12]


def _make(made: Path, files: dict[str, bytes], sections: dict[str, list[Path]]) -> None:
    """Whole or not at all. Raises OSError."""
    fresh = Path(tempfile.mkdtemp(prefix=".bundle-", dir=made.parent))
    try:
        for section, wheels in sections.items():
            (fresh / section).mkdir()
            for wheel in wheels:
                _link(wheel, fresh / section / wheel.name)
        for name in TOP:
            (fresh / Path(name).name).write_bytes(files[f"distui/runners/{name}"])
        (fresh / "node.sh").chmod(0o755)
        with zipfile.ZipFile(fresh / "distui.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                entry = zipfile.ZipInfo(name)
                entry.external_attr = (0o755 if data.startswith(b"#!") else 0o644) << 16
                archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
        fresh.chmod(0o755)
        fresh.rename(made)
    except OSError:
        if not made.is_dir():  # else somebody else was quicker
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


# -----------------------------------------------------------------------------------------------------------
# Wheels.


def requirements() -> list[str]:
    """What distui needs on a node, with the versions that it asks for."""
    wanted = {_normal(name) for name in NEEDED}
    asked = [line.partition(";")[0].strip() for line in metadata.requires("distui") or []]
    return sorted(line for line in asked if _normal(re.split(r"[<>=!~ \[]", line)[0]) in wanted)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _wheels(home: Path) -> list[Path]:
    """Wheels for every Python and machine that there are some for. Raises OSError and RunError."""
    asked = requirements()
    key = hashlib.sha256("\n".join([*asked, *PYTHONS, *MACHINES]).encode()).hexdigest()[:12]
    folder = home / f"wheels-{key}"
    folder.mkdir(exist_ok=True)
    tried = folder / TRIED
    if not (folder / DONE).exists() and not (
        tried.exists() and clock.now() - tried.stat().st_mtime < RETRY_SECONDS
    ):
        if _download(asked, folder):
            (folder / DONE).touch()
        else:
            for name in NEEDED:
                _pack_installed(name, folder)
        tried.touch()
    return sorted(folder.glob("*.whl"))


def _screens(home: Path) -> list[Path]:
    """Wheels of SCREENS as they are installed here, packed once each. Raises OSError and RunError."""
    folder = home / "screens"
    folder.mkdir(exist_ok=True)
    wheels = []
    for name in SCREENS:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        target = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        if not target.exists():
            _pack_installed(name, folder, compiled=False)
        wheels.append(target)
    return sorted(wheels)


def _download(asked: list[str], folder: Path) -> bool:
    """Get them from the package index; False when some are missing afterwards."""
    first, *jobs = [(python, machine) for python in PYTHONS for machine in MACHINES]
    if not _download_for(asked, folder, *first):
        return False  # no index, most likely: it is not asked seven times more
    with ThreadPoolExecutor(4) as pool:
        return all(list(pool.map(lambda job: _download_for(asked, folder, *job), jobs)))


def _download_for(asked: list[str], folder: Path, python: str, machine: str) -> bool:
    words = [
        sys.executable,
        "-P",  # what lies in the user's directory is no pip
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
    ]
    words += ["--only-binary=:all:", "--no-deps", "--implementation", "cp", "--python-version", python]
    words += [word for platform in PLATFORMS for word in ("--platform", f"{platform}_{machine}")]
    with tempfile.TemporaryDirectory(prefix=".get-", dir=folder) as fresh:
        try:
            done = subprocess.run(
                [*words, "--dest", fresh, *asked],
                stdin=subprocess.DEVNULL, capture_output=True, timeout=DOWNLOAD_SECONDS, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return False
        for wheel in Path(fresh).glob("*.whl"):
            wheel.replace(folder / wheel.name)
    return done.returncode == 0


def _pack_installed(name: str, folder: Path, compiled: bool = True) -> None:
    """This environment's own copy of a package as a wheel. Raises OSError and RunError.

    `compiled`: with its compiled parts, for its Python and machine; else for any.
    """
    try:
        package = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise RunError(f"{name} is not installed beside distui: install distui again") from None
    files = [file for file in package.files or [] if ".." not in file.parts and file.suffix != ".pyc"]
    if not compiled:
        files = [file for file in files if file.suffix != ".so"]
    pure = not any(file.suffix == ".so" for file in files)
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    tags = "py3-none-any" if pure else f"{python}-{python}-linux_{os.uname().machine}"
    target = folder / f"{name.replace('-', '_')}-{package.version}-{tags}.whl"
    temporary = target.with_suffix(f".{os.getpid()}.tmp")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.write(Path(str(package.locate_file(file))), str(file))
    temporary.replace(target)


# -----------------------------------------------------------------------------------------------------------
# Directories sent to hosts: tar over ssh's stdin, whole or not at all.


SEND_SECONDS = 600.0
LEFT_OUT = {".git", "__pycache__", ".venv", "node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
"""Of a directory that is no git checkout; of one, what git ignores."""
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
if [ -f "$name/node.sh" ]; then echo DISTUI-THERE; else echo DISTUI-MISSING; fi
"""


def packed(root: Path, name: str, files: Iterator[Path]) -> bytes:
    """A gzipped tar of files below `root`, in it below `name`. Raises OSError."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as archive:
        for path in files:
            archive.add(path, f"{name}/{path.relative_to(root).as_posix()}", recursive=False)
    return out.getvalue()


def everything(root: Path) -> Iterator[Path]:
    """All files of a directory."""
    yield root
    yield from sorted(path for path in root.rglob("*"))


def code(root: Path) -> Iterator[Path]:
    """A working directory's files: of a git checkout what git would keep, else all but LEFT_OUT."""
    yield root
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-coz", "--exclude-standard"], capture_output=True, check=False
    )
    if listed.returncode == 0:
        names = [name for name in listed.stdout.decode("utf-8", "surrogateescape").split("\0") if name]
        yield from (path for name in names if (path := root / name).exists() or path.is_symlink())
        return
    for path in sorted(root.rglob("*")):
        if not LEFT_OUT.intersection(path.relative_to(root).parts):
            yield path


async def send_bundle(way: Way, bundle: Path, data: bytes) -> None:
    """Put a bundle to ~/.distui/, unless it is there. Raises HostError."""
    script = f"name={shlex.quote(bundle.name)}\n{RECEIVE}"
    answer = await call(way, ("sh",), script.encode(), SEND_SECONDS)
    if b"DISTUI-THERE" in answer:
        return
    if b"DISTUI-MISSING" not in answer:
        raise HostError(
            f"host {way.destination} gives no shell to a command: `ssh {way.destination} sh` has to work"
        )
    await call(way, ("sh", "~/.distui/receive.sh", bundle.name), data, SEND_SECONDS)


async def send_work(way: Way, name: str, data: bytes) -> None:
    """Put a working directory to ~/.distui/NAME, in the place of an earlier one. Raises HostError."""
    await call(way, ("sh", "~/.distui/receive.sh", name, "replace"), data, SEND_SECONDS)


async def pack(root: Path, name: str, only_code: bool) -> bytes:
    """`packed` in a thread. Raises HostError."""
    try:
        return await asyncio.to_thread(packed, root, name, code(root) if only_code else everything(root))
    except OSError as error:
        raise HostError(f"{error.filename or root} cannot be read ({error.strerror})") from None
