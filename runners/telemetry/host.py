"""Host samples: CPU, memory, disks, network errors."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import psutil

from ..run import clock
from ..run.machine import disk_space
from ..run.proc import CgroupMemory, KeptFile
from ..run.samples import Host
from .counters import Counter

# -----------------------------------------------------------------------------------------------------------
# Errors of network interfaces and InfiniBand ports, without drops, which are normal.


CHECK_S = 5.0
"""Seconds between two checks of the error counters."""
KEPT_S = 60.0
PORT_ERRORS = (
    "symbol_error",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "port_rcv_errors",
)
"""Counters of an InfiniBand port (kernel ABI, sysfs-class-infiniband)."""


class NicErrors:
    """Number of errors in the last minute, from growing counters."""

    def __init__(self) -> None:
        self._counters: dict[str, int] = {}
        """Last values by name; a removed port or interface keeps its value."""
        self._total = 0
        self._seen: deque[tuple[float, int]] = deque()

    def due(self, now: float) -> bool:
        """Whether the next check is due; `now` in monotonic seconds."""
        return not self._seen or now - self._seen[-1][0] >= CHECK_S

    def add(self, now: float, counters: Mapping[str, int]) -> None:
        """Add the readable counters. One that appears or was reset adds nothing, since its errors may be old."""
        for name, value in counters.items():
            self._total += max(0, value - self._counters.get(name, value))
        self._counters |= counters
        self._seen.append((now, self._total))
        while len(self._seen) > 2 and now - self._seen[1][0] >= KEPT_S:
            self._seen.popleft()

    @property
    def lately(self) -> int | None:
        """Errors within the last minute; None before the second check."""
        return self._seen[-1][1] - self._seen[0][1] if len(self._seen) > 1 else None


def of_interfaces(data: bytes, names: Iterable[bytes]) -> dict[str, int]:
    """Receive and send errors of these interfaces in /proc/net/dev."""
    wanted = frozenset(names)
    errors: dict[str, int] = {}
    for line in data.splitlines()[2:]:
        name, _, rest = line.partition(b":")
        fields = rest.split()
        if name.strip() in wanted and len(fields) >= 16:
            errors[name.strip().decode()] = int(fields[2]) + int(fields[10])
    return errors


# -----------------------------------------------------------------------------------------------------------
# Samples of a node outside its GPUs: CPU, memory, disk, network, InfiniBand, pressure, cgroup.


DISK_S = 10.0
"""Seconds between two checks of the file systems: a network file system may answer slowly."""
IB_UNIT = 4
"""InfiniBand's port_{xmit,rcv}_data count units of 4 bytes (kernel ABI, sysfs-class-infiniband)."""
NIC_S = 30.0
"""Seconds between two listings of network interfaces and InfiniBand ports."""


