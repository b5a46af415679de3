"""What presets allocate in real ranks, and what is estimated; as a script, print the table of docs/memory.md.

.venv/bin/python tests/inrank/measuring.py [WORD…]      only cases whose names have one of the words
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from ports import free_port
from starts import FORKED, environment, finished

from distui.presets.estimate.memory import Estimate, estimate_for
from distui.presets.estimate.workload import CPU, FORMATS, Counted, counted_from, shape_of
from distui.presets.load import load
from distui.presets.plan import contract

ALLOCATING = Path(__file__).with_name("allocating.py")
MB = 10**6
PARTS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "activations": "all_activations",
}
"""What is measured → the field of the estimate."""
PRODUCT, CONVOLUTION, PACKED = 6 * MB, 1.5 * MB, 12 * MB
"""Buffers of MKL during a matrix product, of oneDNN during a convolution, and of its packed matrices in bf16."""
MEASURABLE = {"MALLOC_MMAP_THRESHOLD_": "16384", "MKL_DISABLE_FAST_MM": "1"}
"""Smaller tensors are not seen: biases and norms. MKL keeps no buffers between two products."""


@functools.cache
def counted_model(name: str) -> tuple[Counted, int]:
    """Return what `advise --script` counts of a model, and the positions of its samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch imports what it deprecates
        import torch
        from calibration_models import MODELS

        from distui.runners.inrank.parameter_count import sizes
    with torch.device("meta"):
        model = MODELS[name]()
        return counted_from(sizes(name, model)), model.length


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training that is measured."""

    model: str
    preset: str = "single"
    overrides: tuple[str, ...] = ()
    ranks: int = 2
    batch: int = 8
    half: bool = False
    """The whole model in bf16, with Adam in bf16, too."""
    foreach: bool = False
    """Let Adam update all parameters at once, as it does on a GPU."""

    @property
    def row(self) -> str:
        """The preset with its options, and the number of ranks."""
        words = [self.preset, *self.overrides, *(["bf16 weights"] if self.half else [])]
        words += ["foreach"] if self.foreach else []
        return f"{' '.join(words)}, {self.ranks} {'rank' if self.ranks == 1 else 'ranks'}"

    def estimate(self) -> Estimate:
        """Return the estimate of the fullest rank from what `advise --script` counts."""
        loaded = load(self.preset, self.overrides, cwd=Path("/"), env={"HOME": "/nonexistent"}).preset
        counted, length = counted_model(self.model)
        micro_batch = self.batch // loaded.batch.accumulation
        shape = replace(shape_of(counted), seq=length, micro_batch=micro_batch)
        form = replace(FORMATS["bf16"], optimizer=4) if self.half else FORMATS["fp32"]
        library = CONVOLUTION if self.model == "ResNet" else PRODUCT
        if self.half or loaded.precision.param == "bf16":
            library = PACKED
        device = replace(CPU, context=library, foreach=self.foreach)
        return estimate_for(loaded, shape, form, self.ranks, 1e12, device)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One case, measured."""

    case: Case
    ranks: list[dict[str, int]] = field(default_factory=list)
    failure: str = ""
    """Output of ranks that failed."""

    def most(self, part: str) -> int:
        """Of the rank that took most."""
        return max(one[part] for one in self.ranks)

    @property
    def error(self) -> float:
        """Share by which the estimate of the peak is too high."""
        return self.case.estimate().total / self.most("total") - 1


