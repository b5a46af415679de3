"""Memory, limits, disks, clock and control groups of a node."""

from __future__ import annotations

from collections.abc import Iterator

from ....presets.finding import Finding, Severity
from ..look import GIB, MIB, Look, size

SHM_NONE = 128 * MIB
"""Docker gives a container 64 MiB; NCCL's segments and a DataLoader's batches do not fit into that."""
SHM_SMALL = GIB
"""What NVIDIA tells to give a container (NCCL User Guide, "Troubleshooting", Docker: --shm-size=1g)."""
MEMLOCK_NONE = 64 * MIB
"""RDMA registers buffers of several MiB a connection; 8 MiB is the kernel's default and has failed (nccl-tests#206)."""
NOFILE = 4096
"""NCCL opens sockets for each pair of ranks and channel, a DataLoader a file for each tensor; 1024 has not been enough
(nccl#550, nccl#127)."""
NPROC = 4096
"""Each rank has some hundred threads, and they count as processes."""
STACK = 8 * MIB
"""The default on Linux, which threads get, too."""
DISK_NONE = GIB
"""Below, a checkpoint or a log ends the run."""
DISK_SMALL = 10 * GIB
CLOCK_S = 1.0
"""Above, what happened first cannot be told from the nodes' times."""


def check(look: Look) -> Iterator[Finding]:
    """One node's system."""
    yield from _shm(look)
    yield from _limits(look)
    yield from _disks(look)
    yield from _clock(look)
    yield from _cgroup(look)


def _shm(look: Look) -> Iterator[Finding]:
    remedy = (
        "Start the container with --shm-size=8g or --ipc=host; on Kubernetes mount a memory emptyDir there."
    )
    found = look.get("shm")
    if found is None:
        text = "There is no /dev/shm, which NCCL and DataLoader workers need."
        yield look.finding("D-SHM-NONE", "error", text, "none", remedy)
        return
    if found["free"] < SHM_NONE:
        text = "/dev/shm has so little room that NCCL or DataLoader workers fail."
        shown = f"{size(found['free'])} free of {size(found['total'])}"
        yield look.finding(
            "D-SHM-SMALL", "error", text, shown, f"Remove what ended jobs left there. {remedy}"
        )
    elif found["total"] < SHM_SMALL:
        text = "/dev/shm is smaller than 1 GiB: several DataLoader workers may fill it."
        yield look.finding("D-SHM-SMALL", "warning", text, size(found["total"]), remedy)


def _limits(look: Look) -> Iterator[Finding]:
    soft = {name: pair[0] for name, pair in (look.get("limits") or {}).items()}
    memlock, nofile = soft.get("memlock"), soft.get("nofile")
    if memlock is not None and look.active_ports:
        few = memlock < MEMLOCK_NONE
        text = "Locked memory is limited, and InfiniBand locks its buffers" + (
            ": it fails." if few else "."
        )
        remedy = "ulimit -l unlimited in the shell that launches; docker --ulimit memlock=-1; LimitMEMLOCK for services."
        yield look.finding("D-MEMLOCK", "error" if few else "warning", text, size(memlock), remedy)
    if nofile is not None and nofile < NOFILE:
        matters = look.several or look.gpus
        text = "Few files may be open at a time: many ranks or DataLoader workers reach that."
        yield look.finding(
            "D-NOFILE", "warning" if matters else "note", text, nofile, "ulimit -n 65536 before the launch."
        )
    nproc, stack = soft.get("nproc"), soft.get("stack")
    if nproc is not None and nproc < NPROC:
        text = "Few processes and threads are allowed; each rank has hundreds."
        yield look.finding("D-NPROC", "warning", text, nproc, "ulimit -u unlimited before the launch.")
    if stack is not None and stack < STACK:
        text = "Stacks are smaller than the usual 8 MiB: deep recursion in a rank ends it."
        yield look.finding("D-STACK", "note", text, size(stack), "ulimit -s 8192 before the launch.")


def _disks(look: Look) -> Iterator[Finding]:
    told: set[object] = set()
    for disk in look.get("disks") or ():
        name, path, free = disk["name"], disk["path"], disk.get("free")
        if not disk["there"]:
            text = f"There is no directory {path}: a launch starts its ranks in the directory you are in."
            remedy = "Copy it there, or launch with --workdir DIR."
            yield look.finding("D-WORKDIR", "warning", text, path, remedy)
            continue
        if name != "cwd" and not disk["writable"]:
            text = f"{path} cannot be written, and a run writes there."
            remedy = "Set XDG_STATE_HOME." if name == "runs" else "Set TMPDIR to a directory that can."
            yield look.finding("D-DISK-READONLY", "error", text, path, remedy)
        if free is None or free >= DISK_SMALL or disk["device"] in told:
            continue
        told.add(disk["device"])
        text = f"The disk of {path} is almost full."
        severity: Severity = "error" if free < DISK_NONE else "warning"
        yield look.finding("D-DISK-FULL", severity, text, f"{size(free)} free", "Free space there.")


def _clock(look: Look) -> Iterator[Finding]:
    if look.ahead_s is not None and abs(look.ahead_s) - look.doubt_s > CLOCK_S:
        way = "ahead of" if look.ahead_s > 0 else "behind"
        text = f"Its clock is {abs(look.ahead_s):.1f} s {way} this machine's: times of events cannot be compared."
        shown = f"{look.ahead_s:+.3f} s ± {look.doubt_s:.3f} s"
        yield look.finding("D-CLOCK", "warning", text, shown, "Start chrony or systemd-timesyncd there.")
    elif look.several and look.get("clock_synchronised") is False:
        text = "Nothing keeps its clock in time, as far as its kernel knows."
        remedy = "Start chrony or systemd-timesyncd there."
        yield look.finding("D-CLOCK-FREE", "note", text, "not synchronised", remedy)


def _cgroup(look: Look) -> Iterator[Finding]:
    memory, cores = look.get("cgroup", "memory"), look.get("cgroup", "cores")
    has, count = look.get("memory"), look.get("cores")
    if memory is not None and has is not None and memory < has:
        text = f"A control group allows less memory than the {size(has)} of the node; the kernel kills above it."
        yield look.finding(
            "D-CGROUP-MEMORY", "note", text, size(memory), "Raise the container's limit if it is short."
        )
    if cores is not None and count is not None and cores < count:
        text = f"A control group allows less processor time than {count} cores give; ranks are held up above it."
        severity: Severity = "warning" if look.gpus and cores < look.gpus else "note"
        remedy = "Raise the container's limit, or leave it out."
        yield look.finding("D-CGROUP-CPU", severity, text, f"{cores:g} cores", remedy)
