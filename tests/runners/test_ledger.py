"""Who failed first."""

from __future__ import annotations

import json
from pathlib import Path

from distui.presets.finding import Finding
from distui.runners.agent.attempt_ends import close_attempt, first_cause
from distui.runners.agent.ended_ranks import Ended, Raised, gather, last_samples
from distui.runners.agent.kernel_evidence import KernelEvidence
from distui.runners.run.model import FirstCause, Outcome, RankChanged, RankPhase, RankPlace
from distui.runners.run.samples import RankSample
from distui.runners.run.state import Rank


def change(rank: int, at: float | None, code: int = 1, signal: str | None = None) -> RankChanged:
    state = RankPhase.KILLED if signal else RankPhase.FAILED
    return RankChanged(1, rank, state, rank, 100 + rank, code, signal, at)


def unread(change: RankChanged) -> Ended:
    """A rank that nothing is read of."""
    return Ended(change, None, ())


def test_the_exception_is_older_than_the_exit_it_leads_to() -> None:
    """The culprit takes its time to go; its victim sees the closed socket and is gone first."""
    culprit = Ended(change(1, 10.5), Raised(10.0, "ValueError", "bad data"), ())
    victim = Ended(
        change(0, 10.2), Raised(10.1, "RuntimeError", "Connection closed by peer [127.0.0.1]"), ()
    )
    found = first_cause([victim, culprit], (), unread)
    assert found is not None
    assert (found.rank, found.victims) == (1, (0,))
    assert found.text == "rank 1 raised ValueError: bad data (exit code 1)"


def test_a_rank_that_only_says_that_another_is_gone_is_no_cause() -> None:
    killed = Ended(change(3, 10.3, -9, "SIGKILL"), None, ())
    earlier = Ended(change(0, 10.0), Raised(10.0, "RuntimeError", "[gloo] Connection reset by peer"), ())
    found = first_cause([earlier, killed], (), unread)
    assert found is not None
    assert (found.rank, found.signal, found.exit_code) == (3, "SIGKILL", None)


def test_of_failures_without_a_time_the_first_report_counts() -> None:
    """An agent that replaced a dead one does not know when the ranks ended that had ended before."""
    for ends, first in (
        ([change(1, None), change(0, 10.0)], 1),
        ([change(1, 10.0), change(0, None)], 1),
        ([change(1, None), change(0, None)], 1),
        ([change(1, 10.0), change(0, 9.0)], 0),
    ):
        found = first_cause([unread(each) for each in ends], (), unread)
        assert found is not None
        assert found.rank == first
    lost = Raised(10.1, "RuntimeError", "Connection closed by peer [127.0.0.1]")
    left = [
        RankChanged(1, rank, RankPhase.SUCCEEDED, rank, 72, 0, at=at) for rank, at in ((3, 9.0), (2, None))
    ]
    found = first_cause([Ended(change(0, 10.2), lost, ())], left, unread)
    assert found is not None
    assert (found.rank, found.kind, found.at) == (3, "left-early", 9.0)


def test_the_kernel_has_the_word_on_memory() -> None:
    found = first_cause(
        [Ended(change(2, 1.0, -9, "SIGKILL"), None, (), KernelEvidence("kernel log: Killed process 102"))],
        (),
        unread,
    )
    assert found is not None
    assert found.text.startswith("rank 2 ran out of host memory, and the kernel killed it")


def test_what_a_failed_rank_left_behind_is_read(tmp_path: Path) -> None:
    home = tmp_path / "node-0/attempt-001"
    home.mkdir(parents=True)
    (home / "rank-1.err").write_bytes(b"Traceback\n  File\n\n\x1b[31mValueError: x\x1b[0m\n")
    (home / "rank-1.exc").write_text(json.dumps({"time": 5.0, "type": "ValueError", "text": "x"}))
    ended = gather(tmp_path, change(1, 6.0))
    assert ended.failure.at == 5.0
    assert ended.last_lines == ("Traceback", "  File", "ValueError: x")


def test_of_a_rank_that_was_done_before_the_others_the_last_lines_are_kept(tmp_path: Path) -> None:
    home = tmp_path / "node-0/attempt-001"
    home.mkdir(parents=True)
    (home / "rank-2.out").write_bytes(b"step 7 of 9\nno batch is left\n")
    (home / "rank-2.err").write_bytes(b"a warning\n")
    lost = Raised(10.1, "RuntimeError", "Connection closed by peer [127.0.0.1]")
    left = RankChanged(1, 2, RankPhase.SUCCEEDED, 2, 72, 0, at=10.0)
    found = first_cause([Ended(change(0, 10.2), lost, ())], [left], lambda each: gather(tmp_path, each))
    assert found is not None
    assert (found.rank, found.kind) == (2, "left-early")
    assert found.last_lines == ("step 7 of 9", "no batch is left")
    on_node_3 = first_cause(
        [Ended(change(0, 10.2), lost, ())], [left], lambda each: Ended(each, None, (), node=3)
    )
    assert on_node_3 is not None
    assert on_node_3.node == 3
    (home / "rank-2.out").unlink()
    assert gather(tmp_path, left).last_lines == ("a warning",)


