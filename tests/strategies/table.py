"""The table strategy × launcher of docs/presets.md, from what the tests saw.

The long tests compare what they see with seen.json; with DISTUI_WRITE=1 they write it, and the table, anew.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from distui.presets import worker_group
from distui.presets.load import BUILTIN, load

from .cases import CASES, NOT_HERE

SEEN = Path(__file__).with_name("seen.json")
DOCUMENT = Path(__file__).parents[2] / "docs" / "presets.md"
BEGIN, END = "<!-- strategies × launchers: written by the tests -->", "<!-- end -->"
LAUNCHERS = ("torchrun", "accelerate", "deepspeed")

RAN: Mapping[tuple[str, str], str] = {
    ("ds-zero1", "torchrun"): "ran: scripts on Accelerate and on DeepSpeed, 2 ranks, each updates half",
    (
        "ds-zero2",
        "torchrun",
    ): "ran: scripts on Accelerate, DeepSpeed and the Trainer, 2 ranks, each updates half",
    ("ds-zero3", "torchrun"): "ran: scripts on Accelerate and on DeepSpeed, 2 ranks, each holds half",
    ("ddp", "accelerate"): "ran: script on Accelerate, 2 ranks, by YAML and by flags",
    ("ds-zero2", "accelerate"): "ran: script on Accelerate, 2 ranks",
    ("ds-zero2", "deepspeed"): "ran: script on DeepSpeed, 2 ranks",
}
"""What tests/launchers trains for real: (preset, launcher) → what was seen inside the ranks."""

ACCEPTED: Mapping[str, str] = {
    "torchrun": "text: torchrun's parser",
    "accelerate": "text: accelerate's loader and launcher",
    "deepspeed": "text: deepspeed's parser",
}
"""What test_accepted.py asks about the presets that did not run."""


TWINS: Mapping[str, str] = {
    "single": "`single`",
    "ddp": "`ddp`",
    "four": "`ddp` on 4 ranks",
    "large": "`single` with `batch.micro=32`",
    "moe-ddp": "`moe` with `mesh.ep=1`",
}
"""Which plain run sees the same samples and computes the same losses."""


def seen(ranks: list[dict[str, Any]]) -> dict[str, float]:
    """What is kept of a case."""
    held = sum(found["parameters"] for found in ranks) / len(ranks)
    return {"held": round(held, 2)}


def known() -> dict[str, dict[str, float]]:
    """What was seen last, by preset."""
    found: dict[str, dict[str, float]] = json.loads(SEEN.read_text()) if SEEN.exists() else {}
    return found


def remember(name: str, found: dict[str, float]) -> None:
    """Write down what a case came to, and the table with it."""
    everything = {**known(), name: found}
    SEEN.write_text(json.dumps(dict(sorted(everything.items())), indent=1) + "\n")
    if set(everything) == set(CASES):
        before, _, rest = DOCUMENT.read_text().partition(BEGIN)
        DOCUMENT.write_text(before + BEGIN + "\n\n" + text() + "\n" + END + rest.partition(END)[2])


def in_document() -> str:
    """The table that stands there."""
    return DOCUMENT.read_text().partition(BEGIN)[2].partition(END)[0].strip() + "\n"


def text() -> str:
    """The table, in Markdown."""
    lines = ["| preset | " + " | ".join(LAUNCHERS) + " |", "|---" * (len(LAUNCHERS) + 1) + "|"]
    lines += [f"| `{name}` | {' | '.join(_row(name))} |" for name in BUILTIN]
    return "\n".join(lines) + "\n"


def _row(name: str) -> Iterator[str]:
    for launcher in LAUNCHERS:
        ran = RAN.get((name, launcher))
        if launcher == "torchrun" and name in CASES:
            yield _ran(name)
        else:
            yield ran or ACCEPTED[launcher] + (f" ({NOT_HERE[name]})" if _why(name, launcher) else "")


def _why(name: str, launcher: str) -> bool:
    """Whether to say why it did not run: once a row."""
    return launcher == "torchrun" and name in NOT_HERE


def _ran(name: str) -> str:
    """ "ran: 4 ranks = dp_replicate 2 × dp_shard 2, losses of `ddp` on 4 ranks, a rank holds 50 % of the parameters".

    Not the losses themselves: the example learns the standard library's sources, which differ by Python version.
    """
    case, found = CASES[name], known().get(name, {"held": math.nan})
    losses = "" if case.twin == name else f", losses of {TWINS[case.twin]}"
    sizes = worker_group.mesh_text(worker_group.dimensions(load(name).preset, case.world))
    ranks = "1 process" if case.world == 1 else f"{case.world} ranks" + sizes.removeprefix(str(case.world))
    return f"ran: {ranks}{losses}, a rank holds {found['held']:.0%} of the parameters".replace("%", " %")
