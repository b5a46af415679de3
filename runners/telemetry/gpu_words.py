"""Code that sampler and agent share for GPUs: health of a sample, and NVML's numbers in words.

All of it is pure, and needs neither the driver nor an event loop. Sources of the numbers: nvml.h
(nvmlClocksEventReason*, nvmlDeviceGpuRecoveryAction_t) and NVIDIA's Xid catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ...presets.finding import Finding
from ..run.samples import Gpu

NO_DRIVER = 3
"""Exit status of a sampler without a driver library or a GPU: another sampler would not find one either."""

SHORTEST_S = 0.1
"""Minimum seconds between two samples: more frequent driver calls slow the training down."""

# -----------------------------------------------------------------------------------------------------------
# Problems of a GPU, from one sample. Pure.


class GpuRule(NamedTuple):
    """One possible problem; `text` and `remedy` are sentences, `text` about "GPU <index>"."""

    id: str
    severity: str
    holds: Callable[[Gpu], bool]
    text: str
    remedy: str


RULES = (
    GpuRule(
        "gpu-lost",
        "error",
        lambda gpu: gpu.lost,
        "GPU {0.index} is lost: the driver no longer reaches it",
        "restart without this node; the GPU needs a reset, mostly a reboot",
    ),
    GpuRule(
        "gpu-ecc",
        "error",
        lambda gpu: bool(gpu.ecc_uncorrected),
        "GPU {0.index} counts {0.ecc_uncorrected} uncorrected ECC errors since the driver was loaded",
        "results since then may be wrong; reset the GPU and watch whether the errors come back",
    ),
    GpuRule(
        "gpu-remap-failed",
        "error",
        lambda gpu: gpu.remap_failed is True,
        "GPU {0.index} could not replace a broken memory row",
        "have the GPU exchanged",
    ),
    GpuRule(
        "gpu-remap-pending",
        "warning",
        lambda gpu: gpu.remap_pending is True,
        "GPU {0.index} will replace a broken memory row at its next reset",
        "reset the GPU before the next run",
    ),
    GpuRule(
        "gpu-recovery",
        "warning",
        lambda gpu: gpu.recovery is not None,
        "the driver asks for GPU {0.index}: {0.recovery}",
        "do that when the run has ended",
    ),
)


def judge(gpus: Iterable[Gpu], node: int | None = None) -> tuple[Finding, ...]:
    """Return the current findings about these GPUs; ids end in ":gpu<index>"."""
    return tuple(
        Finding(
            f"{rule.id}:gpu{gpu.index}", rule.severity, rule.text.format(gpu), node=node, remedy=rule.remedy
        )
        for gpu in gpus
        for rule in RULES
        if rule.holds(gpu)
    )


# -----------------------------------------------------------------------------------------------------------
# NVML's numbers in words: clock event reasons, recovery actions, Xid errors. Pure.


THROTTLE = (
    (0x001, "idle"),
    (0x002, "application clocks"),
    (0x004, "power cap"),
    (0x008, "hardware slowdown"),
    (0x010, "sync boost"),
    (0x020, "thermal (software)"),
    (0x040, "thermal (hardware)"),
    (0x080, "power brake"),
    (0x100, "display clocks"),
    (0x200, "board limit"),
    (0x400, "reliability voltage"),
)

RECOVERY = {
    1: "GPU reset",
    2: "node reboot",
    3: "drain peer-to-peer traffic",
    4: "drain and GPU reset",
    5: "recover the IMEX domain",
    6: "bus reset",
    7: "system reboot",
}

_RESET = "end the run and reset the GPU"
_SCRIPT = "check the ranks on this GPU: it is most often the program's own fault"
_EXCHANGE = "reset the GPU; have it exchanged if this comes back"

XID = {
    8: ("error", "the GPU stopped processing", _SCRIPT),
    13: ("error", "a kernel raised an exception (bad address or instruction)", _SCRIPT),
    31: ("error", "a kernel touched memory that is not mapped", _SCRIPT),
    32: ("error", "the push buffer was corrupted", _EXCHANGE),
    38: ("error", "the driver's firmware failed", _RESET),
    43: ("error", "the GPU stopped a process that had faulted", _SCRIPT),
    45: (
        "warning",
        "a process was cleaned off the GPU before it had ended",
        "look for the error before this one",
    ),
    48: ("error", "double-bit ECC error", _EXCHANGE),
    61: ("error", "the GPU's internal controller halted (warning)", _RESET),
    62: ("error", "the GPU's internal controller halted", _RESET),
    63: ("warning", "a broken memory row was marked to be replaced", "reset the GPU before the next run"),
    64: ("error", "a broken memory row could not be recorded for replacement", _EXCHANGE),
    68: ("error", "a video processor exception", _SCRIPT),
    69: ("error", "a graphics engine class error", _SCRIPT),
    74: (
        "error",
        "NVLink error",
        "check nvidia-smi nvlink -e and the links to the other GPUs; reset the GPU",
    ),
    79: ("error", "the GPU fell off the bus", "reboot the node; check power, cooling and seating"),
    92: ("warning", "many corrected ECC errors", "watch this GPU"),
    94: (
        "error",
        "a contained uncorrected ECC error ended the process that used the memory",
        "restart the run",
    ),
    95: ("error", "an uncontained uncorrected ECC error", _RESET),
    109: ("error", "a context switch took too long", _SCRIPT),
    119: (
        "error",
        "the GPU's system processor (GSP) does not answer the driver",
        "reset the GPU or reboot",
    ),
    120: ("error", "the GPU's system processor (GSP) failed", "reset the GPU or reboot"),
    121: ("warning", "corrected NVLink C2C error", "watch this node"),
    140: ("error", "unrecovered ECC error", _RESET),
    154: ("warning", "the driver asks for a recovery of the GPU", "see the GPU's recovery column"),
}
"""Xid → severity, event, remedy."""


def throttle_words(mask: int) -> tuple[str, ...]:
    """Return the active clock event reasons; an unknown one as its bit."""
    named = sum(bit for bit, _ in THROTTLE)
    words = [word for bit, word in THROTTLE if mask & bit]
    return tuple(words + ([f"reason {mask & ~named:#x}"] if mask & ~named else []))


def recovery_words(action: int) -> str | None:
    """Return the recovery action that the driver asks for; None for none."""
    return None if action == 0 else RECOVERY.get(action, f"recovery action {action}")


def xid_finding(code: int, gpu: int | None, times: int = 1) -> Finding:
    """Return a finding for an Xid error.

    `gpu` is the NVML index, `times` the number of consecutive errors.
    """
    severity, text, remedy = XID.get(
        code, ("warning", "an error of the driver or the GPU", "look it up by number")
    )
    where = "an unknown GPU" if gpu is None else f"GPU {gpu}"
    often = f", {times} times" if times > 1 else ""
    return Finding(
        id=f"xid-{code}" + ("" if gpu is None else f":gpu{gpu}"),
        severity=severity,
        text=f"Xid {code} on {where}: {text}{often}",
        remedy=remedy,
    )
