"""The fake driver in front of the real nvidia-ml-py and the real sampler process."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import patience
import pytest

from distui.runners.run.model import Event, GpuTick
from distui.runners.run.samples import Gpu

sys.path.insert(0, str(Path(__file__).parents[2] / "rigs" / "nvml"))
import build
import scenario as scenario

SAMPLER = (sys.executable, "-m", "distui.runners.telemetry.sampler")
needs_compiler = pytest.mark.skipif(
    build.compiler() is None, reason="no C compiler to build the fake driver"
)


@functools.cache
def library(absent: tuple[str, ...] = ()) -> Path:
    """The fake driver without the symbols `absent`, built once for all tests."""
    directory = tempfile.mkdtemp(prefix="fake-nvml-")
    atexit.register(shutil.rmtree, directory)
    return build.build(directory, absent)


class Rig:
    """One scenario file and the environment that leads a sampler to it."""

    def __init__(self, directory: Path, text: str, absent: tuple[str, ...] = ()) -> None:
        self.path = directory / "scenario.txt"
        self.trace = directory / "trace.txt"
        self.environment = {
            "DISTUI_NVML_LIBRARY": str(library(absent)),
            "DISTUI_FAKE_NVML_SCENARIO": str(self.path),
            "DISTUI_FAKE_NVML_TRACE": str(self.trace),
        }
        self.set(text)

    def set(self, text: str) -> None:
        """Put a scenario in place; the driver sees it at its next call."""
        scenario.write(self.path, text)

    def calls(self) -> list[str]:
        """Every driver function called so far."""
        return self.trace.read_text().split()

    @contextlib.contextmanager
    def sampling(self, interval: float = 0.1) -> Iterator[Iterator[Event]]:
        """A running sampler's events."""
        with sampler(self.environment, interval) as child:
            assert child.stdout is not None
            decode = msgspec.json.Decoder(Event).decode
            yield (decode(line) for line in child.stdout)

    def tick(self, number: int = 1) -> tuple[Gpu, ...]:
        """The GPUs of a new sampler's `number`th tick."""
        with self.sampling() as events:
            return [tick_of(events) for _ in range(number)][-1]


@contextlib.contextmanager
def sampler(environment: dict[str, str], interval: float = 0.1) -> Iterator[subprocess.Popen[bytes]]:
    """A sampler process; ended by closing its stdin, as its parent's death does."""
    child = subprocess.Popen(
        [*SAMPLER, "--interval", str(interval)],
        env=os.environ | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        yield child
    finally:
        child.stdin.close()
        try:
            child.wait(patience.HANG_S)
        finally:
            child.kill()
            child.stdout.close()
            child.wait()


def tick_of(events: Iterator[Event]) -> tuple[Gpu, ...]:
    """The GPUs of the next tick."""
    event = until(events, lambda event: isinstance(event, GpuTick))
    assert isinstance(event, GpuTick)
    return event.gpus


def until(events: Iterator[Event], wanted: Callable[[Event], bool], limit: int = 100) -> Event:
    """The first of the next `limit` events that is wanted."""
    for _, event in zip(range(limit), events, strict=False):
        if wanted(event):
            return event
    raise AssertionError(f"none of {limit} events was the wanted one")
