"""A run writes its metrics into the directory of the settings, and only there and only if they name it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
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


@pytest.mark.long
@pytest.mark.torch
def test_ranks_of_torchrun_and_how_the_run_ended(world: World) -> None:
    folder = world.work / "textfile"
    folder.mkdir()
    configured(world, folder)
    run = world.ddp().healthy()
    path = folder / f"distui-{run.id}.prom"
    assert until(lambda: len(series(path, "distui_rank_steps")) == 2), run.describe()
    assert [labels["rank"] for labels, _ in series(path, "distui_rank_steps")] == ["0", "1"]
    assert state_of(path) == "running"
    assert path.stat().st_mode & 0o777 == 0o644
    ((labels, value),) = series(path, "distui_run_info")
    assert (labels["run"], labels["name"], labels["preset"], value) == (run.id, run.name, "ddp", 1)
    assert not run.world.distui("stop", run.id, "--yes").code
    assert until(lambda: state_of(path) == "stopped")
    assert series(path, "distui_rank_steps") == []
    assert gone(run.agent_pid()), "the last text may follow one that was under way"
    before = path.stat().st_mtime_ns
    run.world.distui("status", run.id).fine()
    assert path.stat().st_mtime_ns == before
    assert list(folder.iterdir()) == [path]


@pytest.mark.long
def test_a_directory_that_comes_later_and_an_agent_that_goes(world: World) -> None:
    """A missing directory is a finding until it is there; an agent that goes takes its file along."""
    folder = world.work / "later"
    configured(world, folder)
    run = world.execute(JOB)
    path = folder / f"distui-{run.id}.prom"

    def findings() -> list[str]:
        return [each["text"] for each in run.status()["findings"] if each["id"] == "metrics-export"]

    assert until(findings), run.describe()
    assert findings() == [f"metrics are not written: {folder}: No such file or directory"]
    folder.mkdir()
    assert until(lambda: not findings()), run.describe()
    assert until(lambda: state_of(path) == "running"), run.describe()
    agent = run.agent_pid()
    os.kill(agent, signal.SIGTERM)
    assert gone(agent)
    assert not path.exists()
    old = folder / "distui-20200101-000000-old-00000000.prom"
    old.write_text("# EOF\n")
    os.utime(old, (1, 1))
    assert run.distui("signal", "SIGCONT", "--yes").code == 0  # needs an agent
    assert until(lambda: state_of(path) == "running"), run.describe()
    assert until(lambda: not old.exists())
    (world.work / "go").touch()
    assert run.wait() == 0
    assert until(lambda: state_of(path) == "succeeded")
