"""export: a run as one file for another person."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from ...presets.plurals import plural
from ...presets.sanitize import clean_text, escaped_json
from ...runners.node.local_agent import with_link
from ...runners.reports.bundle_content import write_bundle
from ...runners.reports.bundle_files import Manifest
from ...runners.run.formatting import size_text
from ..terminal import typeable


def export(options: argparse.Namespace) -> int:
    """Write the bundle, and print what it contains and lacks. Raises RunError."""
    path = Path(options.file)
    work = partial(write_bundle, path=path, force=options.force, log_bytes=options.logs << 20)
    manifest = asyncio.run(with_link(options.run, work))
    if options.json:
        sys.stdout.write(escaped_json(msgspec.json.encode(manifest).decode()) + "\n")
    else:
        for line in sentences(manifest, path):
            sys.stdout.write(f"{clean_text(typeable(line, sys.stdout))}\n")
    return 0


def sentences(manifest: Manifest, path: Path) -> Iterator[str]:
    """Yield sentences about the written bundle."""
    cut = sum(file.of is not None for file in manifest.files)
    whole = size_text(sum(file.bytes for file in manifest.files))
    parts = [plural(len(manifest.files), "file"), whole, f"packed {size_text(path.stat().st_size)}"]
    parts += [f"{plural(cut, 'log')} cut"] if cut else []
    parts += [f"{plural(manifest.masked, 'secret')} masked"] if manifest.masked else []
    state = "is now" if manifest.live else "ended"
    yield f"{path} holds {manifest.name} as it {state}: {', '.join(parts)}"
    for text in manifest.missing:
        yield f"not in it: {text}"
    yield f"`distui replay {shlex.quote(str(path))}` opens it"
