"""What a rig is made of: folders, hosts, addresses. Pure but for reading the environment."""

from __future__ import annotations

import hashlib
import os
import pwd
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
"""The root of the repository that the rig was started from."""
NET = "10.77.0"
"""First three numbers of every address; the network exists inside the rig's namespaces only."""
PROBED = ("8.8.8.8", "1.1.1.1")
"""Addresses that SkyPilot asks for to know whether it is online; here they are the client's own."""
PREFIX = "distui-rig-"
"""How the names of folders begin in which rigs of tests are."""
MARKER = "DISTUI_RIG"
"""Variable that every process of a rig carries from its start: the rig's folder."""


FREEZER = Path("/sys/fs/cgroup/freezer")
"""Where Slurm's proctrack/cgroup puts a job's processes; on machines with cgroup v1 only."""


class Trouble(Exception):
    """What keeps a rig from working, in one sentence for a person."""


def passwd_home() -> Path:
    """The home folder that ssh believes in, whatever HOME says."""
    return Path(pwd.getpwuid(os.getuid()).pw_dir)


def folder_default() -> Path:
    """The rig's private folder: DISTUI_RIG_DIR, or one in the temporary folder."""
    named = os.environ.get("DISTUI_RIG_DIR")
    return Path(named or f"{tempfile.gettempdir()}/distui-rig-{os.getuid()}").absolute()


def cache_default() -> Path:
    """What `prepare` fetches and `down` keeps: DISTUI_RIG_CACHE, or one in the user's cache folder."""
    named = os.environ.get("DISTUI_RIG_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or f"{Path.home()}/.cache"
    return Path(named or f"{base}/distui-rig").absolute()


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How big a rig is. A rig that is up keeps the shape it was started with."""

    nodes: int = 2
    """Compute nodes, c1 to cN."""
    gpus: int = 8
    """H100 that each node pretends to have: Slurm schedules them, nothing else sees them."""
    cpus: int = 8
    """CPUs that each node pretends to have."""
    memory: int = 12000
    """MiB that each node pretends to have."""
    jobs: bool = False
    """SkyPilot's managed jobs, whose controllers cost 1.5 GB."""
    proctrack: str = "linuxproc"
    """How Slurm finds a job's processes: linuxproc, or cgroup as most sites have it."""

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= 64:
            raise Trouble(f"a rig has 1 to 64 nodes, not {self.nodes}")
        if self.proctrack not in ("linuxproc", "cgroup"):
            raise Trouble(f"proctrack is linuxproc or cgroup, not {self.proctrack}")
        if self.proctrack == "cgroup" and not FREEZER.is_mount():
            raise Trouble(
                f"proctrack=cgroup needs {FREEZER}, which this machine does not have: use linuxproc"
            )

    @property
    def computers(self) -> list[str]:
        """Names of the compute nodes."""
        return [f"c{number}" for number in range(1, self.nodes + 1)]

    @property
    def hosts(self) -> list[str]:
        """Names of all hosts."""
        return ["login", *self.computers, "client"]


def address(host: str) -> str:
    """The IPv4 address of a host; it is the same in every rig."""
    fixed = {"client": 2, "login": 10}
    number = fixed[host] if host in fixed else 10 + int(host.removeprefix("c"))
    return f"{NET}.{number}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Where a rig keeps what."""

    folder: Path = field(default_factory=folder_default)
    """Private to this rig; gone after `down`."""
    cache: Path = field(default_factory=cache_default)
    """Shared by all rigs of this user; filled by `prepare`."""

    @property
    def record(self) -> Path:
        """The file that says what is up."""
        return self.folder / "rig.json"

    @property
    def owner(self) -> Path:
        """The file that says with which process the rig goes down; there is none where somebody does that."""
        return self.folder / "owner.json"

    @property
    def etc(self) -> Path:
        """Keys and configuration, /mnt/etc in the nodes."""
        return self.folder / "etc"

    @property
    def client_home(self) -> Path:
        """What the client sees as its user's home folder."""
        return self.folder / "home"

    @property
    def shared_home(self) -> Path:
        """What login and all nodes see as the user's home folder."""
        return self.folder / "shared-home"

    @property
    def venv(self) -> Path:
        """The client's environment: SkyPilot and distui."""
        return self.cache / "venv"

    @property
    def supplies(self) -> Path:
        """What nodes without internet are given, /mnt/nfs there: bin/ and wheelhouse/."""
        return self.cache / "supplies"

    @property
    def unpacked(self) -> Path:
        """What uv unpacked on any node: it makes a launch on a fresh rig a warm one."""
        return self.cache / "unpacked"

    @property
    def prepared(self) -> Path:
        """The file that `prepare` writes last."""
        return self.cache / "prepared.json"

    def groups(self, host: str = "*") -> str:
        """Name of a host's own part of FREEZER, by which two rigs with the same node names are kept apart."""
        return f"rig-{hashlib.sha256(str(self.folder).encode()).hexdigest()[:10]}-{host}"

    def host(self, name: str) -> Path:
        """What belongs to one host alone: its /tmp, /var/tmp and logs."""
        return self.folder / "hosts" / name


def job_python() -> Path:
    """The interpreter with torch that jobs use: DISTUI_RIG_JOB_PYTHON, or the one running this."""
    return Path(os.environ.get("DISTUI_RIG_JOB_PYTHON") or sys.executable).absolute()
