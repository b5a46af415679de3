"""Lists of ranks, plurals and sizes as text."""

from __future__ import annotations

from distui.presets.plurals import plural
from distui.runners.run.formatting import agreeing, listed, runs, size_text, spans, spans_short, spans_text


def test_numbers_as_spans() -> None:
    assert runs([5, 0, 1, 2]) == [(0, 2), (5, 5)]
    assert spans([5, 0, 1, 2]) == "0-2, 5"
    assert spans([3, 1, 0]) == "0, 1, 3"
    assert spans([]) == ""
    assert spans(range(0, 40, 2), 12).endswith("20, 22 …")


def test_lists_of_ranks_have_a_long_and_a_short_form() -> None:
    assert [spans_text("rank", them) for them in ([3], [1, 0], [5, 0, 1, 2])] == [
        "rank 3",
        "ranks 0, 1",
        "ranks 0-2, 5",
    ]
    assert spans_text("rank", range(0, 1024, 8)) == "128 ranks (0, 8, …)"
    assert spans_short([5, 0, 1]) == "0-1,5"


def test_of_many_texts_the_first_are_named() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed(list("abcdef"), 4) == "a, b, c, d and 2 more"


def test_words_agree_with_their_number() -> None:
    assert [plural(count, "rank") for count in (0, 1, 1024, 12345)] == [
        "0 ranks",
        "1 rank",
        "1024 ranks",
        "12,345 ranks",
    ]
    assert plural(2, "process") == "2 processes"
    assert [agreeing(ranks, "waits", "wait") for ranks in ([7], [0, 1])] == ["waits", "wait"]


def test_sizes_have_binary_units() -> None:
    sizes = (None, 512, 310 << 20, 5 << 40)
    assert [size_text(size) for size in sizes] == ["n/a", "512 B", "310.0 MiB", "5.0 TiB"]
