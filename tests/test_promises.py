"""Every promise has tests that try to break it: those that docs/testing.md names are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAD = "## Promises, and the tests that try to break them"
PROMISES = 13


def rows() -> list[list[str]]:
    """The tests of each promise, as `file::test`."""
    text = (ROOT / "docs/testing.md").read_text(encoding="utf-8").partition(HEAD)[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [re.findall(r"`(tests/[^`]+)`", line) for line in lines]


def test_each_promise_names_tests() -> None:
    assert len(rows()) == PROMISES
    assert all(2 <= len(named) <= 4 for named in rows())


def test_each_test_that_is_named_is_there() -> None:
    for named in (one for row in rows() for one in row):
        path, _, test = named.partition("::")
        body = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
        tests = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        assert test in tests, named
