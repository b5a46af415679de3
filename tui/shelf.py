"""The presets as the launch screen lists, opens and saves them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ..presets import nccl_presets
from ..presets.errors import PresetError
from ..presets.load import Library, check_name, library, load, user_dir
from ..presets.model import Loaded
from ..presets.save import check_saved, saved_text
from ..presets.topology import parse_nnodes
from ..runners.errors import RunError
from ..runners.identity import write_atomically
from .follow import LaunchForm, PresetEntry
from .placing import words
from .starting import nccl_pairs, pairs


def listed(shelf: Library) -> list[PresetEntry]:
    """Every preset of the shelf, in its order; those whose files cannot be read come last."""
    broken = [name for name in shelf.problems if name not in shelf.definitions]
    return [_entry(name, shelf) for name in (*shelf.names, *broken)]


def _entry(name: str, shelf: Library) -> PresetEntry:
    defined = shelf.definitions.get(name)
    kind = defined[-1].origin.partition(" ")[0] if defined else "user"
    origin = {"builtin": "", "user": "yours"}.get("user" if name in shelf.problems else kind, kind)
    try:
        preset = load(name, shelf=shelf).preset
    except PresetError as error:
        return PresetEntry(name=name, title="", summary="", origin=origin, problem=str(error))
    return PresetEntry(
        name=name, title=preset.title, summary=preset.summary, strategy=preset.strategy.kind, origin=origin
    )


class Shelf:
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
        return load(name, overrides, shelf=self._library)


def save(name: str, form: LaunchForm, replace: bool, env: Mapping[str, str] = os.environ) -> str:
    """Write the preset of a form as a user's own; the path of its file. It is there whole or not at all.

    Raises FileExistsError where there is one and `replace` is not said, RunError, PresetError and PlanError.
    """
    shelf = library()
    text = saved_text(check_name(name), form.preset, said(form), shelf)
    path = user_dir(env) / f"{name}.toml"
    check_saved(name, form.preset, text, shelf)
    if path.exists() and not replace:
        raise FileExistsError(str(path))
    if path.exists() and name == form.preset:
        raise RunError(f"{name} is the preset that it would build on: choose another name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from None
    return str(path)


def said(form: LaunchForm) -> tuple[str, ...]:
    """Everything in a form that a preset can hold, as `--set` takes it. Raises RunError and PlanError."""
    found = list(form.overrides)
    if form.nproc:
        found.append(f"topology.nproc_per_node={form.nproc}")
    if form.nodes:
        fewest, most = parse_nnodes(form.nodes)
        found.append(f"topology.nnodes={most}")
        found += [f"topology.nnodes_min={fewest}"] if fewest is not None else []
    variables = nccl_presets.combined(form.nccl_presets)
    env = pairs(words(form.env, "environment"), "environment")
    if form.nccl:
        variables |= nccl_pairs([f"DEBUG={form.nccl}"])
    found += [f"nccl.{name}={value}" for name, value in variables.items()]
    found += [f"env.{name}={value}" for name, value in env.items()]
    return tuple(found)
