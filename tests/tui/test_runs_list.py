"""The runs list: columns, filter, order, marks, and what is done with ended runs."""

from __future__ import annotations

import time

import pytest
import scripted as play
from conftest import Rig, Start, shown
from each import for_each
from msgspec.structs import replace
from test_cockpit import entry

from distui.runners.comparison.account import Account, MetricCurve
from distui.tui.cli import main
from distui.tui.other_hosts import host_entry
from distui.tui.rows.glyphs import row_width
from distui.tui.rows.run_filter import RUNS
from distui.tui.rows.runs import RunEntry, head_row, ordered, place_columns, run_row
from distui.tui.rows.runs_table import narrowed
from distui.tui.screens import side_by_side
from distui.tui.screens.modal import ConfirmScreen
from distui.tui.screens.rerun import RerunScreen
from distui.tui.screens.run import RunScreen
from distui.tui.screens.runs import RunsScreen


def several_runs() -> list[RunEntry]:
    return [
        entry(id="20260101-000000-llama-aaaaaaaa", name="llama", preset="fsdp2", ranks=16, nodes=2, step=18_420,
              total=50_000, age_s=4000.0, lasted_s=4000.0, path="/runs/llama"),
        entry(id="20260101-000000-train0-bbbbbbbb", name="train0", phase="failed", live=False, preset="ddp", ranks=2,
              nodes=1, age_s=90_000.0, lasted_s=61.0, ended_s=89_939.0, exit_code=1, size=36 << 20,
              finding="rank 1 ran out of GPU memory", path="/runs/train0"),
        entry(id="20260101-000000-train3-cccccccc", name="train3", phase="succeeded", live=False, preset="ddp",
              ranks=2, nodes=1, step=2000, total=2000, age_s=1000.0, lasted_s=600.0, ended_s=400.0, exit_code=0,
              size=1 << 20, path="/runs/train3"),
        entry(id="watch:4711", name="train.py", phase="watched", readonly=True, preset="torchrun", ranks=2),
    ]  # fmt: skip


@for_each("width", [58, 78, 118, 198])
def test_columns_fill_the_width_and_never_more(width: int) -> None:
    runs = several_runs()
    places = place_columns(runs, width)
    assert {place.column.name for place in places} >= {"state", "name"}
    for row in (head_row(places, "age"), *(run_row(run, places) for run in runs)):
        assert width - 2 <= row_width(row) <= width + 2
    shown_columns = {place.column.name for place in places}
    if width >= 198:
        assert shown_columns >= {
            "preset",
            "ranks",
            "step",
            "done",
            "age",
            "took",
            "exit",
            "size",
            "finding",
            "id",
        }
        assert any(runs[0].id in text for text, _ in run_row(runs[0], places)), (
            "an id is not cut beside blanks"
        )


def test_runs_of_one_name_show_the_end_of_their_ids() -> None:
    runs = [replace(run, name="demo") for run in several_runs()[:3]]
    for width in (78, 118):
        shown = "".join(text for run in runs for text, _ in run_row(run, place_columns(runs, width)))
        assert all(run.id.rpartition("-")[2] in shown for run in runs)
        assert [place.column.name for place in place_columns(runs, width)][:3] == ["state", "name", "id"]
    assert "id" not in {place.column.name for place in place_columns(several_runs(), 78)}


def test_the_list_has_the_state_of_the_header_and_the_time_of_the_launch() -> None:
    began = time.mktime((2026, 1, 31, 14, 16, 49, 0, 0, -1))
    run = replace(several_runs()[0], alarm="slow rank", began=began, age_s=60.0)
    row = "".join(text for text, _ in run_row(run, place_columns([run], 198)))
    assert "▲ running · slow rank" in row
    assert " 14:16 " in row
    later = replace(run, age_s=86_400.0)
    assert "01-31 14:16" in "".join(text for text, _ in run_row(later, place_columns([later], 198)))


def test_a_long_finding_and_a_long_note_take_the_room() -> None:
    runs = several_runs()
    runs[1] = replace(
        runs[1], finding="This HCA cannot reach GPU memory", note="baseline before the new loader"
    )
    shown = "".join(text for text, _ in run_row(runs[1], place_columns(runs, 118)))
    assert "This HCA cannot reach GPU memory" in shown
    assert "baseline before the new loader" in shown


def test_ages_count_from_now_and_durations_to_the_end() -> None:
    text = "".join(cell for cell, _ in run_row(several_runs()[1], place_columns(several_runs(), 200)))
    assert "25h" in text or "1d" in text
    assert "61s" in text


def test_a_filter_reads_words_and_fields() -> None:
    def names(words: str) -> list[str]:
        return [run.name for run in RUNS.fitting(several_runs(), words)]

    assert names("train3") == ["train3"]
    assert names("state:failed preset:ddp") == ["train0"]
    assert names("TRAIN ddp") == ["train0", "train3"]
    assert names("finding:memory") == ["train0"]
    assert names("exit:0") == ["train3"]
    assert names("ranks:2 state:watched") == ["train.py"]
    assert names("nothing:like") == []
    assert "column 11: unknown state bogus: use starting, " in RUNS.mistake("ddp state:bogus")
    assert RUNS.mistake("state:fail state: hung") == ""
    assert len(names("")) == 4


