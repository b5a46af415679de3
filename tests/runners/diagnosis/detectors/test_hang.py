"""Who the others wait for, and what it does."""

from __future__ import annotations

from each import for_each

from distui.presets.finding import Finding
from distui.runners.run.model import CommandReceived, RankPhase, RunPhase
from distui.runners.run.pulse import Collective, EndlessLoop, OwnLine, ProcessGroup, Pulse, Site
from distui.runners.run.state import OpenCommand

from .hang_rig import (
    END,
    IN_ALL_REDUCE,
    IN_BACKWARD,
    IN_BARRIER,
    IN_LOADER,
    IN_MONITORED,
    IN_NEW_GROUP,
    IN_RECV,
    IN_SAVE,
    LOAD,
    NOW,
    PYTHON,
    STEP,
    TORCH,
    Made,
    call,
    only,
    quiet,
    series,
    waiting,
)  # fmt: skip


def test_a_sleeping_rank_is_named_with_its_line() -> None:
    made = Made().wait([0, 1, 3]).add(series(2, LOAD, enqueued=41))
    found = only(made.hang())
    assert (found.id, found.severity, found.role, found.rank, found.node) == (
        "hang-not-joined", "error", "cause", 2, 0,
    )  # fmt: skip
    assert found.text == "rank 2 sleeps at train.py:33 load; ranks 0, 1, 3 wait for it in all_reduce #42"
    assert found.since == NOW - 14
    assert found.evidence[:3] == (
        "ranks 0, 1, 3 wait in all_reduce #42 of default_pg (train.py:50 step) since 20:40:53 UTC",
        "rank 2 called 41 collectives of default_pg",
        "stack of rank 2: train.py:33 load, train.py:70 main, train.py:80 <module>",
    )


IN_SYNCHRONIZE = (Site(TORCH + "cuda/__init__.py", 1281, "synchronize"), *STEP)


def only_counted(rank: int, stack: tuple[Site, ...], calls: int, **more: object) -> tuple[Pulse, ...]:
    """A rank whose torch counts what its backend does, and records nothing of it."""
    group = ProcessGroup("0", (), calls, completed=-1, backend="nccl2")
    return series(rank, stack, groups=(group,), **more)  # type: ignore[arg-type]


def test_where_torch_only_counts_the_rank_that_is_behind_is_named_once_the_others_sit_still() -> None:
    made = Made().add(*(only_counted(rank, IN_SYNCHRONIZE, 42, share=1.0) for rank in (0, 1, 3)))
    made.add(only_counted(2, LOAD, 41))
    found = only(made.hang())
    assert found.text == "rank 2 sleeps at train.py:33 load; ranks 0, 1, 3 wait for it in collective #42"
    assert found.evidence[:2] == (
        "ranks 0, 1, 3 wait in collective #42 of default_pg (train.py:50 step)",
        "rank 2 called 41 collectives of default_pg",
    )
    made.add(only_counted(0, STEP, 42, looks=3))
    assert only(made.hang()).text.endswith("ranks 1, 3 wait for it in collective #42")


def test_equal_counts_are_no_wait() -> None:
    """Nobody knows whether the last one has ended: a long evaluation without collectives looks like that."""
    made = Made().add(*(only_counted(rank, IN_SYNCHRONIZE, 42, looks=60) for rank in range(4)))
    assert made.hang() == []
    made.state.ranks[3].pulse = None
    del made.history[3]
    assert all(not finding.alarm for finding in made.hang()), "of rank 3 nothing is heard"


SKIPPED = OwnLine("skipping batch 17: bad sample", NOW - 9)
ON_ALL = OwnLine("[rank2]: UserWarning: the same on all ranks")


def test_a_rank_that_is_behind_is_quoted_with_what_it_alone_wrote() -> None:
    made = Made().wait([0, 1, 3], wrote=(OwnLine("[rank0]: UserWarning: the same on all ranks"),))
    made.add(series(2, LOAD, enqueued=41, wrote=(ON_ALL, SKIPPED)))
    assert only(made.hang()).evidence[2] == "rank 2 wrote at 20:40:58 UTC: skipping batch 17: bad sample"
    assert not any("UserWarning" in line for line in only(made.hang()).evidence)


