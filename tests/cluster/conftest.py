"""A rig for the tests of this folder, which are collected only when the folder is named: `make test-cluster`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from patience import HANG_S  # type: ignore[import-not-found, unused-ignore]

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "rigs"))

from slurm.cluster import Cluster  # type: ignore[import-not-found, unused-ignore] # noqa: E402
from slurm.owned import owned  # type: ignore[import-not-found, unused-ignore] # noqa: E402
from slurm.settings import Trouble  # type: ignore[import-not-found, unused-ignore] # noqa: E402

sys.path.insert(0, str(HERE.parent / "e2e"))
sys.path.insert(0, str(HERE))
from desk import LIVE, Desk, Status, stepping  # type: ignore[import-not-found, unused-ignore] # noqa: E402

Cluster.patience_s = HANG_S
ORDER = ("rig", "srun", "hosts", "launch", "run", "head", "accidents", "leaving", "managed")
"""Files in this order: those that share a run, and what ends its cluster last."""
NAMED = "DISTUI_RIG_DIR" in os.environ
KEEP = NAMED and "DISTUI_RIG_KEEP" in os.environ
"""For who writes these tests: the cluster and the run that they share stay for the next time."""


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """These tests make network namespaces as root and take minutes: nobody gets them unasked."""
    named = [(config.invocation_params.dir / word.partition("::")[0]).resolve() for word in config.args]
    return None if any(path == HERE or HERE in path.parents for path in named) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """See ORDER."""
    names = [f"test_{name}" for name in ORDER]
    items.sort(key=lambda item: names.index(item.path.stem) if item.path.stem in names else -1)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two nodes. A rig that is up in DISTUI_RIG_DIR is used, and left up."""
    found = Cluster()
    try:
        with contextlib.nullcontext(found) if NAMED and found.is_up() else owned() as cluster:
            yield cluster
    except Trouble as trouble:
        pytest.fail(str(trouble), pytrace=False)


@pytest.fixture(scope="session")
def starting(cluster: Cluster) -> Iterator[Future[None]]:
    """SkyPilot's API server, on its way while tests run that need none."""
    pool = ThreadPoolExecutor(1)
    yield pool.submit(cluster.start_api)
    pool.shutdown(wait=False)  # what it still does ends with the rig


@pytest.fixture(scope="session", autouse=True)
def begun(request: pytest.FixtureRequest) -> None:
    """Before the first test of this folder, where one of them needs it."""
    if any(
        "skypilot" in item.fixturenames
        for item in request.session.items
        if isinstance(item, pytest.Function)
    ):
        request.getfixturevalue("starting")


@pytest.fixture(scope="session")
def skypilot(cluster: Cluster, starting: Future[None]) -> Cluster:
    """The rig once its API server is there."""
    starting.result()
    return cluster


@pytest.fixture
def whole(cluster: Cluster) -> Iterator[Cluster]:
    """The rig for a test that breaks something; afterwards all nodes are on, plugged in and idle again."""
    try:
        yield cluster
    finally:
        for host in cluster.nodes:
            cluster.boot(host)
            cluster.plug(host)
        cluster.wait(lambda: cluster.idle() == len(cluster.nodes), "all nodes idle again", 60)


@pytest.fixture(scope="session")
def desk(skypilot: Cluster) -> Iterator[Desk]:
    """Where distui is typed; what was launched from there is gone in the end."""
    found = Desk(skypilot, "many")
    try:
        yield found
    finally:
        if not KEEP:
            cleared(found)


def cleared(desk: Desk) -> None:
    """End whatever a desk's tests left."""
    for run in live(desk):
        desk.distui("stop", run["run"], "--yes")
    desk.cluster.client(["sky", "down", "-y", desk.name], 90)


def live(desk: Desk) -> list[Status]:
    """Runs on a desk's cluster that have not ended."""
    rows = [row for row in json.loads(desk.ok("ls", "--json")) if row["state"] in LIVE]
    return [row for row in rows if desk.name in (desk.run_dir(row["run"]) / "launch.json").read_text()]


@pytest.fixture(scope="session")
def training(desk: Desk) -> str:
    """One run that several files share: they leave it running, whatever they do to it."""
    known = [row["run"] for row in live(desk) if row["name"] == "train"]
    run = str(known[0] if known else desk.launch_and_be_cut_off("fsdp2", "train", "--restarts", "20"))
    desk.until(run, stepping, 300)
    return run
