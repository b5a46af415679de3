"""Several files as one stream of lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distui.runners.logs.follow import CARRY, Merge, choose, read_window
from distui.runners.logs.log_files import LogError, LogFile, file_id, parse_file_id
from distui.runners.wire.client import Window


def log(rank: int, stream: str = "out", attempt: int = 1, node: int = 0) -> LogFile:
    file = parse_file_id(file_id(node, attempt, rank, stream))
    assert file is not None
    return file


def test_the_newest_attempt_is_chosen_unless_another_is_named() -> None:
    files = [log(r, s, a) for a in (1, 2) for r in (0, 1) for s in ("out", "err", "nccl")]
    assert choose(files) == [log(r, s, 2) for r in (0, 1) for s in ("out", "err")]
    assert choose(files, ranks=[1], streams=["nccl"], attempt=1) == [log(1, "nccl", 1)]
    assert choose(files, attempt=9) == []
    assert choose([*files, log(4, node=1)], node=1) == [log(4, node=1)]


def test_runner_and_agent_are_chosen_by_their_stream() -> None:
    runner = parse_file_id("runner.log")
    assert runner is not None
    assert choose([runner, log(0)], streams=["log"]) == [runner]


def feed(merge: Merge, run: Path, *files: LogFile) -> list[str]:
    return [line for file in files for line in merge.feed(read_window(run, file.id, merge.wants(file.id)))]


def append(run: Path, file: LogFile, data: bytes) -> None:
    path = run / file.id
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as out:
        out.write(data)


def test_lines_of_several_ranks_say_who_wrote_them(tmp_path: Path) -> None:
    zero, one = log(0), log(1)
    append(tmp_path, zero, b"a\nunfin")
    append(tmp_path, one, b"b\n")
    merge = Merge([zero, one])
    assert feed(merge, tmp_path, zero, one) == ["[rank 0] a", "[rank 1] b"]
    append(tmp_path, zero, b"ished\n")
    assert feed(merge, tmp_path, zero, one) == ["[rank 0] unfinished"]
    append(tmp_path, one, b"last words")
    assert feed(merge, tmp_path, zero, one) == []
    assert merge.flush() == ["[rank 1] last words"]
    assert merge.flush() == []


def test_one_file_stands_alone_and_several_streams_are_told_apart(tmp_path: Path) -> None:
    out, err = log(0), log(0, "err")
    append(tmp_path, out, b"x\n")
    append(tmp_path, err, b"y\n")
    assert feed(Merge([out]), tmp_path, out) == ["x"]
    assert feed(Merge([out, err]), tmp_path, out, err) == ["[rank 0 out] x", "[rank 0 err] y"]


def test_grep_keeps_whole_lines(tmp_path: Path) -> None:
    zero = log(0)
    append(tmp_path, zero, b"loss 1\nnoise\nlo")
    merge = Merge([zero], grep="^loss [0-9]$")
    assert feed(merge, tmp_path, zero) == ["loss 1"]
    append(tmp_path, zero, b"ss 2\n")
    assert feed(merge, tmp_path, zero) == ["loss 2"]
    with pytest.raises(LogError, match="--grep '\\(' is not a regular expression"):
        Merge([zero], grep="(")


def test_a_truncated_file_is_said_and_read_from_its_start(tmp_path: Path) -> None:
    zero = log(0)
    append(tmp_path, zero, b"old line one\nold line two\n")
    merge = Merge([zero])
    feed(merge, tmp_path, zero)
    (tmp_path / zero.id).write_bytes(b"new\n")
    assert feed(merge, tmp_path, zero) == ["(the file was truncated and begins anew)"]
    assert feed(merge, tmp_path, zero) == ["new"]


def test_a_line_without_end_is_given_in_pieces() -> None:
    zero, merge = log(0), Merge([log(0)])
    size = CARRY + 1
    assert len(merge.feed(Window(zero.id, 0, size, size, b"x" * size))) == 1


def test_why_a_window_has_nothing_is_raised() -> None:
    with pytest.raises(LogError, match="gone"):
        Merge([log(0)]).feed(Window(log(0).id, 0, 0, 0, b"", "gone"))


@given(
    st.lists(st.sampled_from([b"a", b"bc\n", b"\n", b"d" * 50, b"e\nf"]), max_size=30), st.integers(1, 64)
)
def test_nothing_is_lost_or_told_twice(
    tmp_path_factory: pytest.TempPathFactory, writes: list[bytes], limit: int
) -> None:
    run, zero = tmp_path_factory.mktemp("run"), log(0)
    merge, lines = Merge([zero]), []
    for data in writes:
        append(run, zero, data)
        lines += merge.feed(read_window(run, zero.id, merge.wants(zero.id), limit))
    whole = b"".join(writes).decode()
    while writes and merge.wants(zero.id) < len(whole):
        lines += merge.feed(read_window(run, zero.id, merge.wants(zero.id), limit))
    assert "\n".join([*lines, *merge.flush()]) == whole.removesuffix("\n")
