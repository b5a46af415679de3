"""The GPUs of this machine by the names that the memory estimate knows, read from what the driver shows."""

from __future__ import annotations

import glob
import re
from pathlib import Path

from ..presets.hardware import MEMORY_GB


def gpus_here(root: str = "/") -> str:
    """ "8xH100" where every GPU is of one known model; else ""."""
    models = []
    for path in glob.glob(f"{root}proc/driver/nvidia/gpus/*/information"):
        try:
            found = re.search(r"^Model:\s*(.+)$", Path(path).read_text("utf-8", "replace"), re.MULTILINE)
        except OSError:
            return ""
        models.append(name_of(found[1].strip()) if found else "")
    return f"{len(models)}x{models[0]}" if models and models[0] and len(set(models)) == 1 else ""


def name_of(model: str) -> str:
    """ "NVIDIA A100-SXM4-80GB" → "A100-80GB"; "" where no known GPU is meant."""
    words = set(re.split(r"[\s-]+", model.upper().replace("GEFORCE ", "").replace("RTX ", "RTX")))
    sizes = {word for word in words if re.fullmatch(r"\d+GB", word)}
    fitting = [name for name in MEMORY_GB if set(name.split("-")) <= words]
    if not fitting:
        return ""
    best = max(fitting, key=lambda name: (name.count("-"), len(name)))
    size = next(iter(sizes), "")
    return best if not size or size == f"{MEMORY_GB[best]}GB" else ""
