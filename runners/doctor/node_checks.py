"""Checks of one node: hardware, software, system limits."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from ...presets.finding import Finding, Severity
from ...presets.plurals import plural
from ...presets.sanitize import sentence
from ..run.formatting import listed, size_text
from .examined_node import ExaminedNode

GIB = 1 << 30
MIB = 1 << 20


def check_node(node: ExaminedNode) -> Iterator[Finding]:
    """Check one node's software, hardware and system."""
    yield from _torch(node)
    yield from _driver(node)
    yield from _cuda(node)
    yield from _nccl(node)
    yield from _variables(node)
    yield from _ports(node)
    yield from _rates(node)
    yield from _gpudirect(node)
    if node.gpus > 1 or (node.gpus and node.active_ports):
        yield from _acs(node)
        yield from _iommu(node)
    yield from _p2p(node)
    yield from _shm(node)
    yield from _limits(node)
    yield from _disks(node)
    yield from _clock(node)
    yield from _cgroup(node)


REDIRECTS = 0x0004 | 0x0008 | 0x0010
"""P2P Request Redirect, P2P Completion Redirect, Upstream Forwarding: they send traffic between GPUs through the root
complex (PCI Express Base Specification, "ACS Control Register")."""
DMA_BUF_KERNEL = (5, 12)
"""First kernel with dma-buf for GPUDirect RDMA, with NVIDIA's open kernel modules
(NVIDIA GPU Operator documentation, "GPUDirect RDMA")."""
PASSED = {"iommu=pt", "iommu=off", "intel_iommu=off", "amd_iommu=off", "iommu.passthrough=1"}


def _ports(node: ExaminedNode) -> Iterator[Finding]:
    for port in node.get("infiniband") or ():
        if port.get("state") not in (None, "ACTIVE"):
            yield node.finding(
                "D-IB-DOWN",
                "warning",
                f"Port {port['port']} of {port['device']} ({port.get('link_layer') or 'link layer unknown'}) is not "
                "active, and NCCL goes around it.",
                f"{port['state']}, {port.get('physical') or 'physical state unknown'}",
                "Check the cable and the switch (ibstat), or list only the active ports in NCCL_IB_HCA.",
            )


def _rates(node: ExaminedNode) -> Iterator[Finding]:
    """Yield a warning per link layer if its active ports differ in rate.

    A slow port has a bad cable or is the management port.
    """
    for layer in sorted({str(port.get("link_layer")) for port in node.active_ports}):
        ports = [
            port for port in node.active_ports if str(port.get("link_layer")) == layer and port.get("gbps")
        ]
        best = max((port["gbps"] for port in ports), default=0.0)
        slow = [f"{port['device']} {port['gbps']:g} Gb/s" for port in ports if port["gbps"] < best]
        if slow:
            yield node.finding(
                "D-IB-RATE",
                "warning",
                f"Active {layer} ports differ in rate; the best has {best:g} Gb/s.",
                ", ".join(slow),
                "Check the cables, or leave the slow ports out with NCCL_IB_HCA=^NAME.",
            )


def _gpudirect(node: ExaminedNode) -> Iterator[Finding]:
    if not node.gpus or not node.active_ports:
        return
    peermem = node.get("gpudirect", "peermem")
    numbers = re.match(r"(\d+)\.(\d+)", str(node.get("kernel") or ""))
    new = numbers is not None and (int(numbers[1]), int(numbers[2])) >= DMA_BUF_KERNEL
    dma_buf = bool(node.get("driver", "open")) and new and node.get("gpudirect", "dma_buf") is not False
    if peermem is False and not dma_buf:
        yield node.finding(
            "D-GPUDIRECT",
            "warning",
            "There are GPUs and InfiniBand, and neither nvidia_peermem nor dma-buf: data between nodes goes through "
            "the processor's memory.",
            "nvidia_peermem is not loaded",
            "modprobe nvidia_peermem, or use NVIDIA's open kernel modules.",
        )


def _acs(node: ExaminedNode) -> Iterator[Finding]:
    pci = node.get("pci")
    if pci is None:
        text = "Only root can read if PCI bridges redirect traffic between GPUs (ACS)."
        yield node.finding("D-ACS-UNKNOWN", "note", text, "n/a", "Run `sudo distui doctor` to check it.")
        return
    bad = [bridge for bridge in pci["acs"] if bridge["control"] & REDIRECTS]
    if bad:
        named = listed([f"{bridge['device']} {bridge['control']:#06x}" for bridge in bad])
        yield node.finding(
            "D-ACS",
            "warning",
            f"ACS is on at {len(bad)} PCI bridges: traffic between GPUs goes through the root complex, which is slow "
            "and has made NCCL hang.",
            named,
            "Switch ACS off in the BIOS, or with `setpci -s DEVICE ECAP_ACS+6.w=0000` as root.",
        )


