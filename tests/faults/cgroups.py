"""Cgroups with a limit, made for one test: version 1 and 2, as root."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.runs import until

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000


@contextlib.contextmanager
def memory(limit: int) -> Iterator[Path]:
    """A cgroup whose processes may hold `limit` bytes together."""
    with _made("memory", {"memory.limit_in_bytes": str(limit)}, {"memory.max": str(limit)}) as group:
        yield group


@contextlib.contextmanager
def cpu(share: float) -> Iterator[Path]:
    """A cgroup whose processes get `share` of one core together."""
    quota = str(int(share * PERIOD_US))
    v1 = {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": quota}
    with _made("cpu", v1, {"cpu.max": f"{quota} {PERIOD_US}"}) as group:
        yield group


@contextlib.contextmanager
def _made(controller: str, v1: dict[str, str], v2: dict[str, str]) -> Iterator[Path]:
    legacy = (ROOT / controller).is_dir()
    group = ROOT / (controller if legacy else "") / f"distui-faults-{os.getpid()}"
    try:
        if not legacy:
            (ROOT / "cgroup.subtree_control").write_text(f"+{controller}")
        group.mkdir()
        for name, value in (v1 if legacy else v2).items():
            (group / name).write_text(value)
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no {controller} cgroup can be made here: {error}")
    try:
        yield group
    finally:
        assert until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
