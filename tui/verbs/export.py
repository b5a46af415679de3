"""export, and reading a bundle that somebody exported."""

from __future__ import annotations

import argparse
import asyncio
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ...presets.sanitize import clean_text, escaped_json
from ...runners import run_directories
from ...runners.bundle_file import BundleWriter, Manifest, opened
from ...runners.connect import snapshot, with_link
from ...runners.export import Gathering
from ...runners.formatting import size_text
from ...runners.wire.link import Link
from . import runs
from . import status as showing

# -----------------------------------------------------------------------------------------------------------
# status, events and logs, of a run or of a bundle that another person exported.


def status(options: argparse.Namespace) -> int:
    """See status.status."""
    with _of_bundle(options):
        return showing.status(options)


def events(options: argparse.Namespace) -> int:
    """See runs.events."""
    with _of_bundle(options):
        return runs.events(options)


def logs(options: argparse.Namespace) -> int:
    """See logs.logs."""
    from . import logs as printing

    with _of_bundle(options):
        return printing.logs(options)


@contextmanager
def _of_bundle(options: argparse.Namespace) -> Iterator[None]:
    """Where RUN is a bundle's file, its run is the one that is meant. Raises RunError."""
    if options.run is None or not _is_packed(options.run):
        yield
        return
    with opened(Path(options.run)) as manifest:
        options.run = manifest.run
        yield


def _is_packed(name: str) -> bool:
    """Whether a name is that of a regular file that begins as gzip's do, whatever its ending."""
    try:
        with open(os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return stat.S_ISREG(os.fstat(file.fileno()).st_mode) and file.read(2) == b"\x1f\x8b"
    except (OSError, ValueError):
        return False


# -----------------------------------------------------------------------------------------------------------
# export: a run as one file for another person.


def export(options: argparse.Namespace) -> int:
    """Write the bundle, and say what is in it and what is not. Raises RunError."""
    path = Path(options.file)

    async def use(entry: run_directories.Entry, link: Link) -> Manifest:
        state = await snapshot(link)
        if entry.record.kind == "node":  # the link leads to the hub of the whole run
            entry = run_directories.resolve(entry.record.whole)
        showing.complete(state, entry, link)
        with BundleWriter(path, entry.record.run, options.force) as writer:
            return await Gathering(entry, link, state, writer, options.logs << 20).run()

    manifest = asyncio.run(with_link(options.run, use))
    if options.json:
        sys.stdout.write(escaped_json(msgspec.json.encode(manifest).decode()) + "\n")
    else:
        sys.stdout.write("".join(f"{clean_text(line)}\n" for line in sentences(manifest, path)))
    return 0


def sentences(manifest: Manifest, path: Path) -> Iterator[str]:
    """What was written, for a person."""
    cut = sum(file.of is not None for file in manifest.files)
    whole = size_text(sum(file.bytes for file in manifest.files))
    parts = [f"{len(manifest.files)} files", whole, f"packed {size_text(path.stat().st_size)}"]
    parts += [f"{cut} logs cut"] if cut else []
    parts += [f"{manifest.masked} secrets masked"] if manifest.masked else []
    state = "is now" if manifest.live else "ended"
    yield f"{path} holds {manifest.name} as it {state}: {', '.join(parts)}"
    for text in manifest.missing:
        yield f"not in it: {text}"
    yield f"`distui replay {path}` opens it"
