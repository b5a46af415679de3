"""Keys of the cockpit on runs on several nodes, and the launch form's places."""

from __future__ import annotations

import msgspec
import pytest
import scripted as play
import several
from conftest import Rig, Start, log_text, shown

from distui.runners.run.commands import Down, Restart, SetAutostop, Stop
from distui.runners.run.model import (
    HUB,
    AttemptStarted,
    ClusterChanged,
    LinkChanged,
    LinkState,
    RunEnded,
    RunPhase,
    Stamped,
)
from distui.tui.screens.launch import LaunchScreen
from distui.tui.screens.modal import ConfirmScreen, TypedScreen
from distui.tui.screens.run import RunScreen


def log_of(it: Rig) -> str:
    assert isinstance(it.app.screen, RunScreen)
    return log_text(it.app.screen.log_view)


async def test_a_launch_shows_stages_above_and_its_log_below(rig: Start) -> None:
    async with shown(rig(nodes=several.launching()), 100, 30) as it:
        await it.until(lambda: "gives the launch up" in it.screen() and "Collecting torch" in it.screen())
        assert "log · launch.log" in it.screen()
        assert "how the ranks" not in it.screen()
        await it.press("x")
        assert "Give up the launch of minigpt?" in it.screen()
        await it.press("y")
        await it.until(lambda: it.link.commands)
        assert isinstance(it.link.commands[0], Stop)


async def test_the_first_ranks_take_the_place_of_the_launch(rig: Start) -> None:
    async with shown(rig(nodes=several.launching()), 100, 30) as it:
        await it.until(lambda: "Collecting torch" in it.screen())
        for line in several.stamped(several.running()):
            if isinstance(line.event, AttemptStarted | ClusterChanged):
                it.link.play_line(msgspec.structs.replace(line, time=it.now))
        await it.until(lambda: "c2 r4" in log_of(it))
        await it.until(lambda: "gives the launch up" not in it.screen())
        assert "r7" in it.screen()
        assert "Collecting torch" in log_of(it)  # what came before stays above


async def test_lines_say_on_which_node_they_were_written(rig: Start) -> None:
    async with shown(rig(nodes=several.running()), 120, 40) as it:
        await it.until(lambda: "c2 r4" in log_of(it) and "c1 r0" in it.screen())
        await it.press("v", "v", "v", "v")
        await it.until(lambda: "agents and runners · nothing written yet" in it.screen())
        assert log_of(it) == ""


async def test_a_link_that_breaks_is_shown_and_comes_back(rig: Start) -> None:
    async with shown(rig(nodes=several.running()), 100, 30) as it:
        await it.until(lambda: "2 nodes" in it.screen())
        down = LinkChanged(LinkState.LOST, "", several.REFUSED, it.now + 3)
        it.link.play_line(Stamped(it.now, down, 900, 1))
        await it.until(lambda: several.REFUSED in it.screen())
        assert "1 of 2 nodes" in it.screen()
        it.link.play_line(Stamped(it.now, LinkChanged(LinkState.UP, "c2"), 901, 1))
        await it.until(lambda: "2 nodes" in it.screen())
        await it.until(lambda: several.REFUSED not in it.screen())


@pytest.mark.parametrize(("key", "reachable"), [("y", False), ("a", True)])
async def test_a_restart_without_a_lost_node_is_another_key(rig: Start, key: str, reachable: bool) -> None:
    async with shown(rig(nodes=several.lost()), 80, 24) as it:
        await it.until(lambda: "1 of 2 nodes" in it.screen())
        await it.press("r")
        assert "a go on without c2" in it.screen()
        await it.press(key)
        await it.until(lambda: it.link.commands)
        (command,) = it.link.commands
        assert isinstance(command, Restart)
        assert command.reachable is reachable


async def test_a_is_no_answer_where_there_is_one_way(rig: Start) -> None:
    async with shown(rig(nodes=several.running())) as it:
        await it.until(lambda: "2 nodes" in it.screen())
        await it.press("r", "a")
        assert isinstance(it.app.screen, ConfirmScreen)
        await it.press("enter")
        assert it.link.commands == []


async def test_down_wants_the_clusters_name(rig: Start) -> None:
    async with shown(rig(nodes=several.running())) as it:
        await it.until(lambda: "2 nodes" in it.screen())
        await it.press("colon", *"down", "enter")
        await it.until(lambda: isinstance(it.app.screen, TypedScreen))
        assert "all on its disks" in it.screen()
        await it.press(*"yes", "enter")
        await it.until(lambda: "'yes' is not the name of the cluster (minigpt-1a2b3c4d)" in it.told())
        assert it.link.commands == []
        await it.press("colon", *"down", "enter")
        await it.until(lambda: isinstance(it.app.screen, TypedScreen))
        await it.press(*"minigpt-1a2b3c4d", "enter")
        await it.until(lambda: it.link.commands)
        (command,) = it.link.commands
        assert isinstance(command, Down)
        assert command.cluster == "minigpt-1a2b3c4d"


