"""What a run with too little memory can do: the next preset, or a smaller batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..run.model import PlanSummary

LADDER: Sequence[str] = ("single", "ddp", "zero1", "fsdp2-zero2", "fsdp2", "fsdp2-offload")
"""Presets in order of decreasing GPU memory."""
DEEPSPEED: Sequence[str] = ("ds-zero1", "ds-zero2", "ds-zero3", "ds-zero3-cpu", "ds-zero3-nvme")
KINDS: Mapping[str, str] = {
    "single": "single",
    "ddp": "ddp",
    "zero1": "zero1",
    "fsdp1": "fsdp2",
    "fsdp2": "fsdp2",
}
"""Entry of LADDER that a strategy resembles."""


SMALLER = "halve the micro batch, or compute activations again in backward"


def following(plan: PlanSummary) -> str | None:
    """Return the next preset that needs less GPU memory; None without one."""
    for ladder in (LADDER, DEEPSPEED):
        for at in (plan.preset, KINDS.get(plan.strategy, "")):
            if at in ladder:
                rest = ladder[ladder.index(at) + 1 :]
                return rest[0] if rest and _ranks(plan) > 1 and at != "single" else None
    return None


def memory_remedy(plan: PlanSummary | None, gpu_gb: float | None = None) -> str:
    """Return one sentence with the commands. `gpu_gb`: GB per GPU, None if unknown."""
    if plan is None:
        return f"{SMALLER}, or divide the model over more GPUs"
    smaller = f"{SMALLER} (--set batch.accumulation=2 for the same batch)"
    if not plan.preset:
        return f"{smaller}; what the script divides over its ranks is its own"
    preset = following(plan)
    if preset is None:
        return f"{smaller}; {_estimate(plan, gpu_gb)} shows what fits, on more GPUs, too"
    if plan.obeys is None:
        return f"{smaller}; another preset changes nothing here, for the script obeys none"
    return (
        f"`{launch(plan, preset)}` needs less, {_estimate(plan, gpu_gb)} estimates how much; else {smaller}"
    )


def launch(plan: PlanSummary, preset: str) -> str:
    """Return the command that launches the run with another preset."""
    nproc = f" --nproc-per-node {plan.nproc_per_node}" if plan.nproc_per_node else ""
    nodes = f" --nnodes {plan.nnodes}" if plan.nnodes > 1 else ""
    return f"distui launch {preset}{nproc}{nodes} -- {plan.command}"


def _estimate(plan: PlanSummary, gpu_gb: float | None) -> str:
    script = plan.command.split(" ", 1)[0]
    count = plan.nproc_per_node or 1
    gpus = f"{count}xGPU --gpu-memory {gpu_gb:.0f}" if gpu_gb else f"{count}xNAME"
    nodes = f" --nodes {plan.nnodes}" if plan.nnodes > 1 else ""
    return f"`distui advise --script {script} --gpus {gpus}{nodes}`"


def _ranks(plan: PlanSummary) -> int:
    return (plan.nproc_per_node or 2) * plan.nnodes
