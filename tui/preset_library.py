"""The presets as the launch screen lists, opens and saves them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..presets import nccl
from ..presets.finding import PresetError
from ..presets.load import Library, check_name, check_saved, library, load, saved_text, user_dir
from ..presets.model import Loaded
from ..presets.sanitize import LONGEST, clean_text
from ..presets.secrets import mask_text
from ..presets.trusted_files import private_folder
from ..presets.worker_group import parse_nnodes
from ..runners.environment import pairs
from ..runners.errors import RunError
from ..runners.file_io import write_atomically
from ..runners.launch.launch_form import LaunchForm
from ..runners.launch.prepare import nccl_pairs, shell_words

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetEntry:
    """One line of the preset list."""

    name: str
    title: str
    summary: str
    """When to take it."""
    strategy: str = ""
    origin: str = ""
    """"" shipped, "yours" or "project"."""
    problem: str = ""
    """Why it cannot be loaded, a sentence; "" where it can."""


def listed(presets: Library) -> list[PresetEntry]:
    """Every preset of the library, in its order; those whose files cannot be read come last."""
    broken = [name for name in presets.problems if name not in presets.definitions]
    passed = [
        PresetEntry(
            name=clean_text(_named(text)),
            title="",
            summary="",
            origin="passed over",
            problem=clean_text(text, LONGEST),
        )
        for text in presets.passed
    ]
    return [*(_entry(name, presets) for name in (*presets.names, *broken)), *passed]


def _named(sentence: str) -> str:
    """The name of the file that a sentence begins with."""
    return sentence.partition(" is passed over")[0].rpartition("/")[2].partition(" ")[0]


def _entry(name: str, presets: Library) -> PresetEntry:
    defined = presets.definitions.get(name)
    kind = defined[-1].origin.partition(" ")[0] if defined else "user"
    origin = {"builtin": "", "user": "yours"}.get("user" if name in presets.problems else kind, kind)
    try:
        preset = load(name, presets=presets).preset
    except PresetError as error:
        problem = clean_text(str(error), LONGEST)
        return PresetEntry(name=clean_text(name), title="", summary="", origin=origin, problem=problem)
    title, summary = clean_text(mask_text(preset.title)), clean_text(mask_text(preset.summary), LONGEST)
    return PresetEntry(
        name=name, title=title, summary=summary, strategy=preset.strategy.kind, origin=origin
    )


class PresetLibrary:
    """The library, read when it is listed and kept until then."""

    def __init__(self) -> None:
        self._library: Library | None = None

    def entries(self) -> list[PresetEntry]:
        """Read everything anew. A project's file that cannot be read is an entry with its problem."""
        try:
            self._library = library()
        except PresetError as error:
            self._library = None
            return [
                PresetEntry(name="distui.toml", title="", summary="", origin="project", problem=str(error))
            ]
        return listed(self._library)

    def load(self, name: str, overrides: Sequence[str] = ()) -> Loaded:
        """One preset. Raises PresetError."""
        if self._library is None:
            self._library = library()
        return load(name, overrides, presets=self._library)


def save(name: str, form: LaunchForm, replace: bool, env: Mapping[str, str] = os.environ) -> str:
    """Write the preset of a form as a user's own; the path of its file. It is there whole or not at all.

    Raises FileExistsError where there is one and `replace` is not said, RunError, PresetError and PlanError.
    """
    presets = library()
    text = saved_text(check_name(name), form.preset, form_overrides(form), presets)
    path = user_dir(env) / f"{name}.toml"
    check_saved(name, form.preset, text, presets)
    if path.exists() and not replace:
        raise FileExistsError(str(path))
    if path.exists() and name == form.preset:
        raise RunError(f"{name} is the preset that it would build on: choose another name")
    try:
        private_folder(path.parent)
        write_atomically(path, text.encode())
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from None
    return str(path)


def form_overrides(form: LaunchForm) -> tuple[str, ...]:
    """Everything in a form that a preset can hold, as `--set` takes it. Raises RunError and PlanError."""
    overrides = list(form.overrides)
    if form.nproc:
        overrides.append(f"topology.nproc_per_node={form.nproc}")
    if form.nodes:
        fewest, most = parse_nnodes(form.nodes)
        overrides.append(f"topology.nnodes={most}")
        overrides += [f"topology.nnodes_min={fewest}"] if fewest is not None else []
    variables = nccl.combined(form.nccl_presets)
    env = pairs(shell_words(form.env, "environment"), "environment")
    if form.nccl:
        variables |= nccl_pairs([f"DEBUG={form.nccl}"])
    overrides += [f"nccl.{name}={value}" for name, value in variables.items()]
    overrides += [f"env.{name}={value}" for name, value in env.items()]
    return tuple(overrides)
