"""Traces of profiles in a bundle of `distui export`: their list, and their content without secrets."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import NamedTuple

import msgspec

from ...presets.secrets import Masker
from ..profile import traces
from ..profile.profiling import FOLDER
from ..profile.traces import TraceError

MOST_JSON = 64 << 20
"""Maximum bytes of a trace's JSON for masking: all of it is in memory."""
PATTERN = r"(?:node-\d{1,6}/)?profiles/[0-9A-Za-z-]{1,64}/rank-\d{1,6}\.json\.gz"
"""Pattern of trace names in a run directory and in a bundle."""
_NAME = re.compile(PATTERN)


class KeptTrace(NamedTuple):
    name: str
    size: int
    """Compressed bytes."""


def kept(run_dir: Path) -> list[KeptTrace]:
    """Return the traces of a run on this machine, sorted by name."""
    there: list[KeptTrace] = []
    for pattern in (f"{FOLDER}/*/*", f"node-*/{FOLDER}/*/*"):
        for path in run_dir.glob(pattern):
            name = path.relative_to(run_dir).as_posix()
            if _NAME.fullmatch(name) and path.is_file() and not path.is_symlink():
                there.append(KeptTrace(name, path.stat().st_size))
    return sorted(there)


def masked(run_dir: Path, name: str, masker: Masker) -> bytes:
    """Content of a trace, compressed, without secrets in its texts. Raises TraceError."""
    try:
        value = masker.value(msgspec.json.decode(traces.content(run_dir / name, MOST_JSON)))
    except (TraceError, msgspec.MsgspecError, RecursionError, ValueError):
        raise TraceError(f"{name} is damaged, or has more than {MOST_JSON >> 20} MiB of JSON") from None
    # HTA searches for `"rank":` and a space, and reads lines until then
    text = msgspec.json.format(msgspec.json.encode(value), indent=1)
    return gzip.compress(text, 6, mtime=0)
