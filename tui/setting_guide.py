"""What each key of settings.toml is for: `distui settings` prints it, and `--example` the whole file from it. Pure."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..runners.telemetry import export_settings
from .user_settings import KEYS, SettingKey, UserSettings

HEAD = """\
# Settings of distui, for ${XDG_CONFIG_HOME:-~/.config}/distui/settings.toml. Every key may be left out. Here all are
# comments: take away the "# " before those that you want otherwise. The cockpit reads the file when it starts, and
# writes your choices into it; comments and order stay.
"""


class SettingGuide(NamedTuple):
    """Of one key."""

    about: str
    """A sentence without a final period."""
    example: Any
    """A value that it may have."""
    default: Any = None
    """The value that it has where nobody sets one; None: distui chooses by what it sees."""
    without: str = ""
    """What happens without it, where no value says so."""


def _of_table(table: str, example: list[str], sort: str, without: str) -> dict[str, SettingGuide]:
    return {
        f"{table}.columns": SettingGuide(
            f"columns of the {table} table, in their order", example, None, "those that fit and have values"
        ),
        f"{table}.sort": SettingGuide(
            f"column by which the {table} table is sorted; unknown values come last", sort, None, without
        ),
        f"{table}.reverse": SettingGuide("sort the other way round", True, False),
    }


GUIDES: dict[str, SettingGuide] = {
    "theme": SettingGuide("colours of the cockpit", "light", "dark"),
    "hosts": SettingGuide(
        "hosts, as ssh names them, whose runs the list of runs shows, too", ["gpu1", "me@gpu2"], None,
        "those of your launches on hosts",
    ),
    **_of_table("ranks", ["rank", "state", "log", "step", "pace", "util", "temp"], "log", "the worst first"),
    **_of_table("gpus", ["gpu", "ranks", "util", "mem", "power", "throttle"], "power", "by index"),
    "curves.metrics": SettingGuide(
        "metrics that the curves draw, in their order", ["train.loss", "gpu.util", "rank.step_s"], None, "ten usual ones"
    ),
    "curves.window": SettingGuide("how far back the curves go", "15m", "5m"),
    "curves.log_scale": SettingGuide("logarithmic axes", True, False),
}  # fmt: skip
"""By the names in the file."""

SEND = "notify.send"
OF_RUNS = SettingGuide(
    "ways on which every launch sends notices: `distui notify` lists them, and docs/notifications.md has the keys",
    ["terminal"], None, "none",
)  # fmt: skip
"""Of the section that runs read themselves."""
EXPORT = f"{export_settings.SECTION}.{export_settings.DIRECTORY}"
OF_EXPORT = SettingGuide(
    "directory of node_exporter's textfile collector into which runs write their metrics: docs/metrics.md",
    "/var/lib/node_exporter/textfile", None, "no metrics are written",
)  # fmt: skip


def example() -> str:
    """A settings file with every key as a comment."""
    lines, section = [HEAD], ""
    about = [(name, GUIDES[name], f": {key.wants.partition(', as in ')[0]}") for name, key in KEYS.items()]
    for name, guide, wants in [*about, (SEND, OF_RUNS, ""), (EXPORT, OF_EXPORT, "")]:
        table, _, leaf = name.rpartition(".")
        if table != section:
            section = table
            lines.append(f"[{table}]\n")
        default = guide.without if guide.default is None else toml(guide.default)
        text = f"{guide.about[0].upper()}{guide.about[1:]} (without it: {default}){wants}."
        comment = textwrap.wrap(
            text, 110, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
        )
        lines.append("\n".join([*comment, f"# {leaf} = {toml(guide.example)}", ""]))
    return "\n".join(lines)


def toml(value: Any) -> str:
    """A flag, text, number or list of texts as TOML, which writes them as JSON does."""
    return json.dumps(value, ensure_ascii=False)


def chosen(settings: UserSettings, key: SettingKey) -> Any:
    """What the file says, None where it says nothing that differs from distui's own choice."""
    value = getattr(settings, key.field)
    return (list(value) if isinstance(value, tuple) else value) or None


def document(
    settings: UserSettings, send: Sequence[str], export: str, path: str, problems: list[str]
) -> Mapping[str, Any]:
    """For `--json`."""
    rows = []
    for name, key in KEYS.items():
        value, guide = chosen(settings, key), GUIDES[name]
        rows.append({
            "key": name, "value": guide.default if value is None else value,
            "origin": "default" if value is None else path, "about": guide.about, "wants": key.wants,
            "without": guide.without or toml(guide.default),
        })  # fmt: skip
    rows.append({
        "key": SEND, "value": list(send) or None, "origin": path if send else "default", "about": OF_RUNS.about,
        "wants": "a list of ways", "without": OF_RUNS.without,
    })  # fmt: skip
    rows.append({
        "key": EXPORT, "value": export or None, "origin": path if export else "default", "about": OF_EXPORT.about,
        "wants": "a directory", "without": OF_EXPORT.without,
    })  # fmt: skip
    return {"path": path, "settings": rows, "problems": problems}
