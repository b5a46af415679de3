"""The rules: when there is a notice, that each cause gives one, and what comes and goes calls nobody twice."""

from __future__ import annotations

import pytest
from each import for_each

from distui.presets.finding import Finding
from distui.runners.notify.notice_rules import LATE_S, USUAL_CALM_S, Notice, Rules, wanted_of
from distui.runners.notify.rule_words import RULES, chosen, every_rule, rules_of, rules_word
from distui.runners.run.errors import RunError
from distui.runners.run.model import (
    HUB,
    AttemptEnded,
    AttemptStarted,
    Checkpoint,
    CheckpointSaved,
    Cluster,
    ClusterChanged,
    CommandReceived,
    Event,
    FindingCleared,
    FindingRaised,
    FirstCause,
    GpuTick,
    Outcome,
    PlanSummary,
    RankChanged,
    RankPhase,
    RankPlace,
    RankTick,
    RestartDelayed,
    RunCreated,
    RunEnded,
    RunPhase,
    Stamped,
    TrainingTick,
)
from distui.runners.run.samples import Gpu, RankSample, TrainingSample
from distui.runners.run.state import RunState

BEGAN = 1000.0
CAUSE = FirstCause(1, 1, 0, exit_code=1, text="raised ValueError: x at train.py:3", remedy="mend it")
HANG = Finding(
    "hang-collective", "error", "all have joined, the GPUs spin", ranks=(0, 1), remedy="see the network"
)
SLOW = Finding("straggler", "warning", "rank 1 is slow", rank=1)


class Played:
    """A run whose clock the test sets."""

    def __init__(self, *minutes: tuple[str, float]) -> None:
        self.state, self.now, self.set_by = RunState(), BEGAN, 0.0
        on = {**every_rule(), **dict(minutes)}
        self.rules = Rules(wanted_of([on]))
        plan = PlanSummary("ddp", "ddp", "torchrun", "train.py", restart_limit=3)
        self.play(RunCreated("r", "night", "gpu1", plan))
        self.attempt(1)

    def play(self, *events: Event, node: int = 0) -> None:
        for event in events:
            self.state.apply(Stamped(self.now, event, node=node))

    def attempt(self, number: int, cause: str = "launch") -> None:
        places = (RankPlace(0, 0), RankPlace(1, 1))
        self.play(AttemptStarted(number, cause, 2, places))
        self.play(*(RankChanged(number, rank, RankPhase.RUNNING, rank, 100 + rank) for rank in (0, 1)))

    def steps(self, step: int) -> None:
        self.play(RankTick(tuple(RankSample(rank, 100 + rank, gpu=rank, step=step) for rank in (0, 1))))

    def after(self, seconds: float) -> list[Notice]:
        self.now += seconds
        return self.rules.judge(self.state, self.now, self.ticks)

    @property
    def ticks(self) -> float:
        """Seconds on the clock that nobody sets."""
        return self.now - self.set_by

    def sets_clock(self, seconds: float) -> None:
        self.now, self.set_by = self.now + seconds, self.set_by + seconds

    def hears(self, seconds: float = 2.0) -> list[str]:
        return [notice.rule for notice in self.after(seconds)]

    def lasting(self, seconds: float, every: float = 2.0) -> list[Notice]:
        """All notices while so much time goes by."""
        heard: list[Notice] = []
        for _ in range(int(seconds / every)):
            heard += self.after(every)
        return heard


@pytest.fixture
def run() -> Played:
    return Played()


def test_nothing_is_said_of_a_run_that_just_runs(run: Played) -> None:
    assert run.hears() == []
    run.steps(0)
    assert run.lasting(3600, every=10.0) == []