@for_each("rank", [0, 1])
def test_of_two_ranks_in_different_calls_the_one_that_wrote_why_is_named(rank: int) -> None:
    made = Made(ranks=2)
    calls = {rank: call(42, "barrier", sites=END), 1 - rank: call(42)}
    for each in (0, 1):
        made.wait([each], calls[each], wrote=(SKIPPED,) if each == rank else ())
    told = only(made.hang())
    assert (told.id, told.rank) == ("hang-mismatch", rank)
    assert told.text.startswith(f"rank {rank} is in barrier #42")
    assert told.evidence[-1] == f"rank {rank} wrote at 20:40:58 UTC: skipping batch 17: bad sample"
    silent = Made(ranks=2).wait([0], calls[0], wrote=(SKIPPED,)).wait([1], calls[1], wrote=(SKIPPED,))
    assert only(silent.hang()).rank == 1


def test_nodes_are_named_where_there_are_several() -> None:
    made = Made(ranks=16, nodes=2).wait([*range(9), *range(10, 16)]).add(series(9, LOAD, enqueued=41))
    found = only(made.hang())
    assert found.text.startswith("rank 9 on gpu-b sleeps at train.py:33 load; ranks 0-8, 10-15 wait")
    assert found.node == 1


def test_ranks_that_sleep_at_one_place_make_one_finding() -> None:
    made = (
        Made(ranks=16, nodes=2)
        .wait(range(8))
        .add(*(series(rank, LOAD, enqueued=41) for rank in range(8, 16)))
    )
    found = only(made.hang())
    assert found.text.startswith("ranks 8-15 on gpu-b sleep at train.py:33 load; ranks 0-7 wait for them")
    assert (found.rank, found.ranks) == (8, tuple(range(8, 16)))


def test_the_text_stays_while_time_goes_on() -> None:
    made = Made().wait([0, 1, 3]).add(series(2, LOAD, enqueued=41))
    later = Made().wait([0, 1, 3], end=NOW + 30).add(series(2, LOAD, enqueued=41, end=NOW + 30))
    assert made.hang() == later.hang()


@for_each(
    ("stack", "known", "said"),
    [
        (IN_LOADER, "hang-loader", "waits for its data loader at train.py:70 main"),
        (IN_SAVE, "hang-checkpoint", "is in checkpoint I/O at train.py:61 keep"),
        ((Site(PYTHON + "pdb.py", 10, "interaction"), *STEP), "hang-not-joined", "is in the debugger at train.py:50"),
        ((Site(PYTHON + "subprocess.py", 2004, "_try_wait"), *STEP), "hang-not-joined", "waits for a process that"),
        ((Site(PYTHON + "threading.py", 331, "wait"), *STEP), "hang-not-joined", "waits for an event or a"),
    ],
)  # fmt: skip
def test_where_a_rank_sleeps_makes_the_verdict(stack: tuple[Site, ...], known: str, said: str) -> None:
    found = only(Made().wait([0, 1, 3]).add(series(2, stack, enqueued=41)).hang())
    assert found.id == known
    assert found.text.startswith(f"rank 2 {said}")
    assert found.remedy


def test_a_stopped_rank() -> None:
    made = Made().wait([0, 1, 3]).add(series(2, (), state="T", hook=False, groups=()))
    found = only(made.hang())
    assert (found.id, found.rank, found.severity) == ("hang-stopped", 2, "error")
    assert "kernel state of pid 102: T (stopped)" in found.evidence
    assert "distui signal RUN CONT --rank 2" in found.remedy


def test_a_rank_stopped_within_the_collective() -> None:
    inside = waiting(2)[:4]
    silent = series(2, (), state="T", hook=False, groups=(), looks=4)
    found = only(Made().wait([0, 1, 3]).add((*inside[:4], *silent)).hang())
    assert found.id == "hang-stopped"


def test_a_stopped_rank_counts_also_where_no_recorder_tells_who_waits() -> None:
    made = Made(ranks=2).add(
        series(0, STEP, share=0.9, recorder=False), series(1, (), state="T", hook=False, groups=())
    )
    assert only(made.hang()).id == "hang-stopped"


