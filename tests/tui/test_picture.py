"""What is written of a picture makes a terminal show it, whatever it showed before, in pieces of any size."""

from __future__ import annotations

from collections.abc import Sequence

import pyte
from each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style
from terminals import ColouredScreen, RepeatingScreen, RepeatingStream

from distui.tui.picture import Picture
from distui.tui.terminal_output import REPEAT_ANSWER, REPEAT_PROBE

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
_TEXT = st.text("ab 0▇─│漢字日", max_size=12) | st.sampled_from((" " * 15, "─" * 15, "a" * 15, "漢" * 5))
_PUT = st.tuples(
    st.integers(-6, WIDTH + 2),
    st.integers(-1, HEIGHT),
    st.lists(st.tuples(_TEXT, st.sampled_from(_STYLES)), max_size=4),
)


def a_terminal(*, repeats: bool = True) -> tuple[pyte.Screen, pyte.Stream]:
    """A terminal, which knows REP or does not."""
    if repeats:
        screen: ColouredScreen = RepeatingScreen(WIDTH, HEIGHT)
        return screen, RepeatingStream(screen)
    screen = ColouredScreen(WIDTH, HEIGHT)
    return screen, pyte.Stream(screen)


def picture_of(
    puts: Sequence[tuple[int, int, Sequence[tuple[str, Style | None]]]],
    *,
    erases: bool = False,
    repeats: bool = False,
) -> Picture:
    picture = Picture(erases=erases)
    picture.allow(repeats=repeats)
    picture.resize(WIDTH, HEIGHT)
    for put in puts:
        paint(picture, put)
    return picture


def paint(picture: Picture, put: tuple[int, int, Sequence[tuple[str, Style | None]]]) -> None:
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
    picture = picture_of([], erases=data.draw(st.booleans()), repeats=data.draw(st.booleans()))
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
    for erases, expected in ((True, "\x1b[20X"), (False, " " * 20)):
        picture = picture_of([(0, 0, [("x" * 20, None)])], erases=erases)
        picture.take(999)
        paint(picture, (0, 0, [(" " * 20, Style.parse("red on #102030"))]))
        assert expected in picture.take(999)


def test_lines_are_one_character_and_a_number_if_the_terminal_repeats() -> None:
    line = [(0, 0, [("╭" + "─" * 20 + "╮", None)])]
    assert picture_of(line, repeats=True).take(999).startswith("\x1b[1H╭─\x1b[19b╮")
    assert "─" * 20 in picture_of(line).take(999)


@for_each("repeats", [True, False])
def test_the_first_question_shows_whether_the_terminal_repeats(repeats: bool) -> None:
    screen, stream = a_terminal(repeats=repeats)
    stream.feed(REPEAT_PROBE)
    assert ((screen.cursor.x, screen.cursor.y) == REPEAT_ANSWER) == repeats
    assert not "".join(screen.display).strip(" \u2800")


def test_an_unknown_screen_is_cleared_to_its_most_frequent_background() -> None:
    ground = Style.parse("white on #102030")
    picture = picture_of([(0, y, [("a".ljust(WIDTH), ground)]) for y in range(HEIGHT)], erases=True)
    text = picture.take(1 << 20)
    assert text.startswith("\x1b[48;2;16;32;48m\x1b[2J")
    assert " " not in text
    assert text.count("X") == 0


def test_each_ink_is_set_once_for_all_lines() -> None:
    mark, ground = Style.parse("#e4cf5b on #16233f"), Style.parse("#d3dae3 on #0f1419")
    row = [part for _ in range(4) for part in (("▇", mark), ("ab", ground))]
    text = picture_of([(0, y, row) for y in range(HEIGHT)]).take(1 << 20)
    assert text.count("48;2;22;35;63") == 1
    assert text.count("48;2;15;20;25") == 1


def test_a_changed_colour_is_a_change_of_letters_and_none_of_blanks() -> None:
    picture = picture_of([(0, 0, [("a b", Style.parse("red"))])])
    picture.take(1 << 20)
    paint(picture, (0, 0, [("a b", Style.parse("blue"))]))
    assert picture.take(1 << 20) == "\x1b[34m\x1b[1Ha b\x1b[m"
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
