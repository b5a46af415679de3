"""Every test here has directories of its own: it neither sees nor touches the runs of whoever starts it."""

from __future__ import annotations

import json
import os
import select
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import HANG_S


@pytest.fixture(autouse=True)
def own_directories(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """State, configuration and sockets below one short path (a unix socket's path holds 108 bytes)."""
    base = Path(tempfile.mkdtemp(prefix="dt-"))
    monkeypatch.setenv("XDG_STATE_HOME", str(base / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(base / "config"))
    monkeypatch.setenv("DISTUI_SOCKET_DIR", str(base / "s"))
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS"):
        monkeypatch.delenv(name, raising=False)
    yield base
    for path in base.glob("state/distui/runs/*/agent.json"):
        _wait_for(int(json.loads(path.read_text())["pid"]))
    shutil.rmtree(base, ignore_errors=True)


def _wait_for(agent: int) -> None:
    """An agent leaves a moment after its run has ended; until then it writes."""
    try:
        descriptor = os.pidfd_open(agent)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], HANG_S)[0], f"agent {agent} does not leave"
    finally:
        os.close(descriptor)
