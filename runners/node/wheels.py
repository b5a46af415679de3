"""Wheels of distui's dependencies on nodes, for each Python and machine that a node may have.

`pip download` gets them once from the package index; those of one kind of node stay even if the others fail. Without an
index they are this environment's own packages, for nodes with this Python and machine.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from ...presets.base_dirs import private_folder
from ..run import clock, file_io
from ..run.errors import RunError

NEEDED = ("msgspec", "psutil", "nvidia-ml-py")
SCREENS = (
    *("textual", "rich", "markdown-it-py", "mdurl", "mdit-py-plugins", "linkify-it-py", "uc-micro-py"),
    *("pygments", "platformdirs", "typing-extensions", "pyyaml"),
)
"""Textual and its dependencies, if installed; and PyYAML, which works without its compiled part."""
DOWNLOAD = (
    "download",
    "--quiet",
    "--disable-pip-version-check",
    "--no-input",
    "--only-binary=:all:",
    "--no-deps",
    "--implementation",
    "cp",
)
"""Arguments for pip."""
PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")
DOWNLOAD_SECONDS = 60.0
RETRY_SECONDS = 6 * 3600.0
"""Seconds before an index that lacked wheels is tried again."""
REASON_FILE = "tried"
"""File next to the wheels: why the last downloads failed; empty if none did."""
Report = Callable[[int, int], None]
"""Report the number of finished downloads, and of all downloads."""


class NodeKind(NamedTuple):
    """A kind of node, which needs its own wheels."""

    python: str
    machine: str

    def __str__(self) -> str:
        return f"Python {self.python} on {self.machine}"


NODE_KINDS = [
    NodeKind(python, machine)
    for python in ("3.11", "3.12", "3.13", "3.14")
    for machine in ("x86_64", "aarch64")
]


def no_report(done: int, of: int) -> None:
    """Report nothing."""


def requirements() -> list[str]:
    """Distui's dependencies on nodes, with their required versions."""
    wanted = {_normal(name) for name in NEEDED}
    asked = [line.partition(";")[0].strip() for line in metadata.requires("distui") or []]
    return sorted(line for line in asked if _normal(re.split(r"[<>=!~ \[]", line)[0]) in wanted)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _folder(home: Path) -> Path:
    return home / f"wheels-{hashlib.sha256(' '.join(requirements()).encode()).hexdigest()[:12]}"


def unserved(home: Path) -> list[NodeKind]:
    """Kinds of nodes with missing wheels."""
    return [
        node for node in NODE_KINDS if not (_folder(home) / f"has-{node.python}-{node.machine}").exists()
    ]


def why_unserved(home: Path) -> str:
    """Return a sentence about the kinds of nodes with missing wheels, with a remedy; "" if none are missing."""
    nodes, tried = unserved(home), _folder(home) / REASON_FILE
    if not nodes or not tried.exists():
        return ""
    why = tried.read_text(errors="replace")
    return (
        f"no wheels of {', '.join(NEEDED)} could be downloaded for {', '.join(map(str, nodes))} ({why}): "
        f"nodes of these kinds need distui installed, or the wheels in {tried.parent}"
    )


def forget(folder: Path) -> None:
    """Delete the records of earlier downloads into a folder, so that the next `gather` repeats them."""
    for mark in [*folder.glob("has-*"), folder / REASON_FILE]:
        mark.unlink(missing_ok=True)


def gather(home: Path, report: Report) -> list[Path]:
    """Collect all available wheels. Raises OSError and RunError."""
    folder, tried = _folder(home), _folder(home) / REASON_FILE
    private_folder(folder)
    nodes = unserved(home)
    if nodes and not (tried.exists() and clock.now() - tried.stat().st_mtime < RETRY_SECONDS):
        file_io.write_atomically(tried, _download_all(folder, nodes, report).encode())
    here = NodeKind(f"{sys.version_info[0]}.{sys.version_info[1]}", os.uname().machine)
    own = folder / "own"
    if here in NODE_KINDS and here not in unserved(home):
        return sorted(folder.glob("*.whl"))
    private_folder(own)
    for name in NEEDED:
        pack_installed(name, own)
    return sorted([*folder.glob("*.whl"), *own.glob("*.whl")])


