"""Keys of the cockpit, from the press to the command, and what the screen says meanwhile."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
import scripted as play
from conftest import Rig, Start, log_text, shown
from msgspec import structs
from textual.events import Key

from distui.runners.launch.launch_form import LaunchForm
from distui.runners.run.commands import Dump, Restart, SetNccl, Signal, Stop
from distui.runners.run.model import (
    AgentStarted,
    AttemptEnded,
    AttemptStarted,
    CaughtUp,
    CommandDone,
    Event,
    LogGrew,
    Outcome,
    RankChanged,
    RankPhase,
    RankTick,
    RunEnded,
    RunPhase,
)
from distui.tui.colours import ANSI, DARK, LIGHT
from distui.tui.rows.frame import LinkPhase
from distui.tui.rows.layouts import LAYOUTS
from distui.tui.rows.runs import RunEntry
from distui.tui.rows.tabs import TABS
from distui.tui.screens.key_dialogs import HelpScreen, PaletteScreen
from distui.tui.screens.launch import LaunchScreen
from distui.tui.screens.modal import ConfirmScreen, NcclScreen, TextScreen
from distui.tui.screens.run import RunScreen
from distui.tui.screens.runs import RunsScreen


def entry(**changes: object) -> RunEntry:
    values: dict[str, object] = {
        "id": "r-1a2b3c4d",
        "name": "minigpt",
        "phase": "running",
        "age_s": 125.0,
        "live": True,
        "readonly": False,
        "preset": "fsdp2",
    }
    return RunEntry(**(values | changes))  # type: ignore[arg-type]


def run_screen(app: object) -> RunScreen:
    screen = app.screen  # type: ignore[attr-defined]
    assert isinstance(screen, RunScreen)
    return screen


async def test_a_run_is_shown_with_its_ranks_and_its_log(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen() and "step 29" in it.screen())
        text = it.screen()
        assert "4718" in text
        assert "[bold]" in log_text(run_screen(it.app).log_view)


async def test_restart_asks_and_only_y_sends_it_and_only_events_move_the_screen(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("r")
        text = it.screen()
        assert "Restart 8 ranks of minigpt?" in text
        for part in (
            "0-7, on 1 node (n001)",
            "SIGTERM, 30 s later SIGKILL",
            "no checkpoint seen; unsaved progress will be lost",
            "unchanged",
        ):
            assert part in text
        await it.press("enter")
        assert isinstance(it.app.screen, RunScreen)
        assert it.link.commands == []
        await it.press("r", "y")
        await it.until(lambda: it.link.commands)
        (command,) = it.link.commands
        assert isinstance(command, Restart)
        assert command.env == {}
        assert "RUNNING" in it.screen()
        it.link.play(
            AttemptEnded(1, Outcome.RESTARTED), AttemptStarted(2, "restart", 8, play.places(8)), seq=90
        )
        await it.until(lambda: "RESTARTING" in it.screen() and "attempt 2" in it.screen())


async def test_only_y_stops_a_run(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        for key in ("enter", "escape", "n", "q"):
            await it.press("x", key)
            assert isinstance(it.app.screen, RunScreen), key
            assert it.link.commands == [], key
        await it.press("x", "y")
        await it.until(lambda: it.link.commands)
        assert [type(command) for command in it.link.commands] == [Stop]


async def test_the_command_line_shows_the_environment_diff(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("colon", *"restart env LR=1 HF_TOKEN=abc unset OLD", "enter")
        text = it.screen()
        assert "LR  as launched → 1" in text
        assert "HF_TOKEN  as launched → ***" in text
        assert "OLD  as launched → unset" in text
        assert "abc" not in text
        await it.press("y")
        await it.until(lambda: it.link.commands)
        (command,) = it.link.commands
        assert isinstance(command, Restart)
        assert command.env == {"LR": "1", "HF_TOKEN": "abc"}
        assert command.unset == ("OLD",)


async def test_a_wrong_command_line_changes_nothing_and_says_why(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("colon", *"restrat", "enter")
        await it.until(lambda: "did you mean restart?" in it.told())
        assert it.link.commands == []


async def test_the_nccl_dialog_asks_once_more_and_sends_what_it_showed(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("space", "d")
        assert isinstance(it.app.screen, NcclScreen)
        assert "rank 0 (marked)" in it.screen()
        await it.press("right", "down", "right", "enter")
        assert isinstance(it.app.screen, ConfirmScreen)
        assert "WARN → INFO" in it.screen()
        assert "live: the ranks go on" in it.screen()
        assert it.link.commands == []
        await it.press("y")
        await it.until(lambda: it.link.commands)
        (command,) = it.link.commands
        assert isinstance(command, SetNccl)
        assert (command.level, command.subsys, command.ranks) == ("INFO", "COLL", (0,))
        assert (command.seconds, command.restart) == (300.0, False)


async def test_an_old_nccl_is_offered_an_honest_restart(rig: Start) -> None:
    async with shown(rig(play.running(live=False))) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("d", "right", "enter")
        assert "a restart of all 8 ranks" in it.screen()
        await it.press("y")
        await it.until(lambda: it.link.commands)
        (command,) = it.link.commands
        assert isinstance(command, SetNccl)
        assert command.restart


async def test_signals_and_dumps(rig: Start) -> None:
    it = rig(play.running())
    it.link.answers["Dump"] = CommandDone("x", True, "stacks of 1 rank", {"3": "Thread 1\n  File [x]"})
    async with shown(it):
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("colon", *"signal SIGUSR1 3", "enter")
        assert "Send SIGUSR1 to 1 rank of minigpt?" in it.screen()
        assert "a rank that has no handler for it" in it.screen()
        await it.press("y")
        await it.press("colon", *"dump stacks 3", "enter")
        await it.until(lambda: isinstance(it.app.screen, TextScreen))
        await it.until(lambda: "File [x]" in it.screen())
        kinds = [type(command) for command in it.link.commands]
        assert kinds == [Signal, Dump]


async def test_a_refused_command_is_told(rig: Start) -> None:
    it = rig(play.running())
    it.link.answers["Restart"] = CommandDone("x", False, "the runner is gone")
    async with shown(it):
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("r", "y")
        await it.until(lambda: "The runner is gone" in it.told())


@pytest.mark.parametrize("how", ["flag", "link"])
async def test_readonly_takes_away_every_key_that_changes_a_run(rig: Start, how: str) -> None:
    it = rig(play.running(), readonly=how == "flag", link_readonly=how == "link")
    async with shown(it):
        await it.until(lambda: "RUNNING" in it.screen())
        for key in ("r", "x", "d"):
            await it.press(key)
            assert isinstance(it.app.screen, RunScreen), key
        await it.until(lambda: "read-only: this cannot change the run" in it.told())
        await it.until(lambda: "r restart" not in it.screen().splitlines()[-1])
        assert "d NCCL" not in it.screen().splitlines()[-1]
        await it.press("colon", *"stop", "enter")
        assert isinstance(it.app.screen, RunScreen)
        assert it.link.commands == []


async def test_a_watched_job_whose_processes_are_gone_has_ended(rig: Start) -> None:
    text = "the job has ended: its processes are gone"
    over: list[tuple[float, Event]] = [
        (125.0, RankChanged(1, rank, RankPhase.ENDED, rank, 4711 + rank)) for rank in range(8)
    ]
    ended = [
        *play.running()[:-1],
        *over,
        (126.0, CaughtUp(30)),
        (126.1, RunEnded(RunPhase.ENDED, None, text)),
    ]
    async with shown(rig(ended), 120, 40) as it:
        await it.until(lambda: "ENDED" in it.screen().splitlines()[0])
        assert text in it.screen()
        assert "● running" not in it.screen()
        assert "lost" not in it.screen().lower()


async def test_an_ended_run_offers_no_restart(rig: Start) -> None:
    async with shown(rig(play.failed())) as it:
        await it.until(lambda: "FAILED" in it.screen())
        await it.until(lambda: "r run again" in it.screen().splitlines()[-1])
        await it.press("x")
        await it.until(lambda: "run has ended: there is nothing to stop" in it.told())
        await it.press("d")
        assert isinstance(it.app.screen, RunScreen)
        await it.until(lambda: "run has ended: launch it again" in it.told())
        assert "x stop" not in it.screen().splitlines()[-1]
        await it.press("r")
        assert type(it.app.screen).__name__ == "RerunScreen", "r asks before it runs it again"


async def test_enter_shows_the_log_of_one_rank_and_esc_all_again(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        log = run_screen(it.app).log_view
        await it.until(lambda: "step 29" in it.screen())
        await it.press("down", "enter")
        await it.until(lambda: "rank 1 ready" in it.screen() and "step 29" not in it.screen())
        assert log.selection.rank == 1
        assert log.has_focus
        await it.press("escape")
        await it.until(lambda: "step 29" in it.screen())


async def test_the_filter_runs_where_the_files_are(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "step 29" in it.screen())
        await it.press("3", "slash", *"step 1[0-3]", "enter")
        log = run_screen(it.app).log_view
        await it.until(lambda: [line.split()[1] for line in log_text(log).splitlines()].count("step") == 4)
        assert any(grep == "(?i)step 1[0-3]" for _, _, grep in it.link.reads)
        await it.press("tab", "escape")
        await it.until(lambda: "step 29" in it.screen())


def burst(it: Rig, text: str) -> None:
    """As keys come in one packet over a slow link: the next one before the one before it has acted."""
    names = {"/": "slash", ":": "colon", "\r": "enter", "\x1b": "escape", "\t": "tab", " ": "space"}
    for letter in text:
        it.app.post_message(Key(names.get(letter, letter), letter))


async def test_keys_that_arrive_together_act_one_after_the_other(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "step 29" in it.screen())
        burst(it, "3/step 2[0-3]\r2jj1")
        await it.until(lambda: "4 lines match" in it.screen() and "[1 Overview]" in it.screen())
        screen = run_screen(it.app)
        assert screen.log_view.selection.pattern == "step 2[0-3]"
        await it.until(lambda: "[1 Overview]" in it.screen())
        burst(it, ":res\t")
        await it.until(lambda: ":restart" in it.screen())
        burst(it, "\x1b3/nothing\x1b")
        log = screen.log_view  # what was there before comes back, once all of these keys have acted
        await it.until(lambda: it.app.screen is screen and log.selection.pattern == "step 2[0-3]")
        assert not it.link.commands


async def test_a_bad_filter_is_one_sentence(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "step 29" in it.screen())
        await it.press("3", "slash", *"step(", "enter")
        await it.until(lambda: "is not a regular expression" in it.screen())
        await it.press("escape")
        assert run_screen(it.app).log_view.selection.pattern == ""


async def test_follow_stays_off_after_scrolling_up_until_f(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        log = run_screen(it.app).log_view
        await it.until(lambda: "step 29" in it.screen())
        await it.press("3", "up", "up")
        assert not log.follow
        out = it.run_dir / "node-0/attempt-001/rank-0.out"
        with out.open("a") as file:
            file.write("step 30 new\n")
        name = str(out.relative_to(it.run_dir))
        it.link.play(LogGrew({name: out.stat().st_size}))
        await it.until(lambda: it.run.state.log_sizes)
        await it.press("down", "down")
        assert not log.follow
        await it.press("f")
        await it.until(lambda: "step 30 new" in it.screen())


async def test_e_finds_the_warning_and_n_the_hits(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        log = run_screen(it.app).log_view
        await it.until(lambda: "step 29" in it.screen())
        await it.press("3", "e")
        assert "UserWarning: slow loader" in log.chosen_text()
        await it.press("slash", *"loss 2.4", "enter")
        await it.until(lambda: log.selection.pattern and "2.490" in log_text(log))
        await it.press("n")
        assert "loss 2.4" in log.chosen_text()


async def test_y_copies_marked_lines_to_the_clipboard_and_a_file(rig: Start, tmp_path: Path) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "step 29" in it.screen())
        await it.press("3", "up", "space", "y")
        kept = (tmp_path / "state/distui/copied.txt").read_text()
        assert kept.strip() == it.app.clipboard
        assert "step 28" in kept


async def test_a_new_attempt_goes_on_in_the_same_log(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "step 29" in it.screen())
        second = it.run_dir / "node-0/attempt-002/rank-0.out"
        second.parent.mkdir(parents=True)
        second.write_text("resumed from step 29\n")
        it.link.play(AttemptStarted(2, "restart", 8, play.places(8)), seq=90)
        it.link.play(LogGrew({str(second.relative_to(it.run_dir)): second.stat().st_size}))
        await it.until(lambda: "resumed from step 29" in it.screen())
        assert "attempt 2" in log_text(run_screen(it.app).log_view)


async def test_marks_and_sort(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("space", "space")
        assert it.app.view.marked == {0, 1}
        await it.press("s")
        await it.until(lambda: "0 worst first   r rank   s state" in it.screen())
        await it.press("s", "S")
        assert (it.app.view.sort, it.app.view.reverse) == ("state", True)
        await it.press("s", "s")
        assert (it.app.view.sort, it.app.view.reverse) == ("state", False)
        await it.press("s", "r", "s", "escape")
        assert (it.app.view.sort, it.app.view.reverse) == ("rank", False)
        await it.press("s", "e")
        assert (it.app.view.sort, it.app.view.reverse) == ("temp", True), "the hottest first"
        await it.press("s", "0", "s", "0")
        assert (it.app.view.sort, it.app.view.reverse) == ("", False), "the worst stays first"
        assert run_screen(it.app).ranks.current is not None


async def test_z_maximises_the_focused_pane_and_back(rig: Start) -> None:
    async with shown(rig(play.running()), 120, 40) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        before = run_screen(it.app).ranks.size
        await it.press("z")
        await it.until(lambda: run_screen(it.app).ranks.size.height > before.height)
        assert not run_screen(it.app).log_view.display
        await it.press("escape")
        await it.until(lambda: run_screen(it.app).log_view.display)
        await it.press("z", "3")
        assert it.app.view.maximised == ""
        await it.until(lambda: "z zoom" not in it.screen())


async def test_layouts_are_switched_and_kept(rig: Start, tmp_path: Path) -> None:
    async with shown(rig(play.running()), 120, 40) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        seen = []
        for _ in LAYOUTS:
            await it.press("Z")
            seen.append(it.app.view.layout)
        assert seen == ["cluster", "log", "profile", "train"]
        await it.press("Z")
        await it.until(lambda: run_screen(it.app).events.display)
    assert 'layout = "cluster"' in (tmp_path / "config/distui/settings.toml").read_text()


async def test_m_changes_the_map_and_says_where_there_is_none(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("m")
        assert "No map here" in it.told()
        assert it.app.view.metric == "util"
    async with shown(rig(play.running()), 80, 45) as it:
        await it.until(lambda: "GPU utilisation" in it.screen())
        await it.press("m")
        assert "GPU memory" in it.screen()


async def test_a_click_on_a_title_sorts_and_a_second_one_turns_the_order(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        table = run_screen(it.app).ranks

        async def click(title: str) -> None:
            row = it.screen().splitlines()[table.content_region.y]
            await it.pilot.click(offset=(row.index(title), table.content_region.y))
            await it.pilot.pause()

        await it.press("down", "down")
        assert table.current == 2
        await click("util")
        assert (it.app.view.sort, it.app.view.reverse) == ("util", False)
        assert "util▴" in it.screen(), "the mark stands beside the title"
        assert table.current == 2, "the cursor stays on its rank"
        await click("util")
        assert "util▾" in it.screen()


def table_of(it: Rig) -> list[str]:
    """The rows of the screen that the rank table takes: curves beside it go on meanwhile."""
    region = run_screen(it.app).ranks.region
    lines = it.screen().splitlines()[region.y : region.bottom]
    return [line[region.x : region.right] for line in lines]


async def test_the_table_moves_sideways_only_where_columns_are_left_out(rig: Start) -> None:
    async with shown(rig(play.running(2, gpu=False), ranks=2)) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        before = table_of(it)
        await it.press("l", "l")
        assert table_of(it) == before
    async with shown(rig(play.running()), 60, 24) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        assert "(h/l: more)" in it.screen()
        await it.press("l", "l", "l")
        table = run_screen(it.app).ranks
        assert table.head is not None
        titles = "".join(text for text, _ in table.head).split()
        assert titles[0] == "rank"
        assert titles[1] != "state"
        await it.press("h", "h", "h", "h")
        assert "rank state" in it.screen()


async def test_pause_holds_the_screen_and_not_the_run(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("p")
        assert "HELD" in it.screen()
        it.link.play(RankChanged(1, 3, RankPhase.FAILED, 3, 4714, 1), seq=90)
        await it.until(lambda: it.run.state.ranks[3].phase is RankPhase.FAILED)
        it.now += 48
        await it.until(lambda: "48 s behind" in it.screen())
        await it.press("2", "1")
        assert "failed" not in it.screen()
        await it.press("colon", *"pause", "enter")
        await it.until(lambda: "✖ failed" in it.screen())


PANES = {
    "2": "rank state",
    "3": "log · all ranks",
    "4": "live 2m",
    "5": "need INFO",
    "6": "No findings",
    "i": "No findings",
    "7": "events, commands and checkpoints",
}
"""What the pane of a key shows."""


async def test_a_digit_shows_a_pane_and_escape_the_overview_again(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        for key, title in PANES.items():
            await it.until(lambda: "[1 Overview]" in it.screen() and "rank state" in it.screen())
            await it.press(key)
            await it.until(lambda title=title: title in it.screen())  # type: ignore[misc]
            assert "[1 Overview]" not in it.screen(), key
            await it.press("escape")


async def test_from_the_runs_escape_goes_back_to_the_run(rig: Start) -> None:
    async with shown(rig(play.running(), runs=[entry()])) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        screen = run_screen(it.app)
        await it.press("3", "R")
        assert isinstance(it.app.screen, RunsScreen)
        await it.press("escape")
        assert run_screen(it.app) is screen
        assert "[3 Logs]" in it.screen()
        await it.press("ctrl+n")
        assert isinstance(it.app.screen, LaunchScreen)
        await it.press("escape")
        assert run_screen(it.app) is screen


async def test_the_run_that_is_open_is_opened_again_where_it_was(rig: Start) -> None:
    async with shown(rig(play.running(), runs=[entry()])) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        screen = run_screen(it.app)
        await it.press("3", "R", "enter")
        assert run_screen(it.app) is screen
        assert it.source.opened == ["r-1a2b3c4d"]


async def test_from_the_first_place_escape_goes_nowhere(rig: Start) -> None:
    async with shown(rig(run=None, runs=[entry(), entry(id="r-2", name="other")])) as it:
        await it.until(lambda: "other" in it.screen())
        await it.press("escape")
        assert isinstance(it.app.screen, RunsScreen)


async def test_digits_do_nothing_beside_a_run_and_are_typed_into_fields(rig: Start) -> None:
    async with shown(rig(play.running(), runs=[entry()])) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("R", *"1234567")
        assert isinstance(it.app.screen, RunsScreen)
        await it.press("escape", "ctrl+n", *"567.py")
        form = it.app.screen
        assert isinstance(form, LaunchScreen)
        assert "567.py" in it.screen()


@pytest.mark.parametrize(("width", "height"), [(60, 15), (120, 40)])
async def test_tabs_and_keys_take_clicks(rig: Start, width: int, height: int) -> None:
    async with shown(rig(play.running(), runs=[entry()]), width, height) as it:
        await it.until(lambda: "RUNNING" in it.screen())

        for pane, digit in zip(TABS, "1234567", strict=True):
            at = it.screen().splitlines()[it.app.screen.query_one("#tabs").region.y]
            await it.pilot.click(offset=(at.index(digit), it.app.screen.query_one("#tabs").region.y))
            await it.until(lambda pane=pane: it.app.view.pane == pane.pane)  # type: ignore[misc]
            assert f"[{digit} {pane.title}]" in it.screen()
        foot = it.app.screen.query_one("#footer").region
        await it.pilot.click(offset=(it.screen().splitlines()[foot.y].index("? help"), foot.y))
        await it.until(lambda: isinstance(it.app.screen, HelpScreen))
        await it.press("escape")
        tabs = it.app.screen.query_one("#tabs").region
        row = it.screen().splitlines()[tabs.y]
        await it.pilot.click(offset=(row.index("R", row.index("7")), tabs.y))
        await it.until(lambda: isinstance(it.app.screen, RunsScreen))


async def test_help_shows_the_users_own_keys(rig: Start, tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text('stop = "K"\n')
    async with shown(rig(play.running()), 100, 50) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("x")
        assert isinstance(it.app.screen, RunScreen)
        await it.until(lambda: "K stop" in it.screen())
        await it.press("?")
        await it.press(*"stop the run")
        await it.until(lambda: "K            Stop the run" in it.screen())
        await it.press("escape")
        await it.press("escape", "K")
        assert isinstance(it.app.screen_stack[-1], ConfirmScreen)


async def test_the_palette_offers_what_acts_now(rig: Start) -> None:
    async with shown(rig(play.running(), readonly=True)) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("ctrl+p")
        assert isinstance(it.app.screen, PaletteScreen)
        names = [key.text for key in it.app.screen.commands]
        assert names.index("Open the rank's log") < names.index("Freeze the screen"), "the pane comes first"
        assert "Freeze the screen" in names
        assert not {"Stop the run", "Restart worker group", "Find a command", "Go to next hit"} & set(names)
        await it.press(*"fre")
        assert re.search(r"› Freeze the screen +p ", it.screen())
        await it.press("enter")
        await it.until(lambda: it.app.view.paused)


async def test_the_first_match_of_the_palette_runs_on_enter(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("ctrl+p", *"res", "enter")
        await it.until(lambda: isinstance(it.app.screen, ConfirmScreen))
        assert "Restart" in it.screen()


async def test_help_begins_with_the_focused_pane_and_filters(rig: Start) -> None:
    async with shown(rig(play.running()), 100, 50) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("3")
        await it.until(lambda: "v stream" in it.screen().splitlines()[-1])
        await it.press("?")
        assert isinstance(it.app.screen, HelpScreen)
        shown_help = it.screen()
        places = [shown_help.index(text) for text in ("This pane: Log", "Follow the log", "  Curves  ")]
        assert places == sorted(places)
        await it.press(*"travel")
        await it.until(lambda: "This pane: Log" not in it.screen())
        assert "Go forward in time" in it.screen()
        await it.press("escape")
        await it.until(lambda: "This pane: Log" in it.screen())
        await it.press("escape")
        assert isinstance(it.app.screen_stack[-1], RunScreen)


async def test_help_has_the_keys_of_the_form_first(rig: Start) -> None:
    async with shown(rig(play.running()), 120, 40) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("ctrl+n", "f1")
        await it.until(lambda: "This pane: the form" in it.screen())
        assert it.screen().index("^l           Start the run") < it.screen().index("  Curves  ")


FOOTERS = {
    "1": ("enter log", "v stream"),
    "2": ("w stacks", "m metric"),
    "3": ("v stream", "s sort"),
    "4": ("[ back", "w stacks"),
    "6": ("w stacks", "f follow"),
    "7": ("] forward", "a columns"),
}
"""By the key of a pane: what its footer offers, and what not."""


async def test_the_footer_has_the_keys_of_the_focused_pane(rig: Start) -> None:
    async with shown(rig(play.running()), 160, 40) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        for key, (offered, other) in FOOTERS.items():
            await it.press(key)
            await it.until(lambda offered=offered: offered in it.screen().splitlines()[-1])  # type: ignore[misc]
            footer = it.screen().splitlines()[-1]
            assert other not in footer
            assert footer.rstrip().endswith(": command")


async def test_the_footer_offers_no_log_of_a_finding_that_is_not_there(rig: Start) -> None:
    async with shown(rig(play.running()), 160, 40) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("6")
        await it.until(lambda: "No findings" in it.screen())
        await it.until(lambda: "w stacks" in it.screen().splitlines()[-1])
        assert "enter log" not in it.screen().splitlines()[-1]


async def test_the_footer_offers_no_change_of_the_past(rig: Start) -> None:
    async with shown(rig(play.running()), 160, 40) as it:
        await it.until(lambda: "r restart" in it.screen().splitlines()[-1])
        await it.press("[")
        await it.until(lambda: "PAST" in it.screen())
        await it.until(lambda: "r restart" not in it.screen().splitlines()[-1])
        assert not {"x stop", "w stacks", "P profile", "d NCCL"} & set(
            it.screen().splitlines()[-1].split("  ")
        )
        await it.press("escape")
        await it.until(lambda: "r restart" in it.screen().splitlines()[-1])


async def test_launch_shows_the_plan_and_starts_only_after_the_question(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("ctrl+n")
        await it.until(lambda: "no script: type the path" in it.screen())
        await it.press("enter")
        assert isinstance(it.app.screen, LaunchScreen)
        await it.press(*"train.py")
        await it.until(lambda: "torchrun" in it.screen() and "train.py" in it.screen().split("plan")[-1])
        await it.press("enter")
        assert type(it.app.screen).__name__ == "ConfirmScreen"
        assert "NCCL_DEBUG=WARN" in it.screen()
        await it.press("enter")
        assert it.source.launched == []
        it.source.retired = "retention removed 3 runs, 36.0 MB freed: removed.log has them"
        await it.press("enter", "y")
        await it.until(lambda: it.source.launched)
        assert it.source.launched == [LaunchForm(preset="single", script="train.py")]
        await it.until(lambda: it.source.opened[-1] == "r-new")
        await it.until(lambda: it.source.retired in it.screen())


async def test_a_refused_launch_is_told_and_the_form_stays(rig: Start) -> None:
    it = rig(play.running())
    it.source.refuse = "no free port on this machine: end another run"
    async with shown(it):
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("ctrl+n", *"train.py")
        await it.until(lambda: "torchrun" in it.screen() and "train.py" in it.screen().split("plan")[-1])
        await it.press("enter", "y")
        await it.until(lambda: "No free port" in it.told())
        assert isinstance(it.app.screen, LaunchScreen)


async def test_without_any_run_the_screen_says_what_to_do(rig: Start) -> None:
    async with shown(rig(run=None)) as it:
        await it.until(lambda: "No run yet." in it.screen())
        assert "distui launch" in it.screen()


async def test_several_runs_are_a_list_and_enter_opens_one(rig: Start) -> None:
    old = entry(id="r-9", name="old", phase="failed", live=False, problem="damaged: run.json is empty")
    runs = [entry(id="r-0", name="other"), entry(), old]
    async with shown(rig(play.running(), runs=runs, run=None)) as it:
        await it.until(lambda: "minigpt" in it.screen() and "✖ failed" in it.screen())
        assert "▲ damaged" in it.screen()
        await it.press("down", "enter")
        await it.until(lambda: "RUNNING" in it.screen())
        assert it.source.opened == ["r-1a2b3c4d"]


async def test_the_only_live_run_is_opened_at_once(rig: Start) -> None:
    runs = [entry(id="r-9", live=False, phase="failed"), entry()]
    async with shown(rig(play.running(), runs=runs, run=None)) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        assert it.source.opened == ["r-1a2b3c4d"]


async def test_a_lost_agent_is_a_banner_and_r_reconnects_from_where_it_was(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        it.link.break_with("the agent's socket is gone")
        await it.until(lambda: "agent lost" in it.screen())
        assert "the ranks go on" in it.screen()
        assert "next try in 1 s" in it.screen()
        it.link.script = play.stamped([*play.running(), (126, AgentStarted(200, "0.1.0", True))])
        await it.press("r")
        assert isinstance(it.app.screen, RunScreen)
        await it.until(lambda: "agent lost" not in it.screen() and "● RUNNING" in it.screen())
        assert it.link.asked[-1] > 0


async def test_what_is_old_is_dimmed_and_comes_back(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "97%" in it.screen())
        it.now += 12
        await it.until(lambda: "12s old" in it.screen())
        dim = [style for text, style in run_screen(it.app).ranks.rows[0] if "97%" in text]
        assert dim == ["stale"]
        assert "util 97%" not in it.screen()
        it.now += 30
        await it.until(lambda: "42s old" in it.screen())
        assert "97%" not in it.screen()
        assert "0%" not in it.screen()
        it.link.play(
            *(event for _, event in play.running() if type(event).__name__.endswith("Tick")), time=it.now
        )
        await it.until(lambda: "97%" in it.screen())


async def test_no_agent_at_all_is_told_in_its_own_words(rig: Start) -> None:
    it = rig()
    it.source.unreachable = "n001 refuses the connection: is the agent running?"
    async with shown(it):
        await it.until(lambda: "n001 refuses the connection" in it.screen())
        assert it.run.follower.status.phase is LinkPhase.LOST


async def test_a_small_terminal_gets_one_line_and_keys_work(rig: Start) -> None:
    async with shown(rig(play.running()), 50, 10) as it:
        await it.until(lambda: "enlarge the terminal" in it.screen())
        assert "RUNNING" in it.screen()
        await it.pilot.resize_terminal(80, 24)
        await it.until(lambda: "4711" in it.screen())
        await it.press("q")
    assert it.app.return_code == 0
    assert it.link.commands == []


async def test_leaving_never_ends_the_run(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("q")
    assert it.link.commands == []
    assert it.app.return_code == 0


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_click_selects_and_a_double_click_opens(rig: Start, size: tuple[int, int]) -> None:
    async with shown(rig(play.running()), *size) as it:
        await it.until(lambda: "step 29" in it.screen())
        screen = run_screen(it.app)
        row = next(y for y, line in enumerate(it.screen().splitlines()) if " 4713 " in line)
        await it.pilot.click(offset=(10, row))
        assert screen.ranks.current == 2
        await it.pilot.click(offset=(10, row), times=2)
        await it.until(lambda: screen.log_view.selection.rank == 2)


async def test_sorting_offers_no_columns_that_this_run_does_not_have(rig: Start) -> None:
    async with shown(rig(play.running(2, gpu=False), ranks=2)) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("s")
        await it.until(lambda: "sort by" in it.screen())
        titles = " ".join(it.screen().split()).partition("worst first ")[2].split()[1::2]
        assert titles[:2] == ["rank", "state"]
        assert set(titles[2:]) == {"CPU", "RSS", "s/step", "steps", "log", "pid"}


def row_of_cursor(it: Rig) -> str:
    """The rank, or whatever is first, in the row of the cursor; "" if that row is not visible."""
    row = next((line for line in it.screen().splitlines() if line.startswith("›")), "")
    return next(iter(row.removeprefix("›").split()), "")


async def test_after_sorting_the_cursor_is_at_the_visible_top(rig: Start) -> None:
    async with shown(rig(play.running(32), ranks=32)) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("2", "s", "r")
        await it.until(lambda: row_of_cursor(it) == "0")
        await it.press("G")
        await it.until(lambda: row_of_cursor(it) == "31")
        await it.press("S")
        await it.until(lambda: row_of_cursor(it) == "31" and "30 ▶" in it.screen())
        await it.press("S")
        await it.until(lambda: row_of_cursor(it) == "0")
        assert run_screen(it.app).ranks.scroll_offset.y == 0


async def test_arrows_and_enter_choose_the_column_to_sort_by(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("s")
        await it.until(lambda: "›0 worst first" in it.screen())
        await it.press("down", "right", "left")
        await it.until(lambda: "›r rank" in it.screen())
        await it.press("enter")
        assert (it.app.view.sort, it.app.view.reverse) == ("rank", False)
        await it.press("s", "enter")
        assert (it.app.view.sort, it.app.view.reverse) == ("rank", True), (
            "the present order again reverses it"
        )


async def test_every_theme_paints_every_screen(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        for name in (LIGHT, ANSI, DARK):
            await it.press("t")
            await it.until(lambda name=name: it.app.theme == name)  # type: ignore[misc]
            assert "4711" in it.screen()
            for key in ("r", "d"):
                await it.press(key, "escape")
        assert isinstance(it.app.screen, RunScreen)


async def test_ascii_means_ascii_everywhere(rig: Start) -> None:
    async with shown(rig(play.running(), ascii_only=True), 120, 40) as it:
        await it.until(lambda: "RUNNING" in it.screen() and "step 29" in it.screen())
        assert it.screen().isascii(), sorted({char for char in it.screen() if not char.isascii()})
        await it.press("r")
        assert it.screen().isascii(), sorted({char for char in it.screen() if not char.isascii()})


@pytest.mark.usefixtures("painted")
async def test_only_changed_rows_are_painted_again(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "step 29" in it.screen())
        screen = run_screen(it.app)
        it.app.change_view(sort="rank")
        await it.pilot.pause()
        painted: list[str] = []
        for pane in (screen.status, screen.map, screen.ranks, screen.events, screen.banner):
            original = pane.render_line

            def record(y: int, name: str = str(pane.id), paint: object = original) -> object:
                painted.append(f"{name}:{y}")
                return paint(y)  # type: ignore[operator]

            pane.render_line = record  # type: ignore[method-assign, assignment]
        it.app.publish()
        await it.pilot.pause()
        assert painted == []
        sampled = play.samples(8, True)
        changed = structs.replace(sampled[3], cpu_percent=55.0)
        it.link.play(RankTick((*sampled[:3], changed, *sampled[4:])))
        await it.until(lambda: "55%" in it.screen())
        assert set(painted) & {"ranks:4"}
        assert not set(painted) & {f"ranks:{y}" for y in (1, 2, 3, 5, 6, 7, 8)}


async def test_a_flood_of_events_does_not_hold_up_keys(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        for step in range(5000):
            it.link.play(*(event for _, event in play.running()[-3:-1]), time=play.NOW + step / 1000)
        began = asyncio.get_running_loop().time()
        await it.press("2")
        assert asyncio.get_running_loop().time() - began < 2.0
        assert it.app.view.pane == "ranks"


@pytest.mark.parametrize(("key", "size"), [("slash", (60, 15)), ("colon", (80, 24))])
async def test_a_line_of_input_stands_below_the_log(rig: Start, key: str, size: tuple[int, int]) -> None:
    """In the row of the footer: the newest line stays in sight while it is typed."""
    async with shown(rig(play.running()), *size) as it:
        await it.press("3")
        await it.until(lambda: "step 29" in it.screen())
        await it.press(key, *"st")
        await it.until(lambda: it.screen().splitlines()[-1].startswith((" /st", " :st")))
        assert "step 29" in it.screen().splitlines()[-2]
