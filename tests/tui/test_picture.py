"""What is written of a picture makes a terminal show it, whatever it showed before, in pieces of any size."""

from __future__ import annotations

import pyte
from each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style

from distui.tui.picture import Picture

TRUE = ColorSystem.TRUECOLOR
WIDTH, HEIGHT = 24, 4
_STYLES = [
    None,
    *map(
        Style.parse,
        (
            "red",
            "#aabbcc on #102030",
            "bold #ffffff on #102030",
            "reverse",
            "underline blue",
            "italic on #405060",
        ),
    ),
]
_TEXT = st.text("ab 0▇─│漢字日", max_size=12) | st.just(" " * 15)
_PUT = st.tuples(
    st.integers(-6, WIDTH + 2),
    st.integers(-1, HEIGHT),
    st.lists(st.tuples(_TEXT, st.sampled_from(_STYLES)), max_size=4),
)


def a_terminal() -> tuple[pyte.Screen, pyte.Stream]:
    screen = pyte.Screen(WIDTH, HEIGHT)
    return screen, pyte.Stream(screen)


def picture_of(
    puts: list[tuple[int, int, list[tuple[str, Style | None]]]], *, erases: bool = False
) -> Picture:
    picture = Picture(erases=erases)
    picture.resize(WIDTH, HEIGHT)
    for put in puts:
        paint(picture, put)
    return picture


def paint(picture: Picture, put: tuple[int, int, list[tuple[str, Style | None]]]) -> None:
    x, y, parts = put
    picture.put(x, y, [Segment(text, style) for text, style in parts], TRUE)


def seen(screen: pyte.Screen) -> list[list[object]]:
    """Every cell; of a blank only what can be seen."""
    return [
        [
            (cell.data, cell.bg, cell.reverse, cell.underscore)
            if cell.data == " " and not cell.reverse and not cell.underscore
            else cell
            if cell.data
            else ""
            for cell in (screen.buffer[y][x] for x in range(WIDTH))
        ]
        for y in range(HEIGHT)
    ]


@settings(max_examples=100)
@given(st.lists(_PUT, max_size=12), st.lists(st.integers(1, 200), min_size=1, max_size=6), st.data())
def test_pieces_of_any_size_show_what_one_piece_would(
    puts: list[tuple[int, int, list[tuple[str, Style | None]]]], budgets: list[int], data: st.DataObject
) -> None:
    piecewise, stream = a_terminal()
    picture = picture_of([], erases=data.draw(st.booleans()))
    for at, put in enumerate(puts):
        picture.hurried = data.draw(st.booleans())
        paint(picture, put)
        stream.feed(picture.take(budgets[at % len(budgets)]))
    while text := picture.take(budgets[0]):
        stream.feed(text)
    assert not picture.due
    whole, other = a_terminal()
    other.feed(picture_of(puts).take(1 << 20))
    assert seen(piecewise) == seen(whole)
    assert not piecewise.cursor.attrs.bold
    assert piecewise.cursor.attrs.bg == "default"


def test_only_what_changed_is_written() -> None:
    picture = picture_of([(0, 1, [("step 1000  loss 2.31", None)])])
    picture.take(1 << 20)
    paint(picture, (0, 1, [("step 1001  loss 2.31", None)]))
    assert picture.take(1 << 20) == "\x1b[2;9H1"
    paint(picture, (0, 1, [("step 1001  loss 2.31", None)]))
    assert picture.take(1 << 20) == ""


def test_many_blanks_are_erased_in_their_colour_if_the_terminal_can() -> None:
    blanks = [(0, 0, [(" " * 20, Style.parse("red on #102030")), ("a", None)])]
    assert "\x1b[20X\x1b[20C" in picture_of(blanks, erases=True).take(999)
    assert " " * 20 in picture_of(blanks).take(999)


def test_a_changed_colour_is_a_change_of_letters_and_none_of_blanks() -> None:
    picture = picture_of([(0, 0, [("a b", Style.parse("red"))])])
    picture.take(1 << 20)
    paint(picture, (0, 0, [("a b", Style.parse("blue"))]))
    assert picture.take(1 << 20) == "\x1b[1;1H\x1b[34ma b\x1b[m"
    paint(picture, (0, 0, [("   ", Style.parse("green"))]))
    picture.take(1 << 20)
    paint(picture, (0, 0, [("   ", Style.parse("yellow"))]))
    assert picture.take(1 << 20) == ""


def test_what_a_key_caused_goes_first() -> None:
    picture = picture_of([])
    picture.take(1 << 20)
    for y in range(HEIGHT):
        paint(picture, (0, y, [("abcdefghijklmnopqrst", None)]))
    picture.hurried = True
    paint(picture, (0, 2, [("the answer to the key", None)]))
    assert "the answer to the key" in picture.take(10)


def test_after_a_key_header_and_titles_come_before_rows() -> None:
    picture = picture_of(
        [(0, y, [(text, None)]) for y, text in enumerate(("run", "─ a ─", "row", "─ b ─"))]
    )
    picture.take(1 << 20)
    picture.hurried = True
    for y, text in enumerate(("RUN", "─ c ─", "ROW", "─ d ─")):
        paint(picture, (0, y, [(text, None)]))
    text = picture.take(1 << 20)
    assert text.index("RUN") < text.index("c") < text.index("d") < text.index("ROW")


def test_after_somebody_else_wrote_everything_is_written_again() -> None:
    picture = picture_of([(0, 0, [("hello", None)])])
    first = picture.take(1 << 20)
    assert picture.take(1 << 20) == ""
    picture.forget()
    assert picture.take(1 << 20) == first


@for_each("text", ["e\u0301a", "👨‍👩‍👧x", "a\x1b[2Jb", "\u200bz", "x\ty"])
def test_strange_text_takes_the_columns_it_has_and_cannot_write_control_codes(text: str) -> None:
    picture = picture_of([(0, 0, [(text, None), ("|", None)])])
    written = picture.take(1 << 20)
    assert "\x1b[2J" not in written
    assert "\t" not in written
