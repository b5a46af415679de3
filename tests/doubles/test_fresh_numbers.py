"""A number is fresh or it is not shown: the same on every screen, verb and export, whatever stops the steps."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import msgspec

from distui.runners.node import run_following
from distui.runners.reports.status_document import status_json
from distui.runners.run import clock
from distui.runners.run.commands import ReadMetrics
from distui.runners.run.model import (
    AttemptEnded,
    AttemptStarted,
    GpuTick,
    Outcome,
    PlanSummary,
    RankChanged,
    RankPhase,
    RankPlace,
    RankTick,
    RunCreated,
    RunEnded,
    RunPhase,
    Stamped,
)
from distui.runners.run.samples import Gpu, RankSample, TrainingSample
from distui.runners.run.state import RunState
from distui.runners.run.wire.client import SocketLink
from distui.runners.telemetry.exported_samples import samples_of
from distui.runners.telemetry.otlp_values import metrics_of
from distui.runners.telemetry.prometheus_text import text_of
from distui.tui.rows.frame import Frame, LinkPhase, LinkStatus
from distui.tui.rows.glyphs import plain
from distui.tui.rows.header import header_rows
from distui.tui.rows.tables import Table, rank_table
from distui.tui.verbs.status import describe, headline

from .fake_hook import EVALUATE, SAVE
from .fake_runner import FakeRunner, FakeRunners
from .served import Served, doubled

STEP_TIME = re.compile(r"\b[\d.]+ ?m?s/step\b")


class SlowSteps(FakeRunner):
    """Each step takes a minute."""

    step_s = 60.0


def as_printed(state: RunState, now: float) -> dict[str, Any]:
    """The JSON of `distui status`."""
    document: dict[str, Any] = msgspec.to_builtins(status_json(state, now))
    return document


def reporting(runners: FakeRunners) -> None:
    """Have every rank's script report a loss and its throughput once."""
    for hook in runners.newest.hooks.values():
        values = {"loss": [2.5, hook.steps, clock.now()], "tokens_per_second": [5000.0, None, clock.now()]}
        tracker = {"values": values, "bad": {}, "reached": hook.steps, "total": 1000, "epoch": None}
        hook.signals = {"version": 1, "trackers": {"wandb": tracker}}


async def seen(run: Served) -> RunState:
    """What a viewer has that comes now."""
    link = await SocketLink.connect(Path(f"{run.agent.served.stem}.sock"))
    try:
        return await run_following.snapshot(link)
    finally:
        await link.close()


def _shows_step_times(table: Table) -> bool:
    """Whether a rank's row shows the time of a step as one of now: an old one is dim, next to "no step 12 s"."""
    places = [number for number, (_, _, name) in enumerate(table.areas, 1) if name == "pace"]
    cells = [row[place] for place in places for row in table.rows]
    return any(style != "stale" and text.strip() not in ("n/a", "·") for text, style in cells)


async def step_times(run: Served) -> dict[str, bool]:
    """Outlet → whether it shows the time of a step."""
    state, now = await seen(run), clock.now()
    frame = Frame(state, LinkStatus(LinkPhase.FOLLOWING, now), now, now)
    document = as_printed(state, now)
    samples = samples_of(state, "r", 0, now)
    window = await run.link.read_metrics(ReadMetrics("m", now - 2.0, now, metrics=("rank.step_s",)))
    return {
        "header": bool(STEP_TIME.search(" ".join(plain(header_rows(frame, 200))))),
        "row": _shows_step_times(rank_table(frame, 200)),
        "headline": bool(STEP_TIME.search(headline(state, now))),
        "status": bool(STEP_TIME.search(describe(state, now))),
        "status --json": document["training"]["step_s"] is not None,
        "status --json, ranks": any(rank["step_s"] is not None for rank in document["ranks"]),
        "metrics": any(value is not None for series in window.series for value in series.mean),
        "prometheus": b"distui_rank_step_duration_seconds{" in text_of(samples),
        "otlp": any(metric["name"] == "distui.rank.step.duration" for metric in metrics_of(samples)),
    }


