"""What a rank's row says that it does: from steps, pulses, findings and commands, and never more than they tell."""

from __future__ import annotations

from each import for_each
from msgspec import structs

from distui.presets.finding import Finding
from distui.runners.diagnosis.rank_activity import Activities, Now, RankActivity, pause_of
from distui.runners.run.model import CommandReceived, PlanSummary, RankPhase
from distui.runners.run.pulse import Pulse, Site
from distui.runners.run.samples import RankSample
from distui.runners.run.state import OpenCommand, Rank, RunState

from .detectors.hang_rig import (
    IN_ALL_REDUCE,
    IN_INIT,
    IN_LOADER,
    IN_SAVE,
    LOAD,
    NOW,
    STEP,
    TORCH,
    Made,
    call,
    series,
    waiting,
)

GOES_ON = RankSample(0, 100, step=12, step_s=0.6)
STOPPED = RankSample(0, 100, step=12, still_s=12.0, usual_s=0.6)
BEFORE = RankSample(0, 100, step=0)
EVALUATES = (
    Site(TORCH + "nn/modules/linear.py", 125, "forward"),
    Site("/job/train.py", 90, "evaluate"),
    *STEP,
)
COMPILES = (Site(TORCH + "_inductor/compile_fx.py", 9, "compile_fx_inner"), *STEP)
SYNCHRONIZES = (Site(TORCH + "cuda/__init__.py", 1281, "synchronize"), *STEP)


def rank_of(sample: RankSample | None, pulse: Pulse | None) -> Rank:
    rank = Made(1).state.ranks[0]
    rank.sample, rank.sampled, rank.pulse = sample, NOW, pulse
    return rank


def doing(sample: RankSample | None, pulse: Pulse | None, state: RunState | None = None) -> RankActivity:
    return Activities(state or Made(1).state, NOW).of(rank_of(sample, pulse), sample)


def last(*pulses: Pulse, **more: object) -> Pulse:
    return structs.replace(pulses[-1], **more)


IN_CALL = last(*waiting(0, call(42, age=12.0)))
YOUNG_CALL = last(*waiting(0, call(42, age=1.0)))
ONLY_STACK = last(*series(0, IN_ALL_REDUCE))
SLEEPS = last(*series(0, LOAD))


@for_each(
    ("sample", "pulse", "now", "text"),
    [
        (GOES_ON, None, "steps", "step 600 ms"),
        (GOES_ON, YOUNG_CALL, "steps", "step 600 ms"),
        (structs.replace(GOES_ON, step_s=60.0), IN_CALL, "steps", "step 60.0 s"),
        (structs.replace(GOES_ON, step_s=6.0), IN_CALL, "waits", "all_reduce 12 s"),
        (STOPPED, IN_CALL, "waits", "all_reduce 12 s"),
        (STOPPED, ONLY_STACK, "waits", "all_reduce"),
        (STOPPED, last(*waiting(0, structs.replace(call(42), done=True))), "waits", "all_reduce"),
        (STOPPED, SLEEPS, "blocked", "blocked 12 s"),
        (STOPPED, last(SLEEPS, state="R"), "still", "no step 12 s"),
        (STOPPED, last(SLEEPS, samples=1), "still", "no step 12 s"),
        (STOPPED, last(SLEEPS, sites=5), "still", "no step 12 s"),
        (STOPPED, last(*series(0, SYNCHRONIZES)), "still", "no step 12 s"),
        (STOPPED, last(*series(0, IN_LOADER)), "blocked", "data loader 12 s"),
        (STOPPED, last(SLEEPS, state="T"), "blocked", "suspended 12 s"),
        (STOPPED, last(*series(0, IN_SAVE)), "pauses", "checkpoint 12 s"),
        (STOPPED, last(*series(0, COMPILES)), "pauses", "compiling 12 s"),
        (STOPPED, last(*series(0, EVALUATES)), "pauses", "evaluation 12 s"),
        (STOPPED, None, "still", "no step 12 s"),
        (STOPPED, last(SLEEPS, step=11), "still", "no step 12 s"),
        (STOPPED, last(SLEEPS, at=NOW - 16.0), "still", "no step 12 s"),
        (None, None, "phase", "running"),
        (BEFORE, None, "phase", "running"),
        (BEFORE, last(*series(0, IN_INIT, step=0)), "begins", "waiting for the other ranks to join"),
        (BEFORE, last(*series(0, STEP, step=0)), "phase", "running"),
        (BEFORE, IN_CALL, "waits", "all_reduce 12 s"),
        (RankSample(0, 100, step=12), last(*series(0, COMPILES)), "phase", "running"),
        (RankSample(0, 100), IN_CALL, "waits", "all_reduce 12 s"),
    ],
)
def test_what_a_running_rank_does(
    sample: RankSample | None, pulse: Pulse | None, now: str, text: str
) -> None:
    assert doing(sample, pulse) == RankActivity(Now(now), text)


