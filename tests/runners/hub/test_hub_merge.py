"""What a node tells, as it stands in the journal of all nodes."""

from __future__ import annotations

from msgspec import Raw, structs

from distui.presets.finding import Finding
from distui.runners.diagnosis import nccl_facts
from distui.runners.diagnosis.nccl_facts import Communicator, NcclFacts
from distui.runners.hub.links import merge, shift_of, sub_id
from distui.runners.run.log_files import part_of, whole_id
from distui.runners.run.model import (
    AttemptEnded,
    AttemptStarted,
    CaughtUp,
    CommandDone,
    CommandReceived,
    Event,
    FindingCleared,
    FindingRaised,
    FirstCause,
    LogGrew,
    NcclChanged,
    NcclTick,
    Outcome,
    PlanSummary,
    RankChanged,
    RankPhase,
    RankPlace,
    RunCreated,
    Stamped,
    TrainingTick,
)
from distui.runners.run.samples import TrainingSample


def merged(event: Event, node: int = 2, shift: float = 0.0, host: str = "") -> Stamped:
    told = merge(Stamped(100.0, event, 7, source=4711), node, shift, host)
    assert told is not None
    return told


def test_an_event_gets_its_node_and_where_it_was_read() -> None:
    told = merged(CommandReceived("abc", "stop requested", "stop"))
    assert (told.node, told.source, told.seq, told.time) == (2, 7, 0, 100.0)


def test_what_the_hub_asked_itself_is_not_told_twice() -> None:
    for event in (CommandReceived(sub_id("abc", 2), "", "stop"), CommandDone(sub_id("abc", 2), True, "")):
        assert merge(Stamped(1.0, event, 5), 2, 0.0) is None
    assert merged(CommandDone("of-somebody-else", True, "")).event.ok  # type: ignore[union-attr]


def test_the_end_of_one_history_is_not_that_of_all() -> None:
    assert merge(Stamped(1.0, CaughtUp(5)), 0, 0.0) is None


def test_only_a_difference_that_travel_does_not_explain_is_one() -> None:
    cases = [(100.0, 100.4, 0.0), (100.0, 90.0, -10.0), (100.0, 103.5, 3.5), (0.0, 9e9, 0.0)]
    for told, now, shift in cases:
        assert shift_of(told, now) == shift, told


def test_every_time_of_an_event_is_moved_to_our_clock() -> None:
    change = RankChanged(1, 9, RankPhase.FAILED, 1, at=99.0)
    ended = AttemptEnded(1, Outcome.FAILED, FirstCause(9, 1, 0, at=98.0), "")
    level = NcclChanged("INFO", "", (9,), True, "", until=160.0)
    assert merged(change, shift=-10.0).time == 90.0
    assert merged(change, shift=-10.0).event.at == 89.0  # type: ignore[union-attr]
    assert merged(ended, shift=-10.0).event.first_cause.at == 88.0  # type: ignore[union-attr]
    assert merged(level, shift=-10.0).event.until == 150.0  # type: ignore[union-attr]


def test_training_signals_are_moved_and_keep_their_values() -> None:
    sample = TrainingSample(9, 50.0, step=7, loss=2.5, sources={"loss": "wandb"})
    tick = merged(TrainingTick((sample,)), shift=3.0).event
    assert isinstance(tick, TrainingTick)
    assert tick.ranks == (structs.replace(sample, at=53.0),)
    ended = merged(AttemptEnded(1, Outcome.SUCCEEDED, training=(sample,)), shift=3.0).event
    assert isinstance(ended, AttemptEnded)
    assert ended.training == (structs.replace(sample, at=53.0),)


def test_the_times_of_findings_and_of_what_nccl_says_are_moved_too() -> None:
    raised = FindingRaised(Finding("disk-low", "warning", "", node=0, since=50.0))
    assert merged(raised, shift=-10.0).event.finding.since == 40.0  # type: ignore[union-attr]
    facts = NcclFacts(communicators=(Communicator("0xabc", 2, began={1: 20.0}, seen=30.0),))
    told = merged(NcclTick(1, Raw(nccl_facts.encode(facts))), shift=-10.0).event
    assert isinstance(told, NcclTick)
    (one,) = nccl_facts.decode(bytes(told.document)).communicators
    assert (one.began, one.seen) == ({1: 10.0}, 20.0)
    foreign = NcclTick(1, Raw(b'{"communicators": 7}'))
    assert merged(foreign, shift=-10.0).event == foreign


def test_whatever_names_a_node_names_the_right_one() -> None:
    started = AttemptStarted(1, "launch", 4, (RankPlace(2, 0), RankPlace(3, 1)))
    assert {place.node for place in merged(started).event.ranks} == {2}  # type: ignore[union-attr]
    raised = FindingRaised(Finding("disk-low", "warning", "", node=0))
    assert merged(raised).event.finding.node == 2  # type: ignore[union-attr]
    assert merged(FindingCleared("disk-low", node=0)).event.node == 2  # type: ignore[union-attr]
    ended = AttemptEnded(1, Outcome.FAILED, FirstCause(9, 1, 0), "")
    assert merged(ended).event.first_cause.node == 2  # type: ignore[union-attr]


def test_a_node_is_called_as_it_is_reached() -> None:
    created = RunCreated("r.n2", "r", "ip-10-0-0-7", PlanSummary("", "", "command", "x"))
    assert merged(created, host="worker-2").event.host == "worker-2"  # type: ignore[union-attr]
    assert merged(created).event.host == "ip-10-0-0-7"  # type: ignore[union-attr]


def test_logs_of_services_get_their_node() -> None:
    sizes = {"agent.log": 5, "node-2/attempt-001/rank-3.out": 7}
    assert merged(LogGrew(sizes)).event == LogGrew(
        {"node-2/agent.log": 5, "node-2/attempt-001/rank-3.out": 7}
    )


def test_an_id_finds_its_way_back_and_what_is_the_hubs_own_is_on_no_node() -> None:
    for file in ("runner.log", "agent.log", "node-2/attempt-001/rank-3.1.nccl"):
        assert part_of(whole_id(file, 2)) == (2, file)
    for file in ("agent.log", "launch.log", "plan.json", "node-1/../agent.log", ""):
        assert part_of(file) is None, file
