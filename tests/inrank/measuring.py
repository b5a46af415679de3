"""What presets allocate in real ranks, and what is estimated; as a script, print the table of verification.md.

.venv/bin/python tests/inrank/measuring.py
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from starts import environment, finished, torchrun

from distui.presets.estimate.memory import Estimate, estimate_for
from distui.presets.estimate.workload import CPU, FORMATS, Shape
from distui.presets.load import load
from distui.presets.plan import contract

ALLOCATING = Path(__file__).parent / "allocating.py"
MB = 10**6
PARTS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "activations": "all_activations",
}
"""What is measured → the field of the estimate."""
BLOCK = {"MALLOC_MMAP_THRESHOLD_": "16384"}
"""Smaller tensors are not seen: biases and norms."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training that is measured: a preset, and the shipped model large enough that small things do not count."""

    name: str
    preset: str = "single"
    overrides: tuple[str, ...] = ()
    ranks: int = 2
    layers: int = 12
    width: int = 384
    length: int = 64
    batch: int = 4
    vocab: int = 128
    half: bool = False
    """The whole model in bf16, with Adam in bf16, too."""
    foreach: bool = False
    """Let Adam update all parameters at once, as it does on a GPU."""
    whole: bool = True
    """Whether the components are compared, too, not the total alone."""

    def estimate(self) -> Estimate:
        """What presets/estimate/memory.py says of rank 0, with nothing but the model's sizes."""
        loaded = load(self.preset, self.overrides, cwd=Path("/"), env={"HOME": "/nonexistent"})
        blocks = self.layers * (12 * self.width**2 + 13 * self.width)
        outside = self.width * (2 * self.vocab + self.length + 2) + self.vocab
        model = Shape(
            parameters=blocks + outside,
            layers=self.layers,
            hidden=self.width,
            vocab=self.vocab,
            seq=self.length,
            micro_batch=self.batch // loaded.preset.batch.accumulation,
            outside=outside,
            largest=max(4 * self.width**2, self.vocab * self.width),
        )
        form = replace(FORMATS["bf16"], optimizer=4) if self.half else FORMATS["fp32"]
        device = replace(CPU, foreach=self.foreach)
        return estimate_for(loaded.preset, model, form, self.ranks, 1e12, device)

    def measure(self, folder: Path) -> list[dict[str, int]]:
        """Bytes of each component in each rank, from real ranks."""
        loaded = load(self.preset, self.overrides, cwd=Path("/"), env={"HOME": "/nonexistent"})
        env = environment(**BLOCK, **contract(loaded.preset, "gloo"))
        args = str(folder), json.dumps(asdict(self))
        alone: list[str | Path] = [sys.executable, ALLOCATING, *args]
        finished(alone if self.ranks == 1 else torchrun(ALLOCATING, *args, ranks=self.ranks), env, folder)
        return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(self.ranks)]


CASES = (
    Case(name="fsdp2, 2 ranks", preset="fsdp2"),
    Case(name="ddp, 2 ranks", preset="ddp"),
    Case(name="zero1, 2 ranks", preset="zero1"),
    Case(name="ddp, 4 ranks", preset="ddp", ranks=4),
    Case(name="zero1, 4 ranks", preset="zero1", ranks=4),
    Case(name="fsdp2, 4 ranks", preset="fsdp2", ranks=4),
    Case(name="fsdp2-zero2, 2 ranks", preset="fsdp2-zero2", whole=False),
    Case(name="hsdp, 4 ranks", preset="hsdp", ranks=4),
    Case(name="fsdp1, 2 ranks", preset="fsdp1"),
    Case(name="tp, 2 ranks", preset="tp"),
    Case(name="tp-sp, 2 ranks", preset="tp-sp"),
    Case(name="pp-1f1b, 2 ranks", preset="pp-1f1b", batch=16),
    Case(name="context, 2 ranks", preset="context", length=256, batch=1),
    Case(name="ddp with a copy of the gradients, 2 ranks", preset="ddp",
         overrides=("strategy.gradient_as_bucket_view=false",)),
    Case(name="fsdp2, 2 passes a step, 2 ranks", preset="fsdp2", overrides=("batch.accumulation=2",), batch=8),
    Case(name="fsdp2 in bf16, 2 ranks", preset="fsdp2", overrides=("precision.param=bf16",)),
    Case(name="one rank", ranks=1),
    Case(name="one rank, all in bf16", ranks=1, half=True),
    Case(name="one rank, autocast", ranks=1, overrides=("precision.param=bf16",), whole=False),
    Case(name="one rank, Adam at once, short", ranks=1, foreach=True, batch=1),
    Case(name="one rank, 16384 words", ranks=1, vocab=16_384, layers=2, width=128, batch=16, whole=False),
    Case(name="one rank, recomputed", ranks=1, batch=16, whole=False,
         overrides=("strategy.activation_checkpointing=true",)),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """One case, measured."""

    case: Case
    ranks: list[dict[str, int]] = field(default_factory=list)

    def most(self, part: str) -> int:
        """Of the rank that took most."""
        return max(one[part] for one in self.ranks)

    def cells(self) -> Iterator[str]:
        """Of the table: the case, its peak in MB measured/estimated, and the error of the estimate."""
        peak, estimated = self.most("total"), self.case.estimate().total
        yield self.case.name
        yield f"{peak / MB:.1f}/{estimated / MB:.1f}"
        yield f"{100 * (estimated / peak - 1):+.1f} %"


def measured(case: Case) -> Row:
    """Run it."""
    with tempfile.TemporaryDirectory() as folder:
        return Row(case=case, ranks=case.measure(Path(folder)))


def table(cases: tuple[Case, ...]) -> Iterator[str]:
    """Lines of Markdown."""
    day = time.strftime("%Y-%m-%d")
    where = f"torch {version('torch')}, gloo, {platform.libc_ver()[0]}"
    yield f"Measured {day}, {where}: peak in MB on the fullest rank, measured/estimated."
    yield ""
    yield "| case | peak | error |"
    yield "|---|---|---|"
    for case in cases:
        yield f"| {' | '.join(measured(case).cells())} |"


def main(*names: Any) -> None:
    """Print the table, of all cases or of those whose name holds one of the words."""
    chosen = tuple(case for case in CASES if not names or any(name in case.name for name in names))
    for line in table(chosen):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
