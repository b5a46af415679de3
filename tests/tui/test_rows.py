"""Rows are pure: a state in, styled text out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
import scripted as play
from each import for_each
from msgspec.structs import replace
from rich.cells import cell_len

from distui.presets.finding import Finding
from distui.runners.diagnosis import mesh
from distui.runners.logs.levels import Level
from distui.runners.reports.status_document import status_json
from distui.runners.run.commands import SetNccl
from distui.runners.run.formatting import (
    duration_exact,
    duration_short,
    size_short,
    spans,
    step_short,
    usage_short,
)
from distui.runners.run.log_files import parse_file_id
from distui.runners.run.model import (
    AttemptEnded,
    AttemptStarted,
    Checkpoint,
    CommandDone,
    Event,
    FindingRaised,
    GpuTick,
    LogGrew,
    NcclChanged,
    Outcome,
    RankTick,
    RestartDelayed,
    RunCreated,
    RunEnded,
    RunPhase,
)
from distui.runners.run.samples import Gpu, Host, RankSample
from distui.runners.run.state import Node, RunState
from distui.tui.rows import glyphs
from distui.tui.rows.attempts import cause_text, end_rows, event_rows, in_order
from distui.tui.rows.banner import banner_rows
from distui.tui.rows.card import card_rows
from distui.tui.rows.column_widths import tight
from distui.tui.rows.columns import RANK_COLUMNS, by_id
from distui.tui.rows.finding_card import detail_rows
from distui.tui.rows.findings import items
from distui.tui.rows.frame import Frame, LinkPhase, LinkStatus, ViewOptions
from distui.tui.rows.glyphs import Row, clip, fit, hang, row_width, wrap
from distui.tui.rows.header import header_rows
from distui.tui.rows.log import files_for
from distui.tui.rows.log_lines import LogLine, log_row
from distui.tui.rows.map_cells import map_nodes
from distui.tui.rows.nccl_dialog import begin, change, command, form_rows, methods, note_rows
from distui.tui.rows.plan_preview import broken
from distui.tui.rows.tables import rank_columns, rank_rows, rank_table, table_sort_keys


def line_of(row: Row) -> str:
    """A row as text."""
    return "".join(text for text, _ in row)


def text_of(rows: Sequence[Row]) -> str:
    """Rows as one text."""
    return "\n".join(line_of(row) for row in rows)


def frame_of(
    events: Iterable[tuple[float, Event]], now: float = play.NOW, heard: float | None = None, **view: object
) -> Frame:
    state = RunState().apply_all(play.stamped(events))
    status = LinkStatus(LinkPhase.FOLLOWING, play.BEGAN)
    return Frame(state, status, now, play.NOW if heard is None else heard, ViewOptions(**view))  # type: ignore[arg-type]


@for_each(
    ("made", "wanted"),
    [
        (size_short(None), "n/a"),
        (size_short(0), "0B"),
        (size_short(71.2 * 2**30), "71.2G"),
        (size_short(512 * 2**20), "512M"),
        (usage_short(None, 1), "n/a"),
        (usage_short(63.1 * 2**30, 80 * 2**30), "63.1/80G"),
        (usage_short(900 * 2**30, 1000 * 2**30), "900/1000G"),
        (usage_short(61.2 * 2**40, 80 * 2**40), "61.2/80.0T"),
        (step_short(None), "n/a"),
        (step_short(0.041), "41ms"),
        (step_short(1.239), "1.24s"),
        (duration_short(4), "4s"),
        (duration_short(125), "2m"),
        (duration_short(90000), "25h"),
        (duration_exact(None), "n/a"),
        (duration_exact(3725), "1 h 2 min"),
        (spans([6, 0, 1, 3, 2]), "0-3, 6"),
        (spans([]), ""),
        (fit("abcdef", 4), "abc…"),
        (fit("ab", 4, right=True), "  ab"),
        (fit("日本語", 5), "日本…"),
    ],
)
def test_values_are_written_as_people_read_them(made: str, wanted: str) -> None:
    assert made == wanted


def test_clip_never_exceeds_the_width_and_marks_what_is_lost() -> None:
    row: Row = (("abc", "text"), ("defgh", "bad"))
    for width in range(1, 10):
        cut = clip(row, width)
        assert row_width(cut) <= width
        assert ("…" in line_of(cut)) == (width < 8)


def test_hang_keeps_the_text_below_itself() -> None:
    rows = hang((("label  ", "dim"), ("one two three four five", "text")), 18)
    assert [row[0][0] for row in rows] == ["label  ", "       ", "       "]
    assert all(row_width(row) <= 18 for row in rows)


def test_wide_characters_are_wrapped_by_their_columns() -> None:
    """An exception's text may be Chinese, and so may a path in a plan."""
    text = "RuntimeError: 内存不足请检查" + "显存设置" * 20
    for width in (20, 41, 80):
        rows = wrap(text, width, first=" - ")
        assert max(map(row_width, rows)) <= width
        assert "".join("".join(line_of(row).split()) for row in rows) == "-" + text.replace(" ", "")
        lines = broken(f"  DATA=/数据/{text}", width)
        assert max(map(cell_len, lines)) <= width


