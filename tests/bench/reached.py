"""Runs whose nodes are reached through a real sshd on the loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from distui.runners import inrank, node
from distui.runners.node.routes import Route
from distui.runners.run import wire

from .place import NotReached, Place, a_place

sys.path.insert(0, str(Path(__file__).parents[1] / "runners"))
from hub.site import Site, Whole
from hub.sshd import SSHD, Sshd


class Here(Site):
    """A place of this measurement, where a test has a user of its own."""

    def __init__(self, place: Place) -> None:
        self.root = place.root


class Reached:
    """A place with an sshd in it, and what of a bundle ssh executes there."""

    def __init__(self, place: Place, server: Sshd) -> None:
        self.place, self._server = place, server
        self._node = place.root / "node"
        self._node.mkdir()
        for part, name in ((node, "node.sh"), (wire, "bridge.py"), (inrank, "own_folders.py")):
            shutil.copy(Path(str(part.__file__)).with_name(name), self._node)

    def run(self, command: Sequence[str], nodes: int, name: str) -> Whole:
        """A run of a command, written down and not started."""
        return Whole(Here(self.place), command, nodes, name)

    def routes(self, run: Whole, *settings: str) -> list[Route]:
        """The way to each node, as a launch on hosts writes it; `settings`: further lines of ssh's configuration."""
        config = self._server.config(*settings)
        remote = ("sh", str(self._node / "node.sh"), "attach", run.record.run8)
        return [
            Route(part.record.node, f"node{part.record.node}", "ssh", "box", ("-F", config),
                  (*remote, str(part.record.node)))
            for part in run.parts
        ]  # fmt: skip

    @property
    def port(self) -> int:
        """Where the sshd listens on 127.0.0.1."""
        return self._server.port


@contextlib.contextmanager
def reached() -> Iterator[Reached]:
    """A place that is left clean; this process's own environment is the place's meanwhile. Raises NotReached."""
    if SSHD is None:
        raise NotReached("there is no sshd here: apt-get install openssh-server")
    before = dict(os.environ)
    with a_place() as place:
        os.environ.clear()
        os.environ.update(place.env)
        try:
            with contextlib.closing(_serve(place)) as server:
                yield Reached(place, server)
        finally:
            os.environ.clear()
            os.environ.update(before)


def _serve(place: Place) -> Sshd:
    """An sshd whose sessions belong to the place. Raises NotReached."""
    (place.root / "s").mkdir(mode=0o700)
    names = {name: place.env[name] for name in ("BENCH_PLACE", "DISTUI_SOCKET_DIR")}
    words = [f"{name}={value}" for name, value in (names | {"DISTUI_PYTHON": sys.executable}).items()]
    try:
        return Sshd(place.root / "sshd", f"SetEnv {' '.join(words)}")
    except OSError as error:
        raise NotReached(f"sshd does not start here: {error}") from None


__all__ = ["Reached", "Whole", "reached"]
