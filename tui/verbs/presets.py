"""presets: list, show and create presets; settings and variables of NCCL."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ...presets import nccl
from ...presets.base_dirs import private_folder
from ...presets.finding import PresetError
from ...presets.load import (
    check_name,
    entries,
    library,
    load,
    parse_override,
    user_dir,
)
from ...presets.nccl import nccl_presets
from ...presets.preset_text import check_saved, list_dict, list_text, new_text, show_dict, show_text
from ...presets.spelling import nearest
from ...presets.text_formats import MOST_BYTES
from ...runners.run import file_io
from ...runners.run.errors import RunError
from ..terminal import answer, complain

if TYPE_CHECKING:
    from ...presets.imports import Imported
    from ...presets.model import Preset


class Written(Struct, frozen=True):
    """Output of `presets new`, and `trust --remove`."""

    path: str


class NamedSettings(Struct, frozen=True):
    """A row of `presets nccl`."""

    name: str
    when: str
    live: bool
    env: dict[str, str]


OF_ACTION = {
    "list": (),
    "show": ("set", "format"),
    "new": ("set", "base", "source", "guided"),
    "nccl": (),
}
"""Action → the options that it takes."""
FLAGS = {"source": "from"}


def presets(options: argparse.Namespace) -> int:
    _check_options(options)
    if options.action in (None, "list"):
        return _list_presets(options.json)
    if options.action == "nccl":
        return _nccl(options.name, options.json)
    if options.name is None:
        raise RunError(f"presets {options.action}: which one? `distui presets` lists them")
    return _show(options) if options.action == "show" else _new(options)


def _check_options(options: argparse.Namespace) -> None:
    """Raise RunError for an option that the action would ignore."""
    action = options.action or "list"
    for name in ("set", "format", "base", "source", "guided"):
        if getattr(options, name) and name not in OF_ACTION[action]:
            takers = " and ".join(verb for verb, names in OF_ACTION.items() if name in names)
            raise RunError(
                f"`distui presets {action}` takes no --{FLAGS.get(name, name)}: only {takers} does"
            )


def _list_presets(as_json: bool) -> int:
    available = library()
    loaded, problems = entries(available)
    sys.stdout.write(json.dumps(list_dict(loaded)) + "\n" if as_json else list_text(loaded))
    for sentence in (*problems, *available.notes):
        complain(sentence)
    return 1 if problems else 0


def _show(options: argparse.Namespace) -> int:
    loaded = load(options.name, options.set)
    for note in loaded.notes:
        complain(note)
    if options.format is not None:
        return _export(loaded.preset, options.format)
    sys.stdout.write(json.dumps(show_dict(loaded)) + "\n" if options.json else show_text(loaded))
    return 0


def _export(preset: Preset, format: str) -> int:
    """Print a preset as another program's file. Raises PresetError."""
    from ...presets.exports import exported

    made = exported(preset, format)
    sys.stdout.write(made.text)
    sys.stdout.flush()
    for note in made.notes:
        complain(note)
    return 0


def _new(options: argparse.Namespace) -> int:
    """Write a new preset of the user, based on another one, a file, a run or answers; never overwrite a file."""
    name = check_name(options.name)
    path = user_dir(os.environ) / f"{name}.toml"
    if path.exists():
        raise _exists(path)
    text = _text_of_new(name, options)
    check_saved(name, text, library())
    try:
        private_folder(path.parent)
        _write_new(path, text)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None
    answer(options.json, Written(str(path)), [str(path)])
    if options.guided:
        where = " --hosts A,B" if load(name).preset.topology.nnodes > 1 else ""
        complain(f"next: `distui plan {name}{where} -- SCRIPT` shows what it starts")
    return 0


def _text_of_new(name: str, options: argparse.Namespace) -> str:
    """Return the text of a new preset. Raises RunError and PresetError."""
    if options.guided:
        return _guided(name, options.set)
    if options.source is None:
        return new_text(name, load(options.base or "ddp", options.set))
    return _imported(name, options.source, options.set)