def test_values_that_are_too_old_are_never_shown() -> None:
    frame = frame_of(play.running(), now=play.NOW + 60)
    assert map_nodes(frame)[0].values == [None] * 8
    shown = text_of(rank_table(frame, 100).rows)
    assert "%" not in shown
    assert glyphs.MISSING in shown
    head = header_rows(frame, 200)
    assert "60s old" in line_of(head[0])
    assert ("step 120", "stale") in head[1]
    assert not any(word in line_of(head[1]) for word in ("util", "/step"))


def test_a_value_that_the_driver_does_not_serve_is_not_zero() -> None:
    frame = frame_of([*play.running(), (124.8, GpuTick((Gpu(0, "GPU-0", "H100"),)))])
    assert map_nodes(frame)[0].values == [None]
    assert line_of(rank_table(frame, 120).rows[0]).count("n/a") >= 2


def test_glyph_ramp_rises_with_the_value_also_in_ascii() -> None:
    ramp = [glyphs.height(value) for value in range(0, 101, 5)]
    assert ramp == sorted(ramp)
    assert (ramp[0], ramp[-1]) == ("▁", "█")
    digits = [glyphs.height(value, True) for value in range(0, 101, 5)]
    assert digits == sorted(digits)
    assert digits[-1] == "9"


def test_the_table_drops_columns_before_it_cuts_them() -> None:
    frame = frame_of(play.running())
    for width in range(40, 130, 5):
        made = rank_table(frame, width)
        assert made.order == list(range(8))
        assert all(row_width(row) <= width for row in [*made.rows, made.head])
        assert "state" in line_of(made.head)
    assert {"temp", "NCCL"} <= set(line_of(rank_table(frame, 120).head).split())


@for_each("sort", ["", "rank", "pace", "throttle", "mem", "step", "state"])
@for_each("own", [False, True])
def test_titles_and_numbers_are_whole_in_every_width(sort: str, own: bool) -> None:
    """A sort mark eats no title; what does not fit is left out, the user's own columns from the right."""
    ids = tuple(column.id for column in RANK_COLUMNS)[::-1] if own else ()
    huge = RankSample(
        rank=0, pid=4_194_304, step=9_999_999, step_s=3599.6, cpu_percent=25_600.0, rss_bytes=1023 << 30,
        wait_percent=100.0, read_bps=1e12, write_bps=999e9, gpu=0,
    )  # fmt: skip
    gpu = Gpu(
        index=0, uuid="GPU-0", name="B200", util=100.0, mem_used=1000 << 30, mem_total=1024 << 30, temp_c=104.0,
        power_w=1000.0, power_limit_w=1200.0, sm_mhz=1980, pids=(4_194_304, 7), pid_mem=(1, 180 << 30),
    )  # fmt: skip
    frame = frame_of(
        [*play.running(), (124.9, RankTick((huge,))), (124.9, GpuTick((gpu,)))], sort=sort, columns=ids
    )
    frame.state.ranks[0].pid = 4_194_304
    for width in range(40, 260, 3):
        made = rank_table(frame, width, 0, 4)
        head = line_of(made.head)
        assert row_width(made.head) <= width
        assert "…" not in head
        for left, right, id in made.areas:
            column = by_id("ranks", id)
            assert column is not None
            assert head[left:right].strip() == column.title + ("▴" if id == sort else "")
            if column.right:
                assert not re.search(r"\d…", line_of(made.rows[0])[left:right])
    assert tight("1000/1200W", 8) == "1000W"
    assert tight("612/700W", 8) == "612/700W"