ALL = ("Dense", "Wide", "Deep", "Tied", "Long", "Grouped", "MoE", "LoRA", "MLP", "ResNet")
ERROR = 0.10
REASONS = {"moe, 2 ranks": "the products of an expert's few tokens need less than MKL's usual buffers"}
"""Row → why its error may be larger."""
_TP, _PP = ("Dense", "Long", "Grouped"), ("Dense", "Deep", "Grouped")
_BF16, _RECOMPUTED = "precision.param=bf16", "strategy.activation_checkpointing=true"
_ROWS: tuple[tuple[str, int, tuple[str, ...], tuple[str, ...]], ...] = (
    ("single", 1, (), ALL),
    ("accumulate", 1, (), ALL),
    ("ddp", 2, (), ALL),
    ("ddp-mesh", 2, (), ALL),
    ("zero1", 2, (), ALL),
    ("fsdp1", 2, (), ALL),
    ("fsdp1-grad-op", 2, (), ALL),
    ("fsdp1-no-shard", 2, (), ALL),
    ("fsdp2", 2, (), ALL),
    ("fsdp2-zero2", 2, (), ALL),
    ("hsdp", 4, (), ALL),
    ("fsdp1-hybrid", 4, (), ("Grouped",)),
    ("tp", 2, (), _TP),
    ("tp-sp", 2, (), ("Dense",)),
    ("fsdp2-tp", 4, (), ("Dense",)),
    ("context", 2, (), _TP),
    ("pp-1f1b", 2, (), _PP),
    ("pp-gpipe", 2, (), ("Dense",)),
    ("3d", 4, (), ("Dense",)),
    ("moe", 2, (), ("MoE",)),
    ("single", 1, (_BF16,), ("Dense", "Grouped", "LoRA")),
    ("fsdp2", 2, (_BF16,), ("Dense", "Grouped", "LoRA")),
    ("single", 1, (_RECOMPUTED,), _TP),
    ("fsdp2", 2, (_RECOMPUTED,), ("Dense", "Grouped")),
    ("ddp", 2, ("batch.accumulation=2",), ("Dense",)),
    ("fsdp2", 2, ("batch.accumulation=2",), ("Dense",)),
)
"""Preset, ranks, options, models. Not here: presets that need a GPU (cpu_offload) or DeepSpeed."""
CASES = (
    *(
        Case(model=model, preset=preset, ranks=ranks, overrides=overrides)
        for preset, ranks, overrides, models in _ROWS
        for model in models
    ),
    Case(model="Dense", ranks=1, half=True),
    Case(model="Dense", ranks=1, foreach=True),
)


def measured(cases: Iterable[Case], folder: Path) -> Iterator[Measured]:
    """Run each case in its ranks, one after the other; torch is imported once."""
    scripts = []
    for number, case in enumerate(cases):
        place = folder / str(number)
        place.mkdir()
        script = place / "script.py"
        script.write_text(f"import runpy\nrunpy.run_path({str(ALLOCATING)!r}, run_name='__main__')\n")
        loaded = load(case.preset, case.overrides, cwd=Path("/"), env={"HOME": "/nonexistent"})
        group = {"WORLD_SIZE": str(case.ranks), "LOCAL_WORLD_SIZE": str(case.ranks)}
        where = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "CASE": json.dumps(asdict(case)),
        }
        env = environment(**contract(loaded.preset, "gloo"), **group, **where)
        scripts.append((str(script), env))
    (folder / "cases.json").write_text(json.dumps(scripts))
    finished(
        [sys.executable, FORKED, folder / "cases.json"],
        environment(**MEASURABLE),
        folder,
        300.0 * len(scripts),
    )
    for number, case in enumerate(cases):
        place = folder / str(number)
        if any(json.loads((place / "codes").read_text())):
            yield Measured(case=case, failure=(place / "output").read_text(errors="replace") or "killed")
            continue
        ranks = [json.loads((place / f"rank-{rank}.json").read_text()) for rank in range(case.ranks)]
        yield Measured(case=case, ranks=ranks)


def table(rows: Iterable[Measured]) -> Iterator[str]:
    """Return the lines of docs/memory.md: measured MB of the fullest rank, and the error of the estimate."""
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        peak = row.most("total") / MB
        cells.setdefault(row.case.row, {})[row.case.model] = cell(row.case, f"{peak:.1f}")
    yield f"Measured {time.strftime('%Y-%m-%d')}, torch {version('torch')}, gloo."
    yield ""
    yield f"| preset | {' | '.join(ALL)} |"
    yield "|---" * (len(ALL) + 1) + "|"
    for name, found in cells.items():
        yield f"| {name} | {' | '.join(found.get(model, '') for model in ALL)} |"


def cell(case: Case, peak: str) -> str:
    """Return "153.6 +0.1 %" for a measured peak in MB."""
    return f"{peak} {100 * (case.estimate().total / MB / float(peak) - 1):+.1f} %"


def main(*words: str) -> None:
    """Print the table, of all cases or of those whose row or model is one of the words."""
    chosen = [case for case in CASES if not words or {case.preset, case.model} & {*words}]
    with tempfile.TemporaryDirectory() as folder:
        rows = list(measured(chosen, Path(folder)))
    for row in rows:
        if row.failure:
            sys.stderr.write(f"{row.case.row}, {row.case.model}: {row.failure[-500:]}\n")
    for line in table(row for row in rows if not row.failure):
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
