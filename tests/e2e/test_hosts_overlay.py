"""A variable for this host alone is in the plan of a command here, one for another host is not."""

from __future__ import annotations

import platform

from .runs import World


def test_only_what_fits_this_host_reaches_it(world: World) -> None:
    here = f"{platform.node()[:-1]}?:HERE=yes"
    words = ("--env-on", here, "--env-on", "elsewhere:THERE=no", "--", "true")
    env = world.distui("exec", "--dry-run", "--json", *words).fine().json()["env"]
    assert (env.get("HERE"), env.get("THERE")) == ("yes", None)


def test_how_it_is_written(world: World) -> None:
    done = world.distui("exec", "--env-on", "HERE=yes", "--", "true")
    done.refused(2, "--env-on HERE=yes", "HOSTS:NAME=VALUE")
