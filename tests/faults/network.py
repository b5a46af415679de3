"""Hosts with a network of their own on this machine: namespaces on one bridge, whose cables can be pulled."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from e2e.runs import DISTUI, World
from hub.two_hosts import TwoHosts

NOBODY = "10.79.0.99"
"""An address on the bridge that swallows what is sent to it."""
MAC = "02:00:00:00:00:99"


class Lan:
    """Namespaces, each with a card eth0: 10.79.0.1 is the first. Nothing leaves it."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._holders: list[subprocess.Popen[bytes]] = []
        try:
            self.pid = {name: self._hold() for name in ("switch", *self.names)}
            self._ip("switch", "link add name lan type bridge", "link set lan up")
            for number, name in enumerate(self.names, 1):
                self._cable(name, f"10.79.0.{number}")
        except BaseException:
            self.close()
            raise

    def _hold(self) -> int:
        """A process that keeps a new network namespace; returns once it is in there."""
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._holders.append(holder)
        assert holder.stdout is not None
        if holder.stdout.readline() != b"ready\n":
            raise OSError("this machine gives no network namespaces")
        return holder.pid

    def inside(self, name: str) -> list[str]:
        """Words before a command that is to run there."""
        return ["nsenter", "-t", str(self.pid[name]), "-n"]

    def _ip(self, name: str, *lines: str) -> None:
        command = [*self.inside(name), "ip", "-batch", "-"]
        done = subprocess.run(
            command, input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=20, check=False
        )
        if done.returncode:
            raise OSError(f"the kernel refuses the network: {done.stderr.strip()}")

    def _cable(self, name: str, address: str) -> None:
        self._ip(
            "switch",
            f"link add name to-{name} type veth peer name eth0 netns {self.pid[name]}",
            f"link set to-{name} master lan up",
        )
        self._ip(
            name, "link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up",
            f"neigh add {NOBODY} lladdr {MAC} dev eth0 nud permanent",
        )  # fmt: skip

    def cut(self, name: str) -> None:
        """Pull a cable: nothing passes any more, and no connection is told."""
        self._ip("switch", f"link set to-{name} down")

    def close(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.communicate()


@contextlib.contextmanager
def lan(*names: str) -> Iterator[Lan]:
    """For a test, which is left out where no namespaces can be made."""
    try:
        made = Lan(names)
    except OSError as error:
        pytest.skip(str(error))
    with contextlib.closing(made):
        yield made


class Islander(World):
    """A user whose every process is in one namespace."""

    def __init__(self, net: Lan, name: str) -> None:
        super().__init__()
        self._prefix = net.inside(name)

    def start(
        self, *words: str, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        """As a user types it there."""
        return subprocess.Popen(
            [*self._prefix, DISTUI, *words], env={**self.env, **(env or {})}, cwd=self.work,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )  # fmt: skip


class Apart(TwoHosts):
    """alpha and beta, each in a namespace: ssh reaches them by the loopback, their ranks meet on the bridge."""

    def __init__(self, net: Lan) -> None:
        self.net = net
        root = Path(tempfile.mkdtemp(prefix="dk-", dir="/tmp"))
        for number, name in enumerate(self.names, 1):
            (root / f"net-127.0.0.{number}").write_text(f"/proc/{net.pid[name]}/ns/net")
        self.exports = (
            f"net=$(cat {root}/net-$3)\n"
            'export SSH_CONNECTION="$1 $2 10.79.0.${3##*.} $4"\n'
            'cd "$HOME" || exit 2\n'
            'exec nsenter --net="$net" sh -c "$SSH_ORIGINAL_COMMAND"'
        )
        super().__init__(root)