@for_each(
    ("ages", "wanted"),
    [
        ((0, 1, 2, 1), False),
        ((0, 1, 200, 1), True),
        ((300, 301, 300, 302), True),
        ((0, 900, 900, 900), False),
        ((1, None, None, None), False),
    ],
)
def test_the_age_of_logs_has_room_or_a_silent_rank_and_never_that_of_nccl(
    ages: tuple[int | None, ...], wanted: bool
) -> None:
    """63 columns is what the table has beside the cards of a terminal with 120."""
    told = tuple(
        msgspec.structs.replace(sample, log_age_s=age, wait_percent=12.0)
        for sample, age in zip(play.samples(4), ages, strict=True)
    )
    frame = frame_of([*play.running(4), (124.9, RankTick(told))])
    shown = {id for _, _, id in rank_table(frame, 63, beside_gpus=True).areas}
    assert "nccl" in shown
    assert ("log" in shown) is wanted
    assert "log" in {id for _, _, id in rank_table(frame, 100, beside_gpus=True).areas}


@for_each("beside", [False, True])
def test_the_column_that_orders_the_ranks_is_seen_with_its_mark(beside: bool) -> None:
    """Whichever `s` offers: also one that would not fit, or that the GPU table has."""
    names = [key.id for key in table_sort_keys(frame_of(play.running()), "ranks")]
    for name in names:
        made = rank_table(frame_of(play.running(), sort=name), 78, beside_gpus=beside)
        assert ("▴" in line_of(made.head)) is bool(name)
        assert not name or name in {id for _, _, id in made.areas}
    assert {"", "temp", "mem", "pace"} <= set(names)


def test_own_columns_are_left_out_from_the_right() -> None:
    frame = frame_of(play.running(), columns=("temp", "rank", "pid", "step", "rss", "cpu", "state"))
    for width in range(20, 80):
        shown = [id for _, _, id in rank_table(frame, width).areas]
        assert shown == [id for id in frame.view.columns if id in shown]
        left = [id for id in frame.view.columns if id not in shown]
        assert frame.view.columns[len(frame.view.columns) - len(left) :] == tuple(left)


def test_sorting_puts_the_worst_first_and_the_unknown_last() -> None:
    frame = frame_of(play.running(), sort="util")
    assert [line.gpu and line.gpu.util for line in rank_rows(frame)] == [0, 31, 94, 95, 96, 96, 97, 98]
    down = rank_rows(frame_of(play.running(), sort="util", reverse=True))
    assert [line.rank.place.rank for line in down][:2] == [3, 0]
    some = [*play.running(), (124.8, RankTick(()))]
    state = frame_of(some, sort="rss").state
    state.ranks[0].sample = None
    ordered = rank_rows(
        Frame(state, LinkStatus(LinkPhase.FOLLOWING, 0), play.NOW, play.NOW, ViewOptions(sort="rss"))
    )
    assert ordered[-1].rank.place.rank == 0
    assert rank_rows(frame_of(play.failed(), sort="state"))[0].rank.place.rank == 3


def test_the_exit_table_says_how_each_rank_ended() -> None:
    rows = rank_table(frame_of(play.failed()), 78).rows
    assert line_of(rows[0]).split()[:4] == ["3", "✖", "failed", "4714"], "the culprit first"
    assert all("SIGTERM" in line_of(row) for row in rows[1:])


def test_the_banner_counts_down_to_the_restart() -> None:
    events = [
        *play.running(),
        (126, AttemptEnded(1, Outcome.FAILED, play.cause(), "rank 3 failed")),
        (126, RestartDelayed(4.0, 1, 3)),
    ]
    frame = frame_of(events, now=play.BEGAN + 127, heard=play.BEGAN + 126)
    shown = text_of(banner_rows(frame, 120, 3))
    assert "shape mismatch" in shown
    assert "restart in 3 s (failure 1 of 3)" in shown


def test_a_cause_that_is_a_finding_is_once_in_the_banner() -> None:
    events = [
        *play.running(),
        (126, AttemptEnded(1, Outcome.FAILED, play.cause(), "rank 3 failed")),
        (126, FindingRaised(Finding("died-error", "error", "attempt 1: shape mismatch in rank 3", rank=3))),
    ]
    shown = text_of(banner_rows(frame_of(events), 120, 6))
    assert shown.count("shape mismatch") == 1, shown


