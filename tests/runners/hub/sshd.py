"""A real sshd on loopback, started without privileges: keys, port and configuration of its own."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from patience import HANG_S
from ports import free_port

from .site import until

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/local/sbin:/usr/sbin:/sbin")


class Sshd:
    """One server. It needs privilege separation's empty directory only where root starts it."""

    def __init__(self, root: Path, *lines: str) -> None:
        if SSHD is None:
            raise FileNotFoundError("no sshd here: apt-get install openssh-server")
        self.root = root
        root.mkdir(mode=0o700)
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(
                mode=0o755, exist_ok=True
            )  # what a service of the system would have made
        self.port = free_port()
        for name in ("host", "user", "other"):
            self._keygen(name)
        shutil.copy(root / "user.pub", root / "authorized")
        (root / "authorized").chmod(0o600)
        settings = [
            f"Port {self.port}", "ListenAddress 127.0.0.1", f"HostKey {root}/host", f"PidFile {root}/pid",
            f"AuthorizedKeysFile {root}/authorized", "StrictModes no", "UsePAM no", "PasswordAuthentication no",
            "KbdInteractiveAuthentication no", "PermitRootLogin yes", "PermitUserEnvironment no", *lines,
        ]  # fmt: skip
        (root / "sshd_config").write_text("\n".join(settings) + "\n")
        with (root / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(root / "sshd_config")], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        if not until(lambda: self._answers() or self._process.poll() is not None) or not self._answers():
            self.close()
            raise OSError((root / "log").read_text(errors="replace"))

    def _keygen(self, name: str) -> None:
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(self.root / name)]
        subprocess.run(words, check=True, timeout=HANG_S, stdin=subprocess.DEVNULL)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return self._process.poll() is None and probe.connect_ex(("127.0.0.1", self.port)) == 0

    def config(self, *more: str, key: str = "user") -> str:
        """Path of a client's configuration in which the host is called `box`."""
        known = self.root / "known"
        public = (self.root / "host.pub").read_text().strip()
        known.write_text(f"[127.0.0.1]:{self.port} {public}\n")
        path = self.root / f"config-{key}"
        lines = [
            "Host box", "HostName 127.0.0.1", f"Port {self.port}", f"User {getpass.getuser()}",
            f"IdentityFile {self.root / key}", "IdentitiesOnly yes", f"UserKnownHostsFile {known}",
            "GlobalKnownHostsFile /dev/null", "StrictHostKeyChecking yes", *more,
        ]  # fmt: skip
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    def sessions(self) -> list[int]:
        """Pids of the server's processes that serve a connection."""
        listed = subprocess.run(
            ["ps", "--ppid", str(self._process.pid), "-o", "pid="], capture_output=True, text=True,
            check=False, timeout=HANG_S,
        )  # fmt: skip
        return [int(word) for word in listed.stdout.split()]

    def close(self) -> None:
        for pid in [*self.sessions(), self._process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
