"""Facts of nodes that nobody has here: eight GPUs, InfiniBand, everything as it should be; and changes to it."""

from __future__ import annotations

import copy
from typing import Any

from distui.presets.finding import Finding
from distui.runners.doctor.examined_node import ExaminedNode
from distui.runners.doctor.node_checks import GIB

GPU = {"name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-0", "memory": 80 * GIB, "used": 600 << 20}


def unexpected(name: str, error: BaseException, follows: str) -> None:
    """No part of a session is to fail."""
    raise AssertionError(f"{name} failed: {follows}") from error


HEALTHY: dict[str, Any] = {
    "hostname": "node-a", "kernel": "6.8.0-45-generic", "machine": "x86_64", "boot": "1", "user": 1000,
    "cores": 96, "memory": 1024 * GIB,
    "agent_python": {"version": "3.11.7", "executable": "/usr/bin/python3"},
    "training": {
        "python": "3.11.7", "executable": "/opt/env/bin/python", "torch": "2.13.0+cu126", "problem": "",
        "cuda": "12.6", "hip": None, "distributed": True, "nccl": "2.27.5", "gloo": True,
        "arches": ["sm_80", "sm_90", "compute_90"], "cuda_problem": "",
        "gpus": [{"name": "NVIDIA H100 80GB HBM3", "memory": 80 * GIB, "capability": [9, 0]}] * 8,
    },
    "training_problem": "",
    "driver": {"version": "570.172.08", "open": True},
    "kernel_gpus": [],
    "nvml": {"version": "570.172.08", "gpus": [GPU] * 8, "lost": [], "no_p2p": []},
    "nvml_problem": "",
    "infiniband": [
        {"device": f"mlx5_{at}", "port": "1", "state": "ACTIVE", "physical": "LinkUp",
         "link_layer": "InfiniBand", "gbps": 400.0}
        for at in range(8)
    ],
    "gpudirect": {"peermem": True, "dma_buf": True},
    "iommu": {"cmdline": ["iommu=pt"], "active": True},
    "pci": {"bridges": 4, "acs": [{"device": "0000:00:01.0", "control": 0}]},
    "interfaces": [
        {"name": "lo", "up": True, "loopback": True, "device": False, "mtu": 65536, "mbps": None,
         "addresses": ["127.0.0.1"]},
        {"name": "eth0", "up": True, "loopback": False, "device": True, "mtu": 9000, "mbps": 100000,
         "addresses": ["10.0.0.1"]},
    ],
    "ssh_address": "10.0.0.1",
    "dns": {
        "own": {"name": "node-a", "addresses": ["10.0.0.1"], "problem": "", "seconds": 0.001},
    },
    "port": {"port": 29400, "free": True, "owner": None, "problem": ""},
    "shm": {"total": 500 * GIB, "free": 499 * GIB},
    "limits": {"memlock": [None, None], "nofile": [65536, 65536], "nproc": [None, None]},
    "disks": [
        {"name": name, "path": f"/{name}", "there": True, "device": 1, "writable": True,
         "total": 900 * GIB, "free": 800 * GIB}
        for name in ("runs", "tmp", "cwd")
    ],
    "cgroup": {"memory": None, "cores": None},
    "env": {},
    "nccl_conf": {},
}  # fmt: skip


def look(name: str = "a", several: bool = False, ahead_s: float = 0.0, **changes: Any) -> ExaminedNode:
    """A healthy node with other facts; `training__torch="2.12.0"` changes one within another."""
    facts = copy.deepcopy(HEALTHY) | {"boot": name}
    for path, value in changes.items():
        *outer, last = path.split("__")
        at = facts
        for word in outer:
            at = at[word]
        at[last] = value
    return ExaminedNode(name=name, facts=facts, ahead_s=ahead_s, doubt_s=0.001, several=several)


def ids(found: list[Finding]) -> list[tuple[str, str]]:
    """What of findings is compared: id and severity."""
    return [(one.id, one.severity) for one in found]