def test_a_lost_agent_is_the_first_line_with_its_countdown() -> None:
    frame = frame_of(play.running(), now=play.NOW + 5)
    status = LinkStatus(LinkPhase.LOST, play.NOW, play.NOW + 8, "the socket is gone")
    lost = Frame(frame.state, status, play.NOW + 5, play.NOW)
    first = line_of(banner_rows(lost, 120, 3)[0])
    assert "the socket is gone" in first
    assert "next try in 3 s" in first
    assert "the ranks go on" in first


def test_findings_stand_worst_first_with_their_remedy() -> None:
    mild = Finding("slow", "warning", "rank 4 is slow", rank=4)
    grave = Finding("sock", "error", "no route to n002", remedy="pin one interface")
    frame = frame_of([*play.running(), (125, FindingRaised(mild)), (125, FindingRaised(grave))])
    rows = banner_rows(frame, 120, 6)
    assert "no route to n002" in line_of(rows[0])
    assert "→ pin one interface" in line_of(rows[1])
    assert "rank 4" in line_of(rows[2])


SLEEPER = Finding(
    "hang-not-joined", "error", "rank 1 sleeps at hang.py:6 <module>; ranks 0, 2, 3 wait for it in all_reduce #31",
    ranks=(1,), since=play.NOW - 41,
    remedy="if that is not meant to take so long, look at the stack of rank 1 (w), end what it waits for, then restart",
)  # fmt: skip


@for_each("width", [60, 80, 100, 120, 200])
@for_each("most", [2, 4, 6])
def test_a_banner_is_never_cut_inside_a_remedy(width: int, most: int) -> None:
    rows = banner_rows(frame_of([*play.running(), (124.65, FindingRaised(SLEEPER))]), width, most)
    shown = " ".join(text_of(rows).split())
    assert len(rows) <= most
    assert all(row_width(row) <= width for row in rows)
    assert ("then restart" in shown) or ("6 shows all of it, and what to do" in shown)
    assert "…" not in shown
    if most > 2:
        assert "wait for it in all_reduce #31 · since 22:14:44, 41 s ago" in shown


def test_nothing_is_said_where_nothing_needs_a_person() -> None:
    noticed = [*play.running(), (125, CommandDone("x", True, "stacks of ranks 0, 1"))]
    note = Finding("start-waiting", "note", "rank 3 is late")
    assert banner_rows(frame_of([*noticed, (125, FindingRaised(note))]), 80, 4) == []


def test_hidden_findings_are_counted() -> None:
    found = [(125.0, FindingRaised(Finding(f"id{at}", "warning", f"finding {at}"))) for at in range(5)]
    rows = banner_rows(frame_of([*play.running(), *found]), 120, 3)
    assert len(rows) == 3
    assert "more" in line_of(rows[-1])


def test_the_end_report_names_the_first_cause_its_last_lines_and_the_victims() -> None:
    shown = text_of(end_rows(frame_of(play.failed()), 78))
    assert "failed after 2 min 11 s" in shown
    assert "rank 3 (local 3, node 0, pid 4714)" in shown
    assert "[red]" in shown
    assert "ended after it: ranks 0-2, 4-7" in shown


def test_the_end_report_has_the_cause_once() -> None:
    """A run that gave up says why already: on a small screen the room is for the last lines."""
    sentence = cause_text(play.cause())
    ended = [
        *play.failed()[:-1],
        (136.0, RunEnded(RunPhase.FAILED, 1, f"gave up: failed in the same way twice: {sentence}")),
    ]
    shown = " ".join(text_of(end_rows(frame_of(ended), 78)).split())
    assert shown.count(sentence) == 1, shown
    assert sentence in " ".join(text_of(event_rows(frame_of(ended), 78)[0]).split())


def test_one_victim_is_a_rank() -> None:
    frame = frame_of(play.failed())
    frame.state.attempts[-1].first_cause = replace(play.cause(), victims=(1,))
    lines = text_of(end_rows(frame, 78)).splitlines()
    assert "ended after it: rank 1" in [line.strip() for line in lines]


