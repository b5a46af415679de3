"""Another user of this machine for a test: what it does in a process of its own, with real ids."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import pytest

NOBODY, OTHER = 65534, 65533
"""Two users that no test machine has files of."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


def as_user(uid: int, do: Callable[[], Any]) -> Any:
    """What `do()` returns in a child that is user and group `uid`, without any other group.

    The child imports nothing: the interpreter may lie where only root can read. Raises AssertionError with its
    traceback.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            answer = pickle.dumps((True, do()))
        except BaseException:  # noqa: BLE001  # the parent raises it
            answer = pickle.dumps((False, traceback.format_exc()))
        with open(write, "wb") as pipe:
            pipe.write(answer)
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        fine, answer = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    assert fine, answer
    return answer
