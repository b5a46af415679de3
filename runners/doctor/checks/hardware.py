"""GPUs among each other, InfiniBand, and what stands between them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ....presets.finding import Finding
from ..look import Look

REDIRECTS = 0x0004 | 0x0008 | 0x0010
"""P2P Request Redirect, P2P Completion Redirect, Upstream Forwarding: they lead from GPU to GPU through the root complex
(PCI Express Base Specification, "ACS Control Register")."""
DMA_BUF_KERNEL = (5, 12)
"""From this kernel on dma-buf serves GPUDirect RDMA, with NVIDIA's open kernel modules
(NVIDIA GPU Operator documentation, "GPUDirect RDMA")."""
PASSED = {"iommu=pt", "iommu=off", "intel_iommu=off", "amd_iommu=off", "iommu.passthrough=1"}
MOST_NAMED = 4


def check(look: Look) -> Iterator[Finding]:
    """One node's hardware."""
    yield from _ports(look)
    yield from _rates(look)
    yield from _gpudirect(look)
    if look.gpus > 1 or (look.gpus and look.active_ports):
        yield from _acs(look)
        yield from _iommu(look)
    yield from _p2p(look)


def _ports(look: Look) -> Iterator[Finding]:
    for port in look.get("infiniband") or ():
        if port.get("state") not in (None, "ACTIVE"):
            yield look.finding(
                "D-IB-DOWN", "warning",
                f"Port {port['port']} of {port['device']} ({port.get('link_layer') or 'link layer unknown'}) is not "
                "active, and NCCL goes around it.",
                f"{port['state']}, {port.get('physical') or 'physical state unknown'}",
                "Look at the cable and the switch (ibstat), or name the others in NCCL_IB_HCA.",
            )  # fmt: skip


def _rates(look: Look) -> Iterator[Finding]:
    """Within one link layer, a port well below the best is a cable that trained down, or the management port."""
    for layer in sorted({str(port.get("link_layer")) for port in look.active_ports}):
        ports = [
            port for port in look.active_ports if str(port.get("link_layer")) == layer and port.get("gbps")
        ]
        best = max((port["gbps"] for port in ports), default=0.0)
        slow = [f"{port['device']} {port['gbps']:g} Gb/s" for port in ports if port["gbps"] < best]
        if slow:
            yield look.finding(
                "D-IB-RATE", "warning", f"Active {layer} ports differ in rate; the best has {best:g} Gb/s.",
                ", ".join(slow), "Look at the cables, or leave the slow ports out with NCCL_IB_HCA=^NAME.",
            )  # fmt: skip


def _gpudirect(look: Look) -> Iterator[Finding]:
    if not look.gpus or not look.active_ports:
        return
    peermem = look.get("gpudirect", "peermem")
    numbers = re.match(r"(\d+)\.(\d+)", str(look.get("kernel") or ""))
    new = numbers is not None and (int(numbers[1]), int(numbers[2])) >= DMA_BUF_KERNEL
    dma_buf = bool(look.get("driver", "open")) and new and look.get("gpudirect", "dma_buf") is not False
    if peermem is False and not dma_buf:
        yield look.finding(
            "D-GPUDIRECT", "warning",
            "There are GPUs and InfiniBand, and neither nvidia_peermem nor dma-buf: data between nodes goes through "
            "the processor's memory.",
            "nvidia_peermem is not loaded", "modprobe nvidia_peermem, or use NVIDIA's open kernel modules.",
        )  # fmt: skip


def _acs(look: Look) -> Iterator[Finding]:
    found = look.get("pci")
    if found is None:
        text = "Whether PCI bridges redirect traffic between GPUs (ACS) can only be read by root."
        yield look.finding("D-ACS-UNKNOWN", "note", text, "n/a", "Run `sudo distui doctor` to know.")
        return
    bad = [one for one in found["acs"] if one["control"] & REDIRECTS]
    if bad:
        named = ", ".join(f"{one['device']} {one['control']:#06x}" for one in bad[:MOST_NAMED])
        more = f" and {len(bad) - MOST_NAMED} more" if len(bad) > MOST_NAMED else ""
        yield look.finding(
            "D-ACS", "warning",
            f"ACS is on at {len(bad)} PCI bridges: traffic between GPUs goes through the root complex, which is slow "
            "and has made NCCL hang.",
            named + more, "Switch ACS off in the BIOS, or with `setpci -s DEVICE ECAP_ACS+6.w=0000` as root.",
        )  # fmt: skip


def _iommu(look: Look) -> Iterator[Finding]:
    words = look.get("iommu", "cmdline") or []
    if look.get("iommu", "active") and not PASSED & set(words):
        yield look.finding(
            "D-IOMMU", "warning",
            "The IOMMU translates what GPUs send each other: slow, and P2P may hang (in a virtual machine it has to).",
            " ".join(words) or "the kernel's default", "Boot with iommu=pt.",
        )  # fmt: skip


def _p2p(look: Look) -> Iterator[Finding]:
    pairs = look.get("nvml", "no_p2p") or []
    if pairs:
        shown = ", ".join(f"{one}-{other}" for one, other in pairs[:MOST_NAMED])
        more = f" and {len(pairs) - MOST_NAMED} more" if len(pairs) > MOST_NAMED else ""
        text = f"{len(pairs)} pairs of GPUs cannot read each other's memory: NCCL goes through shared memory there."
        yield look.finding("D-P2P", "note", text, shown + more)