def test_a_cause_of_an_earlier_attempt_is_not_that_of_the_end() -> None:
    assert " first cause  rank 3" in text_of(end_rows(frame_of(play.failed()), 78))
    again = [
        *play.failed()[:-1],
        (150.0, AttemptStarted(2, "failure", 8, play.places(8))),
        (160.0, RunEnded(RunPhase.STOPPED, 1, "stopped")),
    ]
    for shown in (end_rows(frame_of(again), 78), event_rows(frame_of(again), 78)[0]):
        assert " first cause of attempt 1  rank 3" in text_of(shown)
    twice = frame_of(again)
    twice.state.attempts[1].first_cause = replace(play.cause(), text="rank 5 raised KeyError")
    shown = event_rows(twice, 118)[0]
    assert " first cause of attempt 2  rank 3" in text_of(shown)
    ledger = [line for line in map(line_of, shown) if re.match(r" +[12]  22:", line)]
    assert [("rank 3" in ledger[0]), ("KeyError" in ledger[1])] == [True, True], ledger


def test_the_last_lines_of_the_culprit_are_whole() -> None:
    frame = frame_of(play.failed())
    text = "CUDA out of memory: " + " ".join(f"word{number}" for number in range(20))
    frame.state.attempts[-1].first_cause = replace(play.cause(), last_lines=("    raise it", text))
    rows = end_rows(frame, 60)
    assert max(map(row_width, rows)) <= 60
    shown = [line_of(row) for row in rows]
    assert " │     raise it" in shown
    assert sum(line.startswith(" │ ") for line in shown) == 4, "each part of a wrapped line has its mark"
    assert text in " ".join(" ".join(shown).replace("│", "").split())


def test_a_stopped_run_is_called_stopped_once() -> None:
    ended = [*play.running(), (140.0, RunEnded(RunPhase.STOPPED, 1, "stopped"))]
    shown = text_of(end_rows(frame_of(ended), 78))
    assert shown.count("stopped") == 1, shown
    assert "exit code" not in shown, "it was asked for, and is no error"


def test_findings_of_an_ended_run_are_as_old_as_they_are_now() -> None:
    found = Finding("hang", "error", "it hangs", since=play.BEGAN + 130.0)
    ended = [
        *play.running(),
        (131.0, FindingRaised(found)),
        (140.0, RunEnded(RunPhase.STOPPED, 1, "stopped")),
    ]
    frame = frame_of(ended, now=play.BEGAN + 140.0 + 960.0)
    shown = text_of(detail_rows(frame, items([found])[0], 78))
    assert "16 min 10 s ago" in shown, shown


def test_a_good_end_has_no_cause() -> None:
    shown = text_of(end_rows(frame_of(play.finished()), 78))
    assert "succeeded" in shown
    assert "cause" not in shown


def test_secrets_in_the_ledger_are_masked() -> None:
    again = AttemptStarted(2, "restart", 8, play.places(8), {"HF_TOKEN": "hf_abc", "LR": "1", "OLD": None})
    shown = text_of(event_rows(frame_of([*play.running(), (125, again)]), 120)[0])
    assert "hf_abc" not in shown
    assert "LR=1" in shown
    assert "-OLD" in shown


def test_escapes_in_what_a_rank_wrote_do_not_reach_the_report() -> None:
    bad = Finding("x", "warning", "text", evidence=("a\x1b[2Jb",))
    frame = frame_of([*play.running(), (125, FindingRaised(bad))])
    shown = text_of(detail_rows(frame, items([bad])[0], 120))
    assert "\x1b" not in shown
    assert "ab" in shown


def test_files_of_a_finished_run_are_named_without_anyone_reporting_them() -> None:
    state = frame_of(play.finished()).state
    names = [file.id for file in files_for(state, 3, "all")]
    assert names == [f"node-0/attempt-001/rank-3.{stream}" for stream in ("out", "err", "nccl")]
    assert files_for(state, None, "nccl")[7].rank == 7


def test_files_of_a_job_that_distui_did_not_start_are_what_was_reported() -> None:
    events = [*play.running(2, gpu=False), (125.0, LogGrew({"watch/rank-0.out": 5, "watch/rank-1.err": 1}))]
    state = frame_of(events).state
    assert [file.id for file in files_for(state, None, "all")] == ["watch/rank-0.out", "watch/rank-1.err"]
    assert [file.id for file in files_for(state, 1, "all")] == ["watch/rank-1.err"]


