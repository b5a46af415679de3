"""settings: what is chosen in settings.toml, and where each value comes from."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from ...presets.sanitize import LONGEST, clean_text
from ...presets.secrets import mask_text
from ...runners import retention
from ...runners.launch import launch_settings
from ...runners.logs import log_settings
from ...runners.notify import ways
from ...runners.settings_file import section_of, settings_path
from ...runners.telemetry import export_settings
from ...runners.telemetry.export_settings import MetricsExport
from ..rows.glyphs import table
from ..setting_guide import (
    ENDPOINT,
    EXPORT,
    HEADERS_ENV,
    HEADERS_FILE,
    INTERVAL,
    KEEP,
    LOG_CAP,
    OLDER,
    PLACE,
    PRESET,
    SEND,
    document,
    example,
    toml,
)
from ..terminal import complain
from ..user_settings import load


def settings(options: argparse.Namespace) -> int:
    """Print them; 1 where something in the file cannot be used."""
    if options.example:
        sys.stdout.write(json.dumps({"example": example()}) + "\n" if options.json else example())
        return 0
    path = settings_path()
    chosen, problems = load(path)
    export = export_settings.load()
    if export.otlp is not None and not export_settings.is_installed():
        problems.append(export_settings.MISSING)
    whole = document(chosen, _of_runs(export), str(path), problems)
    if options.json:
        sys.stdout.write(json.dumps(whole) + "\n")
    else:
        rows = [("key", "value", "from")]
        for row in whole["settings"]:
            value = row["without"] if row["value"] is None else toml(row["value"])
            rows.append((row["key"], clean_text(value, LONGEST), clean_text(row["origin"], LONGEST)))
        sys.stdout.write("\n".join(table(rows)) + "\n")
    for problem in problems:
        complain(problem)
    return 1 if problems else 0


def _of_runs(export: MetricsExport) -> dict[str, Any]:
    """What launches and runs read themselves, by key; None where the file has nothing that can be used."""
    kept, otlp = retention.load(), export.otlp
    table = section_of(retention.SECTION) if kept.acts else {}
    defaults = launch_settings.load()
    return {
        PRESET: defaults.preset or None,
        PLACE: defaults.place or None,
        SEND: list(ways.load().send) or None,
        EXPORT: None if export.directory is None else str(export.directory),
        ENDPOINT: otlp and mask_text(otlp.endpoint),
        HEADERS_FILE: otlp and (otlp.headers_file or None),
        HEADERS_ENV: otlp and (otlp.headers_env or None),
        INTERVAL: otlp and (otlp.interval or None),
        LOG_CAP: log_settings.load().typed or None,
        OLDER: table.get("older_than"),
        KEEP: table.get("keep"),
    }
