"""Documentation of each key of settings.toml, for `distui settings` and `distui settings --example`. Pure."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import Any, TypedDict

from ..runners.launch import launch_settings
from .setting_keys import KEYS, SettingGuide, UserSettings

HEAD = """\
# Settings of distui, for ${XDG_CONFIG_HOME:-~/.config}/distui/settings.toml. Every key may be left out. Here all are
# comments: remove the "# " of those that you want to change. The cockpit reads the file when it starts, and
# writes your choices into it; comments and order stay.
"""


OF_RUNS = {
    "launch.preset": SettingGuide(
        "preset of a launch that names none",
        launch_settings.WANTS["preset"],
        "fsdp2",
        None,
        "a launch has to name its preset",
    ),
    "launch.place": SettingGuide(
        "place of a launch that has neither --on nor --hosts",
        launch_settings.WANTS["place"],
        "hosts gpu1,gpu2",
        None,
        "this machine",
    ),
    "notify.send": SettingGuide(
        "notification channels of every launch: `distui notify` lists them, docs/notifications.md has their settings",
        "a list of channels",
        ["terminal"],
        None,
        "none",
    ),
    "export.openmetrics_dir": SettingGuide(
        "directory of node_exporter's textfile collector into which runs write their metrics: docs/metrics.md",
        "a directory",
        "/var/lib/node_exporter/textfile",
        None,
        "no metrics are written",
    ),
    "export.otlp_endpoint": SettingGuide(
        "OpenTelemetry collector to which runs push their metrics by OTLP over HTTP; needs the extra `otlp`",
        "an address",
        "http://localhost:4318",
        None,
        "no metrics are pushed",
    ),
    "export.otlp_headers_file": SettingGuide(
        "file next to this one with the collector's headers, one NAME: VALUE per line; `chmod 600` it",
        "a file",
        "otlp-headers",
        None,
        "none",
    ),
    "export.otlp_headers_env": SettingGuide(
        "variable of the launch with such headers", "the name of a variable", "OTLP_TOKEN", None, "none"
    ),
    "export.otlp_interval": SettingGuide("how often runs push", "a time from 1s to 1h", "30s", "10s"),
    "diagnosis.works_for": SettingGuide(
        "time after which it is a warning that ranks wait for one that works: docs/findings.md",
        "a time of 30s or more",
        "20m",
        "5m",
    ),
    "logs.cap": SettingGuide(
        "size on disk beyond which the middle of a rank's log is left out, for every launch without --log-cap",
        "a size of 16MiB or more, or off",
        "200MB",
        None,
        "logs are kept whole",
    ),
    "retention.older_than": SettingGuide(
        "remove runs that ended this long ago, after each launch",
        "a time in s, m, h, d or w",
        "30d",
        None,
        "no age removes a run",
    ),
    "retention.keep": SettingGuide(
        "keep this many of the newest runs, whatever their age",
        "a number of runs, from 1 on",
        200,
        None,
        "no number keeps a run",
    ),
}
"""Keys of the sections that launches and runs read themselves."""
GUIDES: dict[str, SettingGuide] = {**KEYS, **OF_RUNS}
"""Guides by the names in the file."""


def example() -> str:
    """Return a settings file with every key as a comment."""
    lines, section = [HEAD], ""
    for name, guide in GUIDES.items():
        table, _, leaf = name.rpartition(".")
        if table != section:
            section = table
            lines.append(f"[{table}]\n")
        default = guide.without or toml(guide.default)
        wants = guide.wants.partition(", as in ")[0]
        text = f"{guide.about[0].upper()}{guide.about[1:]} (without it: {default}): {wants}."
        comment = textwrap.wrap(
            text, 110, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
        )
        lines.append("\n".join([*comment, f"# {leaf} = {toml(guide.example)}", ""]))
    return "\n".join(lines)


def toml(value: Any) -> str:
    """Return a flag, text, number or list of texts as TOML, whose notation for them is that of JSON."""
    return json.dumps(value, ensure_ascii=False)


class Setting(TypedDict):
    key: str
    value: Any
    origin: str
    about: str
    wants: str
    without: str


class Settings(TypedDict):
    """`settings`."""

    path: str
    settings: list[Setting]
    problems: list[str]


class ExampleSettings(TypedDict):
    """`settings --example`."""

    example: str


def document(
    settings: UserSettings, of_runs: Mapping[str, Any], path: str, problems: list[str]
) -> Settings:
    """Return the document for `--json`; `of_runs` are the file's values for keys of OF_RUNS, if any."""
    said = {**of_runs, **{name: getattr(settings, key.field) for name, key in KEYS.items()}}
    rows: list[Setting] = [
        {
            "key": name,
            "value": said.get(name) or guide.default,
            "origin": path if said.get(name) else "default",
            "about": guide.about,
            "wants": guide.wants,
            "without": guide.without or toml(guide.default),
        }
        for name, guide in GUIDES.items()
    ]
    return {"path": path, "settings": rows, "problems": problems}