def test_a_backward_pass_waits_for_a_rank_that_sleeps_where_no_recorder_tells() -> None:
    """torch before 2.8 does not record gloo, and no frame of torch.distributed is on the stack."""
    waits, works = (
        series(0, IN_BACKWARD, recorder=False, groups=()),
        series(0, IN_BACKWARD, share=0.9, recorder=False, groups=()),
    )
    found = only(Made(ranks=2).add(waits, series(1, LOAD, recorder=False, groups=())).hang())
    assert (found.id, found.rank, found.severity) == ("hang-not-joined", 1, "error")
    assert found.text == "rank 1 sleeps at train.py:33 load; rank 0 waits for it in backward"
    assert not Made(ranks=2).add(works, series(1, LOAD, recorder=False, groups=())).hang(), "it computes"
    busy = series(1, LOAD, share=0.9, recorder=False, groups=())
    assert not Made(ranks=2).add(waits, busy).hang(), "it may yet come"
    seen = series(0, IN_BACKWARD), series(1, LOAD)
    assert not Made(ranks=2).add(*seen).hang(), "its recorder has no call that waits"


def test_a_rank_that_ended_well_before_the_others() -> None:
    made = Made().wait([0, 1, 3]).add(series(2, END, enqueued=41)).end(2)
    found = only(made.hang())
    assert (found.id, found.rank) == ("hang-gone", 2)
    assert found.text.startswith(
        "rank 2 ended with exit code 0; ranks 0, 1, 3 wait for it in all_reduce #42"
    )
    assert "drop_last" in found.remedy
    assert "Join" in found.remedy


def test_a_killed_rank() -> None:
    made = Made().wait([0, 1, 3]).end(2, RankPhase.KILLED, None, "SIGKILL")
    assert only(made.hang()).text.startswith("rank 2 was killed by SIGKILL; ranks 0, 1, 3 wait for it")


def test_a_c_call_that_keeps_the_lock() -> None:
    before = series(2, LOAD, enqueued=41, looks=2, end=NOW - 12)
    silent = series(2, LOAD, hook=False, groups=(), looks=5, sites=None)
    found = only(Made().wait([0, 1, 3]).add((*before, *silent)).hang())
    assert (found.id, found.severity) == ("hang-c-call", "error")
    assert found.text.startswith("rank 2 is in a C call that holds the GIL at train.py:33 load")


def test_a_c_call_that_computes_is_told_later_and_as_a_warning() -> None:
    silent = series(2, LOAD, hook=False, groups=(), share=1.0, sites=None)
    assert Made().wait([0, 1, 3], call(42, age=25)).add(silent).hang() == []
    for age, severity in ((79, "note"), (81, "warning")):
        found = only(Made().wait([0, 1, 3], call(42, age=age)).add(silent).hang())
        assert (found.id, found.severity) == ("hang-c-call", severity)


def test_a_c_call_that_computes_where_cores_are_few_is_not_said_to_use_none() -> None:
    silent = series(2, LOAD, hook=False, groups=(), share=0.04, state="R", sites=None)
    assert quiet(Made().wait([0, 1, 3]).add(silent).hang())
    found = only(Made().wait([0, 1, 3], call(42, age=81)).add(silent).hang())
    assert (found.id, found.severity) == ("hang-c-call", "warning")
    assert "its hook does not answer; it uses CPU time" in found.evidence


def test_a_loop_in_python() -> None:
    spin = (Site("/job/train.py", 34, "spin"), *LOAD)
    made = Made().wait([0, 1, 3], call(42, age=21))
    turns = EndlessLoop("/job/train.py", 33, 10, "False")
    made.add(series(2, spin, share=0.95, enqueued=41, state="R", loops=9, endless=turns))
    found = only(made.hang())
    assert (found.id, found.severity, found.rank) == ("hang-python", "warning", 2)
    assert found.text.startswith("rank 2 loops at train.py:34 spin; ranks 0, 1, 3 wait for it")


def test_a_long_call_of_c_is_no_loop() -> None:
    """As busy, and at one line as well: but never at a jump backwards."""
    product = (Site("/job/train.py", 34, "product"), *LOAD)
    made = Made().wait([0, 1, 3], call(42, age=21))
    made.add(series(2, product, share=0.95, enqueued=41, state="R", loops=0))
    assert not [one for one in made.hang() if one.severity != "note"]


