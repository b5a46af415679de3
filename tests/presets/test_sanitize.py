"""Nothing that a rank prints reaches the terminal as a control."""

from __future__ import annotations

import json
import unicodedata

from each import for_each
from hypothesis import example, given
from hypothesis import strategies as st

from distui.presets.sanitize import (
    OPENERS,
    as_message,
    clean_line,
    clean_lines,
    clean_text,
    escaped_json,
)

PIECES = st.sampled_from(
    [
        b"\x1b[",
        b"\x1b]",
        b"\x1bP",
        b"\x1b\\",
        b"\x07",
        b"\xc2\x9b",
        b"\xc2\x9d",
        b"31m",
        b";",
        b"\r",
        b"\t",
        b"a",
        b"\xff",
    ]
)
HOSTILE = st.lists(st.one_of(PIECES, st.binary(max_size=4)), max_size=40).map(b"".join)


@given(HOSTILE, st.integers(1, 100))
@example(b"\x1b\x1b[m[31m", 80)
@example("\u202eevil\u2028\x85".encode(), 80)
@example(b"\x1b]52;c;aGVsbG8=\x07", 80)
def test_no_control_ever_comes_out(raw: bytes, width: int) -> None:
    for shown in [*clean_lines(raw, width), clean_text(raw.decode("latin-1"), width)]:
        bad = [hex(ord(c)) for c in shown if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
        assert not bad
        assert "\u202e" not in shown
        assert len(shown) <= width + len("… (1,000 bytes)")


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=100))
def test_plain_text_is_left_alone(text: str) -> None:
    assert clean_line(text.encode()) == text


@for_each(
    ("raw", "shown"),
    [
        (b"\x1b[1;31mred\x1b[0m alert", "red alert"),
        (b"\x1b]0;title\x07text", "text"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1bPq#0\x1b\\after", "after"),
        (b"\x1b]never ends", "never ends"),
        (b"\xc2\x9b31mred", "red"),
        (b"a\x00b\x7f", "a␀b␡"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"a\tb", "a       b"),
        (b" 10%|#  \r 20%|## \r 30%|###", " 30%|###"),
        (b"100%\r\x1b[K", "100%"),
        (b"done\r\r\n", "done"),
        (b"windows\r\n", "windows"),
        (b"[red]text[/red] [@click=app.quit]x[/]", "[red]text[/red] [@click=app.quit]x[/]"),
        ("a\u200bb\ufeffc\u2066d\u206fe\ufff9f\U000e0041g".encode(), "a�b�c�d�e�f�g"),
        ("größer ✓ 数".encode(), "größer ✓ 数"),
    ],
)
def test_what_is_shown(raw: bytes, shown: str) -> None:
    assert clean_line(raw) == shown


def test_json_escapes_what_a_line_shows_in_another_way() -> None:
    """One set of characters for both: what a line cannot show is an escape in JSON, which means the same."""
    for code in (*range(0x20, 0x3000), *range(0xF000, 0x10000), *range(0xE0000, 0xE1000)):
        char = chr(code)
        written = json.dumps(char, ensure_ascii=False)
        assert (escaped_json(written) != written) == (clean_text(f"a{char}b") != f"a{char}b"), hex(code)
        assert json.loads(escaped_json(written)) == char


def test_a_long_line_ends_with_its_true_length() -> None:
    assert clean_line(b"x" * 5000, 10) == "xxxxxxxxxx… (5,000 bytes)"
    assert clean_line(b"x" * 10, 10) == "x" * 10


def test_lines_end_at_newlines() -> None:
    assert clean_lines(b"a\nb") == ["a", "b"]
    assert clean_lines(b"a\n\nb\n") == ["a", "", "b"]
    assert clean_lines(b"") == []


@for_each("raw", [b"\x1b]" * 500_000, b"\xc2\x9d" * 500_000, b"\r" * 1_000_000, b"x\r\x1b[m" * 200_000])
def test_a_megabyte_of_malice_is_cleaned(raw: bytes) -> None:
    """In hours, if a pattern were quadratic."""
    clean_line(raw)


@for_each(
    ("text", "shown"),
    [
        ("no run 'nigth': `distui ls` lists the runs", "No run 'nigth': `distui ls` lists the runs"),
        ("There is no preset 'x'.", "There is no preset 'x'"),
        ("a rank failed. Restart it.", "A rank failed. Restart it"),
        ("refused", "Refused"),
        ("however, it runs.", "However, it runs"),
        (" unrecognized arguments: --foo\n", "Unrecognized arguments: --foo"),
        ("", ""),
        (" \n ", ""),
        (".", "."),
        ("two lines.\nand the other.", "Two lines.\nand the other."),
        ("see ..", "See .."),
        ("asking the hosts ...", "Asking the hosts ..."),
        ("name a directory other than .", "Name a directory other than ."),
        ("copied to ~/.", "Copied to ~/."),
        ("\N{ROCKET} no launch.", "\N{ROCKET} no launch"),
        ("done \N{ROCKET}.", "Done \N{ROCKET}"),
        ("über den Wolken", "über den Wolken"),
        ("ßtrange", "ßtrange"),
        ("/tmp/x is a directory.", "/tmp/x is a directory"),
        ("train.py cannot be read", "train.py cannot be read"),
        ("--nnodes 0: write 1 or more", "--nnodes 0: write 1 or more"),
        ("'job' means several runs", "'job' means several runs"),
        ('"job" means several runs', '"job" means several runs'),
        ("`distui ls` lists them", "`distui ls` lists them"),
        ("job: no agent answers.", "job: no agent answers"),
        ("gpu0 is hot", "gpu0 is hot"),
        ("my_run has ended", "my_run has ended"),
        ("read-only: this cannot change the run", "read-only: this cannot change the run"),
        ("NCCL_DEBUG is WARN", "NCCL_DEBUG is WARN"),
        ("iPhone is no host", "iPhone is no host"),
        ("x" * 300 + " is too long", "x" * 300 + " is too long"),
    ],
)
def test_a_message_is_in_sentence_case_without_a_final_period(text: str, shown: str) -> None:
    assert as_message(text) == shown


@for_each("name", ["torch", "ssh", "gamma", "train", "job", "mein-host", "über"])
def test_a_name_in_front_of_a_message_stays_as_it_is_written(name: str) -> None:
    assert as_message(f"{name}, which it needs, is missing.") == f"{name}, which it needs, is missing"


def test_an_ordinary_word_in_front_of_a_message_gets_a_capital() -> None:
    for word in OPENERS:
        assert as_message(f"{word} is it.") == f"{word.capitalize()} is it"


@given(st.text())
def test_a_message_in_the_style_stays_as_it_is(text: str) -> None:
    assert as_message(as_message(text)) == as_message(text)
    assert as_message(text).casefold() in text.casefold()
