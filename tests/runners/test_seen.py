"""Whether ranks have what was asked for."""

from __future__ import annotations

import pytest

from distui.runners.agent.rank_environments import same


@pytest.mark.parametrize(
    ("name", "has", "asked", "is_same"),
    [
        ("PYTHONPATH", None, "", True),  # only the hook's folder is left
        ("PATH", None, "", True),
        ("PYTHONPATH", None, "/mine", False),
        ("PLAIN", None, "", False),
        ("PLAIN", "", None, False),
        ("PLAIN", "1", "1", True),
    ],
)
def test_an_empty_list_is_none(name: str, has: str | None, asked: str | None, is_same: bool) -> None:
    assert same(name, has, asked) is is_same
