"""What distui leaves on a machine: one table of places, which `distui uninstall` lists and removes."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from ...presets import base_dirs
from ..launch.hosts import hosts_of_launches, json_of
from ..run import run_directories, shared_sockets
from ..run.errors import RunError
from ..run.wire.ssh import HostError, Way
from . import directory_trees, run_removal

WITH_ALL = "stays without --all"
YOURS = "yours: edit or remove it by hand"
SOCKETS = "sockets of runs"
SHARES = "/tmp/distui-share-*"


class Place(Struct, frozen=True):
    """Files of one purpose."""

    path: str
    """Pattern of their default place; UID is the number of the user."""
    holds: str
    made_by: str
    kept: str = ""
    """Why they stay; "" if `uninstall` removes them."""
    contains: str = ""
    """Text that the file must contain to be listed; "" for any."""


PLACES = (
    Place(
        "~/.local/state/distui", "runs with logs and metrics, checkpoints of demos", "launches", WITH_ALL
    ),
    Place("~/.config/distui", "settings, keys, presets, trusted files", "you, the cockpit", WITH_ALL),
    Place(
        "~/.cache/distui",
        "copies of distui for nodes, simulated GPUs",
        "launches on several nodes, make demo",
    ),
    Place("~/.distui", "copies of distui and of working directories", "launches elsewhere", WITH_ALL),
    Place("/run/user/UID/distui", SOCKETS, "runs"),
    Place("/tmp/distui-UID", SOCKETS, "runs"),
    Place("~/.distui-sockets", SOCKETS, "runs"),
    Place(SHARES, SOCKETS, "distui share"),
    Place("~/.config/fish/completions/distui.fish", "completion", "you"),
    Place("~/.zfunc/_distui", "completion", "you"),
    Place("~/.local/share/man/man1/distui.1", "man page", "distui man --dir"),
    Place("~/.local/share/man/man1/distui-*.1", "man pages", "distui man --dir"),
    Place("~/.bashrc", "completion", "you", YOURS, "distui completion"),
    Place("~/.bash_completion", "completion", "you", YOURS, "_python_argcomplete distui"),
    Place("~/.zshrc", "completion", "you", YOURS, "distui completion"),
    Place("~/.config/systemd/user/distui-*.service", "restarts of runs after a reboot", "you", YOURS),
)


class FoundPlace(Struct, frozen=True):
    """A file or directory of a place, on this machine or on `host`."""

    path: str
    holds: str
    bytes: int
    kept: str
    host: str = ""


class Leftovers(Struct, frozen=True):
    """`uninstall`."""

    places: list[FoundPlace]
    removed: bool
    failed: list[str]
    hosts: list[str]
    """Hosts of recorded launches, which were not contacted."""


def listed(everything: bool) -> Leftovers:
    """Return the files here. With `everything` nothing of distui's stays, as with --all."""
    places = [found for place in PLACES for found in _found(place, everything)]
    return Leftovers(places, False, [], [way.destination for way in hosts_of_launches()])


def removed(everything: bool) -> Leftovers:
    """Remove the files that are not kept. Raises RunError, before anything is removed, if a run is live."""
    for entry in run_directories.entries():
        removal = run_removal.examine(entry)
        is_copy = removal.phase.ended and run_directories.elsewhere(entry)
        if removal.refusal and not is_copy:
            raise RunError(removal.refusal)
    here = listed(everything)
    failed = []
    for place in here.places:
        if place.kept:
            continue
        try:
            _remove(Path(place.path))
        except OSError as error:
            failed.append(f"{place.path} cannot be removed: {error.strerror or error}")
    return Leftovers(here.places, True, failed, here.hosts)


async def on_host(way: Way, *options: str) -> Leftovers:
    """Return the answer of `distui uninstall` on a host. Raises HostError."""
    try:
        there = msgspec.json.decode(await json_of(way, "uninstall", *options), type=Leftovers)
    except msgspec.DecodeError as error:
        raise HostError(f"{way.destination}: its distui has another `uninstall` ({error})") from None
    places = [structs.replace(place, host=way.destination) for place in there.places]
    return structs.replace(there, places=places, hosts=[])


def joined(answers: Sequence[Leftovers]) -> Leftovers:
    """Return the answers of several hosts as one."""
    return Leftovers(
        [place for each in answers for place in each.places],
        any(each.removed for each in answers),
        [text for each in answers for text in each.failed],
        [],
    )


def _found(place: Place, everything: bool) -> Iterator[FoundPlace]:
    if place.holds == SOCKETS and "DISTUI_SOCKET_DIR" in os.environ:
        return  # the user named another directory
    kept = "" if everything and place.kept == WITH_ALL else place.kept
    for path in sorted(glob.glob(_pattern(place.path))):
        if place.path == SHARES and not shared_sockets.is_folder(Path(path)):
            continue  # another account can move a directory there
        if os.lstat(path).st_uid == os.getuid() and _contains(path, place.contains):
            yield FoundPlace(path, place.holds, directory_trees.size_of(Path(path)), kept)


def _pattern(path: str) -> str:
    """Return the pattern of a place for this user."""
    for variable, default in base_dirs.HOMES.items():
        if path.startswith(f"{default}/"):
            return glob.escape(str(base_dirs.base(variable, os.environ))) + path.removeprefix(default)
    path = path.replace("UID", str(os.getuid()))
    if path.startswith("~"):
        return glob.escape(os.path.expanduser("~")) + path.removeprefix("~")
    return path


def _contains(path: str, text: str) -> bool:
    if not text:
        return True
    if not os.path.isfile(path):  # a pipe or a device would not end
        return False
    try:
        return text in Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _remove(path: Path) -> None:
    """Remove a file or a tree; links are not followed. Raises OSError."""
    if fnmatch.fnmatch(str(path), SHARES):
        shared_sockets.remove(path)
    elif path.is_dir() and not path.is_symlink():
        with directory_trees.opened(path.parent.resolve()) as parent:
            directory_trees.remove(path.name, parent)
    else:
        path.unlink()
