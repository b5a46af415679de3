"""Everything that one node says of itself, as one JSON object. What is not known is null."""

from __future__ import annotations

import os
import sys
from typing import Any

from . import children, hardware, network, pci, system

GPU_SECONDS = 20.0
TORCH_SECONDS = 90.0
"""An import of torch from a cold network file system takes about a minute."""


def gather(spec: dict[str, Any], texts: dict[str, str]) -> dict[str, Any]:
    """The facts. `spec`: python (of the training; "" for PATH's), cwd, port (None: not looked at)."""
    faces = network.interfaces()
    address = network.ssh_address()
    gpus, gpu_problem = children.once([sys.executable, "-I"], texts["gpus"], {}, GPU_SECONDS)
    training, training_problem = _training(spec["python"], texts["checking"])
    return {
        **system.kernel(),
        "agent_python": {
            "version": ".".join(str(part) for part in sys.version_info[:3]),
            "executable": sys.executable,
        },
        "training": training,
        "training_problem": training_problem,
        "driver": hardware.driver(),
        "kernel_gpus": hardware.kernel_gpus(),
        "nvml": gpus,
        "nvml_problem": gpu_problem,
        "infiniband": hardware.infiniband(),
        "gpudirect": hardware.gpudirect(),
        "iommu": hardware.iommu(),
        "pci": pci.bridges(),
        "interfaces": faces,
        "ssh_address": address,
        "dns": network.names(faces, address),
        "port": None if spec["port"] is None else network.port_state(spec["port"]),
        "shm": system.shm(),
        "limits": system.limits(),
        "disks": system.disks(spec["cwd"]),
        "cgroup": system.cgroup(),
        "clock_synchronised": system.clock_synchronised(),
        "env": {name: network.masked(value) for name, value in system.variables(dict(os.environ)).items()},
        "nccl_conf": system.conf_files(os.path.expanduser("~")),
    }


def _training(python: str, text: str) -> tuple[dict[str, Any] | None, str]:
    """What the training environment's interpreter reports, and why it reports nothing.

    Without a name: the first of PATH's that has torch, as a launch takes it.
    """
    wanted: list[str] = [python] if python else ["python", "python3"]
    paths = [path for path in map(system.which, wanted) if path is not None]
    if not paths:
        return None, "%s is no executable" % (python or "python")
    answers = []
    for path in paths:
        answer, problem = children.once([path], text, {"do": "facts"}, TORCH_SECONDS)
        if answer is not None and answer.get("torch"):
            return {**answer, "executable": path}, ""
        answers.append(
            (None if answer is None else {**answer, "executable": path}, problem and f"{path}: {problem}")
        )
    return answers[0]
