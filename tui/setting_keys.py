"""The keys of `settings.toml` that the cockpit reads: their values, defaults and documentation. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from ..runners.telemetry.metric_names import METRICS
from .rows.columns import TABLES
from .rows.layouts import LAYOUTS, TRAIN
from .rows.themes import ALL_THEMES
from .rows.time_axis import WINDOWS

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
    layout: str = ""

    def of_view(self) -> dict[str, Any]:
        """Return the fields that override defaults of `ViewOptions`."""
        return {name: value for name in OF_VIEW if (value := getattr(self, name))}


OF_VIEW = (
    "columns",
    "sort",
    "reverse",
    "gpu_columns",
    "gpu_sort",
    "gpu_reverse",
    "window",
    "log_scale",
    "layout",
)
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
    "layout": _choice("layout", "panes of the overview", tuple(LAYOUTS), "log", TRAIN),
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

SECTIONS = frozenset(name.partition(".")[0] for name in KEYS if "." in name)

NAMES = {key.field: name for name, key in KEYS.items()}
"""The name in the file of each field."""
