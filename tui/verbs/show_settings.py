"""settings: the values in settings.toml, and the origin of each value."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...presets.finding import PresetError
from ...presets.load import library
from ...presets.sanitize import LONGEST, clean_text, quoted
from ...presets.secrets import mask_text
from ...presets.spelling import nearest_or_all
from ...runners.diagnosis import diagnosis_settings
from ...runners.launch import launch_settings
from ...runners.logs import log_settings
from ...runners.notify import channels
from ...runners.removal import retention
from ...runners.run.settings_file import SecretError, section_of, settings_path
from ...runners.telemetry import export_settings
from ...runners.telemetry.export_settings import MetricsExport
from ..rows.glyphs import table
from ..setting_guide import ExampleSettings, document, example, toml
from ..terminal import answer, complain
from ..user_settings import load


def settings(options: argparse.Namespace) -> int:
    """Print the settings; return 1 if part of the file is unusable."""
    if options.example:
        answer(options.json, ExampleSettings(example=example()), example().rstrip("\n").split("\n"))
        return 0
    path = settings_path()
    chosen, problems = load(path)
    export = export_settings.load()
    if export.otlp is not None and not export_settings.is_installed():
        problems.append(export_settings.not_installed())
    problems += [*_unknown_preset(path), *_unreadable_secrets(path, export)]
    whole = document(chosen, _of_runs(export), str(path), problems)
    rows = [("key", "value", "from")]
    for row in whole["settings"]:
        value = row["without"] if row["value"] is None else toml(row["value"])
        rows.append((row["key"], clean_text(value, LONGEST), clean_text(row["origin"], LONGEST)))
    answer(options.json, whole, table(rows))
    for problem in problems:
        complain(problem)
    return 1 if problems else 0


def _unknown_preset(path: Path) -> Iterator[str]:
    """Yield an error if the default preset cannot be used from this directory."""
    name = launch_settings.load().preset
    try:
        presets = library()
    except PresetError as error:
        yield str(error)
        return
    if name in presets.problems:
        yield presets.problems[name]
    elif name and name not in presets.names:
        hint = nearest_or_all(name, presets.names) or "; `distui presets` lists them"
        yield f"{path}: launch.preset: there is no preset {quoted(name)} here{hint}"


def _unreadable_secrets(path: Path, export: MetricsExport) -> Iterator[str]:
    """Yield errors of address and secret files of notifications and metrics; variables belong to each launch."""
    for channel in channels.load().channels.values():
        if channel.kind in channels.POSTED and not channel.url_env and not channel.token_env:
            try:
                channels.target(channel, os.environ.get, path.parent)
            except SecretError as error:
                yield f"{path}: notify.channels.{channel.name}: {error}"
    if export.otlp is not None and export.otlp.headers_file and not export.otlp.headers_env:
        try:
            export_settings.headers_of(export.otlp, os.environ.get, path.parent)
        except SecretError as error:
            yield f"{path}: export.otlp_headers_file: {error}"


def _of_runs(export: MetricsExport) -> dict[str, Any]:
    """Return the settings that launches and runs read themselves, by key; None or "" for unset or unusable values."""
    kept, otlp = retention.load(), export.otlp
    table = section_of(retention.SECTION) if kept.acts else {}
    defaults = launch_settings.load()
    return {
        "launch.preset": defaults.preset,
        "launch.place": defaults.place,
        "notify.send": channels.load().send,
        "export.openmetrics_dir": export.directory and str(export.directory),
        "export.otlp_endpoint": otlp and mask_text(otlp.endpoint),
        "export.otlp_headers_file": otlp and otlp.headers_file,
        "export.otlp_headers_env": otlp and otlp.headers_env,
        "export.otlp_interval": otlp and otlp.interval,
        "diagnosis.works_for": diagnosis_settings.load().typed,
        "logs.cap": log_settings.load().typed,
        "retention.older_than": table.get("older_than"),
        "retention.keep": table.get("keep"),
    }
