"""The user's view settings in `settings.toml`: theme, hosts, columns, curves. Reading them is cheap and never fails.

Each change is written into the current file under a lock, so that changes and comments by other cockpits or editors
stay. A file that is invalid TOML, or that other users can write, is not changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..presets import base_dirs
from ..presets.finding import PresetError
from ..presets.sanitize import quoted
from ..presets.spelling import did_you_mean
from ..runners.launch import launch_settings
from ..runners.logs import log_settings
from ..runners.notify import channels
from ..runners.removal import retention
from ..runners.run import file_io
from ..runners.run.settings_file import SettingsError, document_of, no_section, no_toml, settings_text
from ..runners.telemetry import export_settings
from ..runners.telemetry.metric_names import METRICS
from .rows.charts import WINDOWS
from .rows.columns import TABLES
from .rows.themes import ALL_THEMES

MOST_HOSTS = 32
"""Maximum number of hosts that are queried for their runs."""


class UserSettings(Struct, frozen=True):
    """The content of the file; "", () and False mean distui's own choice."""

    theme: str = ""
    hosts: tuple[str, ...] = ()
    """Hosts whose runs the run list shows in addition to those of this machine."""
    columns: tuple[str, ...] = ()
    sort: str = ""
    reverse: bool = False
    gpu_columns: tuple[str, ...] = ()
    gpu_sort: str = ""
    gpu_reverse: bool = False
    metrics: tuple[str, ...] = ()
    """Metrics that the curves draw."""
    window: str = ""
    log_scale: bool = False

    def of_view(self) -> dict[str, Any]:
        """Return the fields that override defaults of `ViewOptions`."""
        return {name: value for name in OF_VIEW if (value := getattr(self, name))}


OF_VIEW = ("columns", "sort", "reverse", "gpu_columns", "gpu_sort", "gpu_reverse", "window", "log_scale")
"""Fields that `ViewOptions` has under the same name."""


class SettingGuide(Struct, frozen=True):
    """The documentation of a key of the file."""

    about: str
    """A sentence without a final period."""
    wants: str
    """Description of valid values, after "must be"."""
    example: Any
    """An example of a valid value."""
    default: Any = None
    """The default value; None if distui chooses one at run time."""
    without: str = ""
    """The behaviour without the key, if no single value describes it."""


class SettingKey(SettingGuide, frozen=True, kw_only=True):
    """One key that the cockpit reads."""

    field: str
    fits: Callable[[Any], bool]


def _texts(each: Callable[[str], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, list)
        and all(isinstance(text, str) and each(text) for text in value)
        and len(set(value)) == len(value)
    )


def _choice(
    field: str,
    about: str,
    names: Sequence[str],
    example: str,
    default: str | None = None,
    without: str = "",
) -> SettingKey:
    """Return a key for one of some names."""
    wants = f"one of {', '.join(names)}"
    return SettingKey(about, wants, example, default, without, field=field, fits=_among(names))


def _flag(field: str, about: str) -> SettingKey:
    return SettingKey(
        about, "true or false", True, False, field=field, fits=lambda value: isinstance(value, bool)
    )


