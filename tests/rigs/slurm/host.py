"""Process 1 of one host: makes the machine look like its own, starts its daemons, buries the dead.

Started in new namespaces with one argument, a JSON object (see `Plan`). Does the mounts, says `here`, waits
for a line on stdin (the network is plugged in from outside), starts the daemons and says `ready`. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TypedDict

READ_ONLY, REMOUNT, BIND, RECURSIVE = 1, 32, 4096, 16384  # <sys/mount.h>
OPEN_MODE = 0o1777
GPU_LIKE = os.makedev(1, 3)
"""/dev/null: any character device will do for Slurm."""


class Plan(TypedDict):
    """What a host is told."""

    name: str
    role: str
    """login, compute or client."""
    home: str
    """The folder that becomes the user's home folder; `over` is where."""
    over: str
    private: str
    """What belongs to this host alone."""
    etc: str
    supplies: str
    hidden: list[str]
    """Folders that this host must not see."""
    kept: list[tuple[str, bool]]
    """Folders seen at the same path as outside, though what is around them is hidden; writable or not."""
    shared: list[tuple[str, str]]
    """Writable folders that several hosts have: where from, where to."""
    groups: tuple[str, str] | None
    """A mounted cgroup hierarchy, and the group in it that this host sees as the whole."""
    gpus: int


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2). Raises OSError with the target's name."""
    libc = ctypes.CDLL(None, use_errno=True)
    words = [word.encode() if word else None for word in (source, target, kind)]
    if libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None):
        raise OSError(ctypes.get_errno(), f"mount: {os.strerror(ctypes.get_errno())}", target)


def bind(source: str | Path, target: str | Path, writable: bool = True) -> None:
    """Show a file or folder at a second place too."""
    mount(str(source), str(target), flags=BIND | RECURSIVE)
    if not writable:
        mount("", str(target), flags=BIND | REMOUNT | READ_ONLY)


def memory(target: str, mode: str = "755") -> None:
    """An empty file system in memory."""
    Path(target).mkdir(parents=True, exist_ok=True)
    mount("rig", target, "tmpfs", data=f"mode={mode},size=2g")


def own(private: Path, name: str, target: str, mode: int = OPEN_MODE) -> None:
    """Put a folder of this host alone over one that all would share."""
    folder = private / name
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(mode)
    bind(folder, target)


def own_kernel_files(private: Path) -> None:
    """A boot id of this boot, and a /sys that shows this host's network."""
    boot = private / "boot_id"
    boot.write_text(f"{uuid.uuid4()}\n")
    bind(boot, "/proc/sys/kernel/random/boot_id")
    groups = os.open("/sys/fs/cgroup", os.O_PATH)
    mount("sysfs", "/sys", "sysfs")
    bind(f"/proc/self/fd/{groups}", "/sys/fs/cgroup")
    os.close(groups)


def own_groups(hierarchy: str, name: str) -> None:
    """Show one group of a hierarchy as if it were all."""
    group = Path(hierarchy, name)
    group.mkdir(exist_ok=True)
    bind(group, hierarchy)


def furnish(plan: Plan) -> None:
    """Every mount of a host. Afterwards nothing outside its own folders can be written."""
    private = Path(plan["private"])
    kept = [(os.open(path, os.O_PATH), path, writable) for path, writable in plan["kept"]]
    places = [os.open(plan[place], os.O_PATH) for place in ("home", "etc", "supplies")]
    home, etc, supplies = (f"/proc/self/fd/{place}" for place in places)
    log = private / "log"
    log.mkdir(parents=True, exist_ok=True)
    (log / "lastlog").touch()  # sshd misses it aloud
    (private / "state").mkdir(exist_ok=True)
    own_kernel_files(private)
    if plan["groups"]:
        own_groups(*plan["groups"])
    memory("/mnt")
    shown = {"etc": etc, "nfs": supplies, "log": f"{log}", "state": f"{private}/state"}
    for name, folder in shown.items():
        Path("/mnt", name).mkdir()
        bind(folder, f"/mnt/{name}", writable=name in ("log", "state"))
    bind("/mnt/log", "/var/log")
    bind("/mnt/etc/hosts", "/etc/hosts")
    if plan["role"] != "client":
        bind("/mnt/etc/slurm", "/etc/slurm")
    here = os.open(private, os.O_PATH)
    shared = [(os.open(source, os.O_PATH), target) for source, target in plan["shared"]]
    memory("/run")
    memory("/dev/shm", "1777")
    for path in plan["hidden"]:
        memory(path)
    bind(home, plan["over"])
    for name, target in (("var-tmp", "/var/tmp"), ("tmp", "/tmp")):
        own(Path(f"/proc/self/fd/{here}"), name, target)
    for source, path, writable in [*kept, *((source, target, True) for source, target in shared)]:
        Path(path).mkdir(parents=True, exist_ok=True)
        bind(f"/proc/self/fd/{source}", path, writable)
        os.close(source)
    for one in (here, *places):
        os.close(one)
    # Last: what is bound from a mount that is read-only would be so too.
    mount("", "/", flags=BIND | REMOUNT | READ_ONLY)


def spawn(log: str, *command: str) -> None:
    """Start a daemon that stays in the foreground."""
    with open(f"/mnt/log/{log}.out", "ab") as out:
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)


def start_munge() -> None:
    """Returns once its socket answers: it goes to the background then."""
    for name in ("munge", "sshd", "slurm", "slurmd", "lock"):
        Path("/run", name).mkdir()
    command = [
        "munged",
        "--force",
        "--key-file=/mnt/etc/munge.key",
        "--pid-file=/run/munge/munged.pid",
        "--socket=/run/munge/munge.socket.2",
        "--log-file=/mnt/log/munged.log",
        "--seed-file=/run/munge/seed",
    ]
    with open("/mnt/log/munged.out", "ab") as out:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=20, check=True)


def start_daemons(plan: Plan) -> None:
    """What this host's role runs."""
    if plan["role"] == "client":
        probe = str(Path(__file__).with_name("probe.py"))
        spawn("probe", sys.executable, "-I", "-B", probe, "/mnt/etc/probe.crt", "/mnt/etc/probe.key")
        return
    for number in range(plan["gpus"] if plan["role"] == "compute" else 0):
        os.mknod(f"/run/nvidia{number}", stat.S_IFCHR | 0o666, GPU_LIKE)
    start_munge()
    spawn("sshd", "/usr/sbin/sshd", "-D", "-e", "-f", "/mnt/etc/sshd_config")
    if plan["role"] == "login":
        spawn("slurmctld", "slurmctld", "-D", "-i", "-L", "/mnt/log/slurmctld.log")
    else:
        spawn("slurmd", "slurmd", "-D", "-N", plan["name"], "-L", "/mnt/log/slurmd.log")


def bury() -> None:
    """Reap whatever ends, for ever."""
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            signal.pause()


def main() -> None:
    plan: Plan = json.loads(sys.argv[1])
    socket.sethostname(plan["name"])
    furnish(plan)
    os.chdir("/")
    print("here", flush=True)
    sys.stdin.readline()
    start_daemons(plan)
    print("ready", flush=True)
    bury()


if __name__ == "__main__":
    main()
