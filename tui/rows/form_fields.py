"""The fields of the launch form: made from a preset and from the options, and read back into a launch. Pure."""

from __future__ import annotations

import json
import shlex
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from ...presets import model, nccl
from ...presets.estimate.memory import format_for
from ...presets.model import Loaded, help_of
from ...presets.request import FORM_OPTIONS, REQUEST_OPTIONS
from ...presets.secrets import mask
from ...runners.launch.launch_form import LaunchForm
from ...runners.launch.words import shell_words
from .cycle import following

SET = "set."
"""Prefix of a preset field's path in the name of its row."""

NAMED = "nccl-preset."
"""Prefix of a named NCCL setting in the name of its row."""

KIND = f"{SET}strategy.kind"
"""The choice that determines which other fields exist."""

_HIDDEN = ("title", "summary", "topology.nnodes", "topology.nnodes_min", "topology.nproc_per_node")
"""Fields that are set elsewhere: when saving, and by the form's own nodes and ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One row of the form."""

    name: str
    """A field of LaunchForm; or SET and a path; or NAMED and a name."""
    label: str
    table: str
    """The heading above it."""
    help: str
    value: str = ""
    """The value that applies while the field is empty."""
    choices: tuple[str, ...] = ()
    """() for free text."""
    check: bool = False
    """Whether the field is a checkbox."""
    locked: bool = False
    """Whether the value can only be read."""


Typed = Mapping[str, str]
"""Maps the name of a field to its typed or chosen text; a field without one is missing or ""."""

OPTION = "option."
"""Prefix of the field of `Request` in the name of an option's row."""

QUOTED = "shell-quoted"
OF_SKY = "For nodes that SkyPilot brings."
ESTIMATE = "Only for the memory estimate."


class _Own(NamedTuple):
    """The row of a field of LaunchForm."""

    name: str
    label: str
    help: str
    example: str = ""
    choices: tuple[str, ...] = ()


_FLAG = ("false", "true")
_FORMATS = (
    "Format of the script's weights; DeepSpeed keeps its own. torch's AdamW has the format of the weights"
)
_PLACE = REQUEST_OPTIONS["on"]
_ROWS: dict[str, tuple[_Own | str, ...]] = {
    "run": (
        _Own("script", "script", "The training script, its path from here.", "e.g. train.py"),
        _Own(
            "args", "arguments", f"Script arguments, {QUOTED}: --steps 1000 --lr 3e-4.", "e.g. --steps 1000"
        ),
        _Own("nproc", "ranks", help_of("topology.nproc_per_node")),
        "name",
        "env",
        _Own(
            "nccl_debug",
            "NCCL_DEBUG",
            "How much NCCL logs; it can be changed while the run goes on.",
            "",
            nccl.LEVELS,
        ),
        "adopt",
        "notify",
    ),
    "where": (
        _Own(
            "place",
            _PLACE.label,
            f"{_PLACE.plain_sentences} hosts A,B,…: hosts of your own, by ssh.",
            _PLACE.example,
        ),
        "nnodes",
        "gpus",
        "cpus",
    ),
    "memory": (
        _Own("params", "model", f"Parameters of the model: 350M, 7B. {ESTIMATE}", "e.g. 7B"),
        _Own("hardware", "GPU", f"The GPUs of a node: COUNTxNAME. {ESTIMATE}", "e.g. 8xA100-80GB"),
        _Own("seq", "sequence", f"Positions of a sequence. {ESTIMATE}", "2048"),
        _Own(
            "recompute", "recompute", f"Activation checkpointing of every layer. {ESTIMATE}", "false", _FLAG
        ),
        _Own("format", "weights", f"{_FORMATS}. {ESTIMATE}", "", ("fp32", "bf16")),
        _Own("lora", "adapters", f"Train adapters of rank 16 only. {ESTIMATE}", "", ("LoRA", "QLoRA")),
        _Own("experts", "experts", f"Experts of each mixture-of-experts layer. {ESTIMATE}", "e.g. 8"),
    ),
}
"""Heading → its rows: a field of LaunchForm, or the name of an option."""

_MORE = {"nnodes": "Above 1 it needs a place.", "gpus": OF_SKY, "cpus": OF_SKY}
"""Further help on an option."""

