"""The fields of the launch form: the run's own, and every field of the preset, read off its schema. Pure."""

from __future__ import annotations

import json
import shlex
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Union, get_args, get_origin

from ...presets import nccl, nccl_presets, schema
from ...presets.describe import help_of
from ...presets.memory import FORMATS, format_for
from ...presets.model import Loaded
from ...presets.secrets import mask
from ..follow import LaunchForm
from ..placing import words

SET = "set."
"""Before the path of a preset's field, in the name of its row."""
NAMED = "nccl-preset."
"""The same for a setting of NCCL by name."""
KIND = f"{SET}strategy.kind"
"""The choice on which it depends which other fields there are."""

_HIDDEN = ("title", "summary", "topology.nnodes", "topology.nnodes_min", "topology.nproc_per_node")
"""Said otherwise: by saving, and by the form's own nodes and ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One row of the form."""

    name: str
    """A field of LaunchForm; or SET and a path; or NAMED and a name."""
    label: str
    table: str
    """The heading it stands under."""
    help: str
    value: str = ""
    """What holds while nothing is typed."""
    choices: tuple[str, ...] = ()
    """(): typed freely."""
    check: bool = False
    """On or off."""


Typed = Mapping[str, str]
"""Name of a field → what was typed or chosen; missing or "" where nothing was."""

_OWN = (
    ("script", "script", "run", "e.g. train.py", "The training script, its path from here."),
    ("args", "arguments", "run", "e.g. --steps 1000", "Of the script, quoted as in a shell: --steps 1000 --lr 3e-4."),
    ("nproc", "ranks", "run", "", ""),
    ("name", "name", "run", "made from the script", "What the run is called in lists."),
    ("env", "environment", "run", "e.g. K=V K2=V2", "Variables for every rank, quoted as in a shell."),
    ("nccl", "NCCL_DEBUG", "run", "", "How much NCCL says; it can be changed while the run goes on."),
    ("place", "place", "where", "local",
     "local: this machine; sky or one of SkyPilot's places (aws, slurm/lab): nodes it brings; hosts A,B,…: by ssh."),
    ("nodes", "nodes", "where", "", "A number, or MIN:MAX for an elastic run; above 1 it needs a place."),
    ("gpus", "GPUs", "where", "e.g. H100:8", "Of each node that SkyPilot brings: NAME:COUNT."),
    ("cpus", "CPUs", "where", "e.g. 8+", "Of each node that SkyPilot brings: at least so many with a +."),
    ("params", "model", "memory", "e.g. 7B", "Parameters of the model, for the memory estimate alone: 350M, 7B."),
    ("hardware", "GPU", "memory", "e.g. 8xA100-80GB",
     "The GPUs of a node, for the memory estimate alone: COUNTxNAME."),
    ("seq", "sequence", "memory", "2048", "Positions of a sequence, for the memory estimate alone."),
    ("recompute", "recompute", "memory", "false", "Whether the script checkpoints activations: for the estimate."),
    ("format", "formats", "memory", "", ""),
)  # fmt: skip
"""Name, label, heading, what stands there while it is empty, help."""

FURTHER = Field(
    name="further", label="--set", table="further", value="e.g. sky.key=value",
    help="Further fields as `--set` takes them, quoted as in a shell: keys of env, nccl, deepspeed, accelerate, sky.",
)  # fmt: skip


def fields(loaded: Loaded | None, kind: str = "", hardware: str = "") -> list[Field]:
    """Every field for a preset; None: one that cannot be loaded.

    `kind`: its strategy before another was chosen; `hardware`: the GPUs of this machine, where known.
    """
    found = [_own(one, loaded, hardware) for one in _OWN]
    if loaded is not None:
        found += (
            replace(one, value=kind) if kind and one.name == KIND else one for one in _of_preset(loaded)
        )
    return [*found, FURTHER, *_named()]


def _own(row: tuple[str, str, str, str, str], loaded: Loaded | None, hardware: str) -> Field:
    name, label, table, value, text = row
    choices: tuple[str, ...] = ()
    topology = None if loaded is None else loaded.preset.topology
    match name:
        case "nproc":
            value = "auto" if topology is None else str(topology.nproc_per_node)
            text = help_of("topology.nproc_per_node")
        case "nodes" if topology is not None:
            fewest = "" if topology.nnodes_min is None else f"{topology.nnodes_min}:"
            value = f"{fewest}{topology.nnodes}"
        case "nccl":
            choices, value = nccl.LEVELS, "WARN"
            said = {} if loaded is None else loaded.preset.nccl.env
            value = said.get("NCCL_DEBUG", "WARN")
        case "recompute":
            choices = ("false", "true")
        case "format":
            choices, value = tuple(FORMATS), "fp32" if loaded is None else format_for(loaded.preset).name
            text = "; ".join(f"{one.name}: {one.text}" for one in FORMATS.values()) + "."
        case "hardware" if hardware:
            value = hardware
    return Field(name=name, label=label, table=table, help=text, value=value, choices=choices)