async def rates(run: Served) -> dict[str, bool]:
    """Outlet → whether it shows tokens per second."""
    state, now = await seen(run), clock.now()
    frame = Frame(state, LinkStatus(LinkPhase.FOLLOWING, now), now, now)
    samples = samples_of(state, "r", 0, now)
    return {
        "header": "tok/s" in " ".join(plain(header_rows(frame, 200))),
        "status": "tok/s" in describe(state, now),
        "status --json": as_printed(state, now)["training"]["tokens_s"] is not None,
        "prometheus": b"distui_training_tokens_per_second{" in text_of(samples),
        "otlp": any(
            metric["name"] == "distui.training.tokens_per_second" for metric in metrics_of(samples)
        ),
    }


def all_of(shown: dict[str, bool], value: bool) -> dict[str, bool]:
    return dict.fromkeys(shown, value)


async def test_the_step_time_of_a_hung_run_goes_everywhere_within_seconds() -> None:
    async with doubled() as (run, runners):
        await run.hooked()
        await asyncio.sleep(10.0)
        reporting(runners)
        await asyncio.sleep(3.0)
        shown, told = await step_times(run), await rates(run)
        assert (shown, told) == (all_of(shown, True), all_of(told, True))
        runners.newest.hangs(1)
        await asyncio.sleep(7.0)
        shown, told = await step_times(run), await rates(run)
        assert (shown, told) == (all_of(shown, False), all_of(told, False))
        await asyncio.sleep(39.0)
        state = await seen(run)
        document = as_printed(state, clock.now())
        assert "no step for 46 s" in describe(state, clock.now())
        assert [round(rank["still_s"]) for rank in document["ranks"]] == [46, 46]
        assert document["training"]["step"] is not None, "how far it came remains true"
        assert document["training"]["loss"] == 2.5
        assert round(document["training"]["age_s"]) in (49, 50)


async def doing(run: Served) -> tuple[list[str], str]:
    """What each rank's row says that it does, and the header's second line."""
    state, now = await seen(run), clock.now()
    frame = Frame(state, LinkStatus(LinkPhase.FOLLOWING, now), now, now)
    header = plain(header_rows(frame, 200))[1]
    return [rank["doing"] for rank in as_printed(state, now)["ranks"]], header


async def test_a_hang_is_seen_within_five_seconds_and_named_once_it_is_found() -> None:
    async with doubled() as (run, runners):
        await run.hooked()
        await asyncio.sleep(20.0)
        assert (await doing(run))[0] == ["step 500 ms", "step 500 ms"]
        runners.newest.hangs(1)
        await asyncio.sleep(5.0)
        said, header = await doing(run)
        assert said == ["all_reduce 5 s", "no step 5 s"]
        assert "no step for 5 s, usually 500 ms" in header
        assert not [finding for finding in run.state.findings.values() if finding.alarm]
        await asyncio.sleep(15.0)
        assert (await doing(run))[0] == ["waits for 1", "no step 20 s"]
        culprits = [rank["culprit"] for rank in as_printed(await seen(run), clock.now())["ranks"]]
        assert culprits == [False, True]


async def test_a_rank_that_was_stopped_is_unknown_and_the_others_have_stopped() -> None:
    async with doubled() as (run, runners):
        await run.hooked()
        await asyncio.sleep(10.0)
        runners.newest.stops(0)
        await asyncio.sleep(8.0)
        assert not any((await step_times(run)).values())
        stopped, other = as_printed(await seen(run), clock.now())["ranks"]
        assert (stopped["step_s"], stopped["still_s"]) == (None, None), (
            "it does not say whether it makes steps"
        )
        assert (other["step_s"], round(other["still_s"])) == (None, 8)