def _iommu(node: ExaminedNode) -> Iterator[Finding]:
    words = node.get("iommu", "cmdline") or []
    if node.get("iommu", "active") and not PASSED & set(words):
        yield node.finding(
            "D-IOMMU",
            "warning",
            "The IOMMU translates what GPUs send each other: slow, and P2P may hang (in a virtual machine it has to).",
            " ".join(words) or "the kernel's default",
            "Boot with iommu=pt.",
        )


def _p2p(node: ExaminedNode) -> Iterator[Finding]:
    pairs = node.get("nvml", "no_p2p") or []
    if pairs:
        count = plural(len(pairs), "pair")
        yield node.finding(
            "D-P2P",
            "note",
            f"{count} of GPUs cannot read each other's memory: NCCL goes through shared memory there.",
            listed([f"{first}-{second}" for first, second in pairs]),
            "`nvidia-smi topo -p2p r` prints the reason.",
        )


OLDEST_TORCH = (2, 7)
"""Oldest torch that distui's runner supports."""
BUSY_BYTES = 2 * GIB
"""Bytes in use on a GPU before a run that show another process. The driver uses up to about 0.6 GiB."""
SWITCHES = (
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_CUMEM_ENABLE",
)
LOUD = ("INFO", "TRACE")


def _torch(node: ExaminedNode) -> Iterator[Finding]:
    facts, remedy = node.get("training"), "Name the training environment's interpreter with --python."
    if facts is None:
        why = node.get("training_problem")
        yield node.finding(
            "D-PYTHON",
            "error",
            sentence(f"The training environment's Python cannot be used: {why}"),
            remedy=remedy,
        )
        return
    version, problem, where = facts.get("torch"), facts.get("problem"), facts.get("executable")
    if problem:
        text = sentence(f"torch in {where} cannot be imported: {problem}")
        yield node.finding("D-TORCH-BROKEN", "error", text, problem, "Install torch there again.")
    elif version is None:
        text = f"{where} has no torch, but every rank needs it."
        yield node.finding("D-TORCH-NONE", "error", text, "none", f"Install torch there. {remedy}")
    elif (numbers := _numbers(version)) and numbers < OLDEST_TORCH:
        text = f"torch {version} is too old: distui restarts ranks in place from 2.7 on."
        yield node.finding("D-TORCH-OLD", "error", text, version, "Install torch 2.7 or newer.")
    elif not facts.get("distributed"):
        text = f"torch {version} is built without torch.distributed."
        yield node.finding("D-TORCH-DISTRIBUTED", "error", text, version, "Install a build that has it.")


def _numbers(version: str) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", version)
    return None if match is None else (int(match[1]), int(match[2]))


def _driver(node: ExaminedNode) -> Iterator[Finding]:
    problem = node.get("nvml", "problem") or node.get("nvml_problem")
    if problem:
        yield node.finding(
            "D-DRIVER",
            "error",
            sentence(f"NVIDIA's driver does not answer: {problem}"),
            problem,
            "Load the driver (modprobe nvidia), or reboot the node after an update of it.",
        )
    for index in node.get("nvml", "lost") or ():
        yield node.finding(
            "D-GPU-LOST",
            "error",
            f"The driver no longer reaches GPU {index}.",
            f"GPU {index}",
            "Search the kernel's log for Xid; reset the GPU or reboot the node.",
        )
    for index, gpu in enumerate(node.get("nvml", "gpus") or ()):
        if (gpu.get("used") or 0) > BUSY_BYTES:
            yield node.finding(
                "D-GPU-BUSY",
                "warning",
                f"GPU {index} is in use before the run starts.",
                size_text(gpu["used"]),
                "End what holds it (nvidia-smi names the processes), or leave the GPU out.",
            )


def _cuda(node: ExaminedNode) -> Iterator[Finding]:
    facts = node.get("training") or {}
    if not facts.get("torch") or not node.gpus:
        return
    if not facts.get("cuda") and not facts.get("hip"):
        text = f"The node has {node.gpus} GPUs, and torch {facts['torch']} is built without CUDA."
        yield node.finding("D-CUDA-NONE", "error", text, facts["torch"], "Install a CUDA build of torch.")
        return
    if not facts.get("gpus"):
        why = facts.get("cuda_problem") or "no reason was reported"
        yield node.finding(
            "D-CUDA-UNUSABLE",
            "error",
            sentence(f"torch sees none of the {node.gpus} GPUs: {why}"),
            f"CUDA {facts.get('cuda')}, driver {node.driver or 'unknown'}",
            "Install a newer driver, or a torch for an older CUDA; check CUDA_VISIBLE_DEVICES.",
        )
        return
    yield from _arches(node, facts.get("arches") or [], facts["gpus"])


