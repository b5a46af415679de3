"""A run writes its metrics into the directory of the settings, and only there and only if they name it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from patience import slowness
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from .runs import World, gone, until

JOB = """\
import os, time
while not os.path.exists("go"):
    time.sleep(0.05)
"""


def configured(world: World, directory: Path) -> None:
    (world.config / "distui").mkdir(mode=0o700)
    (world.config / "distui/settings.toml").write_text(f'[export]\nopenmetrics_dir = "{directory}"\n')


def series(path: Path, name: str) -> list[tuple[dict[str, str], float]]:
    """The samples of that name in a file; [] before it is there."""
    if not path.exists():
        return []
    families = text_string_to_metric_families(path.read_text())  # type: ignore[no-untyped-call]
    return [
        (sample.labels, sample.value)
        for family in families
        for sample in family.samples
        if sample.name == name
    ]


def state_of(path: Path) -> str:
    return next((labels["state"] for labels, value in series(path, "distui_run_state") if value == 1), "")


@pytest.mark.torch
def test_ranks_of_torchrun_and_how_the_run_ended(world: World) -> None:
    folder = world.work / "textfile"
    folder.mkdir()
    configured(world, folder)
    run = world.ddp().healthy()
    path = folder / f"distui-{run.id}.prom"
    assert until(lambda: len(series(path, "distui_rank_steps")) == 2, 30 * slowness()), run.describe()
    assert [labels["rank"] for labels, _ in series(path, "distui_rank_steps")] == ["0", "1"]
    assert state_of(path) == "running"
    assert path.stat().st_mode & 0o777 == 0o644
    ((labels, value),) = series(path, "distui_run_info")
    assert (labels["run"], labels["name"], labels["preset"], value) == (run.id, run.name, "ddp", 1)
    assert not run.world.distui("stop", run.id, "--yes").code
    assert until(lambda: state_of(path) == "stopped", 30 * slowness())
    assert series(path, "distui_rank_steps") == []
    assert gone(run.agent_pid()), "the last text may follow one that was under way"
    before = path.stat().st_mtime_ns
    run.world.distui("status", run.id).fine()
    assert path.stat().st_mtime_ns == before
    assert list(folder.iterdir()) == [path]


def test_an_agent_that_goes_takes_the_file_along_and_the_next_writes_it_again(world: World) -> None:
    folder = world.work / "textfile"
    folder.mkdir()
    old = folder / "distui-20200101-000000-old-00000000.prom"
    old.write_text("# EOF\n")
    os.utime(old, (time.time() - 86400, time.time() - 86400))
    configured(world, folder)
    run = world.execute(JOB)
    path = folder / f"distui-{run.id}.prom"
    assert until(lambda: state_of(path) == "running", 30 * slowness()), run.describe()
    assert not old.exists()
    os.kill(run.agent_pid(), 15)
    assert until(lambda: not path.exists(), 15 * slowness())
    assert run.world.distui("signal", run.id, "SIGCONT", "--yes").code == 0  # needs an agent
    assert until(lambda: state_of(path) == "running", 15 * slowness()), run.describe()
    (world.work / "go").touch()
    assert run.wait("done", 60) == 0


def test_a_directory_that_is_not_there_is_a_finding_until_it_is(world: World) -> None:
    folder = world.work / "later"
    configured(world, folder)
    run = world.execute(JOB)

    def findings() -> list[str]:
        return [each["text"] for each in run.status()["findings"] if each["id"] == "metrics-export"]

    assert until(lambda: findings() != [], 30 * slowness()), run.describe()
    assert findings() == [f"metrics are not written: {folder}: No such file or directory"]
    folder.mkdir()
    assert until(lambda: findings() == [], 30 * slowness()), run.describe()
    assert state_of(folder / f"distui-{run.id}.prom") == "running"
    (world.work / "go").touch()
    assert run.wait("done", 60) == 0
    assert until(lambda: state_of(folder / f"distui-{run.id}.prom") == "succeeded", 15 * slowness())