def test_the_chain_is_followed_to_its_end() -> None:
    """Ranks 0 and 1 wait in their tp group; rank 3 of the next waits in dp for rank 1's peer, that is asleep."""
    tp0, tp1, dp1 = ("tp", (0, 1)), ("tp", (2, 3)), ("dp", (1, 3))
    groups = {
        0: (ProcessGroup("tp", (0, 1), 8, 7),),
        1: (ProcessGroup("tp", (0, 1), 7, 7), ProcessGroup("dp", (1, 3), 5, 4)),
        2: (ProcessGroup("tp", (2, 3), 8, 7),),
        3: (ProcessGroup("tp", (2, 3), 7, 7), ProcessGroup("dp", (1, 3), 4, 4)),
    }
    assert tp0 != tp1 != dp1
    made = Made().add(
        waiting(0, call(8, group="tp"), groups=groups[0]),
        waiting(1, call(5, group="dp"), groups=groups[1]),
        waiting(2, call(8, group="tp"), groups=groups[2]),
        series(3, LOAD, groups=groups[3]),
    )
    found = only(made.hang())
    assert (found.id, found.rank) == ("hang-not-joined", 3)
    assert found.text.startswith("rank 3 sleeps at train.py:33 load; ranks 0-2 wait for it")
    assert any("rank 0 waits in all_reduce #8 of group tp" in line for line in found.evidence)


def test_a_circle_is_told_as_one() -> None:
    made = Made(ranks=2).add(
        waiting(
            0, call(5, group="a"), groups=(ProcessGroup("a", (0, 1), 5, 4), ProcessGroup("b", (0, 1), 2, 2))
        ),
        waiting(
            1, call(3, group="b"), groups=(ProcessGroup("b", (0, 1), 3, 2), ProcessGroup("a", (0, 1), 4, 4))
        ),
    )
    found = only(made.hang())
    assert found.id == "hang-mismatch"
    assert found.text == (
        "ranks wait for each other: rank 0 in all_reduce #5 of group a, which rank 1 has not called; "
        "rank 1 in all_reduce #3 of group b, which rank 0 has not called"
    )


def in_turns(*, skips: bool) -> Made:
    """Each step calls a collective of group a, then one of group b; rank 1 comes to the last one without group a's."""

    def made(seq: int, group: str, age: float, *, done: bool = True) -> Collective:
        return call(seq, group=group, age=age, done=done)

    recent = [
        each
        for step in range(6)
        for each in (made(step + 1, "a", 30.4 - step), made(step + 1, "b", 30.0 - step))
    ]
    if not skips:
        recent.pop(4)
    ahead = (ProcessGroup("a", (0, 1), 7, 6), ProcessGroup("b", (0, 1), 6, 6))
    past = (ProcessGroup("a", (0, 1), 6, 6), ProcessGroup("b", (0, 1), 7, 6))
    return Made(ranks=2).add(
        waiting(0, made(7, "a", 14.0, done=False), groups=ahead, recent=tuple(recent)),
        waiting(1, made(7, "b", 13.6, done=False), groups=past, recent=tuple(recent)),
    )


def test_the_rank_of_a_circle_that_left_out_a_call_is_named() -> None:
    found = only(in_turns(skips=True).hang())
    assert (found.id, found.rank, found.waiting) == ("hang-mismatch", 1, (0,))
    assert found.text == (
        "rank 1 skipped all_reduce #7 of train.py:50 step of group a; rank 0 waits for it there"
    )
    # A rank whose calls had no fixed order is not accused.
    assert only(in_turns(skips=False).hang()).text.startswith("ranks wait for each other: ")


def test_a_line_before_the_wait_is_told_with_its_distance() -> None:
    early = OwnLine("skipping batch 17: bad sample", NOW - 17)
    made = Made().wait([0, 1, 3]).add(series(2, LOAD, enqueued=41, wrote=(early,)))
    line = (
        "rank 2 wrote at 20:40:50 UTC, 3 s before the others began to wait: skipping batch 17: bad sample"
    )
    assert line in only(made.hang()).evidence


def test_the_exception_after_which_a_rank_makes_another_call_is_told() -> None:
    """Its `finally` block waits for the others, so that the traceback is never printed."""
    error = "ValueError: bad row at data.py:12"
    failed = waiting(1, call(42, "barrier", sites=END), handles=error)
    assert only(Made(ranks=2).wait([0]).add(failed).hang()).text.endswith(
        f"; rank 1 came there after {error}"
    )
    alike = Made(ranks=2).add(waiting(0, handles=error), failed)  # both train in an `except` block
    assert error not in only(alike.hang()).text


def test_steps_that_ranks_made_more_or_less_are_told() -> None:
    def made(rank: int, op: str, step: int) -> tuple[Pulse, ...]:
        return waiting(rank, call(42, op), step=step)

    found = only(Made(ranks=2).add(made(0, "all_reduce", 120), made(1, "barrier", 119)).hang())
    assert found.text.endswith(
        "rank 1 is in barrier #42 (train.py:50 step) where rank 0 is in all_reduce #42 (train.py:50 step); "
        "rank 1 made 119 steps, rank 0 120"
    )


