"""Findings as rows: their order, what is folded, what stands in full; and the merged stacks."""

from __future__ import annotations

import scripted as play
import told
from each import for_each
from test_rows import frame_of, line_of, text_of

from distui.presets.finding import Finding, worst_first
from distui.runners.run.model import Event, FindingRaised, PulseTick
from distui.runners.run.pulse import Pulse
from distui.tui.rows.banner import banner_rows
from distui.tui.rows.dumps import dump_rows, stack_rows, stack_title
from distui.tui.rows.finding_card import Card, card
from distui.tui.rows.findings import coverage_rows, item_row, items, no_findings
from distui.tui.rows.frame import Frame
from distui.tui.rows.glyphs import row_width


def raised(*found: Finding) -> Frame:
    events: list[tuple[float, Event]] = [(120, FindingRaised(one)) for one in found]
    return frame_of([*play.running(), *events])


def test_the_worst_is_first_and_causes_come_before_what_follows_from_them() -> None:
    found = [
        Finding("a", "note", "a", role="fact"),
        Finding("b", "warning", "b", role="symptom"),
        Finding("c", "warning", "c", role="hint"),
        Finding("d", "warning", "d", role="cause", since=20.0),
        Finding("e", "warning", "e", role="cause", since=10.0),
        Finding("f", "error", "f", role="hint"),
        Finding("hang-no-verdict", "note", "no verdict: missing", role="fact"),
    ]
    ids = [one.id for one in worst_first(found)]
    assert ids == ["f", "e", "d", "c", "b", "hang-no-verdict", "a"]


def test_symptoms_of_a_cause_are_one_row_below_it_with_their_counts() -> None:
    listed = items(told.findings())
    assert [item.follows for item in listed] == [False, True, False, False, False]
    assert listed[0].first.id == "hang-not-joined"
    row = line_of(item_row(raised(*told.findings()), listed[1], 120))
    assert "4 symptoms that go with it: pt-watchdog 3 ×, sock-closed-by-peer" in row
    assert "r0-2,4" in row


def test_without_a_cause_symptoms_stand_for_themselves_a_row_a_kind() -> None:
    frame = raised(*(one for one in told.findings() if one.role != "cause"))
    listed = items(frame.state.findings.values())
    kinds = {item.first.id: len(item.findings) for item in listed}
    assert kinds["pt-watchdog"] == 3
    assert not any(item.follows for item in listed)
    shown = text_of([item_row(frame, item, 120) for item in listed])
    assert "3 × rank 0's watchdog says a timeout" in shown


def test_a_cause_that_is_no_alarm_takes_no_symptoms() -> None:
    frame = raised(Finding("c", "note", "c", role="cause"), Finding("s", "warning", "s", role="symptom"))
    assert [item.first.id for item in items(frame.state.findings.values())] == ["s", "c"]


def test_a_row_says_severity_role_rank_and_since_when_in_any_width() -> None:
    frame = raised(*told.findings())
    first = items(frame.state.findings.values())[0]
    assert line_of(item_row(frame, first, 200)).split()[:4] == ["✖", "cause", "r3", "42s"]
    for width in (20, 40, 78, 200):
        assert all(
            row_width(item_row(frame, item, width)) <= width
            for item in items(frame.state.findings.values())
        )


def test_what_is_no_alarm_is_dim_but_the_missing_verdict_can_be_read() -> None:
    frame = raised(*told.findings())
    ink = {
        item.first.id: item_row(frame, item, 200)[-1][1] for item in items(frame.state.findings.values())
    }
    assert ink["hang-no-verdict"] == "text"
    assert ink["first-step"] == "dim"
    assert ink["hang-not-joined"] == "text"


def card_of(frame: Frame, at: int = 0, width: int = 100, unfolded: bool = False) -> Card:
    return card(frame, items(frame.state.findings.values())[at], width, unfolded, {})


def test_a_card_has_sentence_remedy_and_keys_and_folds_its_evidence() -> None:
    frame = raised(*told.findings())
    folded = text_of(card_of(frame).rows).splitlines()
    assert folded == [
        "✖ rank 3 never joined all_reduce 1204: it is in load() at data.py:88, and 7 ranks wait for it",
        "  → look at data.py:88 on rank 3; a barrier before it would show who is late",
        "  cause · rank 3 on n001 · 42 s ago   w stacks   r restart   enter log   space evidence",
    ]
    whole = card_of(frame, width=60, unfolded=True)
    shown = text_of(whole.rows)
    for part in (
        "id        hang-not-joined",
        "since     22:14:43, 42 s ago",
        "│ ranks 0-2, 4-7: all_reduce 1204",
    ):
        assert part in shown
    assert "space fold" in text_of(card_of(frame, unfolded=True).rows)
    assert max(row_width(row) for row in whole.rows) <= 60


