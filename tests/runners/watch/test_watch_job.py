"""From one look to the next: what came, what was started anew, what is gone."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from distui.runners.run.model import Outcome, RankPhase, RunPhase, Stamped
from distui.runners.run.state import RunState
from distui.runners.watch.foreign_jobs import Output, RankProcess, Scan, WatchedJob
from distui.runners.watch.scan_changes import Watched, advance, begin, outputs

LAUNCHER = (50, 500)


def output(path: str | None) -> Output:
    return Output(path, "" if path else "a terminal")


def found(
    rank: int, pid: int, restarts: int = 0, out: str | None = None, err: str | None = None
) -> RankProcess:
    env = {"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": str(restarts), "WORLD_SIZE": "2"}
    return RankProcess(
        rank, rank, pid, pid * 10, ("python", "train.py", "--lr", "1"), env, output(out), output(err)
    )


def job(*ranks: RankProcess, launchers: frozenset[tuple[int, int]] = frozenset({LAUNCHER})) -> WatchedJob:
    return WatchedJob(
        "k",
        "torchrun" if launchers else "python",
        launchers,
        "/w",
        2,
        None,
        {f.rank: f for f in ranks},
        5.0,
    )


def look(job: WatchedJob | None, *also: tuple[int, int]) -> Scan:
    if job is None:
        return Scan(9.0, {}, frozenset(also))
    alive = {(f.pid, f.started) for f in job.ranks.values()} | job.launchers | set(also)
    return Scan(9.0, {job.key: job}, frozenset(alive))


class Story:
    """Looks at a job, folded as a viewer folds them."""

    def __init__(self, first: WatchedJob) -> None:
        self.watched, events = begin(first, look(first), "here")
        self.state = RunState().apply_all(events)
        self.last: list[Stamped] = events

    def then(self, seen: Scan) -> Story:
        self.watched, self.last = advance(self.watched, seen)
        self.state.apply_all(self.last)
        return self

    @property
    def phases(self) -> dict[int, RankPhase]:
        return {rank: at.phase for rank, at in self.state.ranks.items()}


PAIR = job(found(0, 100), found(1, 101))


def test_a_job_that_is_found_runs_since_it_began() -> None:
    story = Story(PAIR)
    state = story.state
    assert (state.phase, state.began, state.nodes[0].host, state.attempt) == (
        RunPhase.RUNNING,
        5.0,
        "here",
        1,
    )
    assert (state.run, state.name, state.runner_pid) == ("watch-50", "train", 50)
    assert state.plan is not None
    assert (state.plan.launcher, state.plan.command, state.plan.nproc_per_node) == (
        "torchrun",
        "train.py --lr 1",
        2,
    )
    assert state.plan.notes[0] == "not started by distui: read-only"
    assert "a terminal" in state.plan.notes[1]
    assert story.then(look(PAIR)).last == []


def test_a_rank_that_torchrun_has_yet_to_start_is_waited_for() -> None:
    story = Story(job(found(0, 100)))
    assert story.phases == {0: RankPhase.RUNNING, 1: RankPhase.STARTING}
    assert story.state.phase is RunPhase.STARTING
    story.then(look(PAIR))
    assert (story.state.phase, story.state.attempt) == (RunPhase.RUNNING, 1)


def test_a_rank_that_is_gone_has_ended_and_the_run_goes_on_while_the_launcher_does() -> None:
    story = Story(PAIR).then(look(job(found(0, 100))))
    assert story.phases == {0: RankPhase.RUNNING, 1: RankPhase.ENDED}
    story.then(look(None, LAUNCHER))
    assert story.phases == {0: RankPhase.ENDED, 1: RankPhase.ENDED}
    assert not story.state.phase.ended
    assert story.then(look(None, LAUNCHER)).last == []
    story.then(look(None))
    assert (story.state.phase, story.state.exit_code) == (RunPhase.ENDED, None)
    assert story.state.attempts[-1].outcome is Outcome.ENDED
    assert story.then(look(PAIR)).last == []


@pytest.mark.parametrize(
    ("restarts", "number", "cause"), [(1, 2, "failure"), (0, 2, "membership"), (4, 5, "failure")]
)
def test_ranks_that_are_started_anew_are_a_new_attempt(restarts: int, number: int, cause: str) -> None:
    story = Story(PAIR).then(look(job(found(0, 200, restarts), found(1, 201, restarts))))
    assert story.state.attempt == number
    assert [attempt.outcome for attempt in story.state.attempts] == [Outcome.RESTARTED, None]
    assert story.state.attempts[-1].cause == cause
    assert {rank: at.pid for rank, at in story.state.ranks.items()} == {0: 200, 1: 201}


def test_a_job_found_after_two_failures_is_in_its_third_attempt() -> None:
    assert Story(job(found(0, 100, 2), found(1, 101, 2))).state.attempt == 3


def test_a_worker_that_outlives_its_rank_is_not_the_rank() -> None:
    worker = (110, 1100)
    first = job(replace(found(0, 100), below=frozenset({worker})), found(1, 101), launchers=frozenset())
    orphan = job(replace(found(0, 110), started=1100), found(1, 101), launchers=frozenset())
    story = Story(first).then(look(orphan))
    assert story.phases == {0: RankPhase.ENDED, 1: RankPhase.RUNNING}
    assert story.state.attempt == 1
    story.then(look(job(replace(found(0, 110), started=1100), launchers=frozenset())))
    assert story.state.phase is RunPhase.ENDED


def test_a_worker_of_an_earlier_attempt_is_not_a_rank_either() -> None:
    worker = (110, 1100)
    story = Story(job(found(0, 100), replace(found(1, 101), below=frozenset({worker}))))
    story.then(look(job(found(0, 200, 1), found(1, 201, 1)), worker))
    story.then(look(job(replace(found(1, 110), started=1100), launchers=frozenset())))
    assert (story.state.phase, story.state.attempt) == (RunPhase.ENDED, 2)


def test_a_pid_that_another_process_has_now_is_not_the_rank() -> None:
    story = Story(PAIR).then(look(job(found(0, 100)), (101, 99_999)))
    assert story.phases[1] is RankPhase.ENDED


def test_ranks_without_their_launcher_go_on_and_that_is_said_once() -> None:
    story = Story(PAIR)
    alone = job(*PAIR.ranks.values(), launchers=frozenset())
    story.then(look(alone))
    assert (story.state.runner_pid, story.state.phase) == (None, RunPhase.RUNNING)
    assert "go on without it" in story.state.notices[-1][1]
    assert story.then(look(alone)).last == []


def test_each_file_is_told_once() -> None:
    own = job(found(0, 100, out="/l/0.out", err="/l/0.err"), found(1, 101, out="/l/1.out", err="/l/1.out"))
    assert outputs(own, 2) == {
        "node-0/attempt-002/rank-0.out": "/l/0.out",
        "node-0/attempt-002/rank-0.err": "/l/0.err",
        "node-0/attempt-002/rank-1.out": "/l/1.out",
    }
    shared = job(found(0, 100, out="/l/log", err="/l/log"), found(1, 101, out="/l/log", err="/l/log"))
    assert outputs(shared, 1) == {"node-0/attempt-001/command.out": "/l/log"}
    assert outputs(PAIR, 1) == {}


def test_the_gpu_of_a_rank_is_the_one_its_environment_shows() -> None:
    ranks = [replace(found(rank, 100 + rank), env={"CUDA_VISIBLE_DEVICES": "4,GPU-abc"}) for rank in (0, 1)]
    watched: Watched = begin(job(*ranks), look(job(*ranks)), "here")[0]
    assert [place.gpu for place in watched.places] == ["4", "GPU-abc"]
