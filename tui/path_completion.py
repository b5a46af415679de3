"""Completion of a path as it is typed."""

from __future__ import annotations

import os
from os.path import expanduser

MOST = 2000
"""Entries of a folder that are looked at."""


def fitting_paths(text: str, ending: str = "") -> list[str]:
    """The paths that go on with `text`, folders with a slash; hidden ones only where they are asked for.

    `ending`: files that end so come first, before other files.
    """
    head, _, last = text.rpartition("/")
    folder = expanduser(f"{head}/") if "/" in text else "."
    before = f"{head}/" if "/" in text else ""
    names: list[tuple[int, str]] = []
    try:
        with os.scandir(folder) as items:
            for at, item in enumerate(items):
                if at >= MOST:
                    break
                if not item.name.startswith(last) or (
                    item.name.startswith(".") and not last.startswith(".")
                ):
                    continue
                if not item.name.isprintable():
                    continue
                is_folder = item.is_dir()
                order = 1 if is_folder else 0 if ending and item.name.endswith(ending) else 2
                names.append((order, f"{before}{item.name}{'/' * is_folder}"))
    except OSError:
        return []
    return [name for _, name in sorted(names)]


def completed_path(text: str, ending: str = "") -> tuple[str, list[str]]:
    """The text as far as all fitting paths agree, and those paths; files without `ending` only where no other fits."""
    paths = fitting_paths(text, ending)
    if ending:
        paths = [path for path in paths if path.endswith(("/", ending))] or paths
    if not paths:
        return text, []
    first, last = min(paths), max(paths)
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:same], paths