async def test_a_rank_that_is_blocked_waits_all_of_its_time_within_15_s() -> None:
    async with doubled() as (run, runners):
        await run.hooked()
        await asyncio.sleep(60.0)
        assert run.state.ranks[0].sample is not None
        assert run.state.ranks[0].sample.wait_percent == 0.0
        runners.newest.hangs(1)
        await asyncio.sleep(15.0)
        document = as_printed(await seen(run), clock.now())
        assert [rank["wait_percent"] for rank in document["ranks"]] == [100.0, 0.0]


async def test_the_wait_share_goes_with_the_pulses() -> None:
    async with doubled() as (run, runners):
        await run.hooked()
        await asyncio.sleep(60.0)
        runners.newest.stops(0)
        await asyncio.sleep(25.0)
        document = as_printed(await seen(run), clock.now())
        assert [rank["wait_percent"] for rank in document["ranks"]] == [None, 100.0]


async def test_before_the_first_step_there_is_no_step_time() -> None:
    async with doubled(SlowSteps) as (run, _):
        await run.hooked()
        await asyncio.sleep(50.0)
        shown = await step_times(run)
        assert shown == all_of(shown, False)
        document = as_printed(await seen(run), clock.now())
        assert [(rank["step"], rank["still_s"]) for rank in document["ranks"]] == [(0, None), (0, None)]
        assert "no step for" not in describe(await seen(run), clock.now())


async def test_a_slow_job_has_a_step_time_between_its_steps() -> None:
    async with doubled(SlowSteps) as (run, runners):
        await run.hooked()
        await asyncio.sleep(240.0)
        for _ in range(7):
            await asyncio.sleep(17.0)
            shown = await step_times(run)
            assert shown == all_of(shown, True)
        runners.newest.hangs(1)
        await asyncio.sleep(241.0)
        shown = await step_times(run)
        assert shown == all_of(shown, False)


async def test_an_evaluation_and_a_save_are_pauses_of_the_rates_and_no_alarm() -> None:
    async with doubled() as (run, runners):
        await run.hooked()
        await asyncio.sleep(20.0)
        reporting(runners)
        for stack in (EVALUATE, SAVE):
            for hook in runners.newest.hooks.values():
                hook.pause(stack)
            await asyncio.sleep(8.0)
            shown, told = await step_times(run), await rates(run)
            assert (shown, told) == (all_of(shown, False), all_of(told, False)), stack
            assert "no step for 8 s" in describe(await seen(run), clock.now())
            assert not [finding for finding in run.state.findings.values() if finding.alarm]
            for hook in runners.newest.hooks.values():
                hook.go_on()
            await asyncio.sleep(5.0)
            shown, told = await step_times(run), await rates(run)
            assert (shown, told) == (all_of(shown, True), all_of(told, True)), stack


async def test_the_last_values_of_an_ended_run_are_facts_of_its_end() -> None:
    async with doubled() as (run, runners):
        await run.hooked()
        await asyncio.sleep(10.0)
        reporting(runners)
        await asyncio.sleep(2.0)
        runners.newest.finishes()
        await run.until(lambda state: state.phase.ended)
        document = as_printed(run.state, clock.now() + 3600.0)
        assert document["training"]["tokens_s"] == 5000.0
        assert [rank["step_s"] for rank in document["ranks"]] == [0.5, 0.5]
        assert [rank["wait_percent"] for rank in document["ranks"]] == [None, None]
        text = describe(run.state, clock.now() + 3600.0)
        assert "training, last values: step" in text
        assert "500ms" not in text.splitlines()[0], "nobody makes steps"
        read = text_of(samples_of(run.state, "r", 0, clock.now())).decode()
        assert "duration" not in read
        assert "per_second" not in read


