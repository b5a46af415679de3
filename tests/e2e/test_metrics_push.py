"""Runs push their metrics to a collector of the settings, go on whatever it does, and tell nobody its secret."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from otlp import Pushed, decoded
from web_sink import Sink, sink

from .runs import Run, World, contents, gone, until

SECRET = "v3ry-Secret-0f-The-Collector"
JOB = """\
import os, time
while not os.path.exists("go"):
    time.sleep(0.05)
"""
USERS = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true",
    "OTEL_RESOURCE_ATTRIBUTES": "service.name=leaks", "OTEL_EXPORTER_OTLP_HEADERS": "x-leaks=yes",
}  # fmt: skip
"""Of a program that exports for itself."""


@pytest.fixture
def collector() -> Iterator[Sink]:
    with sink() as served:
        yield served


def configured(world: World, endpoint: str) -> None:
    folder = world.config / "distui"
    folder.mkdir(mode=0o700)
    (folder / "settings.toml").write_text(
        f'[export]\notlp_endpoint = "{endpoint}"\notlp_headers_file = "otlp-headers"\notlp_interval = "1s"\n'
    )
    (folder / "otlp-headers").touch(mode=0o600)
    (folder / "otlp-headers").write_text(f"Authorization: Basic {SECRET}\n")


def newest(collector: Sink) -> Pushed:
    return decoded(collector.got[-1])


def findings(run: Run) -> list[str]:
    return [each["text"] for each in run.status()["findings"] if each["id"] == "metrics-push"]


@pytest.mark.long
@pytest.mark.torch
def test_ranks_of_torchrun_and_how_the_run_ended(world: World, collector: Sink) -> None:
    configured(world, collector.url(f"/{SECRET}"))
    world.env |= USERS
    run = world.ddp().healthy()
    collector.wait(1)
    assert until(
        lambda: [value > 0 for value in newest(collector).values("distui.rank.steps")] == [True, True],
    ), run.describe()
    pushed = newest(collector)
    assert len(pushed.values("distui.rank.steps", rank=1)) == 1
    assert pushed.state == "running"
    resource = pushed.resource
    assert (resource["service.name"], resource["distui.run.id"]) == ("distui", run.id)
    assert (resource["distui.run.name"], resource["distui.preset"]) == (run.name, "ddp")
    headers = collector.got[-1].headers
    assert headers["authorization"] == f"Basic {SECRET}"
    assert "x-leaks" not in headers
    environ = (run.path / "environ").read_bytes()
    assert b"OTEL_SDK_DISABLED=true\0" in environ, "the ranks have what they were given"
    assert not run.world.distui("stop", run.id, "--yes").code
    assert until(lambda: newest(collector).state == "stopped")
    assert newest(collector).values("distui.rank.steps") == []
    assert gone(run.agent_pid()), "the last push may follow one that was under way"
    count = len(collector.got)
    bundle = world.work / "bundle"
    run.world.distui("export", run.id, str(bundle)).fine()
    assert len(collector.got) == count, "reading pushes nothing"
    assert SECRET.encode() not in contents(world.state) + bundle.read_bytes()


@pytest.mark.long
def test_a_collector_that_is_not_there_is_a_finding_until_it_is(world: World) -> None:
    bound = socket.socket()  # nobody listens there, and nobody else can
    bound.bind(("127.0.0.1", 0))
    absent = Sink(bound.getsockname()[1])
    configured(world, absent.url())
    run = world.execute(JOB)
    assert until(lambda: findings(run) != []), run.describe()
    assert findings(run) == [f"metrics are not pushed: 127.0.0.1:{absent.port}: Connection refused"]
    with sink(bound) as collector:
        assert until(lambda: findings(run) == []), run.describe()
        assert newest(collector).state == "running"
        (world.work / "go").touch()
        assert run.wait() == 0
        assert until(lambda: newest(collector).state == "succeeded")
        assert newest(collector).values("distui.run.exit_code") == [0]
    assert (run.path / "journal.jsonl").read_text().count("metrics are not pushed") == 1
    assert "127.0.0.1" not in (run.path / "agent.log").read_text()


@pytest.mark.long
def test_a_collector_that_hangs_holds_no_end_up(world: World, collector: Sink) -> None:
    collector.answers += ["drip"] * 50
    configured(world, collector.url())
    run = world.execute(JOB)
    collector.wait(1)
    agent = run.agent_pid()
    (world.work / "go").touch()
    assert run.wait() == 0
    assert gone(agent)
    assert findings(run) == []


@pytest.mark.long
def test_without_the_extra_the_finding_says_what_to_install(world: World, collector: Sink) -> None:
    configured(world, collector.url())
    hidden = world.root / "hidden" / "opentelemetry"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").touch()
    world.env["PYTHONPATH"] = str(hidden.parent)
    run = world.execute(JOB)
    assert until(lambda: findings(run) != []), run.describe()
    assert findings(run) == ["metrics are not pushed: OTLP needs an extra: `pip install 'distui[otlp]'`"]
    done = world.binary("settings")
    assert (done.code, done.err) == (1, "distui: OTLP needs an extra: `pip install 'distui[otlp]'`\n")
    assert collector.got == []
    (world.work / "go").touch()
    assert run.wait() == 0


@pytest.mark.long
def test_nothing_is_pushed_unless_the_settings_say_so(world: World, collector: Sink) -> None:
    world.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url()
    run = world.execute("print(1)")
    assert run.wait() == 0
    assert collector.got == []
    assert findings(run) == []
