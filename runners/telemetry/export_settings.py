"""Where a run's metrics go beside its own files: `[export]` of settings.toml, nowhere unless the user writes it."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from ...presets.sanitize import quoted
from ...presets.secrets import is_secret
from ..formatting import seconds_of
from ..settings_file import (
    Lookup,
    SecretError,
    is_address,
    loaded,
    no_section,
    secret_of,
    strangers,
)

SECTION = "export"
DIRECTORY = "openmetrics_dir"
OTLP_KEYS = ("otlp_endpoint", "otlp_headers_file", "otlp_headers_env", "otlp_interval")
ENDPOINT, HEADERS_FILE, HEADERS_ENV, INTERVAL = OTLP_KEYS
KEYS = (DIRECTORY, *OTLP_KEYS)
EVERY_S, LEAST_S, MOST_S = 10.0, 1.0, 3600.0
"""Between two pushes, where nothing is set; what may be set."""
SIGNAL_PATH = "/v1/metrics"
"""By which the OTLP specification continues the address of a collector."""
MISSING = "OTLP needs an extra: `pip install 'distui[otlp]'`"
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e]*)")


class OtlpExport(Struct, frozen=True):
    """What the settings say of pushing."""

    endpoint: str
    """As it is written: of a collector, or of its metrics."""
    headers_file: str = ""
    headers_env: str = ""
    interval: str = ""
    """As it is written."""

    @property
    def interval_s(self) -> float:
        """Seconds between two pushes."""
        return seconds_of(self.interval) or EVERY_S

    @property
    def url(self) -> str:
        """Where requests go."""
        base = self.endpoint.rstrip("/")
        return base if base.endswith(SIGNAL_PATH) else base + SIGNAL_PATH

    @property
    def host(self) -> str:
        """Host and port of it: what may be shown where a path may be a secret."""
        return urlsplit(self.endpoint).netloc


class MetricsExport(Struct, frozen=True):
    directory: Path | None = None
    """Absolute; where node_exporter's textfile collector reads."""
    otlp: OtlpExport | None = None
    problems: tuple[str, ...] = ()
    """A sentence for each thing that cannot be used; the rest counts."""
    otlp_problems: tuple[str, ...] = ()
    """The same of pushing, which then is off."""

    @property
    def all_problems(self) -> tuple[str, ...]:
        """Of both."""
        return self.problems + self.otlp_problems


def load(environ: Mapping[str, str] = os.environ) -> MetricsExport:
    """The settings of this user. Never fails."""
    # The cockpit and `distui settings` name a file that cannot be used; this run was asked for nothing.
    return loaded(SECTION, of_table, lambda _: MetricsExport(), environ)


def of_table(table: Any, path: Path) -> MetricsExport:
    """The same of `[export]`."""
    if not isinstance(table, Mapping):
        return MetricsExport(problems=(no_section(path, SECTION),))
    there = f"there are {', '.join(f'{SECTION}.{key}' for key in KEYS)}"
    problems = strangers(path, SECTION, table, KEYS, there)
    directory = _absolute(table.get(DIRECTORY))
    if directory is None and DIRECTORY in table:
        problems.append(
            f"{path}: {SECTION}.{DIRECTORY} has to be a directory from / or ~ on, as in "
            '"/var/lib/node_exporter/textfile"'
        )
    wrong = [f"{path}: {SECTION}.{text}" for text in _wrong_otlp(table)]
    otlp = None if wrong or ENDPOINT not in table else _otlp(table)
    return MetricsExport(directory, otlp, tuple(problems), tuple(wrong))


def _absolute(value: Any) -> Path | None:
    if not isinstance(value, str) or not value or "\0" in value or any(char < " " for char in value):
        return None
    try:
        path = Path(value).expanduser()
    except RuntimeError:  # ~ of a user that there is not
        return None
    return path if path.is_absolute() else None


def _otlp(table: Mapping[str, Any]) -> OtlpExport:
    return OtlpExport(
        table[ENDPOINT],
        table.get(HEADERS_FILE, ""),
        table.get(HEADERS_ENV, ""),
        table.get(INTERVAL, ""),
    )


def _wrong_otlp(table: Mapping[str, Any]) -> list[str]:
    """What is wrong, each from the name of the key on; no text quotes a value, which may be a secret."""
    if ENDPOINT not in table:
        return [f"{key} does nothing without {ENDPOINT}" for key in OTLP_KEYS if key in table]
    texts = [f"{key} has to be a text" for key in OTLP_KEYS if not isinstance(table.get(key, ""), str)]
    if texts:
        return texts
    wrong = _wrong_endpoint(table[ENDPOINT])
    variable = table.get(HEADERS_ENV, "")
    if variable and not is_secret(variable):
        wrong.append(
            f"{HEADERS_ENV}: {quoted(variable)} does not read as the name of a secret, and would be written into run "
            "directories: call it OTLP_TOKEN, say"
        )
    if INTERVAL in table and not LEAST_S <= (seconds_of(table[INTERVAL]) or 0) <= MOST_S:
        wrong.append(f'{INTERVAL} has to be a time from 1s to 1h, as in "30s"')
    return wrong


def _wrong_endpoint(value: str) -> list[str]:
    if not is_address(value):
        return [f'{ENDPOINT} has to be the address of a collector, as in "http://localhost:4318"']
    parts = urlsplit(value)
    if parts.username is not None or "?" in value or "#" in value:
        return [f"{ENDPOINT} has to be host and path alone: what is secret goes into {HEADERS_FILE}"]
    return []


def headers_of(otlp: OtlpExport, lookup: Lookup, folder: Path) -> dict[str, str]:
    """Headers of requests as they are by now; `folder`: of the settings. Raises SecretError."""
    file, variable = otlp.headers_file, otlp.headers_env
    headers = _headers(secret_of(file, "", lookup, folder), file)
    return headers | _headers(secret_of("", variable, lookup, folder), variable)


def _headers(text: str, where: str) -> dict[str, str]:
    headers = {}
    for number, line in enumerate(filter(None, map(str.strip, text.splitlines())), 1):
        match = _HEADER.fullmatch(line)
        if match is None:
            raise SecretError(f"{where}: line {number} is no header: write NAME: VALUE, in ASCII")
        headers[match[1]] = match[2]
    return headers


def is_installed() -> bool:
    """Whether this Python has the extra; nothing of it is loaded."""
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False