def test_tags_and_a_note_have_columns_where_a_run_has_some() -> None:
    runs = several_runs()
    assert not {"tags", "note"} & {place.column.name for place in place_columns(runs, 198)}
    runs[1] = replace(runs[1], tags=("good", "paper"), note="the baseline")
    places = place_columns(runs, 198)
    text = "".join(cell for cell, _ in run_row(runs[1], places))
    assert "good paper" in text
    assert "the baseline" in text
    assert next(run.name for run in ordered(runs, "tags")) == "train0"


def test_ls_fits_a_terminal_by_shorter_ids() -> None:
    rows: list[tuple[str, ...]] = [
        ("name", "state", "id"),
        ("night-run", "stopped", "20260101-000000-night-run-aaaaaaaa"),
    ]
    assert narrowed(rows, 80) == rows
    assert narrowed(rows, 53)[1] == ("night-run", "stopped", "aaaaaaaa")
    assert narrowed(rows, 53)[0] == ("name", "state", "id")


def test_a_run_that_is_not_there_is_named_before_anybody_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for verb in ("stop", "restart"):
        assert main([verb, "nope"]) != 0
        assert "No run 'nope'" in capsys.readouterr().err


def test_unknown_values_come_last_in_either_order() -> None:
    runs = several_runs()
    assert [run.name for run in ordered(runs, "size")] == ["train0", "train3", "llama", "train.py"]
    assert [run.name for run in ordered(runs, "size", True)] == ["train3", "train0", "llama", "train.py"]
    assert [run.name for run in ordered(runs, "name")] == ["llama", "train.py", "train0", "train3"]
    assert ordered(runs, "") == runs


def screen_of(it: Rig) -> RunsScreen:
    assert isinstance(it.app.screen, RunsScreen)
    return it.app.screen


async def test_typed_words_filter_and_do_nothing_else(rig: Start) -> None:
    it = rig(play.running(), runs=several_runs(), run=None)
    it.source.measured_runs = it.source.runs  # type: ignore[method-assign]
    async with shown(it, 120, 30) as it:
        await it.until(lambda: isinstance(it.app.screen, RunsScreen))
        theme = it.app.theme
        await it.press("slash", *"train3")
        assert it.app.theme == theme
        assert [run.name for run in screen_of(it).list.listed] == ["train3"]
        assert "1 of 4" in it.screen()
        await it.press("enter", "enter")
        assert it.source.opened[0] == "20260101-000000-train3-cccccccc"


async def test_esc_ends_the_filter_first_and_then_goes_back(rig: Start) -> None:
    async with shown(rig(play.running(), runs=several_runs()), 120, 30) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("R", "slash", *"llama", "enter", "escape")
        assert len(screen_of(it).list.listed) == 4
        await it.press("escape")
        assert isinstance(it.app.screen, RunScreen)


async def test_a_click_on_the_selected_run_opens_it_and_esc_returns_to_the_list(rig: Start) -> None:
    async with shown(rig(play.running(), runs=several_runs()), 120, 30) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("escape")
        assert isinstance(it.app.screen, RunScreen), "it was not opened from the list"
        await it.press("R")
        runs = screen_of(it).list
        await it.pilot.click(runs, offset=(5, 2))
        assert runs.current is not None
        chosen = runs.current.id
        assert isinstance(it.app.screen, RunsScreen)
        await it.pilot.click(runs, offset=(5, 2))
        await it.until(lambda: isinstance(it.app.screen, RunScreen))
        assert it.source.opened[-1] == chosen
        await it.press("2", "escape")
        await it.until(lambda: "[1 Overview]" in it.screen())
        await it.press("escape")
        await it.until(lambda: isinstance(it.app.screen, RunsScreen))
        current = screen_of(it).list.current
        assert current is not None
        assert current.id == chosen


async def test_s_and_a_click_on_the_head_order(rig: Start) -> None:
    async with shown(rig(play.running(), runs=several_runs()), 160, 30) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("R", "s", "n")
        runs = screen_of(it).list
        assert (runs.sort, runs.reverse) == ("name", False)
        await it.press("s", "n")
        assert (runs.sort, runs.reverse) == ("name", True)
        at = next(place for place in runs._places if place.column.name == "size")
        await it.pilot.click(runs, offset=(at.first + 2, 0))
        assert (runs.sort, runs.reverse, runs.listed[0].name) == ("size", False, "train0")
        await it.pilot.click(runs, offset=(at.first + 2, 0))
        assert (runs.reverse, runs.listed[0].name) == (True, "train3")