def _guided(name: str, overrides: Sequence[str]) -> str:
    """Ask questions on stderr, one per line, and return the preset of the answers. Raises RunError and PresetError."""
    from ...presets.guided import Interview

    interview = Interview(library())
    while question := interview.question():
        sys.stderr.write(f"{question.text} [{interview.default(question)}]: ")
        sys.stderr.flush()
        line = _answer()
        if not line:
            raise RunError("the answers ended before the last question: nothing was written")
        try:
            interview.answer(question, line)
        except PresetError as error:
            complain(str(error))
    return new_text(name, load(interview.base, (*interview.overrides, *overrides)))


def _answer() -> str:
    """Read a line from stdin, "" at its end. A question that gets no answer ends its own line."""
    line = ""
    try:
        line = sys.stdin.readline()
    finally:
        if not line:
            sys.stderr.write("\n")
    return line


def _exists(path: Path) -> RunError:
    return RunError(f"{path} exists already: edit it, or choose another name")


def _write_new(path: Path, text: str) -> None:
    """Write a new file atomically. Raises FileExistsError and OSError."""
    whole = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        whole.touch(mode=0o600)  # files that others can write are ignored
        whole.write_text(text, encoding="utf-8")
        os.link(whole, path)
    finally:
        whole.unlink(missing_ok=True)


def _imported(name: str, source: str, overrides: Sequence[str]) -> str:
    """Return a preset's text, made from another program's file or from a run. Raises RunError and PresetError."""
    from ...presets.imports import text

    file = Path(source)
    if not file.exists() and "/" not in source:
        return _from_run(name, source, overrides)
    imported = _from_file(file)
    for override in overrides:
        imported.change(*parse_override(override))
    for note in imported.notes:
        complain(note)
    return text(name, source, imported)


def _from_file(file: Path) -> Imported:
    from ...presets import imports

    try:
        data = file_io.head(file, MOST_BYTES + 1, streams=True)
    except file_io.FileError as error:
        raise RunError(f"--from {error}: name a file to import, or a run") from None

    def beside(name: str) -> bytes | None:
        """Read a file that the imported one names, from its folder or from here."""
        found = _read(file.parent / name)
        return _read(Path(name)) if found is None else found

    imported, problems = imports.import_preset(str(file), data, beside)
    for problem in problems:
        complain(f"{problem.as_lines()[0]}: {problem.text}")
    return imported


def _read(file: Path) -> bytes | None:
    """Return a file's content; None if it does not exist or cannot be read."""
    try:
        return file_io.content(file, MOST_BYTES)
    except file_io.FileError:
        return None


def _from_run(name: str, source: str, overrides: Sequence[str]) -> str:
    """Return a preset's text, made from a run and the changes of its restarts. Raises NoSuchRunError and RunError."""
    from ...runners.launch.preset_of_request import preset_of_run
    from ...runners.run import run_directories

    text, secrets = preset_of_run(name, run_directories.resolve(source), overrides)
    for secret in secrets:
        complain(f"{secret} is left out: its value is a secret; pass it with --env.")
    return text


def _nccl(name: str | None, as_json: bool) -> int:
    """Print named NCCL settings, all or one, or describe a variable. Raises RunError."""
    if name is not None and name not in nccl_presets():
        return _variables(name, as_json)
    named = [preset for preset in nccl_presets().values() if name in (None, preset.name)]
    rows: list[NamedSettings] = []
    lines: list[str] = []
    for preset in named:
        rows.append(NamedSettings(preset.name, preset.when, preset.live, dict(preset.env)))
        pairs = " ".join(f"{name}={shlex.quote(value)}" for name, value in preset.env.items())
        lines += [preset.name, f"    {preset.when}", f"    {pairs}"]
    answer(as_json, rows, lines)
    return 0


def _variables(name: str, as_json: bool) -> int:
    """Print variables of NCCL, with help. Raises RunError."""
    entries = nccl.described(name)
    if not entries:
        near = nccl.suggestion(nccl.full_name(name.upper())) or nearest(name, nccl_presets())
        hint = f"did you mean {near}?" if near else "`distui presets nccl NCCL_` lists all variables"
        raise RunError(f"{name} is neither a setting nor a variable of NCCL: {hint}")
    lines: list[str] = []
    for entry in entries:
        meaning = entry.meaning or "In NCCL's sources only; NCCL does not document it."
        lines += [entry.name, f"    {meaning}", f"    {nccl.facts(entry)}"]
    answer(as_json, [asdict(entry) for entry in entries], lines)
    return 0
