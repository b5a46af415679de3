"""How each node of a run is reached, kept in nodes.json; nothing in it can become an option or a shell's word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from .. import file_io
from ..errors import RunError

NAME = "nodes.json"
KINDS = ("unix", "ssh", "via")
_WORD = re.compile(r"[A-Za-z0-9._/~-]+")
_DESTINATION = re.compile(r"[A-Za-z0-9_.@:%\[\]/+-]+")


class Route(Struct, frozen=True, omit_defaults=True):
    """The way to one node."""

    node: int
    host: str
    """How the screen names it."""
    kind: str
    """"unix": `target` is its agent's socket here; "ssh": `target` is a destination of the user's ssh; "via": `target`
    is the socket of an agent here that relays to it."""
    target: str
    options: tuple[str, ...] = ()
    """ssh: further options, e.g. ("-F", FILE)."""
    remote: tuple[str, ...] = ()
    """ssh: words of the bridge's command there."""


def check(route: Route) -> Route:
    """The route itself, if it is one. Raises RunError."""
    if route.kind not in KINDS:
        raise RunError(f"node {route.node}: there is no way of kind {route.kind!r}: unix, ssh or via")
    if route.kind != "ssh":
        if not route.target.startswith("/"):
            raise RunError(f"node {route.node}: {route.target!r} is no socket's absolute path")
        return route
    check_destination(route.target)
    if not route.remote:
        raise RunError(f"node {route.node}: nothing to execute on {route.target} is given")
    for word in route.remote:
        check_remote_word(word)
    return route


def check_destination(text: str) -> str:
    """A destination for ssh that cannot be taken for an option. Raises RunError."""
    if text.startswith("-"):
        raise RunError(f"host {text!r} begins with '-': ssh would take it for an option, rename it")
    if not _DESTINATION.fullmatch(text):
        raise RunError(f"host {text!r} is no host name: letters, digits, '.', '-', '_' and '@' make one")
    return text


def check_remote_word(word: str) -> str:
    """A word that every shell (bash, fish, csh) passes on as it is, unquoted. Raises RunError."""
    if not _WORD.fullmatch(word):
        raise RunError(
            f"{word!r} cannot be sent through ssh: only letters, digits and ./_~- pass every shell"
        )
    return word


def read(run_dir: Path) -> list[Route]:
    """The routes that nodes.json holds, by node; [] when there is none yet. Raises RunError."""
    path = run_dir / NAME
    try:
        routes = msgspec.json.decode(path.read_bytes(), type=list[Route])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as error:
        raise RunError(f"{path} cannot be read ({error}): remove it, or write it anew") from None
    return sorted((check(route) for route in routes), key=lambda route: route.node)


def write(run_dir: Path, routes: Sequence[Route]) -> None:
    """Replace nodes.json. Raises RunError for a route that is none, OSError."""
    checked = [check(route) for route in sorted(routes, key=lambda route: route.node)]
    file_io.write_atomically(run_dir / NAME, msgspec.json.encode(checked))
