"""How much of a log goes into a bundle."""

from __future__ import annotations

from each import for_each

from distui.runners.reports import cut_logs
from distui.runners.reports.cut_logs import HEAD, Span

MIB = 1 << 20


@for_each(
    ("size", "expected"),
    [
        (0, [Span(0, 0)]),
        (HEAD + 4 * MIB, [Span(0, HEAD + 4 * MIB)]),
        (HEAD + 4 * MIB + 1, [Span(0, HEAD), Span(HEAD + 1, HEAD + 4 * MIB + 1)]),
        (100 * MIB, [Span(0, HEAD), Span(96 * MIB, 100 * MIB)]),
    ],
)
def test_the_beginning_and_the_end(size: int, expected: list[Span]) -> None:
    assert cut_logs.spans(size, 4 * MIB) == expected


def test_pieces_are_joined_and_what_lies_between_is_told() -> None:
    text, cut = cut_logs.joined([(0, b"ab\n"), (3, b"cd"), (10, b"ef\n")], 13)
    assert cut
    assert text == b"ab\ncd\n[distui export left out 5 bytes here: 5 to 10 of 13]\nef\n"
    assert cut_logs.joined([(0, b"ab\n"), (3, b"cd\n")], 6) == (b"ab\ncd\n", False)
    assert cut_logs.joined([(0, b"ab\ncd\n"), (3, b"cd\nef\n")], 9) == (b"ab\ncd\nef\n", False)
    assert cut_logs.joined([], 9) == (b"", False)


def test_what_a_hub_never_read_at_the_beginning_is_told_too() -> None:
    text, cut = cut_logs.joined([(65536, b"x\n")], 65538)
    assert (text.splitlines()[1], cut) == (b"x", True)


def test_the_ends_of_many_logs_are_shorter() -> None:
    assert cut_logs.tail_of(4 * MIB, 8) == 4 * MIB
    assert cut_logs.tail_of(4 * MIB, 4096) == MIB // 4
    assert cut_logs.tail_of(4 * MIB, 10**6) == cut_logs.LEAST_TAIL