async def test_autostop_asks_and_is_sent(rig: Start) -> None:
    async with shown(rig(nodes=several.running())) as it:
        await it.until(lambda: "2 nodes" in it.screen())
        await it.press("colon", *"autostop 45", "enter")
        await it.until(lambda: "after 45 minutes without a job?" in it.screen())
        await it.press("y")
        await it.until(lambda: it.link.commands)
        (command,) = it.link.commands
        assert isinstance(command, SetAutostop)
        assert command.minutes == 45


async def test_the_cluster_of_a_run_that_has_ended_can_still_be_taken_down(rig: Start) -> None:
    ended = [*several.running(), (125.0, HUB, RunEnded(RunPhase.SUCCEEDED, 0, "done"))]
    async with shown(rig(nodes=ended, link_readonly=True)) as it:
        await it.until(lambda: "is billed" in it.screen())
        await it.press("colon", *"down", "enter")
        await it.until(lambda: isinstance(it.app.screen, TypedScreen))
        await it.press(*"minigpt-1a2b3c4d", "enter")
        await it.until(lambda: it.source.late)
        assert it.link.commands == []
        await it.until(lambda: "Done afterwards" in it.told())


@pytest.mark.parametrize("line", ["down", "autostop 30"])
async def test_there_is_no_cluster_to_speak_of(rig: Start, line: str) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("colon", *line, "enter")
        await it.until(lambda: "no cluster" in it.told())
        assert it.link.commands == []


async def test_readonly_keeps_clusters(rig: Start) -> None:
    async with shown(rig(nodes=several.running(), readonly=True)) as it:
        await it.until(lambda: "2 nodes" in it.screen())
        await it.press("colon", *"down", "enter")
        await it.until(lambda: "read-only" in it.told())


async def test_a_shell_takes_the_way_of_the_node(rig: Start) -> None:
    async with shown(rig(nodes=several.running()), 100, 30) as it:
        await it.until(lambda: "2 nodes" in it.screen())
        await it.press("2", "G", "!")
        await it.until(lambda: "carries no shell: ssh c2" in it.told())
        assert it.source.shells == [("r-1a2b3c4d", 1)]


async def at_place(it: Rig, place: str, **fields: str) -> LaunchScreen:
    """The launch form with a script, this place and these fields."""
    await it.until(lambda: "RUNNING" in it.screen())
    await it.press("ctrl+n", *"train.py")
    screen = it.app.screen
    assert isinstance(screen, LaunchScreen)
    screen.form_view.set("place", place)
    for name, value in fields.items():
        screen.form_view.set(name, value)
    await it.pilot.pause()
    return screen


async def test_candidates_are_asked_for_beside_and_one_is_taken(rig: Start) -> None:
    it = rig(play.running())
    it.source.offered = several.CANDIDATES
    async with shown(it, 120, 40):
        screen = await at_place(it, "sky", **{"option.gpus": "H100:8"})
        await it.until(lambda: "a3-highgpu-8g" in it.screen())
        assert "196.64" in it.screen()
        assert "n/a" in it.screen()
        assert [(form.place, form.option("gpus")) for form in it.source.wanted] == [("sky", "H100:8")]
        screen.candidates.focus()
        await it.press("down", "enter")
        assert screen.form.place == "aws/us-east-1"
        await it.press("enter", "enter")
        assert it.source.launched == []


async def test_without_skypilot_a_sentence_says_so(rig: Start) -> None:
    it = rig(play.running())
    it.source.offered = "/usr/bin/python3 has no SkyPilot: put `sky` on PATH"
    async with shown(it, 80, 24):
        await at_place(it, "sky")
        await it.until(lambda: "has no SkyPilot" in it.screen())
        assert "torchrun" in it.screen()


async def test_on_this_machine_nobody_is_asked(rig: Start) -> None:
    async with shown(rig(play.running()), 120, 40) as it:
        screen = await at_place(it, "local")
        await it.until(lambda: screen.preview)
        assert not screen.candidates.display
        assert it.source.wanted == []


async def test_hosts_are_asked_when_the_user_says_so_and_not_before(rig: Start) -> None:
    async with shown(rig(play.running()), 120, 40) as it:
        screen = await at_place(it, "hosts c1,c2")
        await it.until(lambda: "not asked yet" in it.screen())
        screen.action_start()
        await it.until(lambda: isinstance(it.app.screen, ConfirmScreen))
        assert "torchrun" in it.screen()
        assert it.source.launched == []