_FIRST = tuple(chain.from_iterable(_ROWS.values()))
_OWN = tuple(row.name for row in _FIRST if isinstance(row, _Own))
"""The fields of LaunchForm that have a row."""

FURTHER = Field(
    name="further",
    label="--set",
    table="further",
    value="e.g. sky.key=value",
    help="Further fields as `--set` takes them, {QUOTED}: keys of env, nccl, deepspeed, accelerate, sky.",
)


def fields(loaded: Loaded | None, kind: str = "", hardware: str = "") -> list[Field]:
    """Return every field for a preset; None means that the preset cannot be loaded.

    `kind` is its strategy before the user chose another; `hardware` the GPUs of this machine, if known.
    """
    defaults = _defaults(loaded, hardware)
    listed: list[Field] = []
    for table, rows in _ROWS.items():
        for row in rows:
            field = _first(row, table)
            listed.append(replace(field, value=defaults.get(field.name, field.value)))
    if loaded is not None:
        listed += (
            replace(each, value=kind) if kind and each.name == KIND else each for each in _of_preset(loaded)
        )
    others = (_option(name, "options") for name in FORM_OPTIONS if name not in _FIRST)
    return [*listed, FURTHER, *others, *_named()]


_OF_SCRIPTS = ("adopt", "python", "port", "module", "no_python")
"""Options of `launch` that act on a preset's script, and not on a task."""


def repeated_fields(form: LaunchForm) -> list[Field]:
    """Return the fields for another run of a command or of a SkyPilot task, which itself is locked."""
    kind, runs, verb = "task", form.task, "launch"
    if form.command:
        kind, runs, verb = "command", shlex.join(form.command), "exec"
    options = [
        name for name, each in FORM_OPTIONS.items() if verb in each.verbs and name not in _OF_SCRIPTS
    ]
    first = {*options, "nccl_debug"} | ({"place"} if form.task else set())
    help = f"The {kind} stays as it is; options change."
    listed = [Field(name=kind, label=kind, table="run", help=help, value=runs, locked=True)]
    for table in ("run", "where"):
        listed += [_first(row, table) for row in _ROWS[table] if _row_name(row) in first]
    return [*listed, *(_option(name, "options") for name in options if name not in _FIRST), *_named()]


def _row_name(row: _Own | str) -> str:
    return row if isinstance(row, str) else row.name


def _first(row: _Own | str, table: str) -> Field:
    if isinstance(row, str):
        return _option(row, table)
    return Field(
        name=row.name, label=row.label, table=table, help=row.help, value=row.example, choices=row.choices
    )


def _option(name: str, table: str) -> Field:
    option = FORM_OPTIONS[name]
    several = f"Several are {QUOTED}." if option.repeat else ""
    return Field(
        name=OPTION + name,
        label=option.label or option.flags[-1],
        table=table,
        help=" ".join(filter(None, (option.plain_sentences, several, _MORE.get(name, "")))),
        value=option.example or option.takes or "false",
        choices=() if option.takes else _FLAG,
    )


def _defaults(loaded: Loaded | None, hardware: str) -> dict[str, str]:
    """Return the values that the preset or this machine gives to fields, by their names."""
    values = {"hardware": hardware} if hardware else {}
    if loaded is None:
        return values | {"nproc": "auto", "nccl_debug": "WARN", "format": "fp32"}
    preset = loaded.preset
    topology = preset.topology
    fewest = "" if topology.nnodes_min is None else f"{topology.nnodes_min}:"
    return values | {
        "nproc": str(topology.nproc_per_node),
        f"{OPTION}nnodes": f"{fewest}{topology.nnodes}",
        "nccl_debug": preset.nccl.env.get("NCCL_DEBUG", "WARN"),
        "format": format_for(preset).name,
    }


def _of_preset(loaded: Loaded) -> Iterator[Field]:
    hints = model.fields()
    for path, value in model.flat(loaded.preset).items():
        if path in _HIDDEN:
            continue
        table, dot, key = path.partition(".")
        hint = hints.get(path, str)
        choices = choices_of(hint)
        yield Field(
            name=SET + path,
            label=key if dot else path,
            table=table if dot else "hook",
            help=help_of(path) if choices else f"{help_of(path)} Takes {model.words(hint)}.",
            value=mask(key, shown(value)) if table in model.FREE else shown(value) or "not set",
            choices=choices,
        )


