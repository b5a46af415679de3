"""export: a run as one file for another person."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ...runners import registry
from ...runners.export.bundle import Manifest, Writer
from ...runners.export.gather import Gathering
from ...runners.wire.link import Link
from ..connect import snapshot, with_link
from ..text import size


def export(options: argparse.Namespace) -> int:
    """Write the bundle, and say what is in it and what is not. Raises RunError."""
    path = Path(options.file)

    async def use(entry: registry.Entry, link: Link) -> Manifest:
        state = await snapshot(link)
        if entry.record.kind == "node":  # the link leads to the hub of the whole run
            entry = registry.resolve(entry.record.whole)
        with Writer(path, entry.record.run, options.force) as writer:
            return await Gathering(entry, link, state, writer, options.logs << 20).run()

    manifest = asyncio.run(with_link(options.run, use))
    if options.json:
        sys.stdout.write(msgspec.json.encode(manifest).decode() + "\n")
    else:
        sys.stdout.write("\n".join(sentences(manifest, path)) + "\n")
    return 0


def sentences(manifest: Manifest, path: Path) -> Iterator[str]:
    """What was written, for a person."""
    cut = sum(one.of is not None for one in manifest.files)
    whole = size(sum(one.bytes for one in manifest.files))
    told = [f"{len(manifest.files)} files", whole, f"packed {size(path.stat().st_size)}"]
    told += [f"{cut} logs cut"] if cut else []
    told += [f"{manifest.masked} secrets masked"] if manifest.masked else []
    state = "is now" if manifest.live else "ended"
    yield f"{path} holds {manifest.name} as it {state}: {', '.join(told)}"
    for text in manifest.missing:
        yield f"not in it: {text}"
    yield f"`distui replay {path}` opens it"
