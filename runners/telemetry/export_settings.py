"""Destinations of a run's metrics besides its own files: `[export]` of settings.toml; none by default."""

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
from ..run.formatting import seconds_of
from ..run.packages import install_extra
from ..run.settings_file import Lookup, SecretError, is_address, loaded, no_section, secret_of, unknown_keys

SECTION = "export"
DIRECTORY = "openmetrics_dir"
OTLP_KEYS = ("otlp_endpoint", "otlp_headers_file", "otlp_headers_env", "otlp_interval")
ENDPOINT, HEADERS_FILE, HEADERS_ENV, INTERVAL = OTLP_KEYS
KEYS = (DIRECTORY, *OTLP_KEYS)
DEFAULT_INTERVAL_S, MIN_INTERVAL_S, MAX_INTERVAL_S = 10.0, 1.0, 3600.0
"""Seconds between two pushes."""
SIGNAL_PATH = "/v1/metrics"
"""Path that the OTLP specification appends to a collector's address."""
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e]*)")


class OtlpExport(Struct, frozen=True):
    """Settings of the OTLP push."""

    endpoint: str
    """Address of a collector or of its metrics endpoint, as written."""
    headers_file: str = ""
    """File with a header per line, relative to the folder of the settings; "" without one."""
    headers_env: str = ""
    """Name of a variable with a header per line; "" without one."""
    interval: str = ""
    """Interval as written."""

    @property
    def interval_s(self) -> float:
        """Seconds between two pushes."""
        return seconds_of(self.interval) or DEFAULT_INTERVAL_S

    @property
    def url(self) -> str:
        """URL of the requests."""
        base = self.endpoint.rstrip("/")
        return base if base.endswith(SIGNAL_PATH) else base + SIGNAL_PATH

    @property
    def host(self) -> str:
        """Host and port of the endpoint, for messages: its path may be secret."""
        return urlsplit(self.endpoint).netloc


class MetricsExport(Struct, frozen=True):
    directory: Path | None = None
    """Absolute path of a directory that node_exporter's textfile collector reads."""
    otlp: OtlpExport | None = None
    problems: tuple[str, ...] = ()
    """A sentence for each invalid setting; the other settings apply."""
    otlp_problems: tuple[str, ...] = ()
    """A sentence for each invalid setting of the push; any of them turns it off."""

    @property
    def all_problems(self) -> tuple[str, ...]:
        """All problems."""
        return self.problems + self.otlp_problems


def load(environ: Mapping[str, str] = os.environ) -> MetricsExport:
    """Load the settings of this user. Never fails."""
    # The cockpit and `distui settings` report an unusable file; this run exports nothing.
    return loaded(SECTION, of_table, lambda _: MetricsExport(), environ)


def of_table(table: Any, path: Path) -> MetricsExport:
    """Parse `[export]`."""
    if not isinstance(table, Mapping):
        return MetricsExport(problems=(no_section(path, SECTION),))
    known = f"there are {', '.join(f'{SECTION}.{key}' for key in KEYS)}"
    problems = unknown_keys(path, SECTION, table, KEYS, known)
    directory = _absolute(table.get(DIRECTORY))
    if directory is None and DIRECTORY in table:
        problems.append(
            f"{path}: {SECTION}.{DIRECTORY} must be an absolute path (or ~/…), as in "
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
    except RuntimeError:  # ~ of an unknown user
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
    """Return the problems of the push, each beginning with its key. Values may be secrets, so they are not quoted."""
    if ENDPOINT not in table:
        return [f"{key} does nothing without {ENDPOINT}" for key in OTLP_KEYS if key in table]
    texts = [f"{key} must be a string" for key in OTLP_KEYS if not isinstance(table.get(key, ""), str)]
    if texts:
        return texts
    wrong = _wrong_endpoint(table[ENDPOINT])
    variable = table.get(HEADERS_ENV, "")
    if variable and not is_secret(variable):
        wrong.append(
            f"{HEADERS_ENV}: the name {quoted(variable)} has to look secret (e.g. OTLP_TOKEN), else its value "
            "is saved in run directories"
        )
    if INTERVAL in table and not _is_valid_interval(table[INTERVAL]):
        wrong.append(f'{INTERVAL} must be a time from 1s to 1h, as in "30s"')
    return wrong


def _is_valid_interval(text: str) -> bool:
    return MIN_INTERVAL_S <= (seconds_of(text) or 0) <= MAX_INTERVAL_S


def _wrong_endpoint(value: str) -> list[str]:
    if not is_address(value):
        return [f'{ENDPOINT} must be the address of a collector, as in "http://localhost:4318"']
    parts = urlsplit(value)
    if parts.username is not None or "?" in value or "#" in value:
        return [f"{ENDPOINT} must be only host and path: write secrets into {HEADERS_FILE}"]
    return []


def headers_of(otlp: OtlpExport, lookup: Lookup, folder: Path) -> dict[str, str]:
    """Return the current headers of the requests, or raise SecretError; `folder` is that of the settings."""
    file, variable = otlp.headers_file, otlp.headers_env
    headers = _headers(secret_of(file, "", lookup, folder), file)
    return headers | _headers(secret_of("", variable, lookup, folder), variable)


def _headers(text: str, where: str) -> dict[str, str]:
    headers = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        match = _HEADER.fullmatch(line.strip())
        if match is None:
            raise SecretError(f"{where}: line {number} is not a header: write NAME: VALUE, in ASCII")
        headers[match[1]] = match[2]
    return headers


def is_installed() -> bool:
    """Return whether this Python has the extra, without importing it."""
    try:
        return importlib.util.find_spec("opentelemetry.proto") is not None
    except ModuleNotFoundError:
        return False


def not_installed() -> str:
    """Return what to do if `is_installed` is False."""
    return f"OTLP needs the package opentelemetry-proto: {install_extra('otlp')}"
