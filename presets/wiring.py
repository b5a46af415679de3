"""The parts of a plan that depend on the program that reads the preset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from .finding import PlanError
from .launchers import accelerate, deepspeed, torchrun, torchrun_names
from .model import Preset
from .script_support import Obeys


class OwnConfig(NamedTuple):
    """The script's own configuration of DeepSpeed."""

    path: str = ""
    """ "" if there is no readable configuration."""
    values: Mapping[str, Any] = MappingProxyType({})


NO_CONFIG = OwnConfig()


@dataclass(frozen=True, kw_only=True, slots=True)
class Wired:
    """The part of a plan that depends on the reader of the preset."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Variables to add to the plan's environment."""
    files: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def wire(
    preset: Preset,
    launch: torchrun.Launch,
    obeys: Obeys,
    backend: str,
    run_dir: str,
    env: Mapping[str, str],
    scripts: OwnConfig = NO_CONFIG,
) -> Wired:
    """Return the parts of a plan that depend on the reader of the preset.

    `env` is the plan's environment so far. Raises PlanError.
    """
    merged = scripts.values if scripts.path and obeys.how and obeys.reader == "deepspeed" else None
    files, made = _deepspeed_config(preset, obeys, merged)
    where = f"{run_dir}/{deepspeed.CONFIG_FILE}"
    launch = _with_options(launch, obeys, where)
    own = obeys.reader == "trainer" and preset.strategy.kind == "deepspeed"
    world = launch.nnodes * launch.nproc_per_node
    config = accelerate.config(preset, world, backend, where, own_precision=own)
    notes = (*_shared_notes(preset, obeys), *_reader_notes(preset, obeys, made))
    if merged is not None:
        notes += deepspeed.merge_notes(scripts.path, merged, made)
    added = _reader_env(preset, obeys, config)
    if preset.strategy.kind == "deepspeed":
        added |= deepspeed.environment(backend, where)
    # The user's variables have priority over the preset's fields.
    added = {name: value for name, value in added.items() if name not in env}
    return Wired(argv=_torchrun(launch), env=added, files=files, notes=(*notes, *_idle(launch)))


def _reader_env(preset: Preset, obeys: Obeys, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables through which Accelerate obeys the preset."""
    if obeys.reader in ("parallelize", "adopt"):
        return {}
    env = accelerate.environment(config)
    if preset.batch.accumulation > 1 and preset.strategy.kind != "deepspeed":
        env["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = str(preset.batch.accumulation)
    return env


def _deepspeed_config(
    preset: Preset, obeys: Obeys, own: Mapping[str, Any] | None
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return DeepSpeed's configuration as a file of the run directory, and its values. Raises PlanError."""
    if preset.strategy.kind != "deepspeed":
        return {}, {}
    reader: deepspeed.Reader = obeys.reader if obeys.reader in ("trainer", "accelerate") else "deepspeed"
    made = deepspeed.config(preset, reader, own)
    return {deepspeed.CONFIG_FILE: deepspeed.text(made)}, made


def _with_options(launch: torchrun.Launch, obeys: Obeys, where: str) -> torchrun.Launch:
    """Add the options through which the script takes DeepSpeed's configuration."""
    script, *args = launch.command
    replaced = deepspeed.with_config(args, where) if obeys.how and obeys.reader == "deepspeed" else None
    if replaced is not None:
        return replace(launch, command=(script, *replaced))
    if obeys.how is None or not obeys.options:
        return launch
    return replace(launch, command=(script, *obeys.options, where, *args))


def _torchrun(launch: torchrun.Launch) -> tuple[str, ...]:
    """Return torchrun's arguments. Raises PlanError."""
    refused = torchrun_names.own_option(launch.extra)
    if refused:
        raise PlanError(
            f"launcher.args holds {refused}, which distui sets itself: take it out of the preset"
        )
    return torchrun.argv(launch)


def _idle(launch: torchrun.Launch) -> tuple[str, ...]:
    given = (word.split("=", 1)[0] for word in launch.extra)
    return tuple(
        f"launcher.args {name} does nothing here: every rank's output has files of its own."
        for name in given
        if name.removeprefix("--").replace("_", "-") in torchrun_names.known_options().idle
    )


def _shared_notes(preset: Preset, obeys: Obeys) -> tuple[str, ...]:
    """Return the note on half precision under DeepSpeed."""
    param = preset.precision.param
    is_cast = obeys.casts or obeys.reader in ("parallelize", "adopt", "trainer")
    if obeys.how is None or is_cast or preset.strategy.kind != "deepspeed" or param == "fp32":
        return ()
    note = f"DeepSpeed makes the model {param}, not its inputs: if the script gives it fp32 numbers, cast them, or "
    return (f"{note}add --set precision.param=fp32.",)


def _reader_notes(preset: Preset, obeys: Obeys, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return notes on parts of the preset that reach only scripts with parallelize()."""
    if obeys.how is None or obeys.reader in ("parallelize", "adopt"):
        return ()
    if obeys.reader != "deepspeed":
        return (*_strategy_notes(preset), *_accumulation_notes(preset, obeys))
    if preset.batch.micro is None and config.get("train_micro_batch_size_per_gpu") == 1:
        return (
            "DeepSpeed gets train_micro_batch_size_per_gpu 1: set batch.micro to the samples per rank and pass.",
        )
    return ()


def _strategy_notes(preset: Preset) -> Iterator[str]:
    """Yield notes on options that Accelerate does not have."""
    strategy, precision = preset.strategy, preset.precision
    if strategy.kind in ("fsdp1", "fsdp2") and precision.reduce != precision.param:
        yield f"Accelerate sums gradients in precision.param ({precision.param}), not in {precision.reduce}."
    if strategy.kind == "fsdp2" and not isinstance(strategy.reshard_after_forward, bool):
        number = strategy.reshard_after_forward
        yield f"Accelerate knows no number for strategy.reshard_after_forward: {number} is true."
    if strategy.kind == "fsdp1" and not strategy.limit_all_gathers:
        yield "Accelerate limits all-gathers regardless of strategy.limit_all_gathers."
    sequence = accelerate.sequence_ranks(preset)
    if sequence > 1:
        yield f"Accelerate has {sequence} ranks share a sequence (sp_size): the mesh counts them as data-parallel ranks."
    if strategy.kind == "ddp":
        yield "Accelerate takes DDP's options (buckets, unused parameters) only from the script."


def _accumulation_notes(preset: Preset, obeys: Obeys) -> Iterator[str]:
    if preset.batch.accumulation == 1:
        return
    if obeys.reader == "accelerate":
        yield "batch.accumulation acts only if the script uses accelerator.accumulate()."
    elif obeys.reader == "trainer":
        yield "batch.accumulation has to be the Trainer's gradient_accumulation_steps, too."
