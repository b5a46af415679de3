"""Bring directories to hosts: tar over ssh's stdin, whole or not at all."""

from __future__ import annotations

import asyncio
import io
import shlex
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from .calls import HostError, Way, call

SECONDS = 600.0
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
    said = await call(way, ("sh",), script.encode(), SECONDS)
    if b"DISTUI-THERE" in said:
        return
    if b"DISTUI-MISSING" not in said:
        raise HostError(
            f"{way.destination} gives no shell to a command: `ssh {way.destination} sh` has to work"
        )
    await call(way, ("sh", "~/.distui/receive.sh", bundle.name), data, SECONDS)


async def send_work(way: Way, name: str, data: bytes) -> None:
    """Put a working directory to ~/.distui/NAME, in the place of an earlier one. Raises HostError."""
    await call(way, ("sh", "~/.distui/receive.sh", name, "replace"), data, SECONDS)


async def pack(root: Path, name: str, only_code: bool) -> bytes:
    """`packed` in a thread. Raises HostError."""
    try:
        return await asyncio.to_thread(packed, root, name, code(root) if only_code else everything(root))
    except OSError as error:
        raise HostError(f"{error.filename or root} cannot be read ({error.strerror})") from None