def _named() -> Iterator[Field]:
    for preset in nccl.nccl_presets().values():
        pairs = [f"{name}={value}" for name, value in preset.env.items()]
        changes = " ".join(pairs[:3])
        if len(pairs) > 3:
            changes += f" and {len(pairs) - 3} more, which the plan lists"
        yield Field(
            name=NAMED + preset.name,
            label=preset.name,
            table="NCCL settings by name",
            help=f"{preset.when} {changes}",
            value=preset.when,
            check=True,
        )


def choices_of(hint: Any) -> tuple[str, ...]:
    """Return the values of a type that has few; () for free text."""
    if hint is bool:
        return _FLAG
    if get_origin(hint) is Literal:
        return tuple(str(choice) for choice in get_args(hint))
    return ()


def shown(value: object) -> str:
    """Return a value in the form that a user types: "true", "8", "Block Attention"; None is ""."""
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
    """Return the text of a preset's field in the form of `--set`. Raises RunError for an open quote."""
    hint = model.fields().get(path)
    if _is_list(hint) and not text.lstrip().startswith("["):
        return f"{path}={json.dumps(shell_words(text, path), ensure_ascii=False)}"
    return f"{path}={text}"


def _is_list(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return any(_is_list(part) for part in get_args(hint))
    return get_origin(hint) is tuple


def launch_form(
    preset: str, given: Sequence[Field], typed: Typed, repeated: LaunchForm | None = None
) -> LaunchForm:
    """Return the form to submit, with only the fields that exist. Raises RunError for an open quote.

    `repeated`: the form of the run whose command or task runs again.
    """
    filled = {field.name: typed[field.name].strip() for field in given if typed.get(field.name, "").strip()}
    own = {name: filled[name] for name in _OWN if name in filled}
    overrides = [override(path, text) for path, text in _begun_with(SET, filled).items()]
    overrides += shell_words(filled.get(FURTHER.name, ""), FURTHER.label)
    return LaunchForm(
        preset=preset,
        command=() if repeated is None else repeated.command,
        task="" if repeated is None else repeated.task,
        overrides=tuple(overrides),
        nccl_presets=tuple(_begun_with(NAMED, filled)),
        options=_begun_with(OPTION, filled),
        **own,
    )


def _begun_with(prefix: str, typed: Typed) -> dict[str, str]:
    """Return the texts of the fields whose names have this prefix, by the rest of the name."""
    return {name.removeprefix(prefix): text for name, text in typed.items() if name.startswith(prefix)}


def typed_of(form: LaunchForm) -> dict[str, str]:
    """Return the typed texts of a form that describes this launch."""
    typed = {name: text for name in _OWN if (text := getattr(form, name))}
    typed |= {OPTION + name: text for name, text in form.options.items()}
    further = []
    for pair in form.overrides:
        path, _, value = pair.partition("=")
        if path in model.fields() and path not in _HIDDEN:
            typed[SET + path] = value
        else:
            further.append(pair)
    return typed | ({FURTHER.name: shlex.join(further)} if further else {})


def kind_override(typed: Typed) -> tuple[str, ...]:
    """Return the override of the strategy's kind, if the user changed it: other fields then apply."""
    kind = typed.get(KIND, "")
    return (f"strategy.kind={kind}",) if kind else ()


def stepped(field: Field, text: str, step: int) -> str:
    """Return the next (1) or previous (-1) choice; "" if it is the preset's own value, hence no change."""
    if field.check:
        return "" if text else "on"
    after = following(field.choices, text or field.value, step)
    return "" if after == field.value else after


def begun_with(field: Field, text: str, letter: str) -> str:
    """Return the next choice that begins with `letter`, or the current one."""
    now = text or field.value
    at = field.choices.index(now) + 1 if now in field.choices else 0
    for choice in (*field.choices[at:], *field.choices[:at]):
        if choice.lower().startswith(letter.lower()):
            return "" if choice == field.value else choice
    return text