def _among(names: Sequence[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in names


def _is_host(text: str) -> bool:
    return re.fullmatch(r"[^\s-]\S{0,254}", text) is not None


def _is_metric(name: str) -> bool:
    return name in METRICS or re.fullmatch(r"train\.\S{1,80}", name) is not None


def _of_table(
    table: str, prefix: str, example: list[str], sort: str, without: str
) -> dict[str, SettingKey]:
    ids = tuple(column.id for column in TABLES[table])
    sortable = tuple(column.id for column in TABLES[table] if column.key is not None)
    sorts = f"column by which the {table} table is sorted; unknown values come last"
    return {
        f"{table}.columns": SettingKey(
            f"columns of the {table} table, in their order",
            f"a list of columns, each once, of {', '.join(ids)}",
            example,
            without="those that fit and have values",
            field=f"{prefix}columns",
            fits=_texts(_among(ids)),
        ),
        f"{table}.sort": _choice(f"{prefix}sort", sorts, sortable, sort, without=without),
        f"{table}.reverse": _flag(f"{prefix}reverse", "sort the other way round"),
    }


KEYS: dict[str, SettingKey] = {
    "theme": _choice("theme", "colours of the cockpit", ALL_THEMES, "light", "dark"),
    "hosts": SettingKey(
        "hosts, as ssh names them, whose runs the list of runs shows, too",
        f'a list of hosts, {MOST_HOSTS} at most, as in ["gpu1", "me@gpu2"]',
        ["gpu1", "me@gpu2"],
        without="those of your launches on hosts",
        field="hosts",
        fits=lambda value: _texts(_is_host)(value) and len(value) <= MOST_HOSTS,
    ),
    **_of_table(
        "ranks", "", ["rank", "state", "log", "step", "pace", "util", "temp"], "log", "the worst first"
    ),
    **_of_table("gpus", "gpu_", ["gpu", "ranks", "util", "mem", "power", "throttle"], "power", "by index"),
    "curves.metrics": SettingKey(
        "metrics that the curves draw, in their order",
        'a list of metrics, each once, as in ["train.loss", "gpu.util"]',
        ["train.loss", "gpu.util", "rank.step_s"],
        without="ten usual ones",
        field="metrics",
        fits=_texts(_is_metric),
    ),
    "curves.window": _choice(
        "window", "how far back the curves go", [name for name, _ in WINDOWS], "15m", "5m"
    ),
    "curves.log_scale": _flag("log_scale", "logarithmic axes"),
}
"""The keys by their names in the file."""

OF_RUNS: dict[str, Callable[[Any, Path], tuple[str, ...]]] = {
    launch_settings.SECTION: lambda table, path: launch_settings.of_table(table, path).problems,
    "notify": channels.problems_of,
    export_settings.SECTION: lambda table, path: export_settings.of_table(table, path).all_problems,
    log_settings.SECTION: lambda table, path: log_settings.of_table(table, path).problems,
    retention.SECTION: lambda table, path: retention.of_table(table, path).problems,
}
"""Sections that runs and launches also read."""

SECTIONS = frozenset(name.partition(".")[0] for name in KEYS if "." in name)

NAMES = {key.field: name for name, key in KEYS.items()}
"""The name in the file of each field."""


def load(path: Path, environ: Mapping[str, str] = os.environ) -> tuple[UserSettings, list[str]]:
    """Return the settings, and a sentence for each unusable part of the file."""
    if not os.path.lexists(path):
        return UserSettings(), []
    try:
        return settings_of(document_of(path, environ), path)
    except SettingsError as error:
        return UserSettings(), [f"{error}; nothing of it is used"]


def settings_of(document: Mapping[str, Any], path: Path) -> tuple[UserSettings, list[str]]:
    """Return the settings of a document, and its problems. Pure."""
    chosen: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in _flat(document).items():
        if name in OF_RUNS:
            problems += OF_RUNS[name](value, path)
            continue
        key = KEYS.get(name)
        if key is None:
            problems.append(f"{path}: {_unknown(name)}")
        elif not key.fits(value):
            problems.append(f"{path}: {name} must be {key.wants}")
        else:
            chosen[key.field] = tuple(value) if isinstance(value, list) else value
    return UserSettings(**chosen), problems


def _unknown(name: str) -> str:
    if name in SECTIONS:
        return f"{name} must be a section, [{name}]"
    meant = did_you_mean(name, sorted(KEYS))
    return f"there is no setting {quoted(name)}" + (f"; {meant}" if meant else "")


def _flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by dotted name. A name that is no section is one value, even if it is a table."""
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if name in SECTIONS and isinstance(value, Mapping):
            flat.update({f"{name}.{inner}": each for inner, each in value.items()})
        else:
            flat[name] = value
    return flat


def keep(path: Path, changes: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> None:
    """Write these fields of `UserSettings` into the file; a field with distui's own choice is removed from it.

    Raises SettingsError; the file is then unchanged.
    """
    import tomlkit  # slow to load and rarely needed
    from tomlkit.exceptions import TOMLKitError

    try:
        with base_dirs.alone(path.parent, "settings.lock"):
            document = tomlkit.parse(settings_text(path, environ) if os.path.lexists(path) else "")
            for field, value in changes.items():
                _put(document, NAMES[field], value, path)
            target = Path(os.path.realpath(path))  # keeps a symbolic link
            file_io.write_atomically(target, tomlkit.dumps(document).encode("utf-8"))
    except SettingsError as error:
        raise SettingsError(f"the choice is not saved: {error}") from None
    except (TOMLKitError, RecursionError, ValueError) as error:
        raise SettingsError(f"the choice is not saved: {no_toml(path, error)}; fix or remove it") from None
    except (OSError, PresetError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise SettingsError(f"the choice is not saved: {path} cannot be written: {why}") from None


def _put(document: MutableMapping[str, Any], name: str, value: Any, path: Path) -> None:
    """Change one value of a document, and remove a section that becomes empty. Raises SettingsError."""
    section, _, key = name.rpartition(".")
    table: Any = document
    if section:
        if section not in document and value:
            document[section] = {}
        table = document.get(section, {})
        if not isinstance(table, MutableMapping):
            raise SettingsError(no_section(path, section))
    if value:
        table[key] = list(value) if isinstance(value, tuple) else value
    elif key in table:
        del table[key]
        if section and not table:
            del document[section]