def test_the_first_step_is_told_once_an_attempt(run: Played) -> None:
    assert run.hears(60.0) == []
    run.steps(1)
    (notice,) = run.after(2.0)
    assert (notice.rule, notice.what, notice.at) == ("first-step", "it trains", run.now)
    assert notice.text == "the first step came 1 min 2 s after the start, on 2 ranks"
    run.steps(2)
    assert run.hears() == []
    run.play(AttemptEnded(1, Outcome.FAILED, CAUSE), RestartDelayed(1.0, 1, 3))
    run.hears()
    run.attempt(2, "failure")
    assert run.hears() == []
    run.steps(1)
    assert [notice.what for notice in run.after(2.0)] == ["it trains again, in attempt 2"]


def test_a_step_that_the_output_alone_reports_is_one(run: Played) -> None:
    run.hears()
    run.play(TrainingTick((TrainingSample(0, run.now, step=5, loss=2.0),)))
    assert run.hears() == ["first-step"]


def test_what_a_rank_reported_in_the_attempt_before_is_no_first_step(run: Played) -> None:
    run.play(TrainingTick((TrainingSample(0, run.now, step=5),)))
    run.hears()
    run.now += 10
    run.play(AttemptEnded(1, Outcome.FAILED, CAUSE))
    run.attempt(2, "failure")
    assert "first-step" not in run.hears()


def test_a_failure_that_is_restarted_names_rank_cause_remedy_and_checkpoint(run: Played) -> None:
    run.play(CheckpointSaved(1, Checkpoint("/ckpt/step-40", run.now, "torch.save", step=40)))
    run.play(AttemptEnded(1, Outcome.FAILED, CAUSE, "attempt 1 failed"))
    assert run.hears() == []  # nobody has decided yet whether it goes on
    run.play(RestartDelayed(5.0, 1, 3))
    (notice,) = run.after(2.0)
    assert (notice.rule, notice.ranks, notice.remedy) == ("restarted", (1,), "mend it")
    assert notice.text == (
        "rank 1: raised ValueError: x at train.py:3; failure 1 of 3; the newest checkpoint is /ckpt/step-40"
    )
    run.attempt(2, "failure")
    assert run.hears() == []


def test_a_restart_that_somebody_asked_for_is_no_failure(run: Played) -> None:
    run.play(AttemptEnded(1, Outcome.RESTARTED))
    run.attempt(2, "restart")
    assert run.hears() == []
    run.play(AttemptEnded(2, Outcome.LOST))  # revived by hand
    run.attempt(3, "restart")
    assert run.hears() == []


def test_giving_up_is_told_once_with_its_cause(run: Played) -> None:
    run.play(AttemptEnded(1, Outcome.FAILED, CAUSE), RunEnded(RunPhase.FAILED, 1, "gave up"))
    (notice,) = run.after(2.0)
    assert (notice.rule, notice.severity, notice.ranks) == ("gave-up", "error", (1,))
    assert notice.text == "rank 1: raised ValueError: x at train.py:3; gave up"
    assert run.hears() == []


def test_success_is_told_with_how_far_it_came(run: Played) -> None:
    run.steps(1)
    run.hears()
    run.now += 3598
    run.play(
        TrainingTick(
            (TrainingSample(0, run.now, step=500, loss=0.25, sources={"step": "output", "loss": "output"}),)
        )
    )
    run.play(AttemptEnded(1, Outcome.SUCCEEDED), RunEnded(RunPhase.SUCCEEDED, 0, "succeeded"))
    (notice,) = run.after(2.0)
    assert (notice.rule, notice.text) == ("succeeded", "it took 1 h 0 min; step 500, loss 0.25")


def test_a_success_without_a_step_is_a_warning(run: Played) -> None:
    run.play(AttemptEnded(1, Outcome.SUCCEEDED, idle="no rank made a training step"))
    run.play(RunEnded(RunPhase.SUCCEEDED, 0, "succeeded"))
    (notice,) = run.after(2.0)
    assert notice.severity == "warning"
    assert "without a training step" in notice.what


def test_a_stop_is_no_notice(run: Played) -> None:
    run.play(CommandReceived("1", "stop requested", "stop"))
    run.play(AttemptEnded(1, Outcome.FAILED, CAUSE), RunEnded(RunPhase.STOPPED, 1, "stopped"))
    assert run.hears() == []


