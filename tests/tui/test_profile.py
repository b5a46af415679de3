"""A profile on the screen and the command line: its rows, its question, what is typed, and who may not."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import msgspec
import pytest
import scripted as play
from conftest import Start, shown
from msgspec import structs

from distui.runners.profile import profiling, rank_traces
from distui.runners.profile.rank_traces import Fetched, RankTrace
from distui.runners.profile.trace_summary import OperatorTime, TraceSummary
from distui.runners.reports.profile_report import report, slowest, values
from distui.runners.run.command_executor import CommandRefused
from distui.runners.run.commands import Profile
from distui.runners.run.model import Clause, CommandDone
from distui.tui.option_values import rank_list
from distui.tui.rows.command_line import RunNames, candidates, parse
from distui.tui.rows.glyphs import plain, row_width
from distui.tui.rows.profiles import answer_rows, profile_rows
from distui.tui.rows.typed_commands import CommandError


def summary(own: float, exposed: float, *, steps: int = 2, name: str = "aten::mm") -> TraceSummary:
    seconds = (own + exposed) * steps
    return TraceSummary(
        seconds, seconds / 4, exposed * steps * 2, exposed * steps, seconds / 8, (OperatorTime(name, 0.02, 6),),
        (OperatorTime("gloo:all_reduce", 0.5, 4),), 7, (own + exposed,) * steps,
    )  # fmt: skip


def test_the_rank_that_the_others_wait_for_is_slowest() -> None:
    both = {0: summary(0.01, 0.03), 1: summary(0.035, 0.005)}
    assert slowest(both) == (1, 0)
    lines = plain(profile_rows(both, {2: "its trace is cut"}, ["2 traces in /x"]))
    assert lines[0] == "rank  per step  computes  communicates  exposed comm  idle  own work"
    assert lines[1].split() == ["0", "40.0", "ms", "25%", "150%", "50%", "12%", "10.0", "ms"]
    assert "Slowest: rank 1, 35.0 ms of own work per step. Rank 0 needs 10.0 ms and waits." in lines
    assert ["10.0", "ms", "25%", "3", "aten::mm"] in [line.split() for line in lines]
    assert lines[-2:] == ["Rank 2: its trace is cut.", "2 traces in /x"]
    json.dumps(values(both, {}), allow_nan=False)


def test_alike_ranks_and_a_lone_rank_have_no_slowest() -> None:
    alike = {0: summary(0.030, 0.01), 1: summary(0.031, 0.009)}
    assert slowest(alike) is None
    assert "No rank is slowest: Ranks 0, 1 take the same time per step, within 5%." in plain(
        profile_rows(alike, {})
    )
    alone = plain(profile_rows({3: summary(0.03, 0.0)}, {}))
    assert "The slowest rank: n/a, as it takes two ranks to compare." in alone
    assert alone[1].split()[5] == "n/a", "of no communication there is no share"


def test_nothing_in_a_trace_reaches_the_terminal_as_it_is() -> None:
    hostile = {0: summary(0.01, 0.0, name="\x1b[2Jaten\n::mm" + "x" * 100)}
    rows = profile_rows(hostile, {1: "\x1b]0;x\x07"}, width=60)
    assert "\x1b" not in "".join(plain(rows))
    assert "\x07" not in "".join(plain(rows))
    tables = [row for row in rows if "aten" in "".join(plain([row]))]
    assert [row_width(row) <= 60 for row in tables] == [True]


def test_what_ranks_answer_is_read_and_the_rest_named() -> None:
    trace = RankTrace("node-0/profiles/a/rank-0.json.gz", 10, summary(0.01, 0.0))
    data = {"0": msgspec.json.encode(trace).decode(), "1": "{", "x": "{}"}
    answered = rank_traces.traces(CommandDone("a", True, "profile of rank 0; rank 1: ended", data))
    assert rank_traces.title(answered) == "Steps 7 to 8 of rank 0"
    outside = {0: trace, 1: RankTrace("../../etc/rank-1.json.gz", 1)}
    assert rank_traces.here(Path("/run"), outside) == Fetched("/run/node-0/profiles/a")
    done = CommandDone("a", True, "profile of rank 0; rank 1: ended")
    clauses = (Clause("profile of {ranks}", (0,)), Clause("{ranks}: step 9 not reached within 2 s", (1, 3)))
    missing = report(structs.replace(done, clauses=clauses), answered, Fetched("/run"))["missing"]
    assert missing == dict.fromkeys(("1", "3"), "step 9 not reached within 2 s")
    lines = plain(answer_rows(done, answered, Fetched("", ((0, "the disk is full"),))))
    assert "Rank 0: its trace was not fetched: the disk is full." in lines
    assert lines[-1] == "Not all have a trace: profile of rank 0; rank 1: ended"


def test_one_profile_at_a_time() -> None:
    turn = profiling.Turn()
    with (
        turn.taken(),
        pytest.raises(CommandRefused, match="a profile of this run is under way"),
        turn.taken(),
    ):
        pytest.fail("two at once")
    with turn.taken():
        pass


def typed(line: str, marked: frozenset[int] = frozenset()) -> object:
    return parse(line, lambda: "c1", marked).command


def test_the_command_line_takes_ranks_and_steps() -> None:
    assert typed("profile") == Profile("c1")
    assert typed("profile 0 5 steps 10") == Profile("c1", (0, 5), 10)
    assert typed("profile steps 1", frozenset({4, 2})) == Profile("c1", (2, 4), 1)
    for wrong in ("profile steps", "profile steps 0", "profile steps 1e9", "profile x"):
        with pytest.raises(CommandError):
            typed(wrong)
    assert candidates("profile 0 ", RunNames((0, 1))) == ["1", "steps"]


def test_lists_of_ranks() -> None:
    assert [rank_list(text) for text in ("0", "0,5", "0-2,7", "3 , 4")] == [
        (0,),
        (0, 5),
        (0, 1, 2, 7),
        (3, 4),
    ]
    assert rank_list("all") == ()
    for wrong in ("", ",", "a", "-1", "2-1", "0-", "0-999999", "1.5", "٣"):
        with pytest.raises(argparse.ArgumentTypeError):
            rank_list(wrong)
    with pytest.raises(argparse.ArgumentTypeError, match="0-2000 is more than 1,024 ranks: write smaller"):
        rank_list("7,0-2000")


async def test_the_key_asks_and_shows_what_came(rig: Start) -> None:
    it = rig(play.running())
    trace = RankTrace("node-0/profiles/a/rank-1.json.gz", 10, summary(0.01, 0.0))
    data = {"1": msgspec.json.encode(trace).decode()}
    it.link.answers["Profile"] = CommandDone("x", True, "profile of rank 1", data)
    async with shown(it):
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("P")
        await it.until(lambda: "Profile 8 ranks of minigpt?" in it.screen())
        await it.press("y")
        await it.until(lambda: "Steps 7 to 8 of rank 1" in it.screen())
        assert "aten::mm" in it.screen()
        asked = it.link.commands[0]
        assert isinstance(asked, Profile)
        assert (asked.ranks, asked.steps, asked.part) == ((), 3, "")


async def test_the_key_does_nothing_where_nothing_may_be_changed(rig: Start) -> None:
    it = rig(play.running(), readonly=True)
    async with shown(it):
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("P")
        await it.press("colon", *"profile", "enter")
        await it.until(lambda: "ead-only" in it.told())
        assert it.link.commands == []