class HostSampler:
    """Samples this node; call `sample` about once per second (takes less than 1 ms).

    `run_dir` selects the file system for the free space. `root` contains /proc and /sys, `clock` returns monotonic
    seconds. Fields are None if this kernel lacks their source.
    """

    def __init__(
        self, run_dir: str | Path, root: str | Path = "/", clock: Callable[[], float] = clock.monotonic
    ) -> None:
        self._run_dir = str(run_dir)
        self._root = Path(root)
        self._clock = clock
        self._cgroup = CgroupMemory(self._root)
        self._errors = NicErrors()
        self._rates: dict[str, Counter] = {}
        self._nics: tuple[bytes, ...] = ()
        self._ports: tuple[str, ...] = ()
        self._files: dict[str, KeptFile] = {}
        self._nics_at = self._disks_at = float("-inf")
        self._disks: dict[str, int | None] = {}
        self._cores = os.cpu_count()
        self._busy = _Busy()

    def sample(self) -> Host:
        """Take one sample. Rates and cpu_percent are None in the first."""
        now = self._clock()
        if now - self._nics_at >= NIC_S:
            self._nics_at = now
            self._nics, self._ports = _nics(self._root), _ports(self._root)
        memory = psutil.virtual_memory()
        received, sent = self._network(now)
        ib_received, ib_sent = self._infiniband(now)
        self._count_errors(now)
        limit, used = self._cgroup.read()
        busy, steal = self._busy.percent()
        return Host(
            cpu_percent=busy,
            cores=self._cores,
            load1=_load1(),
            mem_used=memory.total - memory.available,
            mem_total=memory.total,
            net_rx_bps=received,
            net_tx_bps=sent,
            ib_rx_bps=ib_received,
            ib_tx_bps=ib_sent,
            cpu_stall_percent=_pressure(self._kept("proc/pressure/cpu").read()),
            cgroup_mem_max=limit,
            cgroup_mem_used=used,
            steal_percent=steal,
            page_cache=max(0, memory.cached - memory.shared),
            nic_errors=self._errors.lately,
            **self._file_systems(now),
        )

    def _rate(self, key: str, value: int | None, now: float) -> float | None:
        return self._rates.setdefault(key, Counter()).rate(value, now)

    def _kept(self, name: str) -> KeptFile:
        """Open a file below the root, by its relative name."""
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = KeptFile(f"{self._root}/{name}", 8192)
        return file

    def _network(self, now: float) -> tuple[float | None, float | None]:
        """Bytes received and sent per second over the node's physical interfaces, without loopback."""
        data = self._kept("proc/net/dev").read_all()
        if data is None:
            return None, None
        received = sent = 0
        for name in self._nics:
            at = data.find(b" " + name + b":")
            at = at if at >= 0 else data.find(b"\n" + name + b":")
            if at >= 0:
                fields = data[at + len(name) + 2 : data.find(b"\n", at + 1)].split(None, 9)
                received, sent = received + int(fields[0]), sent + int(fields[8])
        return self._rate("net rx", received, now), self._rate("net tx", sent, now)

    def _infiniband(self, now: float) -> tuple[float | None, float | None]:
        """Bytes per second over all InfiniBand, RoCE and EFA ports; None without ports."""
        if not self._ports:
            return None, None
        received, sent = (
            [self._rate(f"{port}/{name}", self._number(f"{port}/{name}"), now) for port in self._ports]
            for name in ("port_rcv_data", "port_xmit_data")
        )
        return _sum(received), _sum(sent)

    def _count_errors(self, now: float) -> None:
        if not self._errors.due(now):
            return
        data = self._kept("proc/net/dev").read_all()
        if data is None:
            return
        counters = of_interfaces(data, self._nics)
        for name in (f"{port}/{error}" for port in self._ports for error in PORT_ERRORS):
            if (value := self._number(name)) is not None:
                counters[name] = value
        self._errors.add(now, counters)

    def _number(self, name: str) -> int | None:
        data = self._kept(name).read()  # sysfs answers EINVAL or EIO for a removed port
        return int(data) if data and data.strip().isdigit() else None

    def doubt_disks(self) -> None:
        """Reread the disks' values with the next sample."""
        self._disks_at = float("-inf")

    def _file_systems(self, now: float) -> dict[str, int | None]:
        if now - self._disks_at >= DISK_S:
            self._disks_at = now
            self._disks = _disks(self._run_dir)
        return self._disks


class _Busy:
    """Shares of all cores between two calls: busy, and stolen by a hypervisor."""

    def __init__(self) -> None:
        self._before: tuple[float, float, float] | None = None

    def percent(self) -> tuple[float | None, float | None]:
        times = psutil.cpu_times()
        # guest time is already in user time (proc_stat(5)).
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        idle = times.idle + getattr(times, "iowait", 0.0)
        stolen = getattr(times, "steal", 0.0)
        before, self._before = self._before, (total, idle, stolen)
        if before is None or total <= before[0]:
            return None, None
        passed = total - before[0]
        return _percent(1 - (idle - before[1]) / passed), _percent((stolen - before[2]) / passed)


def _percent(share: float) -> float:
    return 100 * min(1.0, max(0.0, share))


def _sum(rates: list[float | None]) -> float | None:
    """Sum in bytes of InfiniBand rates; None if one of them is unknown."""
    values = [rate for rate in rates if rate is not None]
    return IB_UNIT * sum(values) if len(values) == len(rates) else None


def _nics(root: Path) -> tuple[bytes, ...]:
    """Interfaces with a device; without any (a container), all but loopback.

    Bridges, bonds and veth pairs would count bytes twice.
    """
    base = root / "sys/class/net"
    try:
        names = [name for name in os.listdir(base) if name != "lo"]
    except (FileNotFoundError, PermissionError):
        return ()
    real = [name for name in names if (base / name / "device").exists()]
    return tuple(os.fsencode(name) for name in real or names)


def _ports(root: Path) -> tuple[str, ...]:
    """Return the counter directories of all InfiniBand ports that count bytes, below `root`."""
    dirs = (root / "sys/class/infiniband").glob("*/ports/*/counters")
    return tuple(sorted(str(path.relative_to(root)) for path in dirs if (path / "port_rcv_data").exists()))


def _load1() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _pressure(data: bytes | None) -> float | None:
    """Return `some avg10` of /proc/pressure/cpu in percent; None if the kernel has no PSI or has it off."""
    for word in (data or b"").partition(b"\n")[0].split():
        if word.startswith(b"avg10="):
            return float(word[6:])
    return None


def _disks(run_dir: str) -> dict[str, int | None]:
    free, total = disk_space(run_dir)
    shm_free, shm_total = disk_space("/dev/shm")
    used = None if shm_free is None or shm_total is None else shm_total - shm_free
    return {"disk_free": free, "disk_total": total, "shm_used": used, "shm_total": shm_total}