def test_live_toggles_of_nccl_are_part_of_the_nccl_stream() -> None:
    toggled = "node-0/attempt-001/rank-0.1.nccl"
    assert parse_file_id(toggled) is not None
    state = frame_of(
        [*play.running(), (125.0, LogGrew({toggled: 5, "node-0/attempt-002/rank-0.out": 1}))]
    ).state
    assert [file.id for file in files_for(state, 0, "nccl")][-1] == toggled
    assert all("attempt-001" in file.id for file in files_for(state, 0, "all"))


def test_hits_are_styled_and_the_text_is_whole() -> None:
    import re

    row = log_row(LogLine("loss 2.5 loss 2.4", "r0", Level.NONE), False, re.compile("loss|x*"), 7)
    assert [cell for cell in row if cell[1] == "hit"] == [("loss", "hit"), ("loss", "hit")]
    assert line_of(row).endswith("loss 2.5 loss 2.4")


def test_the_nccl_dialog_knows_when_a_restart_is_needed() -> None:
    assert methods(frame_of(play.running()).state).live
    old = methods(frame_of(play.running(live=False)).state)
    assert not old.live
    assert "restart" in old.text
    assert "gloo" in methods(frame_of(play.running(2, gpu=False)).state).text
    assert not methods(RunState()).live


def test_the_nccl_dialog_makes_the_command_that_its_rows_show() -> None:
    form = begin(frame_of(play.running()).state, frozenset({1, 5, 99}))
    assert (form.level, form.restart, form.ranks) == ("WARN", False, (1, 5))
    form = change(change(form, 0, 1), 1, -2)
    coll = 3 + [one.name for one in form.offered].index("COLL")
    shown = text_of(form_rows(form, 100))
    assert "(x) INFO" in shown
    assert "(x) 10 s" in shown
    assert "[x] COLL" in shown
    assert command(form, "c1") == SetNccl(id="c1", level="INFO", subsys="COLL", ranks=(1, 5), seconds=10.0)
    assert change(change(form, coll, 1), 2, 1).restart


def test_the_nccl_dialog_begins_with_what_the_marked_ranks_have() -> None:
    changed = NcclChanged("INFO", "COLL,NET", (1, 3), True, "NCCL_DEBUG=INFO")
    state = frame_of([*play.running(), (122.0, changed)]).state
    form = begin(state, frozenset({3}))
    assert (form.level, form.is_current, form.subsys) == ("INFO", True, "COLL,NET")
    assert command(change(form, 1, 1), "c1").subsys == "COLL,NET"
    assert not begin(state, frozenset({0, 3})).is_current
    form = begin(state, frozenset({0}))
    assert (form.level, form.is_current, form.subsys) == ("WARN", True, "")
    state.ranks[3].nccl_debug = "ATTN"
    form = begin(state, frozenset({3}))
    assert (form.level, form.subsys) == ("ATTN", "")
    assert "(x) ATTN" in text_of(form_rows(form, 100))
    assert change(form, 0, 1).level == "INFO"


def test_a_level_that_goes_back_counts_down_in_the_header() -> None:
    changed = NcclChanged("INFO", "COLL", tuple(range(8)), True, "NCCL_DEBUG=INFO", play.NOW + 2.9)
    frame = frame_of([*play.running(), (122.0, changed)])
    assert "NCCL_DEBUG INFO, 3 s left" in line_of(header_rows(frame, 250)[0])


def test_the_nccl_dialog_suggests_what_logs_something_now() -> None:
    form = begin(frame_of(play.running()).state, frozenset())
    info = change(form, 0, 1)
    assert (info.level, info.subsys, info.seconds) == ("INFO", "COLL", 60.0)
    assert (change(info, 0, -1).subsys, change(info, 0, -1).seconds) == ("", None)
    assert change(info, 2, 1).subsys == "", "a restart logs the init"
    coll = 3 + [flag.name for flag in info.offered].index("COLL")
    chosen = change(change(info, coll, 1), 0, 1)
    assert chosen.subsys == "", "what the user chose is kept"


def test_the_nccl_dialog_names_the_disk_with_the_least_room() -> None:
    """A larger disk keeps a larger reserve."""
    state = frame_of(play.running()).state
    for node, (free, total) in enumerate([(60, 100), (100, 2000)]):
        about = state.nodes.setdefault(node, Node(node))
        about.metrics = Host(disk_free=free << 30, disk_total=total << 30)
    state.ranks[7].place = replace(state.ranks[7].place, node=1)
    assert "of 2.0T free on" in text_of(note_rows(begin(state, frozenset()), 100))


