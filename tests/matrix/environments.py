"""The environment of a row: found in the cache folder, or made there with pip as this machine has it set up.

DISTUI_MATRIX names the folder; without it that is distui-matrix in the user's cache. An environment of torch for CUDA
takes up to 7 GB, and is kept for the next time: remove it by hand.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from .rows import Row

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = """
import json, sys
from importlib import metadata
versions = {"python": "%d.%d.%d" % sys.version_info[:3]}
for name in sys.argv[1:]:
    try:
        versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(versions))
"""


class NotHereError(Exception):
    """This machine has no such environment and cannot make it; the text says why."""


def folder() -> Path:
    """Where the environments are."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("DISTUI_MATRIX") or Path(cache) / "distui-matrix")


def interpreter(version: str) -> str:
    """A Python of that version, on PATH or of pyenv or uv. Raises NotHereError."""
    if version in ("", f"{sys.version_info[0]}.{sys.version_info[1]}"):
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    uv = Path.home() / ".local" / "share" / "uv" / "python"
    paths = [*pyenv.glob(f"{version}.*/bin/python"), *uv.glob(f"cpython-{version}.*/bin/python")]
    for path in (f"python{version}", *map(str, sorted(paths))):
        if shutil.which(path) and _runs(path, "-c", "import venv, ensurepip"):
            return path
    raise NotHereError(f"there is no Python {version} here")


def prepared(row: Row) -> Path:
    """The interpreter of a row's environment, once everything is installed there. Raises NotHereError."""
    home = folder() / row.name
    python = home / "bin" / "python"
    if not python.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([interpreter(row.python), "-m", "venv", str(home)], check=True)
    if row.holds_distui:
        _pip(python, str(ROOT))
        _pip(python, "--force-reinstall", "--no-deps", str(ROOT))  # of the same version, and other sources
    elif not _installed(python, row.packages):
        _pip(python, *row.packages)
    return python


def versions(python: Path, names: tuple[str, ...]) -> dict[str, str]:
    """Version by name of what is installed there, and of "python" itself."""
    done = subprocess.run(
        [str(python), "-c", VERSIONS, *names], stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _installed(python: Path, packages: tuple[str, ...]) -> bool:
    wanted = {name: version for name, _, version in (package.partition("==") for package in packages)}
    present = versions(python, tuple(wanted))
    return all(
        name in present and version in ("", present[name].partition("+")[0])
        for name, version in wanted.items()
    )


def _pip(python: Path, *words: str) -> None:
    done = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        errors = [line for line in done.stdout.splitlines() if line.startswith("ERROR:")]
        raise NotHereError(f"pip: {errors[0] if errors else done.stdout.strip()[-300:]}")


def _runs(*argv: str) -> bool:
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0