def test_the_ledger_says_how_an_attempt_ended() -> None:
    def one(*changes: RankChanged, asked: Outcome | None = None) -> Outcome:
        by_rank = {each.rank: each for each in changes}
        return close_attempt(1, by_rank, requested=asked, gather=unread).outcome

    good = RankChanged(1, 0, RankPhase.SUCCEEDED, 0, 1, 0)
    stopped = RankChanged(1, 1, RankPhase.STOPPED, 1, 2, -15, "SIGTERM")
    assert one(good) is Outcome.SUCCEEDED
    assert one(good, change(1, 1.0)) is Outcome.FAILED
    assert one(stopped, asked=Outcome.RESTARTED) is Outcome.RESTARTED
    assert one(stopped) is Outcome.LOST


def test_what_the_launcher_said_is_the_cause_where_no_rank_failed() -> None:
    ended = close_attempt(1, {}, requested=None, gather=unread, reported="RendezvousTimeoutError: x")
    assert (ended.outcome, ended.text) == (Outcome.FAILED, "attempt 1 failed: RendezvousTimeoutError: x")


def test_how_far_the_ranks_had_come_outlasts_them(tmp_path: Path) -> None:
    """By the newest sample, or by what a rank wrote at its very end; what nobody counted stays unknown."""
    home = tmp_path / "node-0/attempt-002"
    home.mkdir(parents=True)
    (home / "rank-0.end").write_text(json.dumps({"time": 5.0, "step": 100}))
    (home / "rank-1.exc").write_text(json.dumps({"time": 5.0, "type": "E", "text": "", "step": 99}))
    (home / "rank-2.end").write_text("not whol")
    (home / "rank-3.end").write_text(json.dumps({"time": 5.0, "step": 0}))
    (home / "rank-4.end").write_text(json.dumps({"time": 5.0, "step": 0, "alone": True}))
    ranks = {number: Rank(RankPlace(number, number, 0), pid=10 + number) for number in range(5)}
    for rank, step in ((0, 97), (1, None), (2, 50)):
        pace = 0.2 if rank != 1 else None
        ranks[rank].sample = RankSample(rank, 10 + rank, 88.0, 1 << 20, step=step, step_s=pace)
    last = last_samples(tmp_path, 0, 2, ranks, lambda rank, pid: {(1, 11): 0.3}.get((rank, pid or 0)))
    assert [(one.rank, one.step) for one in last] == [(0, 100), (1, 99), (2, 50), (4, 0)]
    assert (last[0].rss_bytes, last[0].step_s, last[0].cpu_percent) == (1 << 20, 0.2, None)
    assert last[1].step_s == 0.3, "a rank that ends answers no more: the pace that was known last"


def test_the_exception_before_the_last_one_is_evidence() -> None:
    killed = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. "
    last = Raised(
        10.0, "RuntimeError", "DataLoader worker (pid(s) 7) exited unexpectedly", before=(killed,)
    )
    found = first_cause([Ended(change(1, 10.5), last, ())], (), unread)
    assert found is not None
    assert found.kind == "killed"
    assert found.evidence == (f"caused by {killed.strip()}",)


def test_whoever_the_others_waited_for_is_the_cause_of_a_time_out() -> None:
    """torch ends the rank that waited; what the one that did not come did was known by then."""
    text = "rank 1 sleeps at train.py:17 stays_away; rank 0 waits for it in all_reduce #117"
    hang = Finding("hang-not-joined", "error", text, rank=1, remedy="check what that line waits for")
    waits = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=117, OpType=ALLREDUCE)"
    late = RankChanged(1, 1, RankPhase.STOPPED, 1, 102, -15, "SIGTERM", 12.0)
    by_rank = {0: change(0, 10.0, -6, "SIGABRT"), 1: late}

    def ended(*hangs: Finding) -> FirstCause | None:
        def gathered(each: RankChanged) -> Ended:
            return Ended(each, None, (waits,))

        return close_attempt(1, by_rank, requested=None, gather=gathered, hangs=hangs).first_cause

    found = ended(hang)
    assert found is not None
    assert (found.rank, found.pid, found.victims, found.symptom) == (1, 102, (0,), False)
    assert found.text == f"{text}, until the time limit of the collective"
    assert found.evidence == ("rank 0 waited for a collective until the time limit (SIGABRT)",)
    unknown = ended()
    assert unknown is not None
    assert (unknown.rank, unknown.symptom) == (0, True)
    by_rank[1] = change(1, 9.0, -6, "SIGABRT")
    also = ended(hang)
    assert also is not None
    assert (also.rank, also.text, also.victims) == (1, found.text, (0,))