def test_a_sleeper_among_asynchronous_collectives_is_no_circle() -> None:
    """NCCL's calls return at once: rank 1 has called one collective, sleeps, and has the others wait in another."""
    made = Made(ranks=2).add(
        waiting(
            0, call(5, group="a"), groups=(ProcessGroup("a", (0, 1), 5, 4), ProcessGroup("b", (0, 1), 2, 2))
        ),
        waiting(
            1,
            call(3, group="b"),
            stack=LOAD,
            groups=(ProcessGroup("b", (0, 1), 3, 2), ProcessGroup("a", (0, 1), 4, 4)),
        ),
    )
    found = only(made.hang())
    assert (found.id, found.rank) == ("hang-not-joined", 1)


def test_a_receive_without_a_known_peer_names_the_sleeper_outside() -> None:
    made = Made(ranks=3).add(series(0, IN_RECV), series(1, IN_RECV), series(2, LOAD))
    found = only(made.hang())
    assert (found.id, found.rank) == ("hang-not-joined", 2)
    assert "ranks 0, 1 wait for it in recv" in found.text


def test_a_receive_says_nothing_while_somebody_outside_works() -> None:
    busy = series(2, STEP, share=0.9, sites=6)
    assert quiet(Made(ranks=3).add(series(0, IN_RECV), series(1, LOAD), busy).hang())


def test_a_rank_in_something_that_is_not_recorded() -> None:
    made = Made().wait([0, 1, 3]).add(series(2, IN_MONITORED, enqueued=41))
    found = only(made.hang())
    assert (found.id, found.rank) == ("hang-mismatch", 2)
    assert found.text.startswith(
        "rank 2 is in monitored_barrier at train.py:77 finish where ranks 0, 1, 3 are in"
    )


def test_a_rank_that_makes_a_group() -> None:
    made = Made().wait([0, 1, 3]).add(series(2, IN_NEW_GROUP, enqueued=41))
    found = only(made.hang())
    assert (found.id, found.rank) == ("hang-mismatch", 2)
    assert "rank 2 is in new_group at train.py:77 finish" in found.text


def test_no_verdict_says_which_data_is_missing() -> None:
    made = Made().wait([0, 1, 3], call(42, age=61)).add(series(2, (), hook=False, groups=()))
    made.state.ranks[2].hook = None
    found = only(made.hang())
    assert (found.id, found.severity) == ("hang-no-verdict", "note")
    assert found.text.endswith("the reason is unknown: rank 2 has no hook that answers")
    assert Made().wait([0, 1, 3], call(42, age=40)).hang() == []


def test_a_recv_beside_a_rank_without_data_is_no_verdict() -> None:
    made = Made(ranks=2).wait([0], call(7, "recv", age=70, p2p=True))
    found = only(made.hang())
    assert found.id == "hang-no-verdict"
    assert "nothing is received from rank 1" in found.text


def test_what_only_stacks_tell_is_left_open_after_a_minute_without_a_step() -> None:
    def made(last_step: float) -> Made:
        return Made(ranks=2).add(series(0, IN_RECV, last_step=NOW - last_step))

    assert only(made(70.0).hang()).id == "hang-no-verdict"
    assert made(30.0).hang() == []


def test_a_rank_that_works_is_told_without_alarm() -> None:
    within = (Site("/job/train.py", 91, "evaluate"), Site("/job/train.py", 88, "validate"), *STEP[1:])
    busy = series(0, within, share=0.9, sites=5, enqueued=41)
    assert Made().wait([1, 2, 3]).add(busy).hang() == []
    found = only(Made().wait([1, 2, 3], call(42, age=31)).add(busy).hang())
    assert (found.id, found.severity) == ("hang-not-joined", "note")
    assert (
        found.text
        == "rank 0 works in validate() (called at train.py:70); ranks 1-3 wait for it in all_reduce #42"
    )


