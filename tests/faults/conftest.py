"""A user for each test of this folder, which is collected only when the folder is named: `make test-faults`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from e2e.runs import world as world

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "runners"))  # for the hosts behind a real sshd


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """How soon a verdict comes is measured: other tests beside would slow these, and these take minutes."""
    named = [(config.invocation_params.dir / word.partition("::")[0]).resolve() for word in config.args]
    return None if any(path == HERE or HERE in path.parents for path in named) else True
