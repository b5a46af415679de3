"""GPUs as users name them: "8xA100-80GB", "H100:8", "L4" → how many on a node, and how much memory each has."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import PlanError

GB = 10**9

MEMORY_GB: Mapping[str, int] = {
    "A10": 24, "A10G": 24, "A100": 40, "A100-40GB": 40, "A100-80GB": 80, "A30": 24, "A40": 48, "A6000": 48,
    "B200": 180, "B300": 270, "GB200": 186, "GH200": 96, "H100": 80, "H100-80GB": 80, "H100-NVL": 94, "H200": 141,
    "L4": 24, "L40": 48, "L40S": 48, "MI250X": 128, "MI300X": 192, "MI325X": 256, "P100": 16, "RTX3090": 24,
    "RTX4090": 24, "RTX5090": 32, "RTX6000-ADA": 48, "T4": 16, "V100": 16, "V100-32GB": 32,
}  # fmt: skip
"""GB (10⁹ bytes) on each, from the makers' data sheets; names as SkyPilot's catalogue has them."""

_GPUS = re.compile(r"(?:(\d+)\s*[x×*]\s*)?([A-Za-z][A-Za-z0-9-]*)(?::(\d+))?")
_OWN_SIZE = re.compile(r"-(\d+)GB?$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpus:
    """The GPUs of one node."""

    name: str
    count: int
    memory_gb: float
    """GB (10⁹ bytes) on each."""


def parse_gpus(text: str, memory_gb: float | None = None) -> Gpus:
    """What "8xA100-80GB" or "A100-80GB:8" means; `memory_gb` where a GPU is not known by name. Raises PlanError."""
    found = _GPUS.fullmatch(text.strip())
    counts = [int(part) for part in found.group(1, 3) if part is not None] if found else []
    if found is None or len(counts) > 1 or 0 in counts:
        raise PlanError(f"--gpus {text}: write COUNTxNAME, the count of one node, as in 8xA100-80GB.")
    name = found[2].upper()
    known = memory_gb if memory_gb is not None else MEMORY_GB.get(name) or _said(name)
    if known is None:
        near = difflib.get_close_matches(name, MEMORY_GB, n=1)
        hint = f"did you mean {near[0]}? Else say" if near else "say"
        raise PlanError(
            f"--gpus {text}: no GPU {found[2]} is known here; {hint} its memory with --gpu-memory GB."
        )
    return Gpus(name=name, count=counts[0] if counts else 1, memory_gb=known)


def _said(name: str) -> int | None:
    """The size that stands in a name, as in "X100-64GB"."""
    size = _OWN_SIZE.search(name)
    return int(size[1]) if size else None
