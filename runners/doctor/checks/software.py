"""The training environment: interpreter, torch, CUDA, driver, and variables that change what they do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ....presets.finding import Finding
from ..look import GIB, Look, sentence, size

OLDEST_TORCH = (2, 7)
"""What distui's runner supports."""
BUSY_BYTES = 2 * GIB
"""Used on a GPU before a run: the driver itself takes up to about 0.6 GiB of the largest, so this is somebody's."""
SWITCHES = (
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_CUMEM_ENABLE",
)
LOUD = ("INFO", "TRACE")


def check(look: Look) -> Iterator[Finding]:
    """One node's software."""
    yield from _torch(look)
    yield from _driver(look)
    yield from _cuda(look)
    yield from _nccl(look)
    yield from _variables(look)


def _torch(look: Look) -> Iterator[Finding]:
    found, remedy = look.get("training"), "Name the training environment's interpreter with --python."
    if found is None:
        why = look.get("training_problem")
        yield look.finding(
            "D-PYTHON",
            "error",
            sentence(f"The training environment's Python cannot be used: {why}"),
            remedy=remedy,
        )
        return
    version, problem, where = found.get("torch"), found.get("problem"), found.get("executable")
    if problem:
        text = sentence(f"torch in {where} cannot be imported: {problem}")
        yield look.finding("D-TORCH-BROKEN", "error", text, problem, "Install torch there again.")
    elif version is None:
        text = f"{where} has no torch, and no rank starts without it."
        yield look.finding("D-TORCH-NONE", "error", text, "none", f"Install torch there. {remedy}")
    elif (numbers := _numbers(version)) and numbers < OLDEST_TORCH:
        text = f"torch {version} is too old: distui restarts ranks in place from 2.7 on."
        yield look.finding("D-TORCH-OLD", "error", text, version, "Install torch 2.7 or newer.")
    elif not found.get("distributed"):
        text = f"torch {version} is built without torch.distributed."
        yield look.finding("D-TORCH-DISTRIBUTED", "error", text, version, "Install a build that has it.")


def _numbers(version: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", version)
    return None if found is None else (int(found[1]), int(found[2]))


def _driver(look: Look) -> Iterator[Finding]:
    problem = look.get("nvml", "problem") or look.get("nvml_problem")
    if problem:
        yield look.finding(
            "D-DRIVER", "error", sentence(f"NVIDIA's driver does not answer: {problem}"), problem,
            "Load the driver (modprobe nvidia), or reboot the node after an update of it.",
        )  # fmt: skip
    for index in look.get("nvml", "lost") or ():
        yield look.finding(
            "D-GPU-LOST", "error", f"The driver no longer reaches GPU {index}.", f"GPU {index}",
            "Look for Xid in the kernel's log; reset the GPU or reboot the node.",
        )  # fmt: skip
    for index, gpu in enumerate(look.get("nvml", "gpus") or ()):
        if (gpu.get("used") or 0) > BUSY_BYTES:
            yield look.finding(
                "D-GPU-BUSY", "warning", f"GPU {index} is in use before the run starts.", size(gpu["used"]),
                "End what holds it (nvidia-smi names the processes), or leave the GPU out.",
            )  # fmt: skip


def _cuda(look: Look) -> Iterator[Finding]:
    found = look.get("training") or {}
    if not found.get("torch") or not look.gpus:
        return
    if not found.get("cuda") and not found.get("hip"):
        text = f"The node has {look.gpus} GPUs, and torch {found['torch']} is built without CUDA."
        yield look.finding("D-CUDA-NONE", "error", text, found["torch"], "Install a CUDA build of torch.")
        return
    if not found.get("gpus"):
        why = found.get("cuda_problem") or "it does not say why"
        yield look.finding(
            "D-CUDA-UNUSABLE", "error", sentence(f"torch sees none of the {look.gpus} GPUs: {why}"),
            f"CUDA {found.get('cuda')}, driver {look.driver or 'unknown'}",
            "Install a newer driver, or a torch for an older CUDA; look at CUDA_VISIBLE_DEVICES.",
        )  # fmt: skip
        return
    yield from _arches(look, found.get("arches") or [], found["gpus"])


def _arches(look: Look, arches: list[str], gpus: list[dict[str, Any]]) -> Iterator[Finding]:
    """A binary for sm_XY runs on X.Z with Z ≥ Y, and compute_XY is compiled for whatever is newer
    (CUDA C++ Programming Guide, "Binary Compatibility")."""
    pairs = [re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", arch) for arch in arches]
    built = [(one[1], int(one[2]), int(one[3])) for one in pairs if one]
    for index, gpu in enumerate(gpus):
        major, minor = gpu["capability"]
        fits = any(
            (kind == "sm" and high == major and low <= minor)
            or (kind == "compute" and (high, low) <= (major, minor))
            for kind, high, low in built
        )
        if built and not fits:
            yield look.finding(
                "D-CUDA-ARCH", "error",
                f"torch has no kernels for GPU {index} ({gpu['name']}, compute capability {major}.{minor}).",
                " ".join(arches), "Install a build of torch for this GPU.",
            )  # fmt: skip


def _nccl(look: Look) -> Iterator[Finding]:
    found = look.get("training") or {}
    if found.get("cuda") and found.get("gpus") and found.get("nccl") is None:
        text = "This torch has CUDA and no NCCL: ranks on GPUs could only use gloo."
        yield look.finding("D-NCCL-NONE", "error", text, found["torch"], "Install an official build.")
    for path, said in (look.get("nccl_conf") or {}).items():
        names = ", ".join(sorted(said)) or "nothing"
        yield look.finding(
            "D-NCCL-CONF", "note", f"NCCL also reads {path}, whatever a launch says of the rest.", names,
            "Look into that file when a setting of NCCL is not the one you gave.",
        )  # fmt: skip


def _variables(look: Look) -> Iterator[Finding]:
    files: dict[str, str] = {}
    for said in (look.get("nccl_conf") or {}).values():
        files |= said
    env = {**files, **(look.get("env") or {})}
    off = [
        f"{name}={env[name]}" for name in SWITCHES
        if env.get(name) == ("1" if name.endswith("DISABLE") else "0")
    ]  # fmt: skip
    if off:
        yield look.finding(
            "D-NCCL-OFF", "warning", "A way on which NCCL sends is switched off for every run here.",
            " ".join(off), "Unset it, unless this machine needs it.",
        )  # fmt: skip
    level = env.get("NCCL_DEBUG", "").upper()
    if level in LOUD:
        value = f"NCCL_DEBUG={level}" + (
            f" NCCL_DEBUG_SUBSYS={env['NCCL_DEBUG_SUBSYS']}" if "NCCL_DEBUG_SUBSYS" in env else ""
        )
        text = "NCCL is told to write much in every run here; gigabytes an hour have been seen."
        yield look.finding("D-NCCL-LOUD", "note", text, value, "Unset it; `distui nccl` changes it live.")
    for name in ("PYTHONHOME", "PYTHONSAFEPATH"):
        if env.get(name):
            text = f"{name} changes where every Python looks for modules, also the ranks'."
            yield look.finding("D-PYTHON-PATHS", "note", text, f"{name}={env[name]}", "Unset it.")