def _arches(node: ExaminedNode, arches: list[str], gpus: list[dict[str, Any]]) -> Iterator[Finding]:
    pairs = [re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", arch) for arch in arches]
    built = [(match[1], int(match[2]), int(match[3])) for match in pairs if match]
    for index, gpu in enumerate(gpus):
        major, minor = gpu["capability"]
        if built and not _has_kernels(built, major, minor):
            yield node.finding(
                "D-CUDA-ARCH",
                "error",
                f"torch has no kernels for GPU {index} ({gpu['name']}, compute capability {major}.{minor}).",
                " ".join(arches),
                "Install a build of torch for this GPU.",
            )


def _has_kernels(built: list[tuple[str, int, int]], major: int, minor: int) -> bool:
    """Return whether a binary in `built` runs on a GPU of compute capability `major`.`minor`.

    A binary for sm_XY runs on X.Z with Z ≥ Y, and compute_XY is compiled for any newer GPU (CUDA C++ Programming Guide,
    "Binary Compatibility").
    """
    for kind, high, low in built:
        if kind == "sm" and high == major and low <= minor:
            return True
        if kind == "compute" and (high, low) <= (major, minor):
            return True
    return False


def _nccl(node: ExaminedNode) -> Iterator[Finding]:
    facts = node.get("training") or {}
    if facts.get("cuda") and facts.get("gpus") and facts.get("nccl") is None:
        text = "This torch has CUDA and no NCCL: ranks on GPUs could only use gloo."
        yield node.finding("D-NCCL-NONE", "error", text, facts["torch"], "Install an official build.")
    for path, settings in (node.get("nccl_conf") or {}).items():
        names = ", ".join(sorted(settings)) or "nothing"
        yield node.finding(
            "D-NCCL-CONF",
            "note",
            f"NCCL also reads {path}, whatever a launch sets.",
            names,
            "Check that file if a setting of NCCL is not the one that you gave.",
        )


def _variables(node: ExaminedNode) -> Iterator[Finding]:
    env = node.settings
    off = [
        f"{name}={env[name]}"
        for name in SWITCHES
        if env.get(name) == ("1" if name.endswith("DISABLE") else "0")
    ]
    if off:
        yield node.finding(
            "D-NCCL-OFF",
            "warning",
            "A transport of NCCL is switched off for every run here.",
            " ".join(off),
            "Unset it, unless this machine needs it.",
        )
    level = env.get("NCCL_DEBUG", "").upper()
    if level in LOUD:
        value = f"NCCL_DEBUG={level}" + (
            f" NCCL_DEBUG_SUBSYS={env['NCCL_DEBUG_SUBSYS']}" if "NCCL_DEBUG_SUBSYS" in env else ""
        )
        text = "NCCL writes a lot in every run here; gigabytes per hour have been seen."
        yield node.finding("D-NCCL-LOUD", "note", text, value, "Unset it; `distui nccl` changes it live.")


SHM_NONE = 128 * MIB
"""Docker's default is 64 MiB, which is too small for NCCL's segments and a DataLoader's batches."""
SHM_SMALL = GIB
"""NVIDIA's recommendation for containers (NCCL User Guide, "Troubleshooting", Docker: --shm-size=1g)."""
MEMLOCK_NONE = 64 * MIB
"""RDMA registers several MiB per connection. The kernel's default of 8 MiB has failed (nccl-tests#206)."""
NOFILE = 4096
"""NCCL opens sockets per pair of ranks and channel, and a DataLoader opens a file per tensor. 1024 has been too few
(nccl#550, nccl#127)."""
NPROC = 4096
"""Each rank has some hundred threads, which count as processes."""
DISK_NONE = GIB
"""With less, a checkpoint or a log ends the run."""
DISK_SMALL = 10 * GIB
CLOCK_S = 1.0
"""With a larger difference, the nodes' times do not show the order of events."""


def _shm(node: ExaminedNode) -> Iterator[Finding]:
    remedy = (
        "Start the container with --shm-size=8g or --ipc=host; on Kubernetes mount a memory emptyDir there."
    )
    space = node.get("shm")
    if space is None:
        text = "There is no /dev/shm, which NCCL and DataLoader workers need."
        yield node.finding("D-SHM-NONE", "error", text, "none", remedy)
        return
    if space["free"] < SHM_NONE:
        text = "/dev/shm has so little room that NCCL or DataLoader workers fail."
        shown = f"{size_text(space['free'])} free of {size_text(space['total'])}"
        yield node.finding(
            "D-SHM-SMALL", "error", text, shown, f"Remove what ended jobs left there. {remedy}"
        )
    elif space["total"] < SHM_SMALL:
        text = "/dev/shm is smaller than 1 GiB: several DataLoader workers may fill it."
        yield node.finding("D-SHM-SMALL", "warning", text, size_text(space["total"]), remedy)


def _limits(node: ExaminedNode) -> Iterator[Finding]:
    memlock = _soft_limit(node, "memlock")
    if memlock is not None and node.active_ports:
        few = memlock < MEMLOCK_NONE
        text = "Locked memory is limited, and InfiniBand locks its buffers" + (
            ": it fails." if few else "."
        )
        remedy = "ulimit -l unlimited in the shell that launches; docker --ulimit memlock=-1; LimitMEMLOCK for services."
        yield node.finding("D-MEMLOCK", "error" if few else "warning", text, size_text(memlock), remedy)
    nofile = _soft_limit(node, "nofile", below=NOFILE)
    if nofile is not None:
        matters = node.several or node.gpus
        text = "Few files may be open at a time: many ranks or DataLoader workers reach that."
        yield node.finding(
            "D-NOFILE", "warning" if matters else "note", text, nofile, "ulimit -n 65536 before the launch."
        )
    nproc = _soft_limit(node, "nproc", below=NPROC)
    if nproc is not None:
        text = "Few processes and threads are allowed; each rank has hundreds."
        yield node.finding("D-NPROC", "warning", text, nproc, "ulimit -u unlimited before the launch.")


def _soft_limit(node: ExaminedNode, name: str, below: float = math.inf) -> int | None:
    """Return a limit; None if there is none, if it is unknown, or if it is not below `below`."""
    soft: int | None = (node.get("limits", name) or [None])[0]
    return soft if soft is not None and soft < below else None


UNWRITABLE = {"runs": "Set XDG_STATE_HOME.", "tmp": "Set TMPDIR to a directory that can."}
"""Directories to which a run writes → the remedy if it cannot."""


def _disks(node: ExaminedNode) -> Iterator[Finding]:
    devices: set[object] = set()
    for disk in node.get("disks") or ():
        name, path, free = disk["name"], disk["path"], disk.get("free")
        if not disk["there"]:
            text = f"There is no directory {path}: a launch starts its ranks in the directory you are in."
            remedy = "Copy it there, or launch with --workdir DIR."
            yield node.finding("D-WORKDIR", "warning", text, path, remedy)
            continue
        if name in UNWRITABLE and not disk["writable"]:
            text = f"{path} cannot be written, and a run writes there."
            yield node.finding("D-DISK-READONLY", "error", text, path, UNWRITABLE[name])
        if free is None or free >= DISK_SMALL or disk["device"] in devices:
            continue
        devices.add(disk["device"])
        text = f"The disk of {path} is almost full."
        severity: Severity = "error" if free < DISK_NONE else "warning"
        yield node.finding("D-DISK-FULL", severity, text, f"{size_text(free)} free", "Free space there.")


def _clock(node: ExaminedNode) -> Iterator[Finding]:
    if node.ahead_s is not None and abs(node.ahead_s) - node.doubt_s > CLOCK_S:
        way = "ahead of" if node.ahead_s > 0 else "behind"
        text = f"Its clock is {abs(node.ahead_s):.1f} s {way} this machine's: times of events cannot be compared."
        shown = f"{round(node.ahead_s, 3) + 0.0:+.3f} s ± {node.doubt_s:.3f} s"
        yield node.finding("D-CLOCK", "warning", text, shown, "Start chrony or systemd-timesyncd there.")


def _cgroup(node: ExaminedNode) -> Iterator[Finding]:
    memory, cores = node.get("cgroup", "memory"), node.get("cgroup", "cores")
    has, count = node.get("memory"), node.get("cores")
    if memory is not None and has is not None and memory < has:
        text = f"A control group allows less memory than the {size_text(has)} of the node; the kernel kills above it."
        remedy = "Raise the container's limit if it is short."
        yield node.finding("D-CGROUP-MEMORY", "note", text, size_text(memory), remedy)
    if cores is not None and count is not None and cores < count:
        text = f"A control group allows less CPU time than {count} cores give; ranks are held up above it."
        severity: Severity = "warning" if node.gpus and cores < node.gpus else "note"
        remedy = "Raise the container's limit, or leave it out."
        yield node.finding("D-CGROUP-CPU", severity, text, f"{cores:g} cores", remedy)
