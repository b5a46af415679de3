"""What `distui status` prints where there is no cockpit."""

from __future__ import annotations

import scripted as play
from each import for_each
from msgspec import structs

from distui.presets.finding import Finding
from distui.runners.diagnosis.status import state_words
from distui.runners.run.model import (
    HUB,
    AttemptStarted,
    Cluster,
    ClusterChanged,
    Event,
    LinkChanged,
    LinkState,
    PlanSummary,
    RankPlace,
    RunCreated,
    Stage,
    StageChanged,
    Stamped,
)
from distui.runners.run.state import RunState
from distui.tui.rows.run_status import cost
from distui.tui.screens.panes import too_small
from distui.tui.verbs.foreground import Causes
from distui.tui.verbs.status import describe, headline, unsaid

PLAN = PlanSummary(preset="ddp", strategy="ddp", launcher="torchrun", command="train.py", nnodes=2)
SLURM = Cluster(
    name="t1", infra="slurm/lab/gpu", resources="H100:2", price_per_hour=12.0, since=1000.0, job=1
)


def launching() -> RunState:
    state = RunState()
    told: list[tuple[int, Event]] = [
        (HUB, RunCreated("r", "n", "laptop", PLAN, merged=True)),
        (HUB, ClusterChanged(SLURM)),
        (HUB, StageChanged(Stage.PROVISION, "begun")),
        (HUB, StageChanged(Stage.PROVISION, "done", "2 nodes")),
        (1, StageChanged(Stage.SETUP, "failed", "pip found no torch")),
        (1, LinkChanged(LinkState.LOST, "c2", "c2 does not answer")),
    ]
    return state.apply_all(Stamped(float(at), event, at, node) for at, (node, event) in enumerate(told, 1))


def test_a_launch_is_told_by_its_stages_and_what_it_costs() -> None:
    text = describe(launching(), now=1000.0 + 1800.0)
    assert "cluster t1  slurm/lab/gpu  H100:2  job 1  $12.00/h, $6.00 so far" in text
    assert " ● provision   1 s         2 nodes" in text
    assert "c2          ✖ 0 s " in text
    assert "setup: pip found no torch" in text
    assert "✖ no answer 46 min 34 s, trying now: c2 does not answer" in text


def test_stages_leave_when_ranks_are_there_and_each_rank_names_its_node() -> None:
    state = launching()
    state.apply(Stamped(9.0, AttemptStarted(1, "launch", 2, (RankPlace(1, 0, 1),)), 9, node=1))
    lines = describe(state, now=1000.0).splitlines()
    assert not any(word in line for line in lines for word in ("provision", "setup"))
    assert lines[lines.index("") + 1].split()[:2] == ["rank", "state"]
    assert lines[lines.index("") + 2].split()[:3] == ["1", "◌", "starting"]
    assert [line.split()[:3] for line in lines if line.startswith("node")] == [["node", "1", "c2"]]


@for_each(
    ("known", "expected"),
    [
        (Cluster(name="t1"), ""),
        (Cluster(price_per_hour=2.5), "$2.50/h"),
        (Cluster(price_per_hour=2.5, since=0.0, until=7200.0, down=True), "$2.50/h, $5.00 so far"),
    ],
)
def test_no_price_is_better_than_a_wrong_one(known: Cluster, expected: str) -> None:
    assert cost(known, now=90_000.0) == expected


def test_a_cause_is_told_once() -> None:
    """The ledger, the finding and the end of a run each name it."""
    told: list[str] = []
    for text, left in (
        ("attempt 1 failed: rank 1 raised ValueError: x; 1 more followed",) * 2,
        ("rank 1 raised ValueError: x", ""),
        (
            "rank 1 raised ValueError: x; gave up: failed in the same way twice",
            "gave up: failed in the same way twice",
        ),
    ):
        told.append(unsaid(text, told))
        assert told[-1] == left