def test_a_busy_gpu_excuses_a_sleeping_rank_only_for_a_while() -> None:
    def found(age: float, percent: float = 90.0) -> Finding:
        made = Made().wait([0, 1, 3], call(42, age=age)).add(series(2, LOAD, enqueued=41))
        return only(made.gpu(2, percent, 500.0).hang())

    early = found(35)
    assert (early.severity, early.alarm) == ("note", False)
    assert early.text.startswith(
        "rank 2 sleeps at train.py:33 load while its GPU is in use; ranks 0, 1, 3 wait"
    )
    late = found(50)
    assert (late.id, late.severity, late.rank) == ("hang-not-joined", "error", 2)
    assert late.text.startswith(
        "rank 2 sleeps at train.py:33 load; ranks 0, 1, 3 wait for it in all_reduce #42"
    )
    proof = "0 % CPU, same stack in every sample; its GPU is in use, by it or by another process"
    assert proof in late.evidence
    # A finding that changes with every sample would be raised with every sample.
    assert found(50, 97.0) == late


def test_a_wait_without_end_becomes_an_alarm_whatever_the_rank_does() -> None:
    within = (Site("/job/train.py", 91, "evaluate"), Site("/job/train.py", 88, "validate"), *STEP[1:])
    busy = series(0, within, share=0.9, sites=5, enqueued=41)
    before, after = (only(Made().wait([1, 2, 3], call(42, age=age)).add(busy).hang()) for age in (290, 301))
    assert (before.severity, after.severity) == ("note", "warning")
    assert (
        before.text
        == after.text
        == "rank 0 works in validate() (called at train.py:70); ranks 1-3 wait for it in all_reduce #42"
    )
    assert (
        "it uses CPU time or its stack changes; it has made no step and called no collective since"
        in after.evidence
    )
    assert "init_process_group a longer timeout" in after.remedy


def test_what_shows_that_a_rank_works_is_what_was_seen_of_it() -> None:
    module = (Site("/job/train.py", 91, "<module>"),)
    writes = series(0, module, share=0.9, bytes_s=1 << 20, enqueued=41)
    helped = series(0, module, others=0.9, enqueued=41)
    for pulses, text, proof in (
        (writes, "rank 0 works in train.py; ", "it reads or writes"),
        (helped, "rank 0 works at train.py:91 <module>; ", "other threads of it use CPU time"),
    ):
        found = only(Made().wait([1, 2, 3], call(42, age=31)).add(pulses).hang())
        assert found.text.startswith(text)
        assert any(proof in line for line in found.evidence)


def test_of_a_run_that_ends_only_the_verdict_stays_that_stood_before() -> None:
    made = Made().wait([0, 1, 3]).add(series(2, LOAD, enqueued=41))
    verdict = only(made.hang())
    made.state.phase = RunPhase.STOPPING
    assert made.hang() == []
    made.state.findings[("hang-not-joined", 2, 0)] = verdict
    for phase in (RunPhase.STOPPING, RunPhase.STOPPED):
        made.state.phase = phase
        stopped = only(made.hang())
        made.state.findings[("hang-not-joined", 2, 0)] = stopped
        assert stopped.text == f"hung when it was stopped: {verdict.text}"
        assert (stopped.id, stopped.since, stopped.evidence) == (
            verdict.id,
            verdict.since,
            verdict.evidence,
        )


def test_ranks_that_a_restart_ends_one_after_the_other_are_no_new_hang() -> None:
    made = Made().wait([0, 1, 3]).add(series(2, LOAD, enqueued=41))
    verdict = only(made.hang())
    asked = CommandReceived("c", "restart requested", "restart", 30.0)
    made.state.open_commands["c"] = OpenCommand(asked, 1, NOW - 2.0)
    assert made.hang() == []
    made.state.findings[("hang-not-joined", 2, 0)] = verdict
    assert made.hang() == [verdict], "what is known stays"


def test_old_news_of_a_rank_are_no_evidence() -> None:
    made = Made().wait([0, 1, 3]).add(series(2, LOAD, enqueued=41, end=NOW - 20))
    assert quiet(made.hang())


def test_the_barrier_at_the_end_is_read_as_any_other() -> None:
    made = (
        Made(ranks=2)
        .wait([0], call(42, "barrier", sites=END, what=""), stack=IN_BARRIER)
        .add(series(1, LOAD))
    )
    assert only(made.add(series(1, LOAD, enqueued=41)).hang()).text.endswith(
        "rank 0 waits for it in barrier #42"
    )


def test_many_ranks_are_judged_together() -> None:
    made = Made(ranks=1024, nodes=8).wait(rank for rank in range(1024) if rank != 700)
    found = only(made.add(series(700, LOAD, enqueued=41)).hang())
    assert found.rank == 700
    assert found.text.startswith("rank 700 on gpu-f sleeps")
    assert IN_ALL_REDUCE[0].file.startswith(TORCH)