# --- what lasts ---


def test_a_hang_is_told_once_it_holds_and_once(run: Played) -> None:
    run.play(FindingRaised(HANG))
    assert run.hears() == []
    heard = run.lasting(3600)
    assert [notice.rule for notice in heard] == ["hang"]
    assert (heard[0].ranks, heard[0].remedy, heard[0].what) == (
        (0, 1),
        "see the network",
        "ranks 0, 1 hang",
    )


def test_a_hang_that_gets_another_name_is_the_same_hang(run: Played) -> None:
    run.play(FindingRaised(HANG))
    assert len(run.lasting(20)) == 1
    run.play(
        FindingCleared(HANG.id),
        FindingRaised(Finding("hang-network", "error", "packets are lost", ranks=(0,))),
    )
    assert run.lasting(3600) == []


def test_a_note_is_no_hang(run: Played) -> None:
    run.play(FindingRaised(Finding("hang-no-verdict", "note", "data is missing")))
    run.play(FindingRaised(Finding("start-waiting", "note", "ranks have not come")))
    assert run.lasting(600) == []


def test_a_condition_that_flaps_calls_once(run: Played) -> None:
    heard = []
    for _ in range(40):
        run.play(FindingRaised(SLOW))
        heard += run.lasting(40)
        run.play(FindingCleared("straggler", 1))
        heard += run.lasting(20)
    assert [notice.rule for notice in heard] == ["straggler"]


def test_a_short_finding_calls_nobody(run: Played) -> None:
    for _ in range(40):
        run.play(FindingRaised(SLOW))
        assert run.lasting(20) == []
        run.play(FindingCleared("straggler", 1))
        assert run.lasting(4) == []


def test_what_comes_back_after_a_calm_is_told_again(run: Played) -> None:
    run.play(FindingRaised(SLOW))
    first = run.lasting(60)
    run.play(FindingCleared("straggler", 1))
    assert run.lasting(USUAL_CALM_S + 10) == []
    run.play(FindingRaised(SLOW))
    again = run.lasting(60)
    assert [notice.rule for notice in (*first, *again)] == ["straggler", "straggler"]
    assert first[0].key != again[0].key


def test_another_process_says_nothing_twice(run: Played) -> None:
    run.steps(1)
    before = run.after(2.0)
    run.play(FindingRaised(HANG), AttemptEnded(1, Outcome.FAILED, CAUSE), RestartDelayed(1.0, 1, 3))
    before += run.lasting(20)
    assert len(before) == 3
    run.rules = Rules(run.rules.wanted)
    run.rules.resume(notice.key for notice in before)
    assert run.lasting(600) == []
    run.play(FindingCleared(HANG.id))
    assert run.lasting(USUAL_CALM_S + 10) == []
    run.play(FindingRaised(HANG))
    assert [notice.rule for notice in run.lasting(20)] == ["hang"]


def test_a_viewer_that_comes_late_is_told_what_happens_from_then_on(run: Played) -> None:
    run.steps(1)
    run.play(FindingRaised(HANG))
    run.play(FindingRaised(Finding("spot-notice", "warning", "AWS takes it back at 12:00", node=0)))
    run.rules.prime(run.state, run.now, run.ticks)
    assert run.lasting(600) == []
    run.play(RunEnded(RunPhase.FAILED, 1, "gave up"))
    assert run.hears() == ["gave-up"]


def test_a_first_step_that_nobody_saw_happen_has_the_time_of_its_attempt(run: Played) -> None:
    run.steps(7)
    (notice,) = run.after(LATE_S + 1)
    assert notice.at == BEGAN


# --- findings, checkpoints, GPUs, the provider ---


