"""Searching slices gives the lines that searching each line gives, whatever the pattern and the bytes."""

from __future__ import annotations

import os
import re
import tempfile
import time
from pathlib import Path

import pytest
from each import for_each
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from distui.runners.logs import grep

PATTERNS = (
    "a", "ab", "a.c", "^a", "c$", r"\Aa", r"c\Z", r"a\s+b", r"\bab\b", r"[^a]b", r"a[^,]*b", r"\W", r"\D+b", r"\S",
    "a|c", "(?i)AB", "(?s)a.b", "(?m)^b$", r"a(?!b)", r"(?<!a)b", r"(?<=\s)b", "(a)\\1", "^$", "^", "$", "é", "(?i)É",
    r"\n", "[\\n]", "x\ny", r"a\r", r"\x1b", "(?:a|b)+c", "a{2,}", r"[\s\S]b", r"[\W\d]", r"(?s:a.)(?-i:b)", "a??b",
    r"(?>a+)b", r"a++b", "�", "\x1e", r"\s$", "(?i)k", "(?i)ask|s", "(?:)", r"[^\S]", r"[\D,]", r"(?=.*b)a", "\\d",
)  # fmt: skip
PIECES = (b"a", b"b", b"c", b"ab", b" ", b"\n", b"\n", b"\r", b"\r\n", b",", b"1", "é".encode(), b"\xff", b"\x1b[31m",
          b"\x1b]0;t\x07", b"\x1b", b"\x00", b"\x1e", b"x\ny", b"K", "…".encode(), b"\xc2", b"\x85",
          "\u212a".encode(), "\u017f".encode())  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=24).map(b"".join)


def lines(search: grep.Search, data: bytes) -> list[bytes]:
    return [data[begin:end] for begin, end in search.lines(data)]


def expected(pattern: str, data: bytes) -> list[bytes]:
    """The same, line by line."""
    search = re.compile(pattern)
    return [line for line in data.removesuffix(b"\n").split(b"\n") if data and search.search(shown(line))]


def shown(line: bytes) -> str:
    return re.sub(rb"\r+\Z", b"", grep._ESCAPE.sub(b"", line)).decode("utf-8", "replace")


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(PATTERNS), TEXTS)
def test_a_slice_gives_what_each_of_its_lines_gives(pattern: str, data: bytes) -> None:
    search, rare = grep.Search(pattern), grep.RARE
    for grep.RARE in (rare, -1):  # the literal by its rarest byte, and as a whole
        assert lines(search, data) == expected(pattern, data)
    grep.RARE, search._literal = rare, b""  # the third time as a pattern
    assert lines(search, data) == expected(pattern, data)
    search._within = None
    assert lines(search, data) == expected(pattern, data)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@settings(max_examples=300, deadline=None)
@given(st.text("ab.*+?[]()^$|\\sSdDwWnrbBAZ-,:=!<é ", max_size=8), TEXTS)
def test_any_pattern_that_compiles_means_the_same(pattern: str, data: bytes) -> None:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        assume(False)
    search = grep.Search(pattern)
    assert lines(search, data) == expected(pattern, data)
    search._literal = b""
    assert lines(search, data) == expected(pattern, data)


def test_usual_patterns_search_slices() -> None:
    """Else they take some times as long, and nobody would see why."""
    for pattern in (
        "needle",
        r"loss\s+[^ ]+",
        "(?i)nan|inf",
        "^$",
        r"\[rank 3\] step \d+",
        "WARN(?:ING)?|ERROR",
    ):
        assert grep.Search(pattern)._within is not None
    assert grep.Search("needle").lines(b"a\nneedle\n") == [(2, 8)]


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.integers(1, 40), st.sampled_from(("a", "b$", r"\s", "é")))
def test_every_line_is_given_once_with_its_place(data: bytes, limit: int, pattern: str) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        at, starts = 0, list[int]()
        while True:
            _, more, reached = grep.scan(file.fileno(), at, limit, 1 << 20, (5, 5), grep.Search(pattern))
            starts += more
            if reached == at:
                break
            at = reached
    ends = [data.find(b"\n", start) for start in starts]
    shown = [data[start:end] if end >= 0 else data[start:] for start, end in zip(starts, ends, strict=True)]
    assert shown == expected(pattern, data)
    assert all(start == 0 or data[start - 1 : start] == b"\n" for start in starts)


@for_each("pattern", ["needle", "n[e]edle", "(?i)NEEDLE", r"needle\s"])
def test_a_dense_literal_and_a_long_file(tmp_path: Path, pattern: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"need less\n" * 300_000 + b"a needle \n" + b"need less\n" * 5)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        matches, starts, _ = grep.scan(descriptor, 0, 100, 1 << 30, (60, 60), grep.Search(pattern))
    finally:
        os.close(descriptor)
    assert (matches, starts) == (b"a needle \n", [3_000_000])


@for_each("pattern", ["needle", "(?i)Needle"])
@for_each("other", ["", "é ▏"])
def test_a_rare_literal_is_found_by_its_rarest_byte(
    monkeypatch: pytest.MonkeyPatch, pattern: str, other: str
) -> None:
    """Ten times as quick as the pattern, whose search would stop this."""
    search = grep.Search(pattern)
    monkeypatch.setattr(grep.Search, "_by_pattern", None)
    whole = f"{other}step loss 1.25\n".encode()
    data = whole * 90_000 + b"a needle of six\n" + whole
    assert b"d" not in data[:: grep.EVERY]
    assert lines(search, data) == [b"a needle of six"]


def test_only_letters_beyond_ascii_that_match_keep_the_pattern_itself() -> None:
    beyond = {
        letter
        for letter in map(chr, range(128, 0x110000))
        if not "\ud800" <= letter <= "\udfff" and re.match("(?i)[a-z]", letter)
    }
    assert {letter.encode() for letter in beyond} == set(grep._FOLDED)


@for_each(("slower", "slices"), [(1, 5), (4, 5), (50, 1)])
def test_a_busy_machine_shortens_no_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slower: int, slices: int
) -> None:
    """Only the processor counts, unless nearly all of the time is spent on waiting for it, or for the disk."""
    passed = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: passed[0])
    monkeypatch.setattr(time, "monotonic", lambda: passed[0] * slower)

    class Spent(grep.Search):
        def lines(self, data: bytes) -> list[tuple[int, int]]:
            passed[0] += 0.1
            return super().lines(data)

    path = tmp_path / "log"
    path.write_bytes(b"need less\n" * 1_000_000)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _, _, reached = grep.scan(descriptor, 0, 100, 1 << 30, (0.45, 0.45), Spent("needle"))
    finally:
        os.close(descriptor)
    assert -(-reached // grep.SLICE) == slices
