"""Rank 0 of a single node opens the store of its ranks on the loopback alone; torch would on every interface.

torch takes a socket that listens already, so `TCPStore` in `torch.distributed.rendezvous`, where env:// and tcp:// make
theirs, is given one. Where anything is otherwise than expected, torch does as it does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

MODULE = "torch.distributed.rendezvous"
BACKLOG = 2048


def arm() -> None:
    """In a rank whose group meets on the loopback: have torch's module changed as soon as it is loaded."""
    if inside(os.environ.get("MASTER_ADDR", "")):
        sys.meta_path.insert(0, _ModuleFinder())


def inside(host: object) -> bool:
    """Whether this is the loopback, written as a number."""
    return isinstance(host, str) and (host == "::1" or host.startswith("127."))


class _ModuleFinder:
    """Leads to the module as it would be found anyway, and changes it once it is executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        if name != MODULE:
            return None
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        loader = getattr(spec, "loader", None)
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return spec

        def executed(module: ModuleType) -> None:
            execute(module)
            change(module)

        with contextlib.suppress(AttributeError, TypeError):
            loader.exec_module = executed  # type: ignore[union-attr]
        return spec


def change(module: ModuleType) -> None:
    """Put our `TCPStore` in the place of torch's."""
    theirs = getattr(module, "TCPStore", None)
    if theirs is None:
        return

    def store(*words: Any, **named: Any) -> Any:
        listening = _listening(words, named)
        if listening is None:
            return theirs(*words, **named)
        descriptor = listening.detach()  # torch's from now on
        try:
            return theirs(*words, **named, master_listen_fd=descriptor)
        except TypeError:  # a torch that takes no such socket
            os.close(descriptor)
            return theirs(*words, **named)

    module.TCPStore = store  # type: ignore[attr-defined]


def _listening(words: tuple[Any, ...], named: dict[str, Any]) -> socket.socket | None:
    """The socket for a store that is to be opened on the loopback; None for any other."""
    host, port = named.get("host_name"), named.get("port")
    if words or not named.get("is_master") or not inside(host) or "master_listen_fd" in named:
        return None
    if not isinstance(host, str) or not isinstance(port, int):
        return None
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(BACKLOG)
    except OSError:  # taken: perhaps by a store that this process shares; torch says what there is to say
        made.close()
        return None
    return made