@pytest.mark.parametrize(
    ("finding", "rule"),
    [
        (Finding("loss-not-finite", "error", "the loss is NaN since step 7", rank=0), "loss-nan"),
        (Finding("disk-low", "warning", "only 1 GiB is free", node=0), "disk"),
        (Finding("disk-full", "error", "full", node=0), "disk"),
        (Finding("disk-checkpoints-low", "warning", "only 1 GiB is free", node=0), "disk"),
        (Finding("disk-checkpoints-full", "error", "full", node=0), "disk"),
        (Finding("start-unreachable", "error", "nobody answers", ranks=(0,)), "hang"),
        (Finding("spot-notice", "warning", "AWS takes it back at 12:00", node=0), "spot-notice"),
    ],
)
def test_findings_that_have_a_rule(run: Played, finding: Finding, rule: str) -> None:
    run.play(FindingRaised(finding))
    assert [notice.rule for notice in run.lasting(60)] == [rule]


def test_a_disk_that_swings_around_its_limit_calls_once(run: Played) -> None:
    low, heard = Finding("disk-low", "warning", "low", node=0), []
    for _ in range(30):
        run.play(FindingRaised(low))
        heard += run.lasting(30)
        run.play(FindingCleared("disk-low", None, 0))
        heard += run.lasting(30)
    assert len(heard) == 1


def test_a_disk_that_nodes_share_calls_once_and_disks_of_their_own_call_for_each(run: Played) -> None:
    for node in (0, 1, 2):
        shared = Finding("disk-checkpoints-low", "warning", "low", node=node, where="nas:/ckpt")
        run.play(FindingRaised(shared))
    (notice,) = run.lasting(60)
    assert notice.what == "the disk of the checkpoints is nearly full"
    for node in (0, 1):
        run.play(FindingRaised(Finding("disk-low", "warning", "low", node=node)))
    assert [notice.node for notice in run.lasting(60)] == [0, 1]


def save(run: Played, step: int) -> None:
    run.play(CheckpointSaved(1, Checkpoint(f"/c/{step}", run.now, "torch.save", step=step)))


def test_a_checkpoint_is_overdue_after_twice_the_usual_time(run: Played) -> None:
    for step in (1, 2, 3):
        save(run, step)
        assert run.lasting(1200) == []
    heard = run.lasting(2 * 1200, every=5.0)
    assert [notice.rule for notice in heard] == ["checkpoint-overdue"]
    assert heard[0].text == "usually there is one every 20 min 0 s; the newest of step 3 is /c/3"
    assert run.lasting(3600, every=10.0) == []
    save(run, 4)
    assert run.lasting(1200) == []
    assert len(run.lasting(2 * 1200, every=5.0)) == 1


def test_nobody_knows_what_is_usual_after_two_checkpoints(run: Played) -> None:
    for step in (1, 2):
        save(run, step)
        run.hears(60)
    assert run.lasting(36000, every=60) == []


def test_a_checkpoint_is_overdue_after_the_minutes_that_were_given() -> None:
    run = Played(("checkpoint-overdue", 30.0))
    assert run.lasting(1790, every=10.0) == []
    heard = run.lasting(60, every=10.0)
    assert [notice.what for notice in heard] == ["no checkpoint for 30 min 0 s"]
    assert heard[0].text == "no checkpoint was seen in this run"


def use(run: Played, *percent: float | None) -> None:
    gpus = tuple(Gpu(at, f"u{at}", "H100", util=util) for at, util in enumerate(percent))
    run.play(GpuTick(gpus))


def idling(run: Played, seconds: float, *percent: float | None) -> list[Notice]:
    heard = []
    for _ in range(int(seconds / 10)):
        run.now += 10
        use(run, *percent)
        heard += run.rules.judge(run.state, run.now, run.ticks)
    return heard


def test_idle_gpus_are_told_with_their_cost(run: Played) -> None:
    run.steps(0)
    run.play(ClusterChanged(Cluster("c", price_per_hour=24.0)))
    assert idling(run, 1790, 0.0, 100.0, 0.0, 0.0) == []
    heard = idling(run, 3600, 0.0, 100.0, 0.0, 0.0)  # the last two are somebody else's
    assert [notice.rule for notice in heard] == ["gpus-idle"]
    assert heard[0].what == "1 of 2 GPUs idle for 30 min 0 s"
    assert heard[0].text == "those of rank 0; that has cost about $3.00 ($24.00 per hour for all nodes)"


