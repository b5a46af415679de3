"""Collected only when the folder is named, by `make test-matrix`: its environments take gigabytes and minutes."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Nobody gets these unasked."""
    named = [(config.invocation_params.dir / word.partition("::")[0]).resolve() for word in config.args]
    return None if any(path == HERE or HERE in path.parents for path in named) else True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rows", default="", help="names of rows, such as 'torch-2.9.1 python-*'; all of them without it"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the rows that are not asked for."""
    asked = str(config.getoption("--rows", "")).split()
    rows = {item: item.name.partition("[")[2].rstrip("]") for item in items if item.path.parent == HERE}
    for pattern in asked:
        if not any(fnmatch(name, pattern) for name in rows.values()):
            raise pytest.UsageError(f"There is no row {pattern!r}: rows are {', '.join(rows.values())}")
    others = [item for item in rows if asked and not any(fnmatch(rows[item], pattern) for pattern in asked)]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
