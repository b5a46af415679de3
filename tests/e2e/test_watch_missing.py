"""A job that distui did not start: what cannot be known of it is said, not passed over, and so is its end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from .runs import World

RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "7"}
LACKS = "no hook answers in rank 0: no stack, no flight recorder"


@pytest.fixture
def pid(world: World) -> Iterator[str]:
    """A rank of somebody's own."""
    words = [sys.executable, "-c", "print('up', flush=True); input()"]
    with subprocess.Popen(
        words, env={**world.env, **RANK}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == b"up\n"
        yield str(rank.pid)


@pytest.mark.real
def test_watch_and_diagnose_say_what_is_missing(world: World, pid: str) -> None:
    said = world.distui("watch", pid).fine()
    assert said.out.rstrip().endswith(f"\n\nMissing: {LACKS}.")
    assert world.distui("watch", pid, "--json").fine().json()["missing"] == [LACKS]
    sentence = f"Process {pid} is of a job that distui did not start"
    world.distui("diagnose", pid).refused(3, sentence, "distui watch")
