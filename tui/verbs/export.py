"""export: a run as one file for another person."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import msgspec

from ...runners import registry
from ...runners.export.bundle import Manifest, Writer
from ...runners.export.gather import Gathering, sentences
from ...runners.wire.link import Link
from ..connect import snapshot, with_link


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