def _of_preset(loaded: Loaded) -> Iterator[Field]:
    known = schema.fields()
    for path, value in schema.flat(loaded.preset).items():
        if path in _HIDDEN:
            continue
        table, dot, key = path.partition(".")
        hint = known.get(path, str)
        choices = choices_of(hint)
        yield Field(
            name=SET + path,
            label=key if dot else path,
            table=table if dot else "hook",
            help=help_of(path) if choices else f"{help_of(path)} Takes {schema.words(hint)}.",
            value=mask(key, shown(value)) if table in schema.FREE else shown(value) or "not set",
            choices=choices,
        )


def _named() -> Iterator[Field]:
    for one in nccl_presets.known().values():
        pairs = [f"{name}={value}" for name, value in one.env.items()]
        changes = " ".join(pairs[:3]) + f" and {len(pairs) - 3} more, which the plan lists" * (
            len(pairs) > 3
        )
        yield Field(
            name=NAMED + one.name,
            label=one.name,
            table="NCCL settings by name",
            help=f"{one.when} {changes}",
            value=one.when,
            check=True,
        )


def choices_of(hint: Any) -> tuple[str, ...]:
    """The values of a type that has few; () for one whose values are typed."""
    if hint is bool:
        return ("false", "true")
    if get_origin(hint) is Literal:
        return tuple(str(choice) for choice in get_args(hint))
    return ()


def shown(value: object) -> str:
    """A value as it is typed: "true", "8", "Block Attention"; None is ""."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return shlex.join(value)
    if isinstance(value, Mapping | list):
        return json.dumps(value, ensure_ascii=False)
    return f"{value:g}" if isinstance(value, float) else str(value)


def override(path: str, text: str) -> str:
    """What was typed into a field of the preset, as `--set` takes it. Raises RunError for an open quote."""
    hint = schema.fields().get(path)
    if _is_list(hint) and not text.lstrip().startswith("["):
        return f"{path}={json.dumps(words(text, path), ensure_ascii=False)}"
    return f"{path}={text}"


def _is_list(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return any(_is_list(part) for part in get_args(hint))
    return get_origin(hint) is tuple


def launch_form(preset: str, known: Sequence[Field], typed: Typed) -> LaunchForm:
    """The form as it is sent: only what belongs to fields that are there. Raises RunError for an open quote."""
    said = {one.name: typed[one.name].strip() for one in known if typed.get(one.name, "").strip()}
    own = {name: said[name] for name, *_ in _OWN if name in said}
    overrides = [
        override(name.removeprefix(SET), text) for name, text in said.items() if name.startswith(SET)
    ]
    overrides += words(said.get(FURTHER.name, ""), FURTHER.label)
    return LaunchForm(
        preset=preset,
        overrides=tuple(overrides),
        nccl_presets=tuple(name.removeprefix(NAMED) for name in said if name.startswith(NAMED)),
        **own,
    )


def kind_override(typed: Typed) -> tuple[str, ...]:
    """The changed kind of strategy, if it was: other fields act then."""
    kind = typed.get(KIND, "")
    return (f"strategy.kind={kind}",) if kind else ()


def stepped(one: Field, text: str, step: int) -> str:
    """What is chosen after the next (1) or previous (-1) choice; the preset's own value is no change: ""."""
    if one.check:
        return "" if text else "on"
    now = text or one.value
    at = one.choices.index(now) if now in one.choices else -1 if step > 0 else 0
    after = one.choices[(at + step) % len(one.choices)]
    return "" if after == one.value else after


def begun_with(one: Field, text: str, letter: str) -> str:
    """What is chosen after a letter was pressed: the next choice that begins with it, or what was."""
    now = text or one.value
    at = one.choices.index(now) + 1 if now in one.choices else 0
    for choice in (*one.choices[at:], *one.choices[:at]):
        if choice.lower().startswith(letter.lower()):
            return "" if choice == one.value else choice
    return text