async def test_what_a_script_reports_in_its_last_second_is_its_last_value() -> None:
    async with doubled() as (run, runners):
        await run.hooked()
        await asyncio.sleep(10.0)
        reporting(runners)
        await asyncio.sleep(2.0)
        before = as_printed(run.state, clock.now())["training"]
        for rank, hook in runners.newest.hooks.items():
            assert hook.signals is not None
            tracker = hook.signals["trackers"]["wandb"]
            last = {**tracker, "values": {"loss": [1.25, 1000, clock.now()]}, "reached": 1000}
            signals = {"version": 2, "trackers": {"wandb": last}}
            runners.newest.writes(rank, json.dumps({"time": 1.0, "step": 1000, "signals": signals}), "end")
        runners.newest.finishes()
        await run.until(lambda state: state.phase.ended)
        after = as_printed(run.state, clock.now())["training"]
        assert (before["loss"], before["fraction"] < 0.1) == (2.5, True)
        assert (after["step"], after["total"], after["fraction"], after["loss"]) == (1000, 1000, 1.0, 1.25)
        assert "step 1,000 / 1,000" in describe(run.state, clock.now())


def test_the_first_line_and_the_training_line_have_one_number_of_steps() -> None:
    """A rank that a signal ends says nothing more: its hook was asked a second before, its output is read to the end."""
    state = RunState(name="r")
    places = (RankPlace(0, 0),)
    state.apply(Stamped(10.0, RunCreated("r", "r", "box", PlanSummary("", "", "torchrun", "t.py")), 1))
    state.apply(Stamped(10.0, AttemptStarted(1, "launch", 1, places), 2))
    state.apply(Stamped(10.0, RankChanged(1, 0, RankPhase.RUNNING, 0, 7), 3))
    state.apply(Stamped(14.0, RankTick((RankSample(0, 7, step=2, step_s=0.5),))))
    last = TrainingSample(0, 15.0, step=10, sources={"step": "output: step {step}"})
    samples = (RankSample(0, 7, step=2, step_s=0.5),)
    state.apply(Stamped(15.0, RankChanged(1, 0, RankPhase.KILLED, 0, 7, None, "SIGSEGV"), 4))
    state.apply(Stamped(15.0, AttemptEnded(1, Outcome.FAILED, last=samples, training=(last,)), 5))
    state.apply(Stamped(15.0, RunEnded(RunPhase.FAILED, 1, "rank 0 died of SIGSEGV"), 6))
    text = describe(state, 20.0)
    assert "  step 10  " in text.splitlines()[0]
    assert "training, last values: step 10" in text


async def test_samples_that_stop_coming_are_not_shown_as_of_now() -> None:
    """The agent is stopped, or the line is cut: what was sampled last is of then."""
    async with doubled() as (run, runners):
        await run.hooked()
        await asyncio.sleep(10.0)
        reporting(runners)
        await asyncio.sleep(2.0)
        state, heard = await seen(run), clock.now()
        for later, known in [(2.0, True), (5.0, False)]:
            document = as_printed(state, heard + later)
            rank, node, line = document["ranks"][0], document["nodes"][0], document["training"]
            values = (rank["step_s"], line["step_s"], line["tokens_s"], node["host_metrics"])
            assert [value is not None for value in values] == [known] * 4, later
            assert rank["step"], "how far it came remains true"
            assert later <= rank["age_s"] <= later + 1.5
        quiet = Frame(state, LinkStatus(LinkPhase.FOLLOWING, heard), heard + 10.0, heard)
        assert STEP_TIME.search(" ".join(plain(header_rows(quiet, 200)))), "dim, beside its age"
        lost = Frame(state, LinkStatus(LinkPhase.FOLLOWING, heard), heard + 40.0, heard)
        words = " ".join(plain(header_rows(lost, 200)))
        assert not STEP_TIME.search(words)
        assert "no step for" not in words, "nobody knows"


def test_a_gpu_that_is_not_sampled_any_more_has_no_values() -> None:
    state, gpu = RunState(), Gpu(0, "GPU-0", "NVIDIA H100", util=98.0, mem_total=80 << 30)
    state.apply(Stamped(100.0, GpuTick((gpu,))))
    for now, util in [(102.0, 98.0), (104.0, None)]:
        (shown,) = as_printed(state, now)["nodes"][0]["gpus"]
        assert (shown["util"], shown["mem_total"], shown["uuid"]) == (util, 80 << 30, "GPU-0")
        assert as_printed(state, now)["nodes"][0]["gpus_age_s"] == now - 100.0
