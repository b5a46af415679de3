"""Names that other programs define: options of launchers, keys of their files, clouds, GPUs (known_names.toml)."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any


@functools.cache
def known_names(program: str) -> Mapping[str, Any]:
    """Return a table of known_names.toml: kind of name → names. Raises KeyError."""
    return _tables()[program]


@functools.cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(resources.files(__package__).joinpath("known_names.toml").read_text("utf-8"))
