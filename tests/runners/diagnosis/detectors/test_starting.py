"""Ranks that never meet."""

from __future__ import annotations

from distui.runners.run.pulse import Site, Stall

from .hang_rig import IN_NEW_GROUP, LOAD, NOW, PYTHON, Made, coming, only, quiet, series, waiting


def syn(remote: str) -> tuple[Stall, ...]:
    """A connection that gets no answer."""
    return (Stall("10.0.0.2:40000", remote, "SYN_SENT", 3),)


def test_an_address_that_nobody_answers_at() -> None:
    master = "10.9.9.9:29500"
    made = Made(nodes=2).add(*(coming(rank, master=master, stalls=syn(master)) for rank in range(4)))
    found = only(made.start())
    assert (found.id, found.severity, found.rank) == ("start-unreachable", "error", 0)
    assert found.text == "ranks 0-3 get no answer from MASTER_ADDR:MASTER_PORT 10.9.9.9:29500"
    assert found.evidence[0] == "ranks 0-3: connections to 10.9.9.9:29500 get no answer to their SYN"


def test_a_name_and_its_address_are_both_told() -> None:
    made = Made(nodes=2).add(*(coming(rank) for rank in range(3)), coming(3, stalls=syn("10.9.9.9:29500")))
    found = only(made.start())
    assert (
        found.text
        == "rank 3 on gpu-b gets no answer from MASTER_ADDR:MASTER_PORT gpu-a:29500 (10.9.9.9:29500)"
    )
    assert found.node == 1


def test_another_address_than_the_master_is_an_interface() -> None:
    made = Made().add(*(coming(rank, stalls=syn("172.17.0.1:41234")) for rank in range(4)))
    found = only(made.start())
    assert found.text.startswith("ranks 0-3 get no answer from 172.17.0.1:41234")
    assert "GLOO_SOCKET_IFNAME" in found.remedy


def test_one_slow_handshake_is_no_verdict() -> None:
    made = Made().add(*(coming(rank, looks=6) for rank in range(4)))
    last = coming(3, looks=1, stalls=syn("gpu-a:29500"))
    assert quiet(made.add((*coming(3)[:7], *last)).start())


def test_world_sizes_that_differ() -> None:
    made = Made(ranks=2).add(coming(0, size="2"), coming(1, size="3"))
    found = only(made.start())
    assert (found.id, found.rank) == ("start-world-size", 1)
    assert found.text == "rank 1 has WORLD_SIZE 3, rank 0 has 2"
    assert "rank 0: WORLD_SIZE=2" in found.evidence


def test_world_sizes_that_differ_explain_a_hang() -> None:
    made = Made(ranks=2).add(waiting(0, world_size="2"), coming(1, size="3"))
    assert only(made.start()).id == "start-world-size"
    assert made.hang() == []


def test_a_rank_beyond_the_world() -> None:
    made = Made(ranks=3).add(*(coming(rank, size="2") for rank in range(3)))
    assert only(made.start()).text == "rank 2 cannot be in a world of WORLD_SIZE 2"


def test_ranks_that_look_at_different_ports() -> None:
    made = Made().add(*(coming(rank) for rank in range(3)), coming(3, master="gpu-a:29501"))
    found = only(made.start())
    assert (found.id, found.rank) == ("start-unreachable", 3)
    assert found.text == "rank 3 connects to rank 0 at gpu-a:29501, ranks 0-2 at gpu-a:29500"


def test_names_of_this_machine_are_one() -> None:
    made = Made(ranks=3).add(
        coming(0, size="3", master="localhost:1"), coming(1, size="3", master="127.0.0.1:1")
    )
    assert quiet(made.start())


def test_other_names_may_be_of_one_machine_while_somebody_is_late() -> None:
    made = Made(ranks=3).add(
        coming(0, size="3", master="10.0.0.1:1"), coming(1, size="3", master="gpu-a:1")
    )
    assert quiet(made.start())


def test_other_names_of_which_one_is_wrong() -> None:
    made = Made(ranks=2).add(
        coming(0, size="2", master="10.0.0.1:1"), coming(1, size="2", master="gpu-a:1")
    )
    assert only(made.start()).text == "rank 1 connects to rank 0 at gpu-a:1, rank 0 at 10.0.0.1:1"


def test_all_are_there_and_nobody_answers() -> None:
    made = Made().add(*(coming(rank) for rank in range(4)))
    found = only(made.start())
    assert found.id == "start-unreachable"
    assert found.text == "all 4 ranks wait, but no process answers at MASTER_ADDR:MASTER_PORT gpu-a:29500"
    assert quiet(Made().add(*(coming(rank, looks=6) for rank in range(4))).start())


def test_who_is_not_there_yet() -> None:
    made = Made(ranks=4).add(
        coming(0), coming(1),
        series(2, LOAD, step=0, groups=(), torch=False, share=0.8, sites=4, world_size="4"),
        series(3, (Site(PYTHON + "socket.py", 706, "readinto"), *LOAD), step=0, groups=(), world_size="4"),
    )  # fmt: skip
    found = only(made.start())
    assert (found.id, found.severity) == ("start-waiting", "note")
    assert found.text == "ranks 0, 1 wait in init_process_group; ranks 2, 3 are not there yet"
    assert found.evidence[:2] == (
        "rank 2: torch.distributed is not imported yet", "rank 3: sleeps at train.py:33 load",
    )  # fmt: skip


def test_ranks_that_were_never_started() -> None:
    made = Made(ranks=2).add(coming(0), coming(1))
    found = only(made.start())
    assert found.text == (
        "ranks 0, 1 wait in init_process_group for ranks 2, 3: WORLD_SIZE is 4, this run has 2 ranks"
    )
    assert found.evidence[0] == "ranks 2, 3: no such rank was started here"
    assert found.remedy.startswith("start the others")


def test_a_rank_that_ended_before_it_came() -> None:
    made = Made(ranks=2).add(coming(0, size="2"), series(1, LOAD, step=0, groups=())).end(1)
    found = only(made.start())
    assert (found.id, found.rank) == ("hang-gone", 1)
    assert (
        found.text == "rank 1 ended before the process group was there; rank 0 waits in init_process_group"
    )


def test_a_quick_start_says_nothing() -> None:
    assert Made().add(*(coming(rank, looks=4) for rank in range(4))).start() == []


def test_groups_of_a_training_are_not_the_start() -> None:
    made = Made().add(*(series(rank, IN_NEW_GROUP, end=NOW) for rank in range(4)))
    assert made.start() == []


def test_a_rank_that_never_comes() -> None:
    asleep = series(1, LOAD, step=0, groups=(), world_size="2")
    made = Made(ranks=2).add(coming(0, size="2"), asleep)
    found = only(made.start())
    assert (found.id, found.rank, found.severity) == ("hang-not-joined", 1, "error")
    assert found.text == "rank 1 sleeps at train.py:33 load; rank 0 waits for it in init_process_group"
    assert made.hang() == []


def test_a_rank_that_may_still_come() -> None:
    download = (Site(PYTHON + "socket.py", 706, "readinto"), *LOAD)
    reading = series(1, download, step=0, groups=(), world_size="2")
    working = series(1, LOAD, step=0, groups=(), world_size="2", share=0.9, sites=5)
    for pulses in (reading, working):
        assert quiet(Made(ranks=2).add(coming(0, size="2"), pulses).start())
