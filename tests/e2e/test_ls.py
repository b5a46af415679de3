"""What `distui ls` prints besides the table."""

from __future__ import annotations

from .runs import World
from .written import write


def test_a_filter_that_nothing_fits_is_a_sentence(world: World) -> None:
    write(world, "exec", "--name", "done", "--", "true")
    assert world.distui("ls", "state:failed").fine().out == "no run of 1 fits the filter\n"
