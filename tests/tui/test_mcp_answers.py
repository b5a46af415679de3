"""What the tools of `distui mcp` answer is short, whole where it is read on, and acts on nothing."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from each import for_each
from hypothesis import given
from hypothesis import strategies as st

from distui.presets.masker import Masker
from distui.tui.mcp.answers import (
    MOST_CHARACTERS,
    Refused,
    fitting,
    page,
    parsed_lines,
    safe,
    size,
    window,
)
from distui.tui.mcp.tool_server import Gathered

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=8), inner, max_size=40),
    max_leaves=60,
)


def read_on(document: Any, most: int) -> list[Any]:
    """Every item of a list, page by page."""
    items: list[Any] = []
    offset = 0
    for _ in range(10_000):
        answer = page(document, "", offset, most)
        items += answer["data"]
        if "next" not in answer:
            return items
        assert answer["next"]["offset"] > offset
        assert answer["next"]["of"] == len(document)
        offset = answer["next"]["offset"]
    raise AssertionError("it never ends")


def test_a_short_answer_is_whole() -> None:
    assert page({"a": [1, 2]}) == {"data": {"a": [1, 2]}}
    assert page([]) == {"data": []}
    assert page("x") == {"data": "x"}


@given(JSON, st.integers(200, 3000))
def test_an_answer_is_as_short_as_asked(document: Any, most: int) -> None:
    answer = page(document, most=most)
    assert size(answer["data"]) <= most + most // 2
    if answer["data"] != document:
        assert "cut" in answer or "next" in answer


@given(st.lists(st.text(max_size=40), max_size=300), st.integers(400, 2000))
def test_a_list_that_is_read_on_is_whole(items: list[str], most: int) -> None:
    assert read_on(items, most) == items


def test_a_cut_place_is_named_and_can_be_read() -> None:
    document = {
        "state": "running",
        "ranks": [{"rank": rank, "text": "x" * 50} for rank in range(2000)],
        "a/b~": list(range(30_000)),
    }
    answer = page(document)
    assert answer["data"]["state"] == "running"
    assert size(answer["data"]) <= MOST_CHARACTERS
    cuts = {cut["at"]: cut for cut in answer["cut"]}
    assert cuts["/ranks"]["of"] == 2000
    assert cuts["/ranks"]["shown"] == len(answer["data"]["ranks"])
    assert page(document, "/ranks", 1999)["data"] == [document["ranks"][1999]]
    assert page(document, "/ranks/1999/rank")["data"] == 1999
    assert page(document, "/a~1b~0", 29_999)["data"] == [29_999]


def test_a_long_text_can_be_read_on() -> None:
    text = "".join(map(str, range(40_000)))
    first = page({"log": text}, "/log")
    assert len(first["data"]) == MOST_CHARACTERS
    second = page({"log": text}, "/log", first["next"]["offset"])
    assert text.startswith(first["data"] + second["data"])


@for_each(
    ("at", "offset", "words"),
    [
        ("/nope", 0, "no 'nope' here; the names are ranks"),
        ("/ranks/7", 0, "has 1 item"), ("/ranks/x", 0, "has 1 item"),
        ("ranks", 0, "as in /ranks/0"),
        ("/ranks/0/rank/deep", 0, "nothing is below"), ("/ranks", 9, "has 1 item"), ("/ranks/-1/", 0, "no '-1' here"),
        ("/ranks", 9, "offset 9 is past the end"), ("/log", 9, "has 3 characters: offset 9 is past the end"),
    ],
)  # fmt: skip
def test_a_place_that_is_not_there_is_a_sentence(at: str, offset: int, words: str) -> None:
    with pytest.raises(Refused, match=words):
        page({"ranks": [{"rank": 0}], "log": "abc"}, at, offset)


def test_what_leaves_is_masked_and_acts_on_nothing() -> None:
    hostile = (
        "\x1b]0;owned\x07\x1b[2Jred \u202eevil\u200b\x00 HF_TOKEN=hf_abcdefghijklmnopqrstuv and swordfish42"
    )
    shown = safe({"a\x1b[31m": [hostile, math.nan, "--password hunter22"]}, Masker({"swordfish42"}))
    text = json.dumps(shown)
    for gone in (
        "\\u001b",
        "\\u202e",
        "\\u200b",
        "\\u0000",
        "hf_abc",
        "swordfish42",
        "hunter22",
        "NaN",
        "owned",
    ):
        assert gone not in text
    assert "red" in text
    assert shown["a"][1] is None


def test_newlines_of_a_text_stay() -> None:
    assert safe("a\nb", Masker()) == "a\nb"


def test_a_colour_inside_a_secret_does_not_hide_it() -> None:
    """Programs highlight parts of words; names of fields may be a script's own texts, too."""
    masker, token = Masker({"swordfish42"}), "hf_abcdefghijklmnopqrstuvwxyz012345"
    coloured = f"{token[:12]}\x1b[1m{token[12:]} sword\x1b[0mfish42"
    assert safe({coloured: coloured, "API_KEY": 1}, masker) == {"*** ***": "*** ***", "API_KEY": 1}


def test_the_newest_lines_win_where_not_all_fit() -> None:
    lines = [{"text": f"{number} {'x' * 500}"} for number in range(200)]
    shown = fitting(lines, newest=True)
    assert shown == lines[-len(shown) :]
    assert 40 < len(shown) < 200
    assert fitting(lines, newest=False) == lines[: len(shown)]
    answer = window(lines, 7, more=False, newest=True)
    assert answer["next_skip"] == 7 + answer["shown"]
    assert window(lines[:3], 0, more=False, newest=True)["next_skip"] is None


def test_a_giant_line_is_cut_and_not_lost() -> None:
    (line,) = fitting([{"text": "x" * 10**6}], newest=True)
    assert size(line) <= MOST_CHARACTERS


def test_lines_that_are_no_json_are_passed_over() -> None:
    assert list(parsed_lines(b'{"a": 1}\nnonsense\n\n[2]\n')) == [{"a": 1}, [2]]


@for_each("step", [1, 7, 4096])
def test_lines_are_gathered_from_pieces(step: int) -> None:
    data = b"".join(b'{"n": %d}\n' % number for number in range(100))
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    first, last = Gathered(lambda line: line["n"] % 2 == 0, 5, False), Gathered(lambda line: True, 5, True)
    took = [first.take(piece) for piece in pieces]
    assert not took[-1]
    assert [line["n"] for line in first.kept][:5] == [0, 2, 4, 6, 8]
    assert all(last.take(piece) for piece in pieces)
    assert [line["n"] for line in last.kept] == [95, 96, 97, 98, 99]
