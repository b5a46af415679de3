"""Collected only when the folder is named, by `make test-nccl`: a build takes minutes, once, and the cache keeps it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "rigs"))


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """The long matrices of other folders have no minutes for this one."""
    named = [(config.invocation_params.dir / word.partition("::")[0]).resolve() for word in config.args]
    return None if any(path == HERE or HERE in path.parents for path in named) else True
