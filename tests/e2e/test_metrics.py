"""`distui metrics` of real runs: live from the agent, ended from files, in a bundle; and what nobody should type."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest

from .runs import DISTUI, World, gone, kill, until
from .screen import Screen
from .written import write


def known(document: dict[str, Any], metric: str, index: int | None) -> dict[int, float]:
    """Unix time → mean of one series, where it has one."""
    (series,) = [each for each in document["series"] if each["metric"] == metric and each["index"] == index]
    return {
        int(document["begin"] + place * document["seconds"]): value
        for place, value in enumerate(series["means"])
        if value is not None
    }


def listed_step(world: World, name: str) -> int:
    """The step of a run in the cockpit's runs list."""
    screen = Screen((DISTUI, "attach", name), world.env, world.work, 120, 30)
    try:
        screen.until("RUNNING")
        screen.press("R")
        text = screen.until(
            lambda text: "runs" in text.splitlines()[0] and re.search(rf"{name}.* \d+ ", text)
        )
        (line,) = [line for line in text.splitlines() if f" {name} " in line]
        screen.press("q")
        assert screen.ended() == 0
    finally:
        screen.close()
    found = re.search(rf"{name} +\S+ +1×2 +([\d,]+) ", line)
    assert found, line
    return int(found[1].replace(",", ""))


@pytest.mark.long
def test_a_run_has_the_same_metrics_live_ended_and_in_a_bundle(world: World) -> None:
    run = world.ddp()
    run.healthy()
    assert run.eventually(
        lambda _: len(known(run.distui("metrics", "--json").fine().json(), "rank.step", 1)) > 6
    )
    live = run.distui("metrics", "--json").fine().json()
    assert live["run"] == run.id
    cpu, steps = known(live, "host.cpu", None), known(live, "rank.step", 1)
    assert all(0 <= value <= 100 for value in cpu.values())
    assert [*steps.values()] == sorted(steps.values())
    assert listed_step(world, run.name) > 0
    assert world.distui("ls", "--json").fine().json()[0]["step"] > 0
    text = run.distui("metrics", "rank.step_s", "host.cpu").fine().out
    assert text.splitlines()[0].split() == ["METRIC", "OF", "LAST", "MIN", "MEAN", "MAX", "CURVE"]
    assert {line.split()[0] for line in text.splitlines()[1:]} == {"rank.step_s", "host.cpu"}
    assert run.stop().code == 0
    assert gone(run.agent_pid()), "it has written its last second"

    ended = run.distui("metrics", "--json").fine().json()
    for name, index in (("rank.step", 0), ("rank.step", 1), ("rank.rss", 0)):
        before, after = known(live, name, index), known(ended, name, index)
        shared = sorted(before.keys() & after.keys())[1:-1]  # the window's edges were still being filled
        assert len(shared) > 3
        # A lone empty second takes the value of the next one, whose time it covers; 4 digits are kept on disk.
        assert [after[at] for at in shared] == pytest.approx([before[at] for at in shared], rel=2e-4)

    run.distui("export", "out.tar.gz").fine()
    bundle = world.distui("metrics", "out.tar.gz", "--json").fine().json()
    assert bundle["series"] == ended["series"]
    folded = run.distui("metrics", "rank.rss", "--fold", "--json").fine().json()
    assert [(each["index"], each["of"]) for each in folded["series"]] == [(None, 2)]
    assert "rank.step" in run.distui("metrics", "--list").fine().out
    one = run.distui("metrics", "--rank", "1", "--last", "5m", "--json").fine().json()
    assert {each["index"] for each in one["series"]} == {1}
    assert {each["metric"].partition(".")[0] for each in one["series"]} <= {"rank", "train"}


@pytest.mark.long
def test_who_hears_of_the_end_finds_the_last_second_on_disk(world: World) -> None:
    """Also where the agent lives no longer than until it has told that."""
    run = world.execute("print('at once')\n")
    assert until(lambda: b'"RunEnded"' in run.file("journal.jsonl"), every=0.001)
    with contextlib.suppress(ProcessLookupError):
        kill(run.agent_pid())
    assert b'"host.mem"' in run.file("metrics/1s.jsonl")


def test_what_cannot_be_asked_is_said_in_a_sentence(world: World) -> None:
    run = write(world, "exec", "--", "true")
    run.distui("metrics", "gpu.utl").refused(2, "no metric 'gpu.utl'", "--list")
    run.distui("metrics", "--last", "soon").refused(2, "--last 'soon' is no duration")
    run.distui("metrics", "--since", "25:99").refused(2, "--since '25:99' is no time")
    run.distui("metrics", "--since", "1m", "--until", "2m").refused(2, "--since has to be before --until")
    run.distui("metrics", "--last", "1m", "--since", "2m").refused(2, "one or the other")
    world.distui("metrics", "nobody").refused(3, "nobody")
    assert "gpu.tensor_active" in world.distui("metrics", "--list").fine().out
    assert {"metric", "title", "unit"} == set(world.distui("metrics", "--list", "--json").fine().json()[0])
