"""A variable for this host alone reaches the process, one for another host does not."""

from __future__ import annotations

import platform

from .runs import World

SAYS = "import os; print(os.environ.get('HERE'), os.environ.get('THERE'))"


def test_only_what_fits_this_host_reaches_it(world: World) -> None:
    host = platform.node()
    run = world.execute(SAYS, "--env-on", f"{host[:-1]}?:HERE=yes", "--env-on", "elsewhere:THERE=no")
    assert run.wait() == 0
    assert run.distui("logs").fine().out.endswith("yes None\n")


def test_how_it_is_written(world: World) -> None:
    done = world.distui("exec", "--env-on", "HERE=yes", "--", "true")
    done.refused(2, "--env-on HERE=yes", "HOSTS:NAME=VALUE")