def _download_all(folder: Path, nodes: list[NodeKind], report: Report) -> str:
    """Download the wheels for each kind of node. Return the different reasons of failed downloads, "" for none."""
    report(0, len(nodes))
    first = _download(folder, nodes[0])
    if first:
        return first  # probably without an index: skip the others
    reasons: dict[str, None] = {}
    with ThreadPoolExecutor(4) as pool:
        for done, why in enumerate(pool.map(lambda node: _download(folder, node), nodes[1:]), 2):
            report(done, len(nodes))
            if why:
                reasons[why] = None
    return "; ".join(reasons)


def _download(folder: Path, node: NodeKind) -> str:
    words = [*DOWNLOAD, "--python-version", node.python]
    words += [word for platform in PLATFORMS for word in ("--platform", f"{platform}_{node.machine}")]
    with tempfile.TemporaryDirectory(prefix=".get-", dir=folder) as fresh:
        try:
            done = subprocess.run(
                [*_pip(), *words, "--dest", fresh, *requirements()],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=DOWNLOAD_SECONDS,
                check=False,
                text=True,
                umask=0o077,
            )
        except OSError as error:
            return str(error.strerror)
        except subprocess.TimeoutExpired:
            return f"pip did not end in {DOWNLOAD_SECONDS:.0f} s"
        for wheel in Path(fresh).glob("*.whl"):
            wheel.replace(folder / wheel.name)
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"])[-1]
    (folder / f"has-{node.python}-{node.machine}").touch(mode=0o600)
    return ""


def _pip() -> list[str]:
    """Command of pip: this environment's, else the one bundled with Python, else uv's."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-P", "-m", "pip"]  # -P: a pip in the user's directory must not be used
    bundled = Path(sysconfig.get_path("stdlib"), "ensurepip", "_bundled")
    places = (bundled, Path(sysconfig.get_config_var("WHEEL_PKG_DIR") or bundled))
    wheel = next((wheel for place in places for wheel in place.glob("pip-*.whl")), None)
    if wheel is not None:
        return [sys.executable, "-P", f"{wheel}/pip"]
    uv = shutil.which("uv")
    if uv is None:
        raise FileNotFoundError(2, "this environment has neither pip nor uv")
    return [uv, "tool", "run", "pip"]


def screen_wheels(home: Path) -> list[Path]:
    """Wheels of SCREENS, packed once each from this installation. Raises OSError and RunError."""
    folder = home / "screens"
    private_folder(folder)
    wheels = []
    for name in SCREENS:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        target = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        if not target.exists():
            pack_installed(name, folder, compiled=False)
        wheels.append(target)
    return sorted(wheels)


def _files(package: metadata.Distribution, compiled: bool) -> list[metadata.PackagePath]:
    left_out = (".pyc",) if compiled else (".pyc", ".so")
    own = (file for file in package.files or [] if ".." not in file.parts)
    return [file for file in own if file.suffix not in left_out]


def pack_installed(name: str, folder: Path, compiled: bool = True) -> None:
    """Pack this environment's copy of a package as a wheel. Raises OSError and RunError.

    `compiled`: with its compiled parts, for this Python and machine; else for any.
    """
    try:
        package = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise RunError(f"{name} is not installed: reinstall distui") from None
    files = _files(package, compiled)
    pure = not any(file.suffix == ".so" for file in files)
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    tags = "py3-none-any" if pure else f"{python}-{python}-linux_{os.uname().machine}"
    target = folder / f"{name.replace('-', '_')}-{package.version}-{tags}.whl"
    temporary = target.with_suffix(f".{os.getpid()}.tmp")
    with (
        open(temporary, "wb", opener=file_io.opener) as whole,
        zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for file in files:
            archive.write(Path(str(package.locate_file(file))), str(file))
    temporary.replace(target)
