"""Whom a command goes to, what many answers say as one, and how a run on several nodes ends."""

from __future__ import annotations

from distui.runners.hub.node_answers import Answer, needs_all, route, together
from distui.runners.hub.run_ending import GIVE_UP_S, NodeEnding, WholeRun, ending
from distui.runners.run.model import (
    Clause,
    CommandDone,
    FirstCause,
    LinkState,
    RunEnded,
    RunPhase,
    sentence,
)

NODES = {0: 0, 1: 0, 2: 1, 3: 1}


def said(node: int, text: str, *ranks: int, ok: bool = True) -> Answer:
    """What a node says, of ranks where there are any."""
    return answered(node, Clause(text, ranks), ok=ok)


def answered(node: int, *clauses: Clause, ok: bool = True) -> Answer:
    done = CommandDone("c", ok, sentence(clauses), clauses=clauses)
    return Answer(node, f"node {node} (h{node})", done, done.text)


def test_a_command_goes_where_its_ranks_are() -> None:
    assert route((), NODES) == {0: (), 1: ()}
    assert route((3, 0, 2), NODES) == {1: (3, 2), 0: (0,)}
    assert route((7,), NODES) == "there is no running rank 7"


def test_a_question_in_a_reason_is_no_end_and_a_period() -> None:
    assert needs_all(["node 1 (h1): is its sshd up, and the port right?"]) == (
        "a restart needs every node, and nothing was restarted: node 1 (h1): is its sshd up, and the port right? "
        "Wait for it, or go on without it with --reachable"
    )


def test_what_all_say_of_their_ranks_is_said_once() -> None:
    told = [
        said(0, "NCCL_DEBUG=INFO live on {ranks}", 0, 1),
        said(1, "NCCL_DEBUG=INFO live on {ranks}", 2, 3),
    ]
    assert together(told) == "NCCL_DEBUG=INFO live on ranks 0-3"
    assert together([said(0, "SIGUSR1 sent to {ranks}", 0), said(1, "SIGUSR1 sent to {ranks}", 2)]) == (
        "SIGUSR1 sent to ranks 0, 2"
    )
    mute = [
        answered(
            node,
            Clause("stacks of {ranks}", (2 * node,)),
            Clause("{ranks} did not answer", (2 * node + 1,)),
        )
        for node in (0, 1)
    ]
    assert together(mute) == "stacks of ranks 0, 2; ranks 1, 3 did not answer"


def test_what_one_says_alone_is_said_with_its_name() -> None:
    told = [said(0, "stacks of {ranks}", 0, 1), said(1, "no rank is running", ok=False)]
    assert together(told) == "stacks of ranks 0, 1; node 1 (h1): no rank is running"
    assert together([said(0, "set for the next start"), said(1, "set for the next start")]) == (
        "set for the next start"
    )


def test_a_node_that_did_not_answer_is_named_once() -> None:
    silent = Answer(1, "node 1 (h1)", None, "node 1 (h1) does not answer")
    assert together([said(0, "stacks of {ranks}", 0), silent]) == (
        "stacks of rank 0; node 1 (h1) does not answer"
    )


def test_an_agent_that_tells_nothing_apart_is_quoted() -> None:
    old = Answer(0, "node 0 (h0)", CommandDone("c", True, "stacks of ranks 0, 1"), "stacks of ranks 0, 1")
    assert together([old, said(1, "stacks of {ranks}", 2)]) == (
        "node 0 (h0): stacks of ranks 0, 1; stacks of rank 2"
    )


RUN = WholeRun("train")
GOOD, BAD = RunEnded(RunPhase.SUCCEEDED, 0, "fine"), RunEnded(RunPhase.FAILED, 3, "rank 3 broke")


def part(node: int, ended: RunEnded | None = None, silent_s: float | None = None) -> NodeEnding:
    link = LinkState.ENDED if ended else LinkState.UP if silent_s is None else LinkState.LOST
    return NodeEnding(node, f"h{node}", ended, True, link, silent_s or 0.0)


def end(*parts: NodeEnding, whole: WholeRun = RUN) -> tuple[RunPhase, int | None, str] | None:
    told = ending(whole, list(parts))
    return None if told is None else (told.phase, told.exit_code, told.text)


def test_a_run_goes_on_while_a_node_does() -> None:
    assert end(part(0), part(1)) is None
    assert end(part(0, GOOD), part(1)) is None
    assert end(part(0, BAD), part(1)) is None


def test_all_have_to_succeed() -> None:
    assert end(part(0, GOOD), part(1, GOOD)) == (RunPhase.SUCCEEDED, 0, "every rank ended with exit code 0")
    assert end(part(0, GOOD), part(1, BAD)) == (RunPhase.FAILED, 3, "node 1 (h1): rank 3 broke")


def test_an_end_waits_until_the_logs_were_read() -> None:
    unread = NodeEnding(1, "h1", GOOD, False, LinkState.UP)
    assert end(part(0, GOOD), unread) is None


