"""Write a preset as accelerate's YAML or DeepSpeed's JSON, for use without distui."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from . import imports, model
from .finding import PlanError, PresetError
from .launchers import accelerate, deepspeed
from .model import Preset
from .text_formats import write_yaml

FORMATS: Mapping[str, tuple[Callable[[Preset], dict[str, Any]], Callable[[Mapping[str, Any]], str]]] = {
    "accelerate": (accelerate.file, write_yaml),
    "deepspeed": (deepspeed.file, deepspeed.text),
}
"""Name → the function that makes the values, and the one that writes them."""
OF_DISTUI = ("title", "summary", "hook", "launcher.", "restart.", "sky.", "accelerate.", "deepspeed.")
"""Fields that act only under distui, and keys that the file has as they are."""
OF_LAUNCH = ("topology.", "env.", "nccl.", "hosts.")
"""Fields of the launch, which DeepSpeed's file never has."""


@dataclass(frozen=True, slots=True)
class Exported:
    text: str
    """Ends with a newline."""
    notes: tuple[str, ...]
    """One sentence per fact that the file cannot hold, and per thing to do before its use."""


def exported(preset: Preset, format: str) -> Exported:
    """Write a preset in one of FORMATS. Raises PresetError."""
    make, write = FORMATS[format]
    try:
        values = make(preset)
    except PlanError as error:
        raise PresetError(f"preset {preset.name}: {error}") from None
    notes = _accelerate_notes if format == "accelerate" else _deepspeed_notes
    return Exported(write(values), (*notes(preset, values), *_left_out(preset, values, format)))


def _accelerate_notes(preset: Preset, values: Mapping[str, Any]) -> Iterator[str]:
    if "num_processes" not in values:
        yield "The file leaves the number of ranks open: pass --num_processes N to accelerate launch."
    if preset.topology.nnodes > 1:
        yield "Pass --machine_rank, --main_process_ip and --main_process_port to accelerate launch on each machine."
    own = values.get("deepspeed_config")
    if preset.strategy.kind == "deepspeed" and isinstance(own, Mapping) and "deepspeed_config_file" in own:
        precision = accelerate.MIXED[preset.precision.param]
        yield (
            f"Write {accelerate.DEEPSPEED_FILE} by `distui presets show {preset.name} --format deepspeed`, and pass "
            f"--mixed_precision {precision} to accelerate launch."
        )


def _deepspeed_notes(preset: Preset, values: Mapping[str, Any]) -> Iterator[str]:
    if "auto" in (values.get(name) for name in deepspeed.BATCH):
        yield 'Accelerate and the Trainer replace "auto"; for DeepSpeed itself add --set batch.micro=SAMPLES.'


def _left_out(preset: Preset, values: Mapping[str, Any], format: str) -> Iterator[str]:
    """Yield a sentence with the fields that an import of the file would not give again."""
    back: Mapping[str, object] = {}
    with contextlib.suppress(PresetError):
        back = _read_back(preset, values, format)
    skipped = OF_DISTUI if format == "accelerate" else (*OF_DISTUI, *OF_LAUNCH)
    usual = model.flat(Preset(name="", strategy=model.Strategy(kind=preset.strategy.kind)))
    lost = [
        path
        for path, value in model.flat(preset).items()
        if value != back.get(path, usual.get(path)) and not path.startswith(skipped)
    ]
    if lost:
        yield f"The file has no place for {', '.join(lost)}."


def _read_back(preset: Preset, values: Mapping[str, Any], format: str) -> Mapping[str, object]:
    """Return the fields that an import of the file gives. Raises PresetError."""
    if format == "deepspeed":
        draft = imports.from_deepspeed(values, "")
    else:
        draft = imports.from_accelerate(
            values, "", lambda name: deepspeed.text(deepspeed.file(preset)).encode()
        )
    return model.flat(imports.preset_of(draft, ""))
