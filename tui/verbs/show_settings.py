"""settings: what is chosen in settings.toml, and where each value comes from."""

from __future__ import annotations

import argparse
import json
import sys

from ...presets.sanitize import LONGEST, clean_text
from ...runners.notify import ways
from ...runners.settings_file import settings_path
from ...runners.telemetry import export_settings
from ..rows.glyphs import table
from ..setting_guide import document, example, toml
from ..terminal import complain
from ..user_settings import load


def settings(options: argparse.Namespace) -> int:
    """Print them; 1 where something in the file cannot be used."""
    if options.example:
        sys.stdout.write(json.dumps({"example": example()}) + "\n" if options.json else example())
        return 0
    path = settings_path()
    chosen, problems = load(path)
    export = export_settings.load().directory
    whole = document(chosen, ways.load().send, str(export or ""), str(path), problems)
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
