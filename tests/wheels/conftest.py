"""libnccl of several versions, each out of its wheel, fetched once."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

FETCH_S = 240


@pytest.fixture
def library(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The path of libnccl.so.2 of the version that the test's parameter names; gone afterwards: it is 400 MB."""
    version: str = request.param
    with tempfile.TemporaryDirectory(prefix="nccl-wheel-") as folder:
        words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        done = subprocess.run(
            [*words, f"nvidia-nccl-cu12=={version}"],
            check=False,
            capture_output=True,
            text=True,
            timeout=FETCH_S,
        )
        if done.returncode:
            pytest.skip(f"the wheel of NCCL {version} cannot be had here: {done.stderr.strip()[-200:]}")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            (name,) = [one for one in packed.namelist() if one.endswith("libnccl.so.2")]
            path = Path(packed.extract(name, folder))
        wheel.unlink()
        yield path