async def test_marks_cursor_filter_and_order_stay_while_a_run_is_open(rig: Start) -> None:
    async with shown(rig(play.running(), runs=several_runs()), 160, 30) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("R", "s", "n", "down", "space", "space")
        before = screen_of(it).list
        marked, current = set(before.marked), before.current
        assert len(marked) == 2
        assert current is not None
        await it.press("enter")
        await it.until(lambda: isinstance(it.app.screen, RunScreen))
        await it.press("R")
        await it.until(lambda: "2 marked" in it.screen())
        after = screen_of(it).list
        assert after is not before
        assert (after.marked, after.sort) == (marked, "name")
        assert after.current is not None
        assert after.current.id == current.id
        assert next(line for line in it.screen().splitlines() if line.startswith("›"))


async def test_only_ended_runs_are_removed_and_the_question_has_size_and_path(rig: Start) -> None:
    it = rig(play.running(), runs=several_runs())
    removed: list[str] = []

    def remove(runs: list[str]) -> tuple[list[str], int, list[str]]:
        removed.extend(runs)
        return ["train0", "train3"], 37 << 20, []

    it.source.remove = remove  # type: ignore[method-assign, assignment]
    async with shown(it, 120, 30):
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("R", "D")
        await it.until(lambda: "only ended runs are removed" in it.told())
        await it.press("down", "space", "space", "D")
        assert isinstance(it.app.screen, ConfirmScreen)
        text = it.screen()
        assert "Remove 2 runs, 37" in text
        assert "/runs/train0" in text
        await it.press("enter")
        assert removed == []
        await it.press("D", "y")
        await it.until(lambda: "removed 2 runs, 37.0M freed: train0, train3" in it.told())
        assert len(removed) == 2


async def test_two_marked_runs_are_drawn_over_each_other(
    rig: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def load(name: str) -> Account:
        asked.append(name)
        curve = MetricCurve("train.loss", 0.0, 1.0, (2.0, 1.5, 1.0))
        return Account(f"run of {name[-8:]}", name, "succeeded", curves=(curve,))

    monkeypatch.setattr(side_by_side, "load", load)
    async with shown(rig(play.running(), runs=several_runs()), 120, 30) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("R", "c")
        await it.until(lambda: "mark two runs with space" in it.told())
        await it.press("down", "space", "space", "c")
        await it.until(lambda: "loss, last  A 1  B 1" in it.screen())
        assert sorted(asked) == sorted(run.id for run in several_runs()[1:3])
        await it.press("escape", "down", "space", "c")
        await it.until(lambda: "mark two runs" in it.told())
        assert isinstance(it.app.screen, RunsScreen)


async def test_readonly_removes_and_launches_nothing(rig: Start) -> None:
    async with shown(rig(play.running(), runs=several_runs(), readonly=True), 120, 30) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("R", "down", "D", "r", "delete", "n", "T")
        assert isinstance(it.app.screen, RunsScreen)


async def test_notes_and_tags_of_runs_that_are_kept_elsewhere_are_refused(rig: Start) -> None:
    it = rig(play.running(), runs=[replace(several_runs()[1], host="gpu1", name="far")])
    async with shown(it, 120, 40):
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("R")
        await it.until(lambda: "far" in it.screen())
        for key in ("n", "T"):
            await it.press(key)
            await it.until(lambda: "far is kept on gpu1: Enter opens it there" in it.told())
            assert isinstance(it.app.screen, RunsScreen)


async def test_r_asks_before_it_runs_an_ended_run_again(rig: Start) -> None:
    async with shown(rig(play.running(), runs=several_runs()), 120, 40) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("R", "down", "r")
        assert isinstance(it.app.screen, RerunScreen)


def test_a_foreign_job_fits_its_cells() -> None:
    runs = [replace(several_runs()[3], finding="not started by distui")]
    text = "".join(cell for cell, _ in run_row(runs[0], place_columns(runs, 120)))
    assert "torchrun" in text
    assert "not started by distui" in text


@for_each("width", [58, 78, 118, 198])
def test_a_host_that_does_not_answer_is_a_sentence_over_the_columns(width: int) -> None:
    silent = host_entry("gpu9", "no answer", "gpu9 does not answer: is it up, and the network between?")
    runs = [*several_runs(), silent]
    places = place_columns(runs, width)
    row = run_row(silent, places)
    text = "".join(cell for cell, _ in row)
    assert width - 2 <= row_width(row) <= width + 2
    assert text.startswith(" ? no answer")
    assert "gpu9 does not answer: is it up" in text
    assert RUNS.fitting(runs, "gpu9") == RUNS.fitting(runs, "host:gpu9") == [silent]


async def test_a_line_of_a_host_opens_and_removes_nothing(rig: Start) -> None:
    silent = host_entry("gpu9", "no answer", "gpu9 does not answer")
    async with shown(rig(runs=[*several_runs(), silent], run=None), 120, 40) as it:
        await it.press("end", "enter")
        await it.until(lambda: "This line is not a run: choose one" in it.told())
        await it.press("D")
        assert "is not kept here" in it.told()
        assert isinstance(it.app.screen, RunsScreen)