def test_a_cause_is_told_once_also_of_an_attempt_that_another_one_has_followed() -> None:
    """A finding of attempt 1 may come while attempt 2 runs, and attempt 2 may fail in the same way."""
    cause = "rank 1 raised ValueError: x"
    causes = Causes()
    assert causes.new(1, f"attempt 1 failed: {cause}") == f"attempt 1 failed: {cause}"
    causes.add(1, cause)
    assert causes.new(2, f"attempt 1: {cause}") == ""
    assert causes.new(2, "attempt 1: rank 0 ran out of memory") == "attempt 1: rank 0 ran out of memory"
    assert causes.new(2, cause) == cause
    assert (
        causes.new(2, f"attempt 2 failed: {cause}; 1 more followed") == "attempt 2 failed; 1 more followed"
    )


def test_what_is_told_already_is_left_out_at_the_end_of_a_sentence_too() -> None:
    cause = "rank 1 raised ValueError: x"
    assert unsaid(f"gave up: twice the same: {cause}", [cause]) == "gave up: twice the same"
    assert unsaid(f"it ended, but {cause}", [cause]) == "it ended"
    assert unsaid(f"gave up: {cause} again", [cause]) == f"gave up: {cause} again"
    assert unsaid("rank 2 raised ValueError: x", [cause]) == "rank 2 raised ValueError: x"


def test_gpus_and_findings_are_the_rows_of_the_cockpit() -> None:
    state = RunState().apply_all(play.stamped(play.running()))
    for finding in (
        Finding(id="slow", severity="warning", role="hint", text="it crawls", rank=1),
        Finding(id="slow", severity="warning", role="hint", text="it creeps", rank=2),
        Finding(id="hang-python", severity="error", text="rank 3 waits", rank=3, since=play.NOW - 60),
    ):
        state.findings[finding.id, finding.rank, finding.node] = finding
    lines = describe(state, play.NOW).splitlines()
    assert "  0  NVIDIA H100 80GB HBM3   97%  61.0/80G   400W   55C  n/a" in lines
    assert [line.split() for line in lines[-3:]] == [
        ["✖", "cause", "r3", "60s", "rank", "3", "waits"],
        ["▲", "hint", "r1", "it", "crawls"],
        ["▲", "hint", "r2", "it", "creeps"],
    ]


def test_what_is_said_of_large_logs_is_true_of_capped_ones_too() -> None:
    state = RunState().apply_all(play.stamped(play.running()))
    assert state.plan is not None
    state.log_sizes["node-0/attempt-001/rank-0.out"] = 99 << 20
    assert "logs:" not in describe(state, play.NOW)
    state.log_sizes["node-0/attempt-001/rank-1.out"] = 301 << 20
    assert "\nlogs: 400.0 MiB; a launch with --log-cap keeps head and tail of each\n" in describe(
        state, play.NOW
    )
    state.plan = structs.replace(state.plan, log_cap=200 << 20)
    text = "logs: 400.0 MiB written; a log that takes more than 200.0 MiB on disk loses its middle"
    assert text in describe(state, play.NOW).splitlines()
    state.findings["log-cap", None, 0] = Finding(id="log-cap", severity="warning", text="no", node=0)
    assert "logs: 400.0 MiB, which their cap of 200.0 MiB cannot hold" in describe(state, play.NOW)


def test_a_hang_is_in_the_state() -> None:
    state = RunState()
    for stamped in play.stamped(play.running()):
        state.apply(stamped)
    state.findings[("hang-not-joined", 1, None)] = Finding(
        "hang-not-joined", "note", "rank 1 works", rank=1
    )
    assert state_words(state) == "running"
    state.findings[("hang-not-joined", 1, None)] = Finding(
        "hang-not-joined", "error", "rank 1 sleeps", rank=1
    )
    assert state_words(state) == "running, hung?"
    assert "  running, hung?  attempt " in headline(state)


def test_what_a_small_terminal_is_told_fits() -> None:
    for width in range(16, 80):
        assert len(too_small(width)) < width
    assert too_small(40) == " enlarge the terminal to 60×15"
    assert too_small(50).endswith("; keys work")
