"""The table of presets in docs/development/verification.md, from what the tests saw.

The long tests compare what they see with seen.json; with DISTUI_WRITE=1 they write it, and the table, anew.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distui.presets import rank_mesh
from distui.presets.load import BUILTIN, load

from .cases import CASES, NOT_HERE

SEEN = Path(__file__).with_name("seen.json")
DOCUMENT = Path(__file__).parents[2] / "docs" / "development" / "verification.md"
BEGIN, END = "<!-- presets: written by the tests -->", "<!-- end of presets -->"

RAN: Mapping[str, str] = {
    "ddp": "2 ranks of a script on Accelerate",
    "ds-zero1": "scripts on Accelerate and on DeepSpeed, 2 ranks, each updates half",
    "ds-zero2": "scripts on Accelerate, DeepSpeed and the Trainer, 2 ranks, each updates half",
    "ds-zero3": "scripts on Accelerate and on DeepSpeed, 2 ranks, each holds half",
}
"""What tests/launchers trains for real, by preset: what was seen inside the ranks."""


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
    head = ["| preset | ran as, share of the parameters per rank |", "|---|---|"]
    return "\n".join([*head, *map(_row, BUILTIN)]) + "\n"


def _row(name: str) -> str:
    ran = [_ran(name)] if name in CASES else []
    ran += [RAN[name]] if name in RAN else []
    return f"| `{name}` | {'; '.join(ran) or f'not run: {NOT_HERE[name]}'} |"


def _ran(name: str) -> str:
    """ "4 ranks = dp_replicate 2 × dp_shard 2, losses of `ddp` on 4 ranks, 50 %".

    Not the losses themselves: the example learns the standard library's sources, which differ by Python version.
    """
    case, found = CASES[name], known().get(name, {"held": math.nan})
    losses = "" if case.twin == name else f", losses of {TWINS[case.twin]}"
    sizes = rank_mesh.mesh_text(rank_mesh.dimensions(load(name).preset, case.world))
    ranks = "1 process" if case.world == 1 else f"{case.world} ranks" + sizes.removeprefix(str(case.world))
    return f"{ranks}{losses}, {found['held']:.0%}".replace("%", " %")