def test_live_is_not_offered_where_nccl_cannot() -> None:
    form = begin(frame_of(play.running(live=False)).state, frozenset())
    assert form.restart
    assert "at the next restart; a flood of lines" in text_of(note_rows(change(form, 1, 1), 120))
    assert change(form, 2, 1).restart
    assert "live" not in line_of(form_rows(form, 100)[2])


def test_ranks_of_a_mesh_show_their_coordinates() -> None:
    assert "mesh" not in [column.id for column in rank_columns(frame_of(play.running()))]
    events = play.running()
    created = events[0][1]
    assert isinstance(created, RunCreated)
    plan = replace(created.plan, mesh={"pp": 2, "dp_shard": 2, "tp": 2})
    events[0] = (0, replace(created, plan=plan))
    frame = frame_of(events)
    assert "mesh" in line_of(rank_table(frame, 200).head)
    rows = rank_table(frame, 200).rows
    assert ["pp0 sh0 tp0" in line_of(row) for row in rows] == [True] + [False] * 7
    assert "pp1 sh0 tp1" in line_of(rows[5])
    assert [rank["mesh"] for rank in status_json(frame.state)["ranks"]][5] == {
        "pp": 1,
        "dp_shard": 0,
        "tp": 1,
    }
    seen = {tuple(rank["mesh"].items()) for rank in status_json(frame.state)["ranks"]}
    assert len(seen) == 8


def test_a_mesh_follows_an_elastic_run_and_is_silent_where_it_cannot() -> None:
    plan = play.plan(ranks=8)
    for world, wanted in ((4, {"dp_shard": 2, "tp": 2}), (3, {})):
        told = RunCreated("r-1a2b3c4d", "x", "n001", replace(plan, mesh={"dp_shard": 4, "tp": 2}))
        frame = frame_of([(0, told), (1, AttemptStarted(1, "launch", world, play.places(world)))])
        assert mesh.sizes(frame.state) == wanted


def test_the_card_says_where_a_preset_does_not_reach() -> None:
    before = play.running()[:4]
    assert "it obeys strategy" in text_of(card_rows(frame_of(before), 100))
    created = before[0][1]
    assert isinstance(created, RunCreated)
    before[0] = (0, replace(created, plan=replace(created.plan, obeys=None)))
    shown = text_of(card_rows(frame_of(before), 100))
    assert "sets launcher flags and environment only; the script applies the rest itself" in shown


def test_notices_stand_by_their_times_also_where_the_runner_reports_late() -> None:
    """What the runner wrote at 20.9 is read after what the agent saw at 21.1; a clock may also be set back."""
    notices = [
        (20.0, "za"),
        (21.1, "zseen"),
        (20.9, "zreported"),
        (21.1, "zb"),
        (3.0, "zback"),
        (3.5, "zc"),
    ]
    assert [text for _, text in in_order(notices)] == ["za", "zreported", "zseen", "zb", "zback", "zc"]
    frame = frame_of(play.running())
    frame.state.notices[:] = [(play.BEGAN + at, text) for at, text in notices[:4]]
    rows, times = event_rows(frame, 100)
    shown = [at for at in times[-4:] if isinstance(at, float)]
    assert shown == sorted(shown, reverse=True)
    assert text_of(rows).index("zseen") < text_of(rows).index("zreported")


def test_checkpoints_stand_among_the_events_by_their_times() -> None:
    frame = frame_of(play.running())
    frame.state.notices[:] = [(play.BEGAN + 20, "before"), (play.BEGAN + 40, "after")]
    whole = Checkpoint("/c/step-18000", play.BEGAN + 30, "torch.save", 18_000, duration_s=3.2, size=3 << 29)
    torn = Checkpoint("/c/step-19000", play.BEGAN + 50, "folder", complete=False)
    frame.state.checkpoints[:] = [whole, torn]
    rows, times = event_rows(frame, 100)
    shown = [line.strip().partition("  ")[2] for line in text_of(rows[-4:]).splitlines()]
    assert shown == [
        "torn checkpoint: /c/step-19000",
        "after",
        "checkpoint of step 18,000: /c/step-18000, 1.5 GiB, took 3 s",
        "before",
    ]
    assert times[-4:] == [play.BEGAN + at for at in (50, 40, 30, 20)]
