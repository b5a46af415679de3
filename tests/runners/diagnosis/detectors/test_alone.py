"""A command without a hook that was told of ranks which are not of its run."""

from __future__ import annotations

from .hang_rig import Made, coming, only, series


def command(size: str | None, ranks: int = 1, **more: object) -> Made:
    """A run of `distui exec` whose processes idle."""
    made = Made(ranks=ranks)
    values: dict[str, object] = {"hook": False, "step": None, "groups": (), "world_size": size, **more}
    made.add(*(series(rank, (), **values) for rank in range(ranks)))  # type: ignore[arg-type]
    for rank in made.state.ranks.values():
        rank.hook = None
    return made


def test_it_is_told_that_it_may_wait_and_what_is_missing() -> None:
    found = only(command("4", master="gpu-a:29500").start())
    assert (found.id, found.severity, found.rank) == ("start-waiting", "note", 0)
    assert found.text == "rank 0 has WORLD_SIZE 4, this run has 1 rank: it may wait for the others"
    assert found.evidence[0] == "its environment: WORLD_SIZE=4, MASTER_ADDR:MASTER_PORT gpu-a:29500"
    assert any("Without a hook" in line for line in found.evidence)


def test_nothing_is_said_of_one_that_works_or_fits_or_is_not_known() -> None:
    assert command("4", others=0.5).start() == []
    assert command("4", bytes_s=1 << 20).start() == []
    assert command("1").start() == []
    assert command("2", ranks=2).start() == []
    assert command(None).start() == []
    assert command("4", looks=3).start() == []


def test_one_with_a_hook_has_a_stack_that_tells_more() -> None:
    made = command("4")
    made.state.ranks[0].hook = "armed"
    assert made.start() == []


def test_who_idled_before_its_stack_was_seen_has_waited_as_long() -> None:
    for others, said in ((0.0, True), (0.5, False)):
        made = command("4", others=others)
        before = made.history[0]
        seen = coming(0, hook=False, others=others)[-2:]
        made.add((*before[:-2], *seen))
        made.state.ranks[0].hook = None
        found = made.start()
        assert bool(found) is said
        assert all("rank 0 waits in init_process_group" in one.text for one in found)
