"""What all tests share: their tiers, and a part of a long matrix."""

from __future__ import annotations

import gc
import os
import re
import signal
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import tiers
from hypothesis import HealthCheck, settings

from distui.runners.run import environment, machine
from distui.runners.run.proc import Stat, all_stats
from distui.runners.watch import foreign_jobs

TORCHLESS = [Path(__file__).with_name(name) for name in ("presets", "tui")]
"""Folders whose tests are for anybody, but for those that are marked `torch`."""

settings.register_profile(
    "patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")  # how long an example takes says how busy the machine is


def pytest_configure() -> None:
    """Install the guard of `make test`, and take away what the caller's shell would add to a test.

    Secrets of whoever runs the tests are none of the tests' business: a run without one says that it is missing.

    Nor are the signals that a shell ignores for what it starts in the background: whatever the tests start would
    inherit that, and could not be interrupted.
    """
    tiers.install()
    for name in environment.hidden(dict(os.environ)):
        del os.environ[name]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def no_torch_without_its_mark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that needs an interpreter with torch fails on every machine, not only where there is none, until it is
    marked so: of the others' interpreters none has it."""
    marked = request.node.get_closest_marker("torch") is not None
    if not marked and any(folder in request.path.parents for folder in TORCHLESS):
        monkeypatch.setattr(machine, "torch_version", lambda python: None)


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder with a short path, for unix sockets: their paths hold at most 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="dt-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the tests of `make test` share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def apart_from_the_machine(
    request: pytest.FixtureRequest, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test of `make test` sees no job of this machine, and leaves the user's cache alone."""
    if tiers.is_real(request.node):
        return

    def no_stats_of_the_machine(proc: str = "/proc") -> Iterator[Stat]:
        return iter(()) if proc == "/proc" else all_stats(proc)

    monkeypatch.setattr(foreign_jobs, "all_stats", no_stats_of_the_machine)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_folder))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Keep the tests of `make test` off the machine: no processes, no sleeps."""
    with tiers.guarded(item):
        return (yield)


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], Any]]:
    """Virtual time in `make test`."""
    return tiers.loop_factories(item)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part", metavar="K/N", default="1/1", help="the K-th of N parts of the tests, by their names"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is in other parts: a test is always in the same one, and the parts together are all of them."""
    asked = re.fullmatch(r"(\d+)/(\d+)", config.getoption("--part"))
    if asked is None or not 1 <= int(asked[1]) <= int(asked[2]):
        raise pytest.UsageError("--part is K/N with K from 1 to N, such as 2/3")
    part, parts = int(asked[1]) - 1, int(asked[2])
    others = [item for item in items if zlib.crc32(item.nodeid.encode()) % parts != part]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]


def pytest_collection_finish() -> None:
    """Imported modules and collected tests stay: the garbage collector does not visit them after each test."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A part of few tests may be empty, which is no failure."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.getoption("--part") != "1/1":
        session.exitstatus = pytest.ExitCode.OK
