"""The log pane under the fingers: what a filter says, what stays when it is scrolled, wrapped or copied."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
import scripted as play
from conftest import Rig, Start, shown
from each import for_each

from distui.runners.logs import line_times
from distui.runners.run.commands import ReadLog
from distui.runners.run.model import LogGrew
from distui.runners.run.wire.client import Window
from distui.tui.rows.log import Selection, smart_case
from distui.tui.screens import log_title
from distui.tui.screens.log_view import LogView
from distui.tui.screens.run import RunScreen

OUT, ERR = "node-0/attempt-001/rank-0.out", "node-0/attempt-001/rank-0.err"
LONG = "begin " + "0123456789" * 12 + " end-of-line"
WIDE = "学習率" * 30 + " end-of-line"


def log_of(it: Rig) -> LogView:
    screen = next(screen for screen in it.app.screen_stack if isinstance(screen, RunScreen))
    return screen.log_view


def write(it: Rig, name: str, text: str) -> None:
    """A rank writes, and the agent reports it."""
    path = it.run_dir / name
    with path.open("a") as file:
        file.write(text)
    it.link.play(LogGrew({name: path.stat().st_size}))


def row_with(it: Rig, text: str) -> str:
    return next((line for line in it.screen().splitlines() if text in line), "")


async def opened(it: Rig, last: str = "step 29") -> LogView:
    await it.until(lambda: last in it.screen())
    await it.press("3")
    await it.until(lambda: "[3 Logs]" in it.screen())
    return log_of(it)


async def titles_until_nothing_matches(it: Rig, log: LogView, pattern: str) -> list[str]:
    """Filter the log by what no line has; the titles of the log until it says so."""
    titles: list[str] = []

    def nothing_matches() -> bool:
        titles.append(str(log.border_title))
        return "no line matches" in it.screen()

    await it.press("slash", *pattern)
    await it.until(nothing_matches)
    return titles


async def test_a_filter_without_hits_never_says_that_nothing_was_written(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        log = await opened(it)
        titles = await titles_until_nothing_matches(it, log, "zzznothing")
        await it.press("enter")
        write(it, OUT, "fine\n")  # what comes later is no search that begins anew
        await it.until(lambda: log.feed._sizes.get(OUT))
        titles.append(str(log.border_title))
        assert not any("nothing written" in title for title in titles)
        assert "searching" not in titles[-1]
        await it.press("escape")
        await it.until(lambda: "step 29" in it.screen())


async def test_a_filter_acts_while_it_is_typed_and_escape_takes_it_back(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        log = await opened(it)
        await it.press("slash", *"step 1[0-3]")
        await it.until(lambda: log.selection.pattern == "step 1[0-3]")  # before Enter
        await it.until(lambda: "lines match" in it.screen() and "step 13" in it.screen())
        assert "step 29" not in it.screen()
        await it.press("escape")
        await it.until(lambda: "step 29" in it.screen())
        assert log.selection.pattern == ""


@pytest.mark.parametrize("timed", [True, False])
async def test_a_hit_is_under_the_cursor_in_its_context(rig: Start, timed: bool) -> None:
    """Also of a rank that writes a thousand lines a second, and where no line has a time."""
    async with shown(rig(play.running())) as it:
        await opened(it)
        lines = [f"line {number}\n" for number in range(4000)]
        lines[2000] = "the needle\n"
        write(it, OUT, "".join(lines))
        times = it.run_dir / line_times.FOLDER / OUT
        times.parent.mkdir(parents=True, exist_ok=True)
        size = (it.run_dir / OUT).stat().st_size
        if timed:
            times.write_bytes(line_times.packed([(10, play.BEGAN + 119.5), (size, play.BEGAN + 120)]))
        await it.press("slash", *"needle", "enter")
        await it.until(lambda: "1 line matches" in it.screen())
        await it.press("enter")
        await it.until(lambda: "in context" in it.screen() and "line 2001" in it.screen())
        assert "line 1999" in it.screen()
        assert "›" in row_with(it, "the needle")


async def test_what_has_no_room_beside_the_prompt_stands_above(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await opened(it)
        await it.press("slash", *"step (((((((((((((((")
        await it.until(lambda: "is not a regular expression" in it.screen().splitlines()[-3])
        assert "subpattern at position" in it.screen().splitlines()[-2]
        assert "step ((((" in it.screen().splitlines()[-1]
        await it.press("ctrl+u", *"step")
        await it.until(lambda: "step 29" in it.screen().splitlines()[-2])


async def test_all_that_a_line_may_become_is_listed(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await opened(it)
        await it.press("colon", "tab")
        await it.until(lambda: " at  autostop " in it.screen() and " stop  theme" in it.screen())
        await it.press(*"restart ")
        await it.until(lambda: "with a changed" in it.screen().splitlines()[-3])
        assert "environment" in it.screen().splitlines()[-2]


async def test_a_filter_of_a_held_screen_searches_all_files(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        log = await opened(it)
        await it.press("p")
        await it.until(lambda: "HELD" in it.screen())
        await it.press("slash", *"loss", "enter")
        await it.until(lambda: "30 lines match · FOLLOW" in it.screen())
        assert "searching" not in str(log.border_title)


async def test_a_filter_of_small_letters_ignores_case(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        log = await opened(it)
        await it.press("slash", *"userwarning: slow", "enter")
        await it.until(lambda: "1 line matches" in it.screen())
        assert log.finder.to_loaded_hit(1)
        await it.press("slash", "ctrl+u", *"STEP", "enter")
        await it.until(lambda: "no line matches" in it.screen())


@for_each(
    ("typed", "meant"),
    [
        ("oom", "(?i)oom"), (r"rank \S+", r"(?i)rank \S+"), ("NaN", "NaN"), ("(?x)a b", "(?x)a b"), ("", ""),
    ],
)  # fmt: skip
def test_capitals_make_a_filter_exact(typed: str, meant: str) -> None:
    assert smart_case(typed) == meant


async def test_only_a_slow_search_says_how_far_it_is(rig: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_title, "SLOW_S", 1e9)
    async with shown(rig(play.running())) as it:
        log = await opened(it)
        titles = await titles_until_nothing_matches(it, log, "zzz")
        assert not any("searching" in title for title in titles)


def _is_at(log: LogView, line: str) -> bool:
    return line in log.chosen_text()


async def test_e_goes_from_the_end_upwards_and_big_e_back(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        log = await opened(it)
        write(it, OUT, "ERROR: first\nfine\nERROR: second\nfine again\n")
        await it.until(lambda: "fine again" in it.screen())
        for key, line, message in (
            ("e", "ERROR: second", "The newest error or warning"),
            ("e", "ERROR: first", "The error or warning above"),
            ("E", "ERROR: second", "The error or warning below"),
        ):
            await it.press(key)
            await it.until(partial(_is_at, log, line))
            assert message in it.told().splitlines()[-1]
        await it.press("E")
        await it.until(lambda: "from the top again" in it.told())
        await it.press("e")
        await it.until(lambda: "the newest again" in it.told())
        assert "ERROR: second" in log.chosen_text()
        await it.press("f", "E")
        await it.until(lambda: "The first error or warning" in it.told())
        assert "UserWarning: slow loader" in log.chosen_text()


async def test_enter_on_a_line_opens_the_ranks_own_log_there_and_escape_leads_back_to_live(
    rig: Start,
) -> None:
    async with shown(rig(play.running())) as it:
        log = await opened(it)
        await it.press("up", "up", "enter")
        await it.until(lambda: log.selection.rank == 0 and "f follows" in str(log.border_title))
        assert "[3 Logs]" in it.screen()
        assert "step 27 " in row_with(it, "›")
        await it.press("enter")
        assert log.selection.rank == 0
        assert "esc shows all ranks" in it.told()
        await it.press("escape")
        await it.until(lambda: log.selection.rank is None and "FOLLOW" in it.screen())
        assert "[3 Logs]" in it.screen()
        await it.press("up", "up")
        assert not log.follow
        await it.press("escape")
        await it.until(lambda: log.follow and "[3 Logs]" in it.screen())
        await it.press("escape")
        await it.until(lambda: "[1 Overview]" in it.screen())


def stamp_lines(it: Rig, name: str) -> None:
    """The agent has read one line of a file per second since the run began."""
    path, at = it.run_dir / name, 0
    dates = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True)):
        at += len(line)
        dates.append((at, play.BEGAN + number))
    times = it.run_dir / line_times.FOLDER / name
    times.parent.mkdir(parents=True, exist_ok=True)
    times.write_bytes(line_times.packed(dates))


def newest_step(it: Rig) -> str:
    """The step of the last visible line of the log, or ""."""
    steps = [line.split("step ")[1].split()[0] for line in it.screen().splitlines() if " loss " in line]
    return steps[-1] if steps else ""


async def test_the_log_of_a_past_moment_ends_at_that_moment(rig: Start) -> None:
    it = rig(play.running(1), ranks=1, lines=120)
    stamp_lines(it, OUT)
    async with shown(it):
        log = await opened(it, "step 119")
        log.select(Selection(rank=0, stream="out"))
        await it.until(lambda: "step 119" in it.screen())
        it.run.travel.go_to("22:14:40")
        await it.until(lambda: "PAST 22:14:40" in it.screen() and newest_step(it) == "79")
        assert "log · rank 0 · out · PAST 22:14:40" in it.screen()
        await it.press("G", "down", "f")
        assert newest_step(it) == "79", "no key leads to the future"
        await it.press("g")
        await it.until(lambda: "step 0 " in it.screen() and "f returns to 22:14:40" in it.screen())
        for _ in range(8):
            await it.press("pagedown")
        await it.until(lambda: newest_step(it) == "79")
        await it.press("slash", *"step 7", "enter")
        await it.until(lambda: newest_step(it) == "79" and "step 7 " in it.screen())
        log.select(Selection(rank=0, stream="out"))
        it.run.travel.go_to("start")
        await it.until(lambda: "PAST 22:13:20" in it.screen() and " loss " not in it.screen())
        it.run.travel.live()
        await it.until(lambda: "FOLLOW" in it.screen() and newest_step(it) == "119")


class Late(play.ScriptedLink):
    """Answers what asks by a time when the test lets it."""

    gate: asyncio.Event

    async def read_log(self, ask: ReadLog) -> Window:
        if ask.at:
            await self.gate.wait()
        return await super().read_log(ask)


async def test_the_end_comes_whole_for_who_leaves_the_past_before_its_lines_came(rig: Start) -> None:
    it = rig(play.running())
    size = (it.run_dir / OUT).stat().st_size
    times = it.run_dir / line_times.FOLDER / OUT
    times.parent.mkdir(parents=True)
    times.write_bytes(line_times.packed([(size - 20, play.BEGAN + 5), (size, play.BEGAN + 120)]))
    it.source.link = link = Late(it.run_dir, it.link.script)
    link.gate = asyncio.Event()
    async with shown(it) as it:
        log = await opened(it)
        log.select(Selection(rank=0, stream="out"))
        it.run.travel.step(-60)
        await it.until(lambda: "PAST" in str(log.border_title))
        it.run.travel.live()
        await it.until(lambda: "FOLLOW" in str(log.border_title))
        link.gate.set()
        await it.until(lambda: log.feed.logs is not None and "step 29" in it.screen())
        assert "step 27" in it.screen(), "not only what was written since that moment"


async def test_rank_and_time_stay_when_the_log_is_scrolled_sideways(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        log = await opened(it)
        write(it, OUT, f"{LONG}\n")
        await it.until(lambda: "begin 0123" in it.screen())
        assert row_with(it, "begin 0123").rstrip().endswith("…"), "L6: what is cut has a mark"
        await it.press("l", "l", "l")
        await it.until(lambda: "begin 0123" not in it.screen())
        row = row_with(it, "0123456789")
        assert row[2:].startswith("r0 ")
        assert "…" in row
        await it.press("e")
        await it.until(lambda: "UserWarning: slow loader" in it.screen())
        assert log.left == 0, "a jump shows the line from its beginning"


def wrapped_rows(it: Rig, text: str) -> list[str]:
    """The rows of a line that begins with this text and ends with `end-of-line`, without columns and frame."""
    lines = it.screen().splitlines()
    first = next(at for at, line in enumerate(lines) if text[:5] in line)
    last = next(at for at, line in enumerate(lines) if "end-of-line" in line)
    edge = lines[first].index(text[:5])
    return [line[edge:].rstrip("│ ▁▂▃▄▅▆▇█") for line in lines[first : last + 1]]


@pytest.mark.parametrize(("text", "width"), [(LONG, 80), (WIDE, 121)], ids=["ascii", "wide"])
async def test_wrapped_lines_are_whole_beside_the_scrollbar(rig: Start, text: str, width: int) -> None:
    async with shown(rig(play.running(), lines=200), width=width) as it:
        log = await opened(it, "step 199")
        write(it, OUT, f"{text}\n")
        await it.until(lambda: text[:5] in it.screen())
        assert log.show_vertical_scrollbar
        assert row_with(it, text[:5]).rstrip("│ ").endswith("…"), "nothing stands behind the scrollbar"
        await it.press("W")
        await it.until(lambda: "end-of-line" in it.screen())
        inside = wrapped_rows(it, text)
        assert "".join(inside).replace(" ", "") == text.replace(" ", "")
        await it.pilot.resize_terminal(width - 15, 30)
        await it.until(lambda: "end-of-line" in it.screen())
        lines = it.screen().splitlines()
        shown_rows = [line for line in lines if any(part in line for part in ("0123", "学習率"))]
        assert len(shown_rows) > len(inside) - 2


async def test_wrapped_lines_are_whole_when_wrapping_makes_the_scrollbar_appear(rig: Start) -> None:
    async with shown(rig(play.running(1), ranks=1, lines=16)) as it:
        log = await opened(it, "step 15")
        write(it, OUT, f"{LONG}\n")
        await it.until(lambda: "begin 0123" in it.screen())
        assert not log.show_vertical_scrollbar
        await it.press("W")
        await it.until(lambda: log.show_vertical_scrollbar and "end-of-line" in it.screen())
        inside = wrapped_rows(it, LONG)
        assert "".join(inside).replace(" ", "") == LONG.replace(" ", "")


async def test_copied_lines_keep_their_rank_and_one_is_one_line(rig: Start, tmp_path: Path) -> None:
    async with shown(rig(play.running())) as it:
        await opened(it)
        await it.press("y")
        await it.until(lambda: "1 line copied" in it.told())
        assert it.app.clipboard.startswith("r0  ")
        await it.press("up", "up", "space", "space", "y")  # marks, and goes down
        await it.until(lambda: "2 lines copied" in it.told())
        assert [line.split()[:3] for line in it.app.clipboard.splitlines()] == [
            ["r0", "step", "27"],
            ["r0", "step", "28"],
        ]


async def test_logs_of_a_rank_by_its_number(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        log = await opened(it)
        await it.press("colon", *"logs 1", "enter")
        await it.until(lambda: log.selection.rank == 1 and "rank 1 ready" in it.screen())
        assert "step 29" not in it.screen()


async def test_up_from_one_progress_bar_to_another_goes_up_one_line(rig: Start) -> None:
    other = ERR.replace("rank-0", "rank-1")
    async with shown(rig(play.running())) as it:
        log = await opened(it)
        write(it, ERR, "\r 10%|###   |")
        write(it, other, "\r 11%|###   |")
        await it.until(lambda: "11%|###" in it.screen() and "10%|###" in it.screen())
        assert "11%|###" in log.chosen_text()
        await it.press("up")
        write(it, OUT, "step 30 loss 2.1\n")
        write(it, ERR, "\r 20%|#####  |")
        await it.press("down", "up")
        await it.until(lambda: "20%|###" in it.screen())
        assert "20%|###" in log.chosen_text()
        assert log.cursor == len(log.rows) - 2


async def test_the_size_of_large_logs_stands_in_the_title(
    rig: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shown(rig(play.running())) as it:
        log = await opened(it)
        assert "M ·" not in str(log.border_title)
        it.link.play(LogGrew({OUT: 300 << 20}))
        await it.until(lambda: "300M" in str(log.border_title))


@pytest.mark.parametrize("size", [(80, 24), (200, 60)], ids=str)
async def test_no_notice_lies_over_the_newest_lines(
    rig: Start, tmp_path: Path, size: tuple[int, int]
) -> None:
    """Neither one of this screen, nor one from before it was there, nor one that a dialog over it was given."""
    (tmp_path / "keys.toml").write_text("nonsense = 3\n")
    it = rig(play.running())
    async with it.app.run_test(size=size, notifications=True) as it.pilot:

        async def stands_apart(notice: str) -> None:
            await it.until(lambda: notice in it.screen() and "step 29" in it.screen())
            newest = [row_with(it, f"step {step} ") for step in (27, 28, 29)]
            assert all("12.1k tok/s" in row and "▌" not in row for row in newest), it.screen()

        await stands_apart("no action 'nonsense'")
        await it.press("y")
        await stands_apart("1 line copied")
        await it.press("?")
        it.app.notify("Told to a dialog")
        await it.until(lambda: "Told to a dialog" in it.screen())
        await it.press("escape")
        await stands_apart("Told to a dialog")


async def test_a_message_goes_with_the_next_key_once_it_has_been_seen(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await opened(it)
        await it.press("T")
        await it.until(lambda: "since the attempt began" in it.screen())
        await it.press("4")
        assert "since the" in it.screen(), "keys in quick succession hide nothing"
        await asyncio.sleep(2.0)
        assert "since the" in it.screen()
        await it.press("3")
        await it.until(lambda: "since the" not in it.screen())
        await it.press("T")
        await it.until(lambda: "since the line above" in it.screen())
        await asyncio.sleep(4.0)
        await it.until(lambda: "since the" not in it.screen())


async def test_the_thumb_is_at_the_end_from_the_first_paint(rig: Start) -> None:
    """Lines that are there before the scrollbar moved its thumb only with the next line."""
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "step 29" in it.screen())
        log = log_of(it)
        await it.until(lambda: log.vertical_scrollbar.position == log.scroll_y == log.max_scroll_y > 0)
