"""The known causes of failures, read from known_causes.ini, which explains every field.

Not TOML, which Python has no reader for before 3.11.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple


class Cause(NamedTuple):
    """One class of failures and the pattern of its texts."""

    kind: str
    pattern: re.Pattern[str]
    says: str
    remedy: str
    retry: str
    symptom: bool
    anywhere: bool
    deterministic: bool
    waits: bool
    advice: bool
    exit_code: int | None
    needles: tuple[str, ...]

    def lacks_needles(self, text: str) -> bool:
        """Return whether the text has none of the needles, so that the pattern cannot match it."""
        return all(needle not in text for needle in self.needles)


def _read() -> tuple[Cause, ...]:
    spec: Any = __spec__  # its loader also reads from a zip archive
    text = spec.loader.get_data(os.path.join(os.path.dirname(__file__), "known_causes.ini")).decode()
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    parser.read_string(text)
    return tuple(_cause(title.partition(" ")[0], parser[title]) for title in parser.sections())


def _cause(kind: str, fields: Mapping[str, str]) -> Cause:
    flags = fields.get("is", "").split()
    return Cause(
        kind,
        re.compile(fields["pattern"].replace("\n", ""), re.DOTALL),
        fields.get("says", "").replace("\n", " "),
        fields["remedy"].replace("\n", " "),
        fields.get("retry", "maybe"),
        "symptom" in flags,
        "anywhere" in flags,
        "deterministic" in flags,
        "waits" in flags,
        "advice" in flags,
        int(fields["exit"]) if "exit" in fields else None,
        tuple(fields.get("needles", "").split("|")) if "needles" in fields else (),
    )


_ALL = _read()
CAUSES = tuple(cause for cause in _ALL if cause.exit_code is None and not cause.advice)
ADVICE = tuple(cause for cause in _ALL if cause.advice)
"""Remedies of exceptions that explain nothing."""
OF_EXITS = tuple(cause for cause in _ALL if cause.exit_code is not None)


def _remedy_of(kind: str) -> str:
    return next(cause.remedy for cause in CAUSES if cause.kind == kind)


FILE_LIMIT, LESS, NAN_REMEDY = map(_remedy_of, ("file-limit", "host-oom", "nan"))
WAITS = frozenset(cause.kind for cause in CAUSES if cause.waits)
"""Kinds of messages after which nothing may follow: the job waits. They have failed it if its log ends with them."""
ANYWHERE = tuple(cause for cause in CAUSES if cause.anywhere)
THROUGH = ("ecc", "cuda-oom", "host-oom", "disk-full", "file-limit", "shm-full")
LED_TO = tuple(cause for cause in CAUSES if cause.kind in THROUGH)
"""Causes that are also searched in the exceptions that led to the last one."""
WORKER = re.compile(r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: ")
"""torch's text for a DataLoader worker that a signal ended."""
LOST_WORKER = next(cause for cause in CAUSES if cause.pattern.pattern.endswith(" unexpectedly"))
"""The cause of a DataLoader worker that ended without a known signal."""
