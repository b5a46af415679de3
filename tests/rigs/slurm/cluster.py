"""A rig for tests: `Cluster.start()`, or `Cluster()` for the one that is up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from . import network
from .holders import PATH, Holder, enter, power_off
from .rig import Rig
from .settings import CHECKOUT, MARKER, Places, Shape, Trouble, address, passwd_home

Done = subprocess.CompletedProcess[str]
PASSED_ON = ("TERM", "COLORTERM", "COLUMNS", "LINES", "TZ", "TMUX")
"""What a command in the client sees of the caller's environment, beside what the rig sets."""
HEALTH = "http://127.0.0.1:46580/api/health"


class Cluster(Rig):
    """One rig. Its methods raise Trouble, with a sentence, where the rig cannot do what is asked."""

    patience_s = 0.0
    """Seconds added to each limit. Tests, whose limits only end what hangs, put theirs here."""

    @classmethod
    def start(cls, shape: Shape | None = None, places: Places | None = None) -> Cluster:
        """Bring a rig up, or find it up."""
        cluster = cls(places)
        cluster.up(shape)
        return cluster

    def __enter__(self) -> Cluster:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    # What it is

    @property
    def home(self) -> Path:
        """The client's home folder, as seen from outside; inside it is `inner_home`."""
        return self.places.client_home

    @property
    def inner_home(self) -> Path:
        """The home folder as every process in the rig sees it."""
        return passwd_home()

    @property
    def shared_home(self) -> Path:
        """The one home folder of login and nodes, as seen from outside."""
        return self.places.shared_home

    @property
    def scratch(self) -> Path:
        """A folder seen under the same path outside and in the client."""
        return self.places.folder / "scratch"

    def address(self, host: str) -> str:
        """The IPv4 address of a host."""
        return address(self._known(host))

    def processes(self, host: str) -> list[psutil.Process]:
        """Every process in a host, with the ids that they have outside."""
        space = os.readlink(f"/proc/{self._holder(host).init}/ns/pid")
        return [one for one in psutil.process_iter() if _namespace(one.pid) == space]

    def namespaces(self) -> set[str]:
        """Names of all namespaces that the rig alone has."""
        ours = Holder(os.getpid(), 0.0).namespaces()
        held = (holder.namespaces() for holder in self._holders().values() if holder.alive)
        return {space for spaces in held for space in spaces} - ours

    # Up and down

    def up(self, shape: Shape | None = None) -> None:
        """Power on what is off and wait until Slurm has all nodes. Without a shape: as it is, or two nodes."""
        nodes = self.power(shape).nodes
        self.wait(lambda: self.idle() == nodes, "Slurm has all nodes idle")

    def start_api(self, timeout: float = 90) -> None:
        """Start SkyPilot's API server in the client and let it see the cluster; nothing when it runs."""
        ask = f"import urllib.request as u; u.urlopen({HEALTH!r}, timeout=5)"
        if self.client([sys.executable, "-I", "-c", ask]).returncode == 0:
            return
        for command in (["sky", "api", "start"], ["sky", "check", "slurm"]):
            done = self.client(command, timeout=timeout)
            if done.returncode:
                raise Trouble(f"{' '.join(command)} failed: {(done.stdout + done.stderr).strip()[-300:]}")

    # Doing things in it

    def command(self, host: str, argv: Sequence[str | Path], cwd: str | Path | None = None) -> list[str]:
        """The command which, run outside with `environment(host)`, runs `argv` in a host."""
        where = cwd or (CHECKOUT if host == "client" else passwd_home())
        return enter(self._holder(host), str(where), [str(word) for word in argv])

    def environment(self, host: str) -> dict[str, str]:
        """All variables that a command in a host starts with."""
        base = {
            "HOME": str(passwd_home()),
            "PATH": PATH,
            "LANG": "C.UTF-8",
            MARKER: str(self.places.folder),
        }
        if host != "client":
            return {**base, "PATH": f"/mnt/nfs/bin:{PATH}", "JOB_PYTHON": self.job_python}
        return {
            **base,
            **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
            "PATH": f"{self.places.venv}/bin:{PATH}",
            "SHELL": "/bin/bash",
            "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
            "DO_NOT_TRACK": "1",
            "SSL_CERT_FILE": "/mnt/etc/probe.crt",
            "REQUESTS_CA_BUNDLE": "/mnt/etc/probe.crt",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": "/mnt/nfs/wheelhouse",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    def client(
        self,
        argv: Sequence[str | Path],
        timeout: float = 60,
        *,
        env: dict[str, str] | None = None,
        cwd: str | Path | None = None,
        input: str | None = None,
    ) -> Done:
        """Run a command in the client. Past `timeout` seconds it and its group are killed: TimeoutExpired."""
        return self.on("client", argv, timeout, env=env, cwd=cwd, input=input)

    def on(
        self,
        host: str,
        argv: Sequence[str | Path],
        timeout: float = 60,
        *,
        env: dict[str, str] | None = None,
        cwd: str | Path | None = None,
        input: str | None = None,
    ) -> Done:
        """Run a command in a host, by its namespaces: neither ssh nor the network is used."""
        null = subprocess.DEVNULL if input is None else subprocess.PIPE
        pipe = subprocess.PIPE
        started = self.popen(
            argv, host=host, env=env, cwd=cwd, stdin=null, stdout=pipe, stderr=pipe, text=True
        )
        with started as process:
            try:
                out, err = process.communicate(input, timeout + self.patience_s)
            except BaseException:
                os.killpg(process.pid, 9)
                raise
        return subprocess.CompletedProcess(list(map(str, argv)), process.returncode, out, err)

    def popen(
        self,
        argv: Sequence[str | Path],
        *,
        host: str = "client",
        env: dict[str, str] | None = None,
        cwd: str | Path | None = None,
        **how: Any,
    ) -> subprocess.Popen[Any]:
        """Start a command in a host, in a session of its own; `how` goes to subprocess.Popen."""
        environment = {**self.environment(host), **(env or {})}
        how.setdefault("start_new_session", True)
        return subprocess.Popen(self.command(host, argv, cwd), env=environment, **how)

    # Accidents

    def crash(self, host: str) -> None:
        """Cut the power: no process of the host gets to say good-bye on the network."""
        holder = self._holder(host)
        network.cut(self._holders()["lan"].init, host)
        power_off(holder)

    def boot(self, host: str) -> None:
        """Power on what `crash` powered off. Slurm takes the node back by itself."""
        with self._alone():
            if not self.is_up(self._known(host)):
                self._power_on([host])

    def unplug(self, host: str) -> None:
        """Pull the network cable; the host runs on."""
        self._holder(host)
        network.cut(self._holders()["lan"].init, host)

    def plug(self, host: str) -> None:
        """Put the network cable back."""
        self._holder(host)
        network.heal(self._holders()["lan"].init, host)

    # Looking

    def states(self) -> dict[str, str]:
        """What Slurm says of each node: idle, mixed, down…, with `*` where it does not answer."""
        done = self.on("login", ["sinfo", "-h", "-N", "-o", "%N %T"], 10)
        return dict(line.split() for line in done.stdout.splitlines())

    def idle(self) -> int:
        """How many nodes wait for work."""
        return sum(state == "idle" for state in self.states().values())

    def wait(
        self, condition: Callable[[], bool], what: str, timeout: float = 30, every: float = 0.05
    ) -> None:
        """Ask until it is so. Raises Trouble with `what` after `timeout` seconds."""
        timeout += self.patience_s
        end = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > end:
                raise Trouble(f"waited {timeout:g} s in vain: {what}")
            time.sleep(every)


def _namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None
