"""Another user of this machine for a test: with real ids, so that the kernel and what is asked see that user."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

NOBODY, OTHER = 65534, 65533
"""Two users that no test machine has files of."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


def as_user(uid: int, do: Callable[[], Any]) -> Any:
    """What `do()` returns while this process is user and group `uid`, without any other group.

    It must import nothing: the interpreter may lie where only root can read.
    """
    groups = os.getgroups()
    os.setgroups([])
    os.setresgid(uid, uid, 0)
    os.setresuid(uid, uid, 0)  # the saved id is what leads back
    try:
        return do()
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
        os.setgroups(groups)
