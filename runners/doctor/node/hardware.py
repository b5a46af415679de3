"""NVIDIA's driver as the kernel shows it, InfiniBand, and what GPUDirect needs."""

from __future__ import annotations

import glob
import os
import re
from typing import Any

from .system import read

IOMMU_WORDS = ("iommu=", "intel_iommu=", "amd_iommu=", "iommu.passthrough=", "pci=", "pcie_acs_override=")


def driver(root: str = "/") -> dict[str, Any] | None:
    """The loaded kernel driver; None without one. `open`: NVIDIA's open kernel modules."""
    text = read(root + "proc/driver/nvidia/version")
    number = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    if not text:
        return None
    return {"version": number[1] if number else None, "open": "Open Kernel Module" in text}


def kernel_gpus(root: str = "/") -> list[dict[str, str | None]]:
    """GPUs as the kernel driver names them; none in a container that is given none, where their files are seen, too."""
    gpus: list[dict[str, str | None]] = []
    if not glob.glob(root + "dev/nvidia[0-9]*"):
        return gpus
    for path in sorted(glob.glob(root + "proc/driver/nvidia/gpus/*/information")):
        lines = (line.partition(":") for line in read(path).splitlines())
        fields = {name.strip(): value.strip() for name, _, value in lines}
        gpus.append(
            {"name": fields.get("Model"), "uuid": fields.get("GPU UUID"), "bus": fields.get("Bus Location")}
        )
    return gpus


def infiniband(root: str = "/") -> list[dict[str, Any]]:
    """Ports of InfiniBand, RoCE and EFA devices."""
    ports = []
    for path in sorted(glob.glob(root + "sys/class/infiniband/*/ports/*")):
        device, port = path.split("/")[-3], path.split("/")[-1]
        state = read(path + "/state").partition(":")[2].strip() or None
        physical = read(path + "/phys_state").partition(":")[2].strip() or None
        rate = re.match(r"(\d+(?:\.\d+)?) Gb/sec", read(path + "/rate"))
        ports.append(
            {
                "device": device,
                "port": port,
                "state": state,
                "physical": physical,
                "link_layer": read(path + "/link_layer") or None,
                "gbps": float(rate[1]) if rate else None,
            }
        )
    return ports


def gpudirect(root: str = "/") -> dict[str, Any]:
    """Whether nvidia_peermem is loaded, and whether the kernel exports dma-buf; None: not to be read."""
    modules = read(root + "proc/modules")
    names = {line.partition(" ")[0] for line in modules.splitlines()}
    return {
        "peermem": bool(names & {"nvidia_peermem", "nv_peer_mem"}) if modules else None,
        "dma_buf": _symbol(root + "proc/kallsyms", b" dma_buf_export"),
    }


def _symbol(path: str, name: bytes) -> bool | None:
    try:
        with open(path, "rb") as file:
            return any(name in line for line in file)
    except OSError:
        return None


def iommu(root: str = "/") -> dict[str, Any]:
    """What the kernel was told of the IOMMU, and whether one is at work."""
    words = read(root + "proc/cmdline").split()
    try:
        active: bool | None = bool(os.listdir(root + "sys/class/iommu"))
    except OSError:
        active = None
    return {"cmdline": [word for word in words if word.startswith(IOMMU_WORDS)], "active": active}
