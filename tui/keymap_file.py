"""The user's own keys, in `keys.toml`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..presets import base_dirs
from ..presets.finding import PresetError
from ..presets.spelling import did_you_mean
from .keys import ACTIONS, key_text


def keymap_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the user's keys: `${XDG_CONFIG_HOME:-~/.config}/distui/keys.toml`."""
    return base_dirs.base("XDG_CONFIG_HOME", environ) / "distui" / "keys.toml"


def load_keymap(path: Path) -> tuple[dict[str, str], list[str]]:
    """Return the user's keys by action id, and a sentence for each problem in the file."""
    if not os.path.lexists(path):
        return {}, []
    from ..presets import load  # most users have no such file

    try:
        table, passed = load.read_own(path)
    except PresetError as error:
        why = str(error).removeprefix(str(path)).strip(" .:")
        return {}, [f"{path} is not TOML that can be read ({why}): the default keys are used"]
    if table is None:
        return {}, [f"{sentence} The default keys are used." for sentence in passed]
    ids = {action.id for action in ACTIONS}
    good: dict[str, str] = {}
    wrong: list[str] = []
    for name, key in _flatten(table).items():
        if name in ids and isinstance(key, str):
            good[name] = key
        else:
            wrong.append(_complaint(path, name, ids))
    return good, wrong + [f"{path}: {text}: give one of them another" for text in _clashes(good)]


def _clashes(keymap: Mapping[str, str]) -> Iterator[str]:
    """Yield a clause for each of the user's keys that has another meaning in the same scope."""
    done: set[str] = set()
    for action in (action for action in ACTIONS if action.id in keymap):
        done.add(action.id)
        mine = set(keymap[action.id].split(","))
        for other in ACTIONS:
            if other.id in done or other.action == action.action or not _meet(action.scope, other.scope):
                continue
            # Shared default keys are intended: the inner scope gets the key.
            both = set(action.key.split(",")) & set(other.key.split(","))
            for key in sorted((mine & set(keymap.get(other.id, other.key).split(","))) - both):
                yield f"{key_text(key)} of {action.id} is also the key of {other.id}"


def _meet(scope: str, other: str) -> bool:
    """Whether keys of both scopes work in one place."""
    both = {scope, other}
    return scope == other or bool(both & {"app", "list", "move"}) or ("run" in both and "runs" not in both)


def _flatten(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Flatten a table: `[log] follow = "F"` and `"log.follow" = "F"` are equivalent."""
    flat: dict[str, object] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


def _complaint(path: Path, name: str, ids: set[str]) -> str:
    if name in ids:
        return f'{path}: {name} needs a key as text, such as "F"'
    meant = did_you_mean(name, sorted(ids))
    return f"{path}: there is no action {name!r}" + (f"; {meant}" if meant else "")
