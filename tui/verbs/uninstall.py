"""uninstall: what distui has left on this machine or on hosts, and its removal."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator

from ...runners.launch.hosts import named_ways
from ...runners.removal import leftovers
from ...runners.removal.leftovers import Leftovers
from ...runners.run.errors import RunError
from ...runners.run.formatting import size_short
from ...runners.run.wire.ssh import HostError, each
from ..rows.glyphs import table
from ..terminal import answer, complain, confirmed


def uninstall(options: argparse.Namespace) -> int:
    """List what distui has left and, after a question, remove it. Raises RunError."""
    found = _request(options, remove=False)
    if not options.dry_run and _has_removable(found):
        if not _is_sure(options, found):
            return 1
        found = _request(options, remove=True)
    answer(options.json, found, _lines(found))
    for text in found.failed:
        complain(text)
    return 1 if found.failed else 0


def _request(options: argparse.Namespace, remove: bool) -> Leftovers:
    """List or remove, here or on the named hosts. Raises RunError."""
    if not options.host:
        return leftovers.removed(options.all) if remove else leftovers.listed(options.all)
    ways = named_ways(options.host, "--host", options.ssh_config)
    words = ["--yes" if remove else "--dry-run"]
    if options.all:
        words.append("--all")
    answers = asyncio.run(each(ways, lambda way: leftovers.on_host(way, *words)))
    return leftovers.joined([_answered(item) for item in answers])


def _answered(item: Leftovers | HostError) -> Leftovers:
    return Leftovers([], False, [str(item)], []) if isinstance(item, HostError) else item


def _has_removable(found: Leftovers) -> bool:
    return any(not place.kept for place in found.places)


def _is_sure(options: argparse.Namespace, found: Leftovers) -> bool:
    """Ask on the terminal; without one only --yes confirms. Raises RunError."""
    if options.yes:
        return True
    if not sys.stdin.isatty():
        raise RunError("there is no terminal to ask on: add --yes, or --dry-run")
    lines = [*_table(found, "remove"), ""]
    return confirmed("\n".join(lines), "nothing was removed")


def _lines(found: Leftovers) -> Iterator[str]:
    yield from _table(found, "removed" if found.removed else "would be removed")
    if found.hosts:
        words = " ".join(f"--host {host}" for host in found.hosts)
        yield f"Hosts of recorded launches were not contacted: `distui uninstall {words}`."
    yield "Hosts of launches whose runs were removed are not known."
    yield f"To remove the program: `pip uninstall distui` in {sys.prefix}, or with the tool that installed it."


def _table(found: Leftovers, does: str) -> list[str]:
    rows = [("place", "size", "holds", "")]
    for place in found.places:
        path = f"{place.host}:{place.path}" if place.host else place.path
        rows.append((path, size_short(place.bytes), place.holds, place.kept or does))
    return table(rows, frozenset({1})) if found.places else ["distui has left nothing here"]
