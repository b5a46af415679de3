"""Numbers as runs."""

from __future__ import annotations

from distui.runners.formatting import runs, spans


def test_numbers_as_spans() -> None:
    assert runs([5, 0, 1, 2]) == [(0, 2), (5, 5)]
    assert spans([5, 0, 1, 2]) == "0-2, 5"
    assert spans([3, 1, 0]) == "0, 1, 3"
    assert spans([]) == ""
    assert spans(range(0, 40, 2), 12).endswith("20, 22 …")
