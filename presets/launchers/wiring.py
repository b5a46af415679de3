"""A preset and a script → what its launcher is given: argv, environment, files. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..finding import PlanError
from ..model import Preset
from ..script_support import Obeys
from . import accelerate, deepspeed, torchrun


@dataclass(frozen=True, kw_only=True, slots=True)
class Wired:
    """How the ranks are started."""

    launcher: str
    """"torchrun", or "command": a launcher that runs as it is."""
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Added to what the plan says anyway."""
    files: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def wire(
    preset: Preset, launch: torchrun.Launch, obeys: Obeys, backend: str, run_dir: str, python: str,
    env: Mapping[str, str],
) -> Wired:  # fmt: skip
    """Everything of a start that depends on the launcher or on who reads the preset. `env`: the plan's so far.

    `python` starts a launcher of another program's. Raises PlanError.
    """
    files = _deepspeed_config(preset, obeys)
    where = _where(preset, launch, files, run_dir)
    launch = _with_options(launch, obeys, where)
    own = obeys.reader == "trainer" and preset.strategy.kind == "deepspeed"
    config = accelerate.config(preset, launch, backend, where, own_precision=own)
    added = {} if obeys.reader == "parallelize" else accelerate.environment(config)
    if added and preset.batch.accumulation > 1 and preset.strategy.kind != "deepspeed":
        added["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = str(preset.batch.accumulation)
    if preset.strategy.kind == "deepspeed":
        added |= deepspeed.environment(backend, where)
    notes = _notes(preset, obeys)
    # What the user wished for wins: the preset's fields are only where these come from.
    added = {name: value for name, value in added.items() if name not in env}
    if preset.launcher.kind == "torchrun":
        return Wired(
            launcher="torchrun", argv=_torchrun(preset, launch), env=added, files=files,
            notes=(*notes, *_idle(launch)),
        )  # fmt: skip
    return _own(preset, launch, config, backend, run_dir, python, {**env, **added}, added, files, notes)


def _deepspeed_config(preset: Preset, obeys: Obeys) -> dict[str, str]:
    """DeepSpeed's configuration as a file of the run directory. Raises PlanError."""
    if preset.strategy.kind != "deepspeed":
        return {}
    reader: deepspeed.Reader = obeys.reader if obeys.reader in ("trainer", "accelerate") else "deepspeed"
    return {deepspeed.CONFIG_FILE: deepspeed.text(deepspeed.config(preset, reader))}


def _where(preset: Preset, launch: torchrun.Launch, files: Mapping[str, str], run_dir: str) -> str:
    """What the ranks are given for DeepSpeed's configuration: its path, where that is the same as the launcher's."""
    if preset.launcher.kind == "deepspeed" and deepspeed.starts_all(launch) and files:
        return deepspeed.travelling(files[deepspeed.CONFIG_FILE])
    return f"{run_dir}/{deepspeed.CONFIG_FILE}"


def _own(
    preset: Preset, launch: torchrun.Launch, config: Mapping[str, object], backend: str,
    run_dir: str, python: str, whole: Mapping[str, str], added: dict[str, str], files: dict[str, str],
    notes: tuple[str, ...]
) -> Wired:  # fmt: skip
    """`accelerate launch` or `deepspeed`, as a command. Raises PlanError."""
    kind = preset.launcher.kind
    if launch.nnodes_min is not None:
        raise PlanError(
            f"launcher {kind} knows no elastic run: give one number for --nnodes, or take torchrun."
        )
    note = f"{kind} runs as it is: a restart stops it and starts it again, and each node is one rank on the screen."
    if kind == "accelerate":
        argv = accelerate.argv(python, config, launch, run_dir)
        if not accelerate.FORMS & set(launch.extra):
            files |= accelerate.files(config)
        return Wired(launcher="command", argv=argv, env=added, files=files, notes=(*notes, note))
    files |= deepspeed.files(launch, whole)
    if deepspeed.ENV_FILE in files:
        added["DS_ENV_FILE"] = f"{run_dir}/{deepspeed.ENV_FILE}"
        note += " The first node logs in to all others, and to itself, by ssh without a password."
        lost = deepspeed.left_out(whole)
        notes += tuple(f"{', '.join(lost)}: not passed on to the other nodes." for _ in lost[:1])
    argv = deepspeed.argv(python, launch, run_dir)
    return Wired(launcher="command", argv=argv, env=added, files=files, notes=(*notes, note))


def _with_options(launch: torchrun.Launch, obeys: Obeys, where: str) -> torchrun.Launch:
    """The script's own arguments, with those by which it takes DeepSpeed's configuration."""
    if obeys.how is None or not obeys.options:
        return launch
    script, *args = launch.command
    return replace(launch, command=(script, *obeys.options, where, *args))


def _torchrun(preset: Preset, launch: torchrun.Launch) -> tuple[str, ...]:
    """Raises PlanError."""
    refused = torchrun.own_option(launch.extra)
    if refused:
        raise PlanError(
            f"launcher.args holds {refused}, which distui sets itself: take it out of the preset."
        )
    several = launch.nnodes > 1
    if launch.rendezvous == "standalone" and several:
        raise PlanError(
            f"launcher.rendezvous standalone is for one node, not {launch.nnodes}: take c10d, or static."
        )
    if launch.rendezvous == "static" and launch.nnodes_min is not None:
        raise PlanError(
            "launcher.rendezvous static knows no elastic run: take c10d, or one number of nodes."
        )
    return torchrun.argv(launch)


def _idle(launch: torchrun.Launch) -> tuple[str, ...]:
    given = (word.split("=", 1)[0] for word in launch.extra)
    return tuple(
        f"launcher.args {name} does nothing here: every rank's output has files of its own."
        for name in given
        if name.removeprefix("--").replace("_", "-") in torchrun.IDLE
    )


def _notes(preset: Preset, obeys: Obeys) -> tuple[str, ...]:
    """What of the preset a script does not get that obeys otherwise."""
    if obeys.how is None or obeys.reader == "parallelize":
        return ()
    strategy, notes = preset.strategy, []
    if obeys.reader == "deepspeed":
        if preset.batch.micro is None:
            notes.append(
                "DeepSpeed is told train_micro_batch_size_per_gpu 1: set batch.micro to what a rank takes at once."
            )
        return tuple(notes)
    if strategy.kind in ("fsdp1", "fsdp2") and preset.precision.reduce != preset.precision.param:
        notes.append(
            f"Accelerate sums gradients in precision.param ({preset.precision.param}), "
            f"not in {preset.precision.reduce}."
        )
    if strategy.kind == "fsdp2" and not isinstance(strategy.reshard_after_forward, bool):
        notes.append(
            f"Accelerate knows no number for strategy.reshard_after_forward: {strategy.reshard_after_forward} is true."
        )
    if strategy.kind == "fsdp1" and not strategy.limit_all_gathers:
        notes.append("Accelerate limits all-gathers whatever strategy.limit_all_gathers says.")
    if strategy.kind == "ddp":
        notes.append("Accelerate takes DDP's options (buckets, unused parameters) from the script alone.")
    if preset.batch.accumulation > 1 and obeys.reader == "accelerate":
        notes.append("batch.accumulation acts where the script uses accelerator.accumulate().")
    if preset.batch.accumulation > 1 and obeys.reader == "trainer":
        notes.append("batch.accumulation has to be the Trainer's gradient_accumulation_steps, too.")
    return tuple(notes)


# -----------------------------------------------------------------------------------------------------------
# What of a plan's launcher differs from node to node: filled in for one of them. Pure.


OWN_FILES = (deepspeed.HOST_FILE, deepspeed.HEAD_SCRIPT)
"""Files that hold placeholders, beside accelerate's."""


def placed_argv(
    launcher: str, words: Sequence[str], command: Sequence[str], node: int, addresses: Sequence[str]
) -> tuple[str, ...]:
    """The command line of node number `node`; the user's own words, `command`, are left alone."""
    if launcher == "torchrun":
        return torchrun.placed(words, addresses[0], addresses[node], node)
    own = len(words) - len(command)
    return (*(_filled(word, node, addresses) for word in words[:own]), *words[own:])


def files(texts: Mapping[str, str], node: int, addresses: Sequence[str]) -> dict[str, str]:
    """The files of node number `node`."""
    return {
        name: _filled(text, node, addresses)
        if name in OWN_FILES or name.startswith("accelerate/")
        else text
        for name, text in texts.items()
    }


def moved(texts: Mapping[str, str], names: Sequence[str], before: str, after: str) -> dict[str, str]:
    """`texts` with the paths of the files `names` in another run directory."""
    made = dict(texts)
    for name in names:
        made = {key: text.replace(f"{before}/{name}", f"{after}/{name}") for key, text in made.items()}
    return made


def _filled(text: str, node: int, addresses: Sequence[str]) -> str:
    for number, address in enumerate(addresses):
        text = text.replace(deepspeed.address(number), address)
    return text.replace(accelerate.HEAD, addresses[0]).replace(accelerate.NODE, str(node))
