"""Hosts as processes: each is held by its process 1, and gone with it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from .host import Plan
from .settings import MARKER, Trouble, passwd_home

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNSHARE = ("unshare", "--mount", "--uts", "--pid", "--ipc", "--net", "--fork", "--mount-proc")
STARTED: list[subprocess.Popen[Any]] = []
"""What this process started and has to bury."""
READY_S = 20.0
"""Longest that a host may take to come up; it takes a tenth of a second."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A host that runs, or ran: its first process as the machine sees it."""

    init: int
    """Its process id outside."""
    started: float
    """When it began, as the kernel says: a process id alone may be somebody else's by now."""

    @property
    def alive(self) -> bool:
        """Whether that very process runs."""
        try:
            process = psutil.Process(self.init)
            return process.create_time() == self.started and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def namespaces(self) -> set[str]:
        """Names of the namespaces that the process is in, as in /proc/<pid>/ns."""
        return {os.readlink(f"/proc/{self.init}/ns/{kind}") for kind in ("mnt", "net", "pid", "uts", "ipc")}

    def record(self) -> dict[str, float]:
        """As it is kept in the rig's record."""
        return asdict(self)


@dataclass(slots=True)
class Booting:
    """A host between power on and ready."""

    process: subprocess.Popen[str]
    holder: Holder
    log: Path

    def hear(self, expected: str) -> None:
        """Wait for a line of the host. Raises Trouble with its last words."""
        assert self.process.stdout is not None
        heard = ""
        if select.select([self.process.stdout], [], [], READY_S)[0]:
            heard = self.process.stdout.readline()
        if heard.strip() != expected:
            self.process.kill()
            last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
            raise Trouble(f"a host did not come up ({self.log}): {last[0] if last else 'no answer'}")

    def plugged(self) -> None:
        """Tell the host that its network is there."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.close()

    def close(self) -> None:
        """Let go of the host: it runs on alone."""
        assert self.process.stdout is not None
        self.process.stdout.close()


def hold(process: subprocess.Popen[str]) -> Holder:
    """The child of `unshare`, once it is there."""
    outer = psutil.Process(process.pid)
    while process.poll() is None:
        if children := outer.children():
            return Holder(children[0].pid, children[0].create_time())
    raise Trouble(
        "this machine gives no namespaces: the rig needs Linux with them, and root that may make them"
    )


def clean(folder: Path) -> dict[str, str]:
    """The environment of a host's first process."""
    return {"PATH": PATH, "HOME": str(passwd_home()), "LANG": "C.UTF-8", MARKER: str(folder)}


def power_on(plan: Plan, folder: Path) -> Booting:
    """Start a host; it says `here` and waits for its network."""
    private = Path(plan["private"])
    private.mkdir(parents=True, exist_ok=True)
    log = private / "init.log"
    program = [sys.executable, "-I", "-B", str(Path(__file__).with_name("host.py")), json.dumps(plan)]
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*UNSHARE, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=clean(folder),
            text=True,
            start_new_session=True,
        )
    STARTED.append(process)
    return Booting(process, hold(process), log)


def power_on_lan(folder: Path) -> Holder:
    """The namespace that holds the bridge: a process that waits for ever."""
    command = ["unshare", "--net", "sleep", "infinity"]
    null = subprocess.DEVNULL
    process = subprocess.Popen(
        command, stdin=null, stdout=null, stderr=null, env=clean(folder), start_new_session=True
    )
    STARTED.append(process)
    own = os.readlink("/proc/self/ns/net")
    while process.poll() is None:
        try:
            if os.readlink(f"/proc/{process.pid}/ns/net") != own:
                return Holder(process.pid, psutil.Process(process.pid).create_time())
        except OSError:
            continue
    raise Trouble(
        "this machine gives no network namespaces: the rig needs Linux with them, and root that may make them"
    )


def power_off(holder: Holder, timeout: float = 20) -> None:
    """Kill a host's first process, and with it every other; wait until the last is gone. Raises Trouble."""
    if holder.alive:
        watch = os.pidfd_open(holder.init)
        try:
            signal.pidfd_send_signal(watch, signal.SIGKILL)
            if not select.select([watch], [], [], timeout)[0]:
                raise Trouble(f"a host's processes do not end; process {holder.init} is its first")
        finally:
            os.close(watch)
    reap()


def carried() -> dict[int, str]:
    """Processes of rigs → the folder of their rig, as each carries it from its start."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if folder := process.environ().get(MARKER):
                found[process.pid] = folder
    return found


def kill_all(folder: Path) -> None:
    """Kill whatever a rig has that is in no host, as of a start that was broken off. Raises Trouble."""
    for pid, carries in carried().items():
        if carries == str(folder) and pid != os.getpid():
            with contextlib.suppress(psutil.NoSuchProcess):
                power_off(Holder(pid, psutil.Process(pid).create_time()))


def reap() -> None:
    """Bury the hosts started here that have ended."""
    STARTED[:] = [process for process in STARTED if process.poll() is None]


def enter(holder: Holder, cwd: str, argv: list[str]) -> list[str]:
    """The command that runs another inside a host. It is told to end when the outer one ends."""
    inside = ["env", "-C", cwd, "setpriv", "--pdeathsig", "TERM", *argv]
    return ["nsenter", "-t", str(holder.init), "-m", "-u", "-i", "-n", "-p", "--", *inside]
