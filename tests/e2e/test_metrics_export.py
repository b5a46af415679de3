"""A run exports its metrics where the settings say, only there, and tells nobody a secret."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from doubles.fake_runner import FakeRunners
from doubles.served import Served, own_directories, planned, served
from prometheus_client.parser import text_string_to_metric_families

from distui.runners.agent import metrics_push
from distui.runners.agent.metrics_writer import MetricsWriter
from distui.runners.run import clock
from distui.runners.telemetry.export_settings import not_installed

from .runs import contents

SECRET = "v3ry-Secret-0f-The-Collector"
Pushed = Mapping[str, Any]


@asynccontextmanager
async def exporting(base: Path, settings: str) -> AsyncIterator[tuple[Served, FakeRunners]]:
    """A run of two fake ranks by a user with this [export] section."""
    folder = base / "config/distui"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "settings.toml").write_text(f"[export]\n{settings}\n")
    (folder / "otlp-headers").touch(mode=0o600)
    (folder / "otlp-headers").write_text(f"Authorization: Basic {SECRET}\n")
    script, runners = base / "train.py", FakeRunners()
    script.write_text("import torch\n")
    async with served(*planned(script), runners) as run:
        yield run, runners


def texts_of(run: Served, finding: str) -> list[str]:
    return [each.text for each in run.state.findings.values() if each.id == finding]


# --- OpenMetrics in a directory -----------------------------------------------------------------------------------


def series(path: Path, name: str) -> list[tuple[dict[str, str], float]]:
    """The samples of that name in a file; [] before it is there."""
    if not path.exists():
        return []
    families = text_string_to_metric_families(path.read_text())
    samples = [sample for family in families for sample in family.samples]
    return [(sample.labels, sample.value) for sample in samples if sample.name == name]


def state_of(path: Path) -> str:
    return next((labels["state"] for labels, value in series(path, "distui_run_state") if value == 1), "")


async def test_a_file_follows_the_run_to_its_end_once_its_directory_is_there() -> None:
    with own_directories() as base:
        folder = base / "textfile"
        old = folder / "distui-20200101-000000-old-00000000.prom"
        async with exporting(base, f'openmetrics_dir = "{folder}"') as (run, runners):
            await run.until(lambda _: texts_of(run, "metrics-export"))
            missing = f"metrics are not written: {folder}: No such file or directory"
            assert texts_of(run, "metrics-export") == [missing]
            folder.mkdir()
            old.write_text("# EOF\n")
            os.utime(old, (1, 1))
            await run.until(lambda _: not texts_of(run, "metrics-export"))
            path = folder / f"distui-{run.state.run}.prom"
            await run.until(lambda _: len(series(path, "distui_rank_step_duration_seconds")) == 2)
            assert [labels["rank"] for labels, _ in series(path, "distui_rank_step_duration_seconds")] == [
                "0",
                "1",
            ]
            assert state_of(path) == "running"
            assert path.stat().st_mode & 0o777 == 0o644
            ((labels, value),) = series(path, "distui_run_info")
            assert (labels["run"], labels["preset"], value) == (run.state.run, "ddp", 1)
            await check_the_end_of_an_agent(run, path)
            assert not old.exists(), "a new agent removes the files of runs that ended long ago"
            runners.newest.finishes()
        assert state_of(path) == "succeeded"
        assert series(path, "distui_rank_step_duration_seconds") == []
        assert list(folder.iterdir()) == [path]


async def check_the_end_of_an_agent(run: Served, path: Path) -> None:
    """An agent that ends before its run takes the file along."""
    writer = MetricsWriter(run.agent.served)
    writing = asyncio.create_task(writer.run())
    await run.until(lambda _: writer._writing)
    writing.cancel()
    await asyncio.wait({writing})
    assert not path.exists()
    await run.until(lambda _: state_of(path) == "running")


# --- OTLP to a collector ------------------------------------------------------------------------------------------


class Collector:
    """Takes pushes in place of the process that posts; test_otlp.py has that process and collectors of HTTP."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.got: list[Pushed] = []
        self.why = ""
        """What is answered; "hangs": nothing."""
        collector = self

        class Process:
            def __init__(self, env: Mapping[str, str], host: str) -> None:
                assert not [name for name in env if name.startswith("OTEL_")]

            async def push(self, document: Pushed) -> str:
                collector.got.append(document)
                if collector.why == "hangs":
                    await asyncio.sleep(3600)
                return collector.why

            async def close(self) -> None:
                pass

        monkeypatch.setattr(metrics_push, "PushProcess", Process)

    def points(self, name: str) -> list[tuple[dict[str, Any], float]]:
        """Attributes and values of a metric in the last push."""
        found = [metric["points"] for metric in self.got[-1]["metrics"] if metric["name"] == name]
        return found[0] if found else []

    def newest(self, name: str) -> list[float]:
        return [value for _, value in self.points(name)]

    @property
    def state(self) -> str:
        """That the run was in at the last push."""
        states = (has["distui.state"] for has, value in self.points("distui.run.state") if value == 1)
        return str(next(states))


OTLP = 'otlp_endpoint = "http://collector:4318"\notlp_headers_file = "otlp-headers"\notlp_interval = "1s"'


async def test_pushes_say_who_it_is_and_how_the_run_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector(monkeypatch)
    with own_directories() as base:
        async with exporting(base, OTLP) as (run, runners):
            await run.until(lambda _: collector.got and collector.newest("distui.rank.steps") >= [1.0, 1.0])
            assert collector.state == "running"
            pushed = collector.got[-1]
            assert pushed["url"] == "http://collector:4318/v1/metrics"
            assert pushed["headers"] == {"Authorization": f"Basic {SECRET}"}
            resource = pushed["resource"]
            assert (resource["service.name"], resource["distui.run.id"]) == ("distui", run.state.run)
            assert (resource["distui.run.name"], resource["distui.preset"]) == ("t", "ddp")
            runners.newest.finishes()
        assert collector.state == "succeeded"
        assert collector.newest("distui.rank.steps") == []
        assert collector.newest("distui.run.exit_code") == [0]
        assert SECRET.encode() not in contents(base / "state")


async def test_a_collector_that_takes_nothing_is_a_finding_and_holds_no_end_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collector = Collector(monkeypatch)
    collector.why = "collector:4318: Connection refused"
    with own_directories() as base:
        async with exporting(base, OTLP) as (run, runners):
            await run.until(lambda _: texts_of(run, "metrics-push"))
            assert texts_of(run, "metrics-push") == [f"metrics are not pushed: {collector.why}"]
            collector.why = ""
            await run.until(lambda _: not texts_of(run, "metrics-push"))
            collector.why = "hangs"
            count = len(collector.got)
            await run.until(lambda _: len(collector.got) > count)
            began = clock.monotonic()
            runners.newest.finishes()
            await run.until(lambda state: state.phase.ended)
        assert clock.monotonic() - began < 60
        assert (run.path / "journal.jsonl").read_text().count("metrics are not pushed") == 1


@pytest.mark.parametrize("settings", [OTLP, "# nothing"])
async def test_without_the_extra_or_the_settings_nothing_is_pushed(
    monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    collector = Collector(monkeypatch)
    monkeypatch.setattr(metrics_push, "_is_installed", lambda: False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    with own_directories() as base:
        async with exporting(base, settings) as (run, _):
            await run.hooked()
            missing = f"metrics are not pushed: {not_installed()}"
            assert texts_of(run, "metrics-push") == ([missing] if settings == OTLP else [])
    assert collector.got == []