def test_a_finding_names_the_culprit_and_its_victims() -> None:
    made = Made(4).wait([0, 1, 3]).add(series(2, LOAD, enqueued=41))
    (found,) = made.hang()
    assert found.waiting == (0, 1, 3)
    made.state.findings[(found.id, found.rank, found.node)] = found
    named = Activities(made.state, NOW)
    shown = {number: named.of(rank, STOPPED) for number, rank in made.state.ranks.items()}
    assert shown[2] == RankActivity(Now.BLOCKED, "blocked 12 s", culprit=True)
    assert shown[0] == shown[1] == shown[3] == RankActivity(Now.WAITS, "waits for 2", victim=True)
    quiet = Finding("hang-not-joined", "note", "rank 2 works", rank=2, waiting=(0,))
    made.state.findings = {("hang-not-joined", 2, 0): quiet}
    assert Activities(made.state, NOW).of(made.state.ranks[0], STOPPED).victim is False


def test_a_culprit_without_victims_is_marked_and_ranks_that_all_wait_are_not() -> None:
    made = Made(2)
    found = Finding("hang-python", "warning", "rank 1 loops", rank=1)
    made.state.findings[("hang-python", 1, 0)] = found
    named = Activities(made.state, NOW)
    assert [named.of(rank, STOPPED).culprit for rank in made.state.ranks.values()] == [False, True]
    circle = Finding("hang-mismatch", "error", "ranks wait for each other", rank=0, ranks=(0, 1))
    made.state.findings[("hang-mismatch", 0, 0)] = circle
    named = Activities(made.state, NOW)
    assert [named.of(rank, STOPPED).culprit for rank in made.state.ranks.values()] == [False, False]
    slow = Finding("straggler", "warning", "rank 1 is slow", rank=1)
    made.state.findings = {("straggler", 1, 0): slow}
    assert not Activities(made.state, NOW).of(made.state.ranks[1], GOES_ON).culprit, "it makes steps"


def test_ranks_that_are_being_ended_say_so_and_ended_ones_do_not() -> None:
    made = Made(2)
    asked = CommandReceived("c", "restart requested", "restart", 30.0)
    made.state.open_commands["c"] = OpenCommand(asked, 1, NOW - 3.0)
    made.state.ranks[1].phase = RankPhase.STOPPED
    named = Activities(made.state, NOW)
    assert named.of(made.state.ranks[0], GOES_ON) == RankActivity(Now.STOPPING, "stopping 3/30 s")
    assert named.of(made.state.ranks[1], None) == RankActivity(Now.PHASE, "stopped")


def test_ranks_that_are_ended_after_a_failure_say_so() -> None:
    made = Made(3)
    made.state.plan = PlanSummary("ddp", "ddp", "torchrun", "train.py", grace_s=20.0)
    failed = made.state.ranks[1]
    failed.phase, failed.ended = RankPhase.FAILED, NOW - 4.0
    made.state.ranks[2].phase = RankPhase.STOPPED
    named = Activities(made.state, NOW)
    shown = [named.of(rank, GOES_ON).text for rank in made.state.ranks.values()]
    assert shown == ["stopping 4/20 s", "failed", "stopped"]


def test_a_pause_is_known_unless_a_rank_is_blocked() -> None:
    made = Made(3).wait([0, 1]).add(series(2, IN_SAVE))
    for rank in made.state.ranks.values():
        rank.sample = STOPPED
    assert pause_of(made.state, NOW) == "checkpoint"
    made.add(series(1, LOAD))
    assert pause_of(made.state, NOW) == ""