def test_the_first_cause_says_why_and_where() -> None:
    whole = WholeRun("train", cause=FirstCause(3, 1, 1, text="rank 3 raised ValueError"))
    killed = RunEnded(RunPhase.FAILED, 1, "peer gone")
    phase, code, text = end(part(0, killed), part(1, BAD), whole=whole) or (None, None, "")
    assert (phase, code) == (RunPhase.FAILED, 3)
    assert text == "node 1 (h1): rank 3 raised ValueError; rank 3 broke"


def test_a_lost_node_alone_ends_nothing() -> None:
    assert end(part(0), part(1, silent_s=9e9)) is None
    assert end(part(0, silent_s=9e9), part(1, silent_s=9e9)) is None


def test_a_lost_node_is_waited_for_when_the_others_have_failed() -> None:
    assert end(part(0, BAD), part(1, silent_s=GIVE_UP_S - 1)) is None
    phase, _, text = end(part(0, BAD), part(1, silent_s=GIVE_UP_S)) or (None, None, "")
    assert phase is RunPhase.FAILED
    assert "node 1 (h1) did not answer" in text


def test_a_lost_head_offers_a_relaunch() -> None:
    _, _, text = end(part(0, silent_s=GIVE_UP_S), part(1, BAD)) or (None, None, "")
    assert text.startswith("node 0 (h0), where the rendezvous was, is lost, and the others failed")
    assert "`distui rerun train`" in text


def test_whoever_ends_the_others_of_a_lost_node_has_not_stopped_the_run() -> None:
    """As Slurm does, by SIGTERM."""
    stopped = RunEnded(RunPhase.STOPPED, 1, "stopped")
    phase, _, text = end(part(0, stopped), part(1, silent_s=GIVE_UP_S)) or (None, None, "")
    assert phase is RunPhase.FAILED
    assert text == (
        "node 1 (h1) is lost, and the others were ended by what started them: "
        "`distui rerun train` starts it again"
    )
    assert end(part(0, stopped), part(1, stopped)) == (
        RunPhase.STOPPED, 1, "stopped on the nodes, not from here"
    )  # fmt: skip


def test_how_a_silent_node_ended_nobody_saw() -> None:
    phase, code, text = end(part(0, GOOD), part(1, silent_s=GIVE_UP_S)) or (None, None, "")
    assert (phase, code) == (RunPhase.LOST, None)
    assert "node 1 (h1)" in text


def test_an_elastic_run_does_without_those_that_left() -> None:
    elastic = WholeRun("train", nnodes_min=1)
    assert (end(part(0, GOOD), part(1, BAD), whole=elastic) or ("",))[0] is RunPhase.SUCCEEDED
    assert (end(part(0, GOOD), part(1, silent_s=GIVE_UP_S), whole=elastic) or ("",))[
        0
    ] is RunPhase.SUCCEEDED
    assert (end(part(0, BAD), part(1, BAD), whole=elastic) or ("",))[0] is RunPhase.FAILED


def test_a_stop_names_whom_it_did_not_reach() -> None:
    stopping = WholeRun("train", stopping=True)
    stopped = RunEnded(RunPhase.STOPPED, 1, "stopped")
    assert end(part(0, stopped), part(1), whole=stopping) is None
    assert end(part(0, stopped), part(1, silent_s=5.0), whole=stopping) is None
    assert end(part(0, silent_s=60.0), part(1, silent_s=60.0), whole=stopping) is None, "nobody heard of it"
    phase, _, text = end(part(0, stopped), part(1, silent_s=20.0), whole=stopping) or (None, None, "")
    assert phase is RunPhase.STOPPED
    assert "node 1 (h1) did not answer" in text


def test_a_stop_that_comes_as_every_node_succeeds_is_a_success() -> None:
    """As in the agent of one node."""
    stopping = WholeRun("train", stopping=True)
    assert (end(part(0, GOOD), part(1, GOOD), whole=stopping) or ("",))[0] is RunPhase.SUCCEEDED
    assert (end(part(0, GOOD), part(1, BAD), whole=stopping) or ("",))[0] is RunPhase.STOPPED


def test_a_failed_node_is_named_before_those_that_were_stopped() -> None:
    stopped = RunEnded(RunPhase.STOPPED, 143, "stopped")
    assert end(part(0, stopped), part(1, BAD)) == (RunPhase.FAILED, 3, "node 1 (h1): rank 3 broke")


def test_nothing_runs_on_a_cluster_that_is_down() -> None:
    down = WholeRun("train", cluster_down=True, nnodes_min=1)
    for ended in (GOOD, BAD):
        _, _, text = end(part(0, ended), part(1, silent_s=1.0), whole=down) or (None, None, "")
        assert text.endswith("; how node 1 (h1) ended is unknown")


def test_a_cluster_that_is_down_has_no_run() -> None:
    down = WholeRun("train", cluster_down=True)
    assert (end(part(0, silent_s=1.0), part(1, silent_s=1.0), whole=down) or ("",))[0] is RunPhase.LOST
    assert end(part(0), part(1, silent_s=1.0), whole=down) is None
