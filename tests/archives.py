"""Archives of the tests, also with a Python before 3.11.4, which has no filters for what is unpacked."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any


def unpack(archive: Path, into: Path) -> None:
    """Unpack a tar into a folder."""
    with tarfile.open(archive) as packed:
        opened: Any = packed
        opened.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        packed.extractall(into)
