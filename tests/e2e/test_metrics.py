"""Metrics of a run: the same live and from its files after the end; and what nobody should type."""

from __future__ import annotations

import pytest
from doubles.served import doubled

from distui.runners.run import clock, run_directories
from distui.runners.run.answers import MetricsWindow
from distui.runners.run.commands import ReadMetrics
from distui.runners.run.model import RunEnded, Stamped
from distui.runners.telemetry import curves

from .runs import World
from .written import write


def known(window: MetricsWindow, metric: str, index: int | None) -> dict[int, float]:
    """Unix time → mean of one series, where it has one."""
    (series,) = [each for each in window.series if each.metric == metric and each.index == index]
    return {
        int(window.begin + place * window.seconds): value
        for place, value in enumerate(series.mean)
        if value is not None
    }


async def test_a_run_has_the_same_metrics_live_and_on_disk_when_its_end_is_reported() -> None:
    async with doubled() as (run, runners):
        await run.hooked()
        ask = ReadMetrics("m", clock.now(), clock.now() + 60)
        await run.until(lambda state: state.ranks[1].sample and (state.ranks[1].sample.step or 0) > 20)
        live = await run.link.read_metrics(ask)
        at_the_end: list[MetricsWindow] = []
        entry = run_directories.resolve(run.state.run)

        def read_at_the_end(stamped: Stamped) -> None:
            if isinstance(stamped.event, RunEnded):
                at_the_end.append(curves.read(curves.kept(entry), ask))

        run.agent.served.chronicle.listeners.append(read_at_the_end)
        runners.newest.finishes()
        await run.until(lambda state: state.phase.ended)
        (ended,) = at_the_end
        steps = known(live, "rank.step", 1)
        assert [*steps.values()] == sorted(steps.values())
        assert len(steps) > 3
        for metric, index in (("rank.step", 0), ("rank.step", 1), ("host.mem", None)):
            before, after = known(live, metric, index), known(ended, metric, index)
            shared = sorted(before.keys() & after.keys())[:-1]  # the newest second was still being filled
            assert len(shared) > 3
            # 4 digits are kept on disk
            assert [after[at] for at in shared] == pytest.approx([before[at] for at in shared], rel=2e-4)
            assert max(after) >= max(before)


def test_what_cannot_be_asked_is_said_in_a_sentence(world: World) -> None:
    run = write(world, "exec", "--", "true")
    run.distui("metrics", "gpu.utl").refused(2, "no metric 'gpu.utl'", "--list")
    run.distui("metrics", "--last", "soon").refused(2, "'soon' is not a time", "as in 30d")
    run.distui("metrics", "--since", "25:99").refused(2, "'25:99' is not a time")
    run.distui("metrics", "--since", "1m", "--until", "2m").refused(2, "--since has to be before --until")
    run.distui("metrics", "--last", "1m", "--since", "2m").refused(2, "one or the other")
    world.distui("metrics", "nobody").refused(3, "nobody")
    assert "gpu.tensor_active" in world.distui("metrics", "--list").fine().out
    assert {"metric", "title", "unit"} == set(world.distui("metrics", "--list", "--json").fine().json()[0])
