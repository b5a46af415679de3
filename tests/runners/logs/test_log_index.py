"""The sparse index finds every line that a plain split finds, and notices when a file begins anew."""

from __future__ import annotations

import tempfile
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distui.runners.logs.files import LogError
from distui.runners.logs.index import BLOCK, LINE_BYTES, IndexedFile, SparseIndex

# Lines as long as blocks, so that they begin and end before, at and after the edges.
LENGTHS = st.lists(st.sampled_from([0, 1, 5, 100, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK]), max_size=12)


def indexed(folder: str | Path, data: bytes) -> IndexedFile:
    (Path(folder) / "log").write_bytes(data)
    file = IndexedFile(folder, "log")
    file.update()
    return file


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.booleans(), st.integers(1, 3 * BLOCK))
def test_every_line_is_where_a_plain_split_finds_it(lengths: list[int], ends: bool, step: int) -> None:
    parts = [bytes([97 + number % 26]) * length + b"\n" for number, length in enumerate(lengths)]
    if parts and not ends:
        parts[-1] = parts[-1][:-1]
    parts = [part for part in parts if part]
    starts = [0, *accumulate(len(part) for part in parts)]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "log").write_bytes(b"".join(parts))
        file = IndexedFile(folder, "log")
        while file.update(step) or file.index.size < file.size:
            pass
        assert file.lines == len(parts)
        lines = file.read(0, 100)
        assert [line.offset for line in lines] == starts[:-1]
        assert [line.length for line in lines] == [len(part) for part in parts]
        assert [line.data for line in lines] == [part[:LINE_BYTES] for part in parts]
        for number, start in enumerate(starts[:-1]):
            assert file.offset_of(number) == start
            assert file.line_at(start) == number
            assert file.line_at(start + len(parts[number]) - 1) == number


@given(st.lists(st.integers(0, 2 * BLOCK), max_size=6))
def test_it_does_not_matter_in_which_pieces_the_bytes_come(cuts: list[int]) -> None:
    data = (b"x" * 999 + b"\n") * (2 * BLOCK // 1000)
    pieces, whole = SparseIndex(), SparseIndex()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for begin, end in pairwise(edges):
        pieces.extend(data[begin:end])
    whole.extend(data)
    assert pieces.newlines == whole.newlines == data.count(b"\n")
    assert [pieces.block_of_line(n) for n in range(132)] == [whole.block_of_line(n) for n in range(132)]


def test_new_lines_are_taken_in_and_lines_beyond_the_end_are_none(tmp_path: Path) -> None:
    file = indexed(tmp_path, b"a\nb")
    assert file.lines == 2
    with open(tmp_path / "log", "ab") as log:
        log.write(b"c\nd\n")
    assert file.update() is False
    assert [line.data for line in file.read(1, 10)] == [b"bc\n", b"d\n"]
    assert file.read(3, 10) == []
    assert file.offset_of(99) == 7


def test_a_shorter_file_begins_anew(tmp_path: Path) -> None:
    file = indexed(tmp_path, b"a\nb\nc\n")
    (tmp_path / "log").write_bytes(b"z\n")
    assert file.update() is True
    assert [line.data for line in file.read(0, 9)] == [b"z\n"]


def test_a_rewritten_file_that_has_grown_past_the_old_end_begins_anew(tmp_path: Path) -> None:
    file = indexed(tmp_path, b"old\n" * 100)
    (tmp_path / "log").write_bytes(b"new\n" * 500)
    assert file.update() is True
    assert file.lines == 500


def test_another_file_of_that_name_begins_anew(tmp_path: Path) -> None:
    file = indexed(tmp_path, b"same\n" * 10)
    (tmp_path / "other").write_bytes(b"same\n" * 20)
    (tmp_path / "other").replace(tmp_path / "log")
    assert file.update() is True
    assert file.lines == 20


def test_ten_million_lines_cost_about_a_hundred_kilobytes() -> None:
    index = SparseIndex()
    block = (b"x" * 90 + b"\n") * 11_000
    for _ in range(100):
        index.extend(block)
    assert index.newlines == 1_100_000
    assert index.nbytes < 13_000


def test_a_file_that_is_gone_is_a_sentence(tmp_path: Path) -> None:
    file = indexed(tmp_path, b"a\n")
    (tmp_path / "log").unlink()
    with pytest.raises(LogError, match="does not exist"):
        file.update()
