"""What was read of logs whose nodes are gone: every offset as it was, and nothing where nothing is known."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distui.runners.hub.kept_logs import Record
from distui.runners.logs.dating import LogSpan
from distui.runners.logs.kept_pieces import ask_anywhere, read_piece, sizes
from distui.runners.logs.windows import read_window
from distui.runners.run.commands import ReadLog
from distui.runners.run.log_files import parse_file_id
from distui.runners.run.opened_logs import LogError
from distui.runners.run.wire.client import Window

FILE = "node-1/attempt-001/rank-3.out"
LINES = b"".join(b"line %05d\n" % number for number in range(2000))


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Where the file itself is."""
    path = tmp_path / "node" / FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(LINES)
    return tmp_path / "node"


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    (tmp_path / "hub").mkdir()
    return tmp_path / "hub"


def test_a_tail_is_kept_where_it_was(node: Path, hub: Path) -> None:
    record = Record(hub)
    record.keep(read_window(node, ReadLog(FILE, -1100, 65536)))
    window = read_piece(hub, ReadLog(FILE, -550, 65536))
    assert (window.offset, window.next, window.size) == (len(LINES) - 550, len(LINES), len(LINES))
    assert window.data == LINES[-550:]


def test_a_window_where_nothing_is_kept_begins_where_something_is(node: Path, hub: Path) -> None:
    Record(hub).keep(read_window(node, ReadLog(FILE, -1100, 65536)))
    window = read_piece(hub, ReadLog(FILE, 0, 65536))
    assert (window.offset, window.data) == (len(LINES) - 1100, LINES[-1100:])


def test_a_reader_says_what_is_missing(node: Path, hub: Path) -> None:
    record = Record(hub)
    record.keep(read_window(node, ReadLog(FILE, 0, 1100)))
    record.keep(read_window(node, ReadLog(FILE, -1100, 65536)))
    file = parse_file_id(FILE)
    assert file is not None
    span, lines = LogSpan(file), list[str]()
    while span.next < len(LINES):
        lines += [line.text for line in span.feed(read_piece(hub, ReadLog(FILE, span.next, 500)), 0.0)]
    assert lines[:100] == [f"line {number:05d}" for number in range(100)]
    assert lines[-100:] == [f"line {number:05d}" for number in range(1900, 2000)]
    assert lines[100] == "(… 19.3 KiB left out: not kept, or never written …)"
    assert len(lines) == 201


def test_pieces_that_touch_are_one(node: Path, hub: Path) -> None:
    record, at = Record(hub), 0
    while at < len(LINES):
        window = read_window(node, ReadLog(FILE, at, 3000))
        record.keep(window)
        at = window.next
    assert [path.name for path in (hub / "record/node-1/attempt-001").iterdir()] == ["rank-3.out@0"]
    assert (hub / "record" / f"{FILE}@0").read_bytes() == LINES
    assert Record(hub).sizes() == sizes({FILE: {0: len(LINES)}}) == {FILE: len(LINES)}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, len(LINES)), st.integers(1, 4000)), max_size=12))
def test_whatever_is_read_in_whatever_order_is_never_at_a_wrong_place(
    node: Path, tmp_path_factory: pytest.TempPathFactory, asked: list[tuple[int, int]]
) -> None:
    hub = tmp_path_factory.mktemp("hub")
    record = Record(hub)
    for offset, limit in asked:
        record.keep(read_window(node, ReadLog(FILE, offset, limit)))
    for path in (hub / "record").rglob("*@*"):
        begin, data = int(path.name.rpartition("@")[2]), path.read_bytes()
        assert LINES[begin : begin + len(data)] == data
    for offset, _ in asked:
        if record.sizes():
            window = read_piece(hub, ReadLog(FILE, offset, 4096))
            assert LINES[window.offset : window.offset + len(window.data)] == window.data


def test_what_is_missing_of_a_tail(node: Path, hub: Path) -> None:
    record = Record(hub)
    assert record.missing(FILE, len(LINES), 1100) == len(LINES) - 1100
    record.keep(read_window(node, ReadLog(FILE, -1100, 65536)))
    assert record.missing(FILE, len(LINES), 1100) is None
    assert record.missing(FILE, len(LINES) + 50, 1100) == len(LINES)
    assert record.missing(FILE, 0, 1100) is None


def test_a_truncated_file_begins_anew(node: Path, hub: Path) -> None:
    record = Record(hub)
    record.keep(read_window(node, ReadLog(FILE, 0, 65536)))
    (node / FILE).write_bytes(b"anew\n")
    record.keep(read_window(node, ReadLog(FILE, 0, 65536)))
    assert read_piece(hub, ReadLog(FILE, 0)).data == b"anew\n"


def test_nothing_else_is_kept_or_given(hub: Path) -> None:
    for file in ("node-1/../secret", "../x", "plan.json", "record/x"):
        Record(hub).keep(Window(file, 0, 4, 4, b"evil"))
        with pytest.raises(LogError):
            read_piece(hub, ReadLog(file, 0))
    with pytest.raises(LogError):
        read_piece(hub, ReadLog("node-1/attempt-001/rank-9.out", 0))
    assert not (hub / "record").exists()


async def test_a_part_that_is_here_is_read_itself(tmp_path: Path, hub: Path) -> None:
    part = tmp_path / "hub.n1"
    (part / FILE).parent.mkdir(parents=True)
    (part / FILE).write_bytes(LINES)
    (part / "agent.log").write_bytes(b"of the node\n")
    (hub / "agent.log").write_bytes(b"of the hub\n")
    assert (await ask_anywhere(hub, ReadLog(FILE, 0, 22))).data == LINES[:22]
    window = await ask_anywhere(hub, ReadLog("node-1/agent.log", 0, 100))
    assert (window.file, window.data) == ("node-1/agent.log", b"of the node\n")
    assert (await ask_anywhere(hub, ReadLog("agent.log", 0, 100))).data == b"of the hub\n"
    assert "nothing of" in (await ask_anywhere(hub, ReadLog("node-2/agent.log", 0, 100))).error
