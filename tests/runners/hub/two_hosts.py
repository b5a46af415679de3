"""Hosts on the loopback: a real sshd on 127.0.0.1, 127.0.0.2…, a HOME for each, and a viewer with its own."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import HANG_S

from .site import having, until
from .sshd import Sshd

BIN = Path(sys.executable).parent
EXAMPLE = Path(__file__).parents[3] / "presets" / "examples" / "plain_ddp.py"
WRAP = """\
set -- $SSH_CONNECTION
export HOME={root}/$3
export XDG_STATE_HOME=$HOME/state XDG_CACHE_HOME=$HOME/cache DISTUI_SOCKET_DIR=$HOME/s OMP_NUM_THREADS=1
export PATH={bin}:/usr/local/bin:/usr/bin:/bin
unset VIRTUAL_ENV CONDA_PREFIX PYTHONPATH
{exports}
cd "$HOME" || exit 2
echo "welcome to $3"
exec sh -c "$SSH_ORIGINAL_COMMAND"
"""


class Hosts:
    """As many as there are names; `root` is a directory that is there, by default one of its own."""

    names: tuple[str, ...]
    bin: Path = BIN
    """Where a login there finds distui and Python."""
    exports: str = ""
    """Further lines of a login's shell."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or Path(
            tempfile.mkdtemp(prefix="dk-", dir="/tmp")
        )  # short: socket paths hold 108 bytes
        self.address = {name: f"127.0.0.{number}" for number, name in enumerate(self.names, 1)}
        self.home = {name: self.root / address for name, address in self.address.items()}
        for home in (*self.home.values(), self.root / "v"):
            home.mkdir(mode=0o700)
            (home / "s").mkdir(mode=0o700)
        wrap = self.root / "wrap.sh"
        wrap.write_text(WRAP.format(root=self.root, bin=self.bin, exports=self.exports))
        others = [f"ListenAddress {address}" for address in list(self.address.values())[1:]]
        self.sshd = Sshd(self.root / "sshd", *others, f"ForceCommand /bin/sh {wrap}")
        self.config = self.root / "ssh_config"
        self.write_config()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DISTUI_")}
        self.env = {
            **kept,
            "HOME": str(self.root / "v"),
            "XDG_STATE_HOME": str(self.root / "v" / "state"),
            "XDG_CONFIG_HOME": str(self.root / "v" / "config"),
            "DISTUI_SOCKET_DIR": str(self.root / "v" / "s"),
        }
        self.code = self.root / "code"
        self.code.mkdir()
        shutil.copy(EXAMPLE, self.code / "train.py")

    def write_config(self, **addresses: str) -> None:
        """How ssh reaches the hosts; `addresses`: by name, instead of their own."""
        common = [
            f"Port {self.sshd.port}", f"User {getpass.getuser()}", f"IdentityFile {self.sshd.root / 'user'}",
            "IdentitiesOnly yes", "StrictHostKeyChecking no", "UserKnownHostsFile /dev/null", "LogLevel ERROR",
        ]  # fmt: skip
        blocks = [
            *(f"Host {name}\nHostName {at}" for name, at in {**self.address, **addresses}.items()),
            *("Host gamma", "HostName 127.0.0.1", "Port 1"),
            *("Host *", *common),
        ]
        self.config.write_text("\n".join(blocks) + "\n")

    def distui(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """The command line as the viewer types it."""
        return subprocess.run(
            [BIN / "distui", *words], env={**self.env, **env}, cwd=self.code, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=2 * HANG_S, check=False,
        )  # fmt: skip

    def launch(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """`launch --hosts … ddp` on all of them, with more words."""
        options = (
            "--ssh-config",
            str(self.config),
            "--hosts",
            ",".join(self.names),
            "--detach",
            "--grace",
            "3",
        )
        return self.distui("launch", "ddp", *options, *words, **env)

    def status(self, run: str) -> dict[str, Any]:
        done = self.distui("status", run, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def processes(self, name: str) -> dict[int, str]:
        """Living processes of a host."""
        return having(f"HOME={self.home[name]}")

    def kill_host(self, name: str) -> None:
        """Everything of ours on a host, as a power cut does it."""
        for pid in self.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def hub_said(self) -> str:
        """The hub's own log."""
        logs = (self.root / "v" / "state" / "distui" / "runs").glob("*/agent.log")
        return "\n".join(path.read_text(errors="replace") for path in logs)

    def close(self) -> dict[int, str]:
        """End everything, by pid; what a stopped run should not have left."""
        left: dict[int, str] = {}
        for name in self.names:
            left |= self.processes(name)
        for pid in {**left, **having(f"HOME={self.root / 'v'}")}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.sshd.close()
        shutil.rmtree(self.root, ignore_errors=True)
        return left


class TwoHosts(Hosts):
    """alpha and beta; gamma refuses connections."""

    names = ("alpha", "beta")


@contextlib.contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """For a test, which is left out where no sshd starts."""
    try:
        made = TwoHosts()
    except OSError as error:
        pytest.skip(f"sshd does not start here: {error}")
    with contextlib.closing(made):
        yield made


__all__ = ["Hosts", "TwoHosts", "two_hosts", "until"]