def test_the_keys_of_a_card_are_those_that_help_now() -> None:
    stuck = Finding(
        "hang-lock", "error", "rank 1 is blocked", remedy="press w (`distui dump night stacks`)"
    )
    quiet = Finding("net", "warning", "no statements", role="hint", remedy="raise NCCL_DEBUG to INFO")

    def words(frame: Frame, found: Finding, **keys: str) -> str:
        (item,) = items([found])
        return text_of([card(frame, item, 200, False, keys).rows[-1]])

    live, ended = frame_of(play.running()), frame_of(play.failed())
    assert words(live, stuck).split("   ")[1:] == ["w stacks", "r restart", "y copy command"]
    assert words(live, stuck, stacks="F7").split("   ")[1:2] == ["F7 stacks"], "the user's own key"
    assert words(ended, stuck).split("   ")[1:] == ["r run again", "y copy command"]
    assert words(frame_of(play.running(), readonly=True), stuck).split("   ")[1:] == [
        "w stacks",
        "y copy command",
    ]
    assert words(live, quiet).split("   ")[1:] == ["d NCCL_DEBUG"]
    line = "node-0/attempt-001/rank-3.nccl:1: NCCL INFO Init COMPLETE"
    assert words(live, Finding("x", "note", "x", evidence=(line,))).split("   ")[1:] == [
        "enter log",
        "space evidence",
    ]
    assert words(live, Finding("x", "note", "x", evidence=("3 looks",))).split("   ")[1:] == [
        "space evidence"
    ]
    assert words(frame_of(play.running(2, gpu=False)), quiet).split("   ")[1:] == [], (
        "gloo has no NCCL_DEBUG"
    )


def test_many_of_one_kind_are_named_and_the_rest_is_counted() -> None:
    many = [Finding("oom", "error", f"rank {at} is out of memory", rank=at) for at in range(40)]
    frame = raised(*many)
    (item,) = items(frame.state.findings.values())
    shown = text_of(card(frame, item, 100, True, {}).rows)
    assert "ranks 0-39" in shown
    assert "28 more of this kind" in shown
    assert line_of(item_row(frame, item, 100)).startswith("✖ cause   r0-39")


def test_escapes_in_a_finding_do_not_reach_the_screen() -> None:
    bad = Finding("x", "warning", "te\x1b[2Jxt", remedy="d\x1b[1mo", evidence=("a\x1b[2Jb",))
    frame = raised(bad)
    (item,) = items(frame.state.findings.values())
    assert "\x1b" not in text_of([item_row(frame, item, 80), *card(frame, item, 80, True, {}).rows])


def test_the_banner_has_one_row_a_kind_and_leaves_symptoms_to_the_pane() -> None:
    shown = text_of(banner_rows(raised(*told.findings()), 200, 6))
    assert "watchdog" not in shown
    assert "no verdict: missing the stack of rank 5" in shown
    assert shown.splitlines()[0].startswith(" ✖ rank 3 never joined")
    assert "6 shows all" in line_of(banner_rows(raised(*told.findings()), 80, 2)[-1])


def test_where_no_hook_answers_no_finding_is_no_word_of_health() -> None:
    assert no_findings(frame_of(play.running()).state) == "No findings."
    assert "no hook answers" in no_findings(frame_of(play.running(2, gpu=False)).state)
    watched = frame_of(play.running())
    watched.state.run = "watch-4711"
    assert "ranks without CPU use and output for 30 s" in no_findings(watched.state)
    assert no_findings(frame_of(play.finished()).state) == "No findings."


def test_what_verdicts_rest_on_says_what_is_missing() -> None:
    shown = text_of(coverage_rows(frame_of(play.running()).state))
    assert "hooks (stacks, steps, collectives): 8/8 ranks" in shown
    assert "flight recorder: 0/8 ranks" in shown
    assert "NCCL log: too quiet; press d for INFO" in shown
    watched = frame_of(play.running())
    watched.state.run = "watch-4711"
    assert "not read of a job that distui did not start" in text_of(coverage_rows(watched.state))
    pulses = tuple(Pulse(rank=rank, at=1.0, recorder=rank != 5) for rank in range(8))
    some = frame_of([*play.running(), (124, PulseTick(pulses))])
    assert "flight recorder: 7/8 ranks" in text_of(coverage_rows(some.state))
    gloo = text_of(coverage_rows(frame_of(play.running(2, gpu=False)).state))
    assert "NCCL log: none, the backend is gloo" in gloo
    assert "hooks (stacks, steps, collectives): 0/2 ranks" in gloo
    assert coverage_rows(frame_of(play.finished()).state) == []


def stack(*frames: str) -> str:
    lines = [f'  File "{file}", line {line} in {name}' for file, line, name in map(str.split, frames)]
    return "\n".join(["Current thread 0x00007f00 (most recent call first):", *lines])


def test_equal_stacks_are_shown_once_and_where_others_part_is_marked() -> None:
    usual = stack("/v/torch/distributed_c10d.py 30 all_reduce", "train.py 71 step", "train.py 90 main")
    other = stack("data.py 88 load", "train.py 65 step", "train.py 90 main")
    data = {str(rank): usual if rank != 5 else other for rank in range(8)}
    shown = text_of(stack_rows(data)).splitlines()
    assert stack_title(data) == "Stacks of 8 ranks, 2 groups"
    assert shown[0] == "7 ranks: 0-4, 6-7"
    alone = shown.index("rank 5")
    assert [line.split()[:3] for line in shown[alone + 1 : alone + 4]] == [
        ["▏", "load", "data.py:88"],
        ["▏", "›", "step"],
        ["▏", "main", "train.py:90"],
    ]


@for_each("text", ["", "the hook does not answer"])
def test_a_rank_without_a_stack_says_so(text: str) -> None:
    shown = text_of(stack_rows({"3": text}))
    assert "rank 3" in shown
    assert (text or "no Python runs there") in shown


def test_a_dump_of_stacks_begins_with_where_the_ranks_are_and_has_all_of_it() -> None:
    shown = text_of(dump_rows("stacks", told.stacks(), 80))
    assert shown.startswith("7 ranks: 0-4, 6-7")
    assert shown.count("Current thread") == 8
    assert text_of(dump_rows("stacks", {"0": "no hook answers"}, 80)) == "rank 0\n  no hook answers"
