"""Every test here has directories of its own: it neither sees nor touches the runs of whoever starts it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


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
    shutil.rmtree(base, ignore_errors=True)
