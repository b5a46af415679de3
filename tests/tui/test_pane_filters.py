"""`/` in the panes of a run: what its words mean, and that they filter the focused list while one types."""

from __future__ import annotations

import pytest
import scripted as play
from conftest import Start, shown
from each import for_each
from msgspec.structs import replace
from test_rows import frame_of

from distui.presets.finding import Finding
from distui.tui.rows.findings import items
from distui.tui.rows.list_filter import FilterError
from distui.tui.rows.pane_filters import EVENTS, FINDINGS, GPUS, RANKS, EventText
from distui.tui.rows.tables import gpu_rows, rank_rows


@for_each(
    ("words", "ranks"),
    [
        ("rank:0-2", [0, 1, 2]),
        ("rank:0-1,7", [0, 1, 7]),
        ("rank 2", [2]),
        ("rank 0-1,7 !rank 1", [0, 7]),
        ("node 1 rank>5", [6, 7]),
        ("node:0", []),
        ("rank!=0-5", [6, 7]),
        ("util<50", [4, 7]),
        ("node:n001 rank>5", [6, 7]),
        ("node:c9", []),
        ("state:running util>97", [3]),
        ("state:steps", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("state:blocked", []),
        ("mem>84%", [7]),
        ("'rank 3'", [3]),
        ("pace>0.047", [7]),
        ("exit:0", []),
    ],
)
def test_words_choose_ranks(words: str, ranks: list[int]) -> None:
    rows = rank_rows(frame_of(play.running()))
    assert sorted(row.rank.place.rank for row in RANKS.fitting(rows, words)) == ranks
    RANKS.understood(words)


@for_each(
    ("words", "gpus"),
    [
        ("gpu:0-2", [0, 1, 2]),
        ("util<50", [4, 7]),
        ("rank:6-7", [6, 7]),
        ("node:n001 rank>5", [6, 7]),
        ("mem>84%", [7]),
        ("H100 'rank 3'", [3]),
        ("throttle!=idle", []),
        ("lost", []),
    ],
)
def test_words_choose_gpus(words: str, gpus: list[int]) -> None:
    mine, _ = gpu_rows(frame_of(play.running()))
    assert sorted(row.ranks[0] for row in GPUS.fitting(mine, words)) == gpus
    GPUS.understood(words)


def test_reasons_of_lowered_clocks_are_words_of_the_filter_and_unknown_ones_match_nothing() -> None:
    mine, _ = gpu_rows(frame_of(play.running()))
    reasons = [None, (), ("idle",), ("power cap", "thermal (hardware)")]
    rows = []
    for row, each in zip(mine, reasons, strict=False):
        assert row.gpu is not None
        rows.append(replace(row, gpu=replace(row.gpu, throttle=each)))
    for words, gpus in (("throttle:thermal", [3]), ("!throttle:idle", [1, 3]), ("throttle!=idle", [1, 3])):
        assert [row.index for row in GPUS.fitting(rows, words)] == gpus, words


@for_each(
    ("words", "says"),
    [
        ("state:sleepy", "unknown state sleepy: use starting, running"),
        ("utl<50", "did you mean util?"),
        ("util<x", "util takes a number of percent, not x: as in util<50"),
        ("rank<0-3", "rank takes a number, not 0-3: as in rank:0-7"),
    ],
)
def test_a_word_that_means_nothing_is_named(words: str, says: str) -> None:
    with pytest.raises(FilterError, match="the filter, column") as caught:
        RANKS.understood(words)
    assert says in str(caught.value)


FOUND = [
    Finding("hang", "error", "rank 1 is blocked", rank=1, role="cause"),
    Finding("slow", "warning", "rank 4 is slow", ranks=(4, 5)),
    Finding("disk", "note", "the disk is full soon"),
]


@for_each(
    ("words", "ids"),
    [("severity:error", "hang"), ("rank:4", "slow"), ("rank:0-4", "hang slow"), ("disk", "disk")],
)
def test_words_choose_findings(words: str, ids: str) -> None:
    assert " ".join(item.first.id for item in FINDINGS.fitting(items(FOUND), words)) == ids


def test_words_choose_events() -> None:
    events = [EventText(10.0, "restart requested", 5.0), EventText(1.0, "rank 3 failed", 14.0)]
    assert [event.at for event in EVENTS.fitting(events, "age<10s")] == [10.0]
    assert [event.at for event in EVENTS.fitting(events, "failed")] == [1.0]


async def test_the_slash_filters_the_focused_list(rig: Start) -> None:
    async with shown(rig(play.running()), 120, 40) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("2", "slash", *"util<50")
        await it.until(lambda: "/util<50: 2 of 8" in it.screen())
        await it.press("enter")
        await it.until(lambda: it.app.focused is it.app.screen.query_one("#ranks"))
        assert it.app.view.rank_filter == "util<50"
        await it.press("escape")
        assert it.app.view.rank_filter == ""


async def test_the_slash_filters_the_gpus_beside_the_ranks(rig: Start) -> None:
    async with shown(rig(play.running()), 120, 40) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        it.app.screen.query_one("#gpus").focus()
        await it.press("slash", *"util<50")
        await it.until(lambda: "GPUs · /util<50: 2 of 8" in it.screen())
        await it.press("enter")
        await it.until(lambda: it.app.focused is it.app.screen.query_one("#gpus"))
        assert it.app.view.rank_filter == "", "the ranks have a filter of their own"
        await it.press("slash", "ctrl+u", *"gpu:99")
        await it.until(lambda: "GPUs · /gpu:99: 0 of 8" in it.screen())
        await it.press("escape")
        await it.until(lambda: "/util<50" in it.screen())
        await it.press("escape")
        await it.until(lambda: "GPUs · /" not in it.screen())


async def test_escape_in_the_line_restores_the_filter(rig: Start) -> None:
    async with shown(rig(play.running()), 120, 40) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("2", "slash", *"util<", "enter")
        await it.until(lambda: "util takes a number of percent" in it.screen())
        await it.press("escape")
        assert it.app.view.rank_filter == ""
        await it.press("7", "slash", *"zzz", "enter")
        await it.until(lambda: "no event matches" in it.screen())
        await it.press("1", "7", "slash", "ctrl+u", "enter")
        await it.until(lambda: "no event matches" not in it.screen())


async def test_in_the_log_the_slash_stays_a_regular_expression(rig: Start) -> None:
    async with shown(rig(play.running()), 120, 40) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("3")
        await it.until(lambda: "v stream" in it.screen().splitlines()[-1])
        await it.press("slash", *"step 2[0-3] ", "enter")
        await it.until(lambda: "4 lines match" in it.screen())
