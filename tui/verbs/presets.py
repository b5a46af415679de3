"""presets: list, show, new."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys

from ...presets.load import check_name, library, load, user_dir
from ...presets.nccl_presets import known
from ...presets.show import entries, list_dict, list_text, new_text, show_dict, show_text
from ...runners.errors import RunError


def presets(options: argparse.Namespace) -> int:
    """Dispatch the forms."""
    if options.action is None:
        return _list(options.json)
    if options.action == "nccl":
        return _nccl(options.json)
    if options.name is None:
        raise RunError(f"presets {options.action}: which one? `distui presets` lists them")
    return _show(options) if options.action == "show" else _new(options)


def _list(as_json: bool) -> int:
    loaded, problems = entries(library())
    sys.stdout.write(json.dumps(list_dict(loaded)) + "\n" if as_json else list_text(loaded))
    for problem in problems:
        sys.stderr.write(f"distui: {problem}\n")
    return 1 if problems else 0


def _show(options: argparse.Namespace) -> int:
    loaded = load(options.name, options.set)
    sys.stdout.write(json.dumps(show_dict(loaded)) + "\n" if options.json else show_text(loaded))
    return 0


def _new(options: argparse.Namespace) -> int:
    """Write a preset of the user's own that starts from another one; never over an existing file."""
    name = check_name(options.name)
    path = user_dir(os.environ) / f"{name}.toml"
    text = new_text(name, load(options.base))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x") as file:
            file.write(text)
    except FileExistsError:
        raise RunError(f"{path} exists already: edit it, or choose another name") from None
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None
    sys.stdout.write(json.dumps({"path": str(path)}) + "\n" if options.json else f"{path}\n")
    return 0


def _nccl(as_json: bool) -> int:
    """Settings of NCCL by name."""
    found = known().values()
    if as_json:
        rows = [
            {"name": one.name, "when": one.when, "live": one.live, "env": dict(one.env)} for one in found
        ]
        sys.stdout.write(json.dumps(rows) + "\n")
        return 0
    for one in found:
        pairs = " ".join(f"{name}={shlex.quote(value)}" for name, value in one.env.items())
        sys.stdout.write(f"{one.name}\n    {one.when}\n    {pairs}\n")
    return 0