def test_no_cost_where_no_price_is_known(run: Played) -> None:
    run.steps(0)
    (notice,) = idling(run, 1900, 0.0, 0.0)
    assert notice.text == "those of ranks 0, 1"


@pytest.mark.parametrize("other", [None, 55.0])
def test_gpus_that_work_now_and_then_or_of_which_nothing_is_known_are_not_idle(
    run: Played, other: float | None
) -> None:
    run.steps(0)
    for _ in range(5):
        assert idling(run, 1500, 0.0, 0.0) == []
        assert idling(run, 60, other, other) == []


def test_samples_that_stopped_say_nothing(run: Played) -> None:
    run.steps(0)
    use(run, 0.0, 0.0)
    assert run.lasting(7200, every=10.0) == []


def test_a_recovery_by_skypilot_is_told_each_time(run: Played) -> None:
    run.play(ClusterChanged(Cluster("c", managed=True, recoveries=1)), node=HUB)
    assert run.hears() == ["spot-notice"]
    assert run.hears() == []
    run.play(ClusterChanged(Cluster("c", managed=True, recoveries=2)), node=HUB)
    assert run.hears() == ["spot-notice"]


# --- words ---


def test_each_rule_can_be_off(run: Played) -> None:
    run.rules.wanted = wanted_of([rules_of(["gave-up"], "x")])
    run.steps(1)
    run.play(FindingRaised(HANG), FindingRaised(SLOW))
    assert run.lasting(600) == []


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("all,checkpoint-overdue=60", ",".join(RULES).replace("overdue", "overdue=60")),
        ("all", "all"), ("gave-up,hang", "hang,gave-up"), ("gpus-idle=5", "gpus-idle=5"), ("gpus-idle=30", "gpus-idle"),
        ("-straggler", ",".join(name for name in RULES if name != "straggler")),
    ],
)  # fmt: skip
def test_words_come_back_as_a_plan_keeps_them(words: str, shown: str) -> None:
    rules = rules_of(words.split(","), "--notify")
    assert rules_word(rules) == shown
    assert chosen([f"team:{shown}"])[0].rules == rules


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("hangs", "did you mean hang?"), ("", "names no rule"), ("hang=3", "takes no minutes"),
        ("gpus-idle=nan", "not a number of minutes"), ("gpus-idle=0", "not a number"), ("gpus-idle=1e9", "not a number"),
        ("hang,-straggler", "exclude each other"), (",".join(f"-{name}" for name in RULES), "leaves no rule"),
    ],
)  # fmt: skip
def test_words_that_mean_nothing_are_refused_in_a_sentence(words: str, part: str) -> None:
    with pytest.raises(RunError, match=part.replace("?", r"\?")):
        rules_of(words.split(","), "--notify team")


@for_each("seconds", [86400.0, -86400.0])
def test_a_clock_that_is_set_makes_no_condition_longer_or_shorter(seconds: float) -> None:
    run = Played()
    run.steps(1)
    run.hears()
    run.play(FindingRaised(SLOW))
    assert run.hears() == []
    run.sets_clock(seconds)
    assert run.hears() == [], "it has to hold for 30 seconds"
    assert run.hears(30.0) == ["straggler"]
    run.play(FindingCleared(SLOW.id, SLOW.rank))
    run.hears()
    run.sets_clock(seconds)
    run.play(FindingRaised(SLOW))
    assert [notice.rule for notice in run.lasting(60)] == [], "it was gone for seconds only"
    assert idling(run, 600, 0.0, 0.0) == []
    run.sets_clock(seconds)
    assert idling(run, 600, 0.0, 0.0) == []
    assert "gpus-idle" in [notice.rule for notice in idling(run, 700, 0.0, 0.0)]
