"""What each key of settings.toml is for: `distui settings` prints it, and `--example` the whole file from it. Pure."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..runners import retention
from ..runners.launch import launch_settings
from ..runners.logs import log_settings
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
EXPORT = f"{export_settings.SECTION}.{export_settings.DIRECTORY}"
ENDPOINT, HEADERS_FILE, HEADERS_ENV, INTERVAL = (
    f"{export_settings.SECTION}.{key}" for key in export_settings.OTLP_KEYS
)
LOG_CAP = f"{log_settings.SECTION}.{log_settings.CAP}"
OLDER, KEEP = (f"{retention.SECTION}.{key}" for key in retention.KEYS)
PRESET, PLACE = (f"{launch_settings.SECTION}.{key}" for key in launch_settings.KEYS)
OF_RUNS: dict[str, tuple[SettingGuide, str]] = {
    PRESET: (SettingGuide(
        "preset of a launch that names none", "fsdp2", None, "a launch has to name its preset"
    ), launch_settings.WANTS["preset"]),
    PLACE: (SettingGuide(
        "place of a launch that has neither --on nor --hosts", "hosts gpu1,gpu2", None, "this machine"
    ), launch_settings.WANTS["place"]),
    SEND: (SettingGuide(
        "ways on which every launch sends notices: `distui notify` lists them, and docs/notifications.md has the keys",
        ["terminal"], None, "none",
    ), "a list of ways"),
    EXPORT: (SettingGuide(
        "directory of node_exporter's textfile collector into which runs write their metrics: docs/metrics.md",
        "/var/lib/node_exporter/textfile", None, "no metrics are written",
    ), "a directory"),
    ENDPOINT: (SettingGuide(
        "OpenTelemetry collector to which runs push their metrics by OTLP over HTTP; needs `pip install 'distui[otlp]'`",
        "http://localhost:4318", None, "no metrics are pushed",
    ), "an address"),
    HEADERS_FILE: (SettingGuide(
        "file beside this one with the headers that the collector wants, NAME: VALUE each; `chmod 600` it",
        "otlp-headers", None, "none",
    ), "a file"),
    HEADERS_ENV: (SettingGuide(
        "variable of the launch with such headers", "OTLP_TOKEN", None, "none"
    ), "the name of a variable"),
    INTERVAL: (SettingGuide("how often runs push", "30s", "10s"), "a time from 1s to 1h"),
    LOG_CAP: (SettingGuide(
        "size on disk beyond which the middle of a rank's log is left out, for every launch without --log-cap", "200MB",
        None, "logs are kept whole",
    ), "a size of 16MiB or more, or off"),
    OLDER: (SettingGuide(
        "runs that ended so long ago are removed after a launch", "30d", None, "no age removes a run"
    ), "a time in s, m, h, d or w"),
    KEEP: (SettingGuide(
        "so many of the newest runs stay, whatever their age", 200, None, "no number keeps a run"
    ), "a number of runs, from 1 on"),
}  # fmt: skip
"""Keys of the sections that launches and runs read themselves, each with what its value has to be."""


def example() -> str:
    """A settings file with every key as a comment."""
    lines, section = [HEAD], ""
    about = [(name, GUIDES[name], f": {key.wants.partition(', as in ')[0]}") for name, key in KEYS.items()]
    for name, guide, wants in [*about, *((name, guide, "") for name, (guide, _) in OF_RUNS.items())]:
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
    settings: UserSettings, of_runs: Mapping[str, Any], path: str, problems: list[str]
) -> Mapping[str, Any]:
    """For `--json`. `of_runs`: what the file says for keys of OF_RUNS; None, or no key, for nothing."""
    own = [(name, chosen(settings, key), GUIDES[name], key.wants) for name, key in KEYS.items()]
    theirs = [(name, of_runs.get(name), guide, wants) for name, (guide, wants) in OF_RUNS.items()]
    rows = [
        {
            "key": name, "value": guide.default if value is None else value,
            "origin": "default" if value is None else path, "about": guide.about, "wants": wants,
            "without": guide.without or toml(guide.default),
        }
        for name, value, guide, wants in own + theirs
    ]  # fmt: skip
    return {"path": path, "settings": rows, "problems": problems}
