"""When lines were written: true, bounded, and blank where nobody saw."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest
from each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from distui.runners.hub.kept_logs import Record as Kept
from distui.runners.logs import line_times
from distui.runners.logs.dating import LogSpan
from distui.runners.logs.kept_pieces import read_piece
from distui.runners.logs.line_times import LineTime, LineTimes, TimeRecords, offset_at, thinned
from distui.runners.logs.own_stamps import own_time
from distui.runners.logs.windows import read_window
from distui.runners.run.commands import ReadLog
from distui.runners.run.log_files import parse_file_id

NAME = "node-0/attempt-001/rank-0.out"
T = 1_700_000_000.0


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def written(run: Path, data: bytes, name: str = NAME) -> None:
    path = run / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)


def moments(run: Path, *offsets: int) -> list[LineTime]:
    window = read_window(run, ReadLog(NAME, 0))
    return [TimeRecords(window.times).of(offset) for offset in offsets]


def test_a_line_that_was_seen_to_come_has_its_time(tmp_path: Path) -> None:
    times = LineTimes(tmp_path)
    written(tmp_path, b"one\ntwo\n")
    times.note(NAME, 4, T + 0.9, T, T + 1)
    times.note(NAME, 8, T + 3599.5, T + 3599, T + 3600)
    times.flush()
    one, two = moments(tmp_path, 0, 4)
    assert (one.by, two.by) == (T + 0.9, T + 3599.5)
    assert one.slack < 1
    assert two.slack < 1


def test_of_lines_that_came_while_no_agent_ran_only_a_bound_is_known(tmp_path: Path) -> None:
    written(tmp_path, b"one\ntwo\nthree\n")
    first = LineTimes(tmp_path)
    first.note(NAME, 4, T, T - 0.1, T)
    first.flush()
    again = LineTimes(tmp_path)  # another agent, an hour later
    again.note(NAME, 8, T + 3000, None, T + 3600)
    again.note(NAME, 14, T + 3601, T + 3600.5, T + 3601)
    again.flush()
    one, two, three = moments(tmp_path, 0, 4, 8)
    assert one.slack < 1
    assert three.slack < 1
    assert two.by == T + 3000
    assert two.slack > 2000


def test_a_log_that_was_there_before_the_first_agent_has_no_times(tmp_path: Path) -> None:
    written(tmp_path, b"old\n")
    times = LineTimes(tmp_path)
    times.note(NAME, 4, T - 500, None, T)
    times.flush()
    (old,) = moments(tmp_path, 0)
    assert old.after is None
    assert old.slack == float("inf")
    file = parse_file_id(NAME)
    assert file is not None
    (line,) = LogSpan(file).feed(read_window(tmp_path, ReadLog(NAME, 0)), T)
    assert line.at is None


def test_a_truncated_log_begins_anew_and_a_torn_index_is_dropped(tmp_path: Path) -> None:
    written(tmp_path, b"new\n")
    times = LineTimes(tmp_path)
    times.note(NAME, 4000, T, T - 0.1, T)
    times.flush()
    times.note(NAME, 4, T + 9, T + 8.9, T + 9)
    times.flush()
    assert moments(tmp_path, 0)[0].by == T + 9
    path = tmp_path / line_times.FOLDER / NAME
    path.write_bytes(path.read_bytes() + b"torn")
    assert moments(tmp_path, 0)[0].by == T + 9
    again = LineTimes(tmp_path)
    again.note(NAME, 5, T + 20, None, T + 20)
    again.flush()
    assert path.stat().st_size % line_times.RECORD.size == 0


def test_a_clock_that_is_set_back_and_a_file_system_with_another_clock(tmp_path: Path) -> None:
    written(tmp_path, b"one\ntwo\n")
    times = LineTimes(tmp_path)
    times.note(NAME, 4, T + 99_999, T, T + 0.2)  # the server's clock is ahead
    times.note(NAME, 8, T - 3599.9, T - 3600, T - 3599.8)  # ours went back by an hour
    times.flush()
    one, two = moments(tmp_path, 0, 4)
    assert (one.by, two.by) == (T + 0.2, T - 3599.9)
    assert two.slack < 1
    file = parse_file_id(NAME)
    assert file is not None
    keys = [line.key for line in LogSpan(file).feed(read_window(tmp_path, ReadLog(NAME, 0)), T)]
    assert keys == sorted(keys)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0.05, 900)), min_size=1, max_size=60))
def test_thinning_never_moves_a_time(growth: list[tuple[int, float]]) -> None:
    records, size, at = [(0, T)], 0, T
    for more, seconds in growth:
        size, at = size + more, at + seconds
        records.append((size, at))
    fewer = thinned(records, lambda _: 60.0)
    before, after = TimeRecords(records), TimeRecords(fewer)
    for offset in range(size):
        sharp, wide = before.of(offset), after.of(offset)
        assert sharp.by is not None
        assert wide.by is not None
        assert sharp.by <= wide.by
        assert wide.after is None or (sharp.after is not None and wide.after <= sharp.after)
        assert wide.slack <= max(sharp.slack, 60.0)


def test_an_index_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_times, "MOST_RECORDS", 1000)
    times = LineTimes(tmp_path)
    for tick in range(30_000):
        times.note(NAME, tick + 1, T + tick / 10, T + tick / 10 - 0.1, T + tick / 10)
        if tick % 10 == 0:
            times.flush()
    path = tmp_path / line_times.FOLDER / NAME
    assert path.stat().st_size <= 1010 * line_times.RECORD.size
    records = line_times.sound(line_times.unpacked(path.read_bytes()))
    assert TimeRecords(records).of(29_980).slack < 1.0


@for_each(
    ("text", "at"),
    [
        ("2023-11-14T22:13:18.5Z step", T - 1.5),
        ("2023-11-14 22:13:18,500 INFO step", T - 1.5),
        ("[2023-11-14 22:13:18,500][INFO] step", T - 1.5),
        ("2023/11/14 22:13:18 step", T - 2),
        ("2023-11-14 23:13:18+01:00 step", T - 2),
        ("2023-11-15 03:43:18 of a rank in Delhi", T - 2),
        ("[rank0]:W1114 22:47:05.123 of half an hour ahead", None),
        ("[rank0]:W1114 22:13:18.250 torch", T - 1.75),
        ("I1114 22:13:18 glog", T - 2),
        ("[2023-11-14 22:13:18] n1:1:1 [0] NCCL WARN x", T - 2),
        ("1699999998.25 step", T - 1.75),
        ("1699999998250 step", T - 1.75),
        ("22:13:18 step", T - 2),
        ("2031-01-01 00:00:00 of the future", None),
        ("2023-11-14 21:00:00 the checkpoint that is loaded", None),
        ("2023-13-45 99:99:99 no date", None),
        ("took 00:12:31 so far", None),
        ("step 12 of 500", None),
        ("9999-99-99T99:99:99", None),
    ],
)
def test_a_line_s_own_time_counts_near_the_time_at_which_it_came(text: str, at: float | None) -> None:
    own = own_time(text, LineTime(T, T - 0.5), T + 100)
    assert own == (None if at is None else pytest.approx(at, abs=0.01))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40), st.sampled_from(["", "2023-11-14 ", "E1114 ", "[", "16999999"]))
def test_no_text_is_too_strange_and_none_is_later_than_it_came(text: str, before: str) -> None:
    own = own_time(before + text, LineTime(T, T - 0.5), T + 100)
    assert own is None or T - line_times.SHARP_S - 16 <= own <= T


def test_lines_are_found_by_time() -> None:
    assert offset_at([(0, T), (10, T + 1), (20, T + 2)], T + 1.5) == 10
    assert offset_at([], T) is None


def test_a_hub_keeps_times_with_the_pieces(tmp_path: Path) -> None:
    node, hub = tmp_path / "node", tmp_path / "hub"
    name = "node-1/attempt-001/rank-3.out"
    written(node, b"one\ntwo\nthree\n", name)
    times = LineTimes(node)
    for size, at in ((4, T), (8, T + 5), (14, T + 9)):
        times.note(name, size, at, at - 0.1, at)
    times.flush()
    hub.mkdir()
    record = Kept(hub)
    record.keep(read_window(node, ReadLog(name, 8)))
    record.keep(read_window(node, ReadLog(name, 0, 8)))
    windows = (read_piece(hub, ReadLog(name, 0)), read_piece(hub, ReadLog(name, 8)))
    assert [TimeRecords(windows[0].times).of(offset).by for offset in (0, 4)] == [T, T + 5]
    assert TimeRecords(windows[1].times).of(8).by == T + 9
    assert read_piece(hub, ReadLog(name, 0, at=T + 6)).data == b"two\n"


def test_the_index_of_a_link_is_not_read(tmp_path: Path) -> None:
    written(tmp_path, b"one\n")
    with tempfile.TemporaryDirectory() as elsewhere:
        times = LineTimes(elsewhere)
        times.note(NAME, 4, T, T - 0.1, T)
        times.flush()
        (tmp_path / line_times.FOLDER).symlink_to(Path(elsewhere) / line_times.FOLDER)
        assert read_window(tmp_path, ReadLog(NAME, 0)).times == ()


def test_a_bundle_s_text_has_the_times_of_its_lines() -> None:
    text = b"key=secret\nplain\n" + b"[left out]\n" + b"last\n"
    masked = text.replace(b"secret", b"<masked 6 bytes>")
    places = [line_times.CutPiece(0, 17, 17), line_times.CutPiece(1000, 1005, len(text))]
    records = [(11, T), (17, T + 1), (990, T + 5), (1005, T + 6)]
    shown = TimeRecords(line_times.moved(places, records, text, masked))
    starts = [0, masked.index(b"plain"), masked.index(b"last")]
    assert [shown.of(start).by for start in starts] == [T, T + 1, T + 6]


def test_an_empty_log_needs_no_times(tmp_path: Path) -> None:
    written(tmp_path, b"")
    window = read_window(tmp_path, ReadLog(NAME, 0, at=T))
    assert (window.size, window.data) == (0, b"")
