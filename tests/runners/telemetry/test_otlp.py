"""What runs push to an OpenTelemetry collector: names, units and values; and collectors that take it badly."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import patience
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from otlp import Pushed, decoded
from ports import free_port
from test_prometheus_text import NOW, state
from web_sink import Sink, sink

from distui.runners.agent import metrics_push
from distui.runners.agent.metrics_push import PushProblem, PushProcess, environment_of, pause_of
from distui.runners.run.settings_file import SecretError
from distui.runners.run.state import RunState
from distui.runners.telemetry.export_settings import OtlpExport, headers_of, of_table
from distui.runners.telemetry.exported_samples import FAMILIES, RUN_INFO, facts_of, samples_of
from distui.runners.telemetry.otlp_process import push, request_of
from distui.runners.telemetry.otlp_values import metrics_of, resource_of
from distui.runners.telemetry.quantity import MetricFamily

PATH = "/path-that-is-secret"
NONE: dict[str, str] = {}


@pytest.fixture
def collector() -> Iterator[Sink]:
    with sink() as served:
        yield served


def document(run: RunState, collector: Sink, **headers: str) -> dict[str, Any]:
    """A push as it reaches the process that posts it."""
    whole = {
        "url": collector.url(f"{PATH}/v1/metrics"), "host": f"127.0.0.1:{collector.port}", "headers": headers,
        "at": NOW, "began": NOW - 60, "attempt_began": NOW - 50,
        "resource": resource_of(facts_of(run, 0), "r1", 0, "fallback"),
        "metrics": metrics_of(samples_of(run, "r1", 0, NOW)),
    }  # fmt: skip
    read: dict[str, Any] = json.loads(json.dumps(whole))
    return read


def pushed(run: RunState, collector: Sink, **headers: str) -> Pushed:
    """What a collector has of it."""
    asked = document(run, collector, **headers)
    assert push(asked) == ""
    return decoded(collector.wait(1)[-1])


def why(collector: Sink, answer: str) -> str:
    """What is reported of a collector that answers so."""
    collector.answers[:] = [answer]
    asked = document(state(), collector)
    return push(asked).replace(asked["host"], "HOST")


def test_names_units_and_values_are_those_of_the_conventions(collector: Sink) -> None:
    run = state(
        util=57.0, mem_used=(3 << 30) + 1, mem_total=80 << 30, power_w=300.0, temp_c=50.0, mem_temp_c=60.0,
        sm_mhz=1410, pcie_tx_bps=5.0, pcie_rx_bps=7.0,
    )  # fmt: skip
    it = pushed(run, collector)
    gpu = {
        "hw.id": "GPU-0", "hw.name": "nvidia0", "hw.model": "NVIDIA H100", "hw.type": "gpu", "hw.vendor": "NVIDIA",
        "distui.gpu.index": 0,
    }  # fmt: skip
    assert it.points["hw.gpu.utilization"] == [(gpu, 0.57)]  # GPU 1 is not the run's
    assert it.points["hw.gpu.memory.usage"] == [(gpu, (3 << 30) + 1)]
    assert it.values("hw.gpu.memory.limit") == [80 << 30]
    assert it.values("hw.power") == [300]
    assert it.values("distui.gpu.sm.clock") == [1.41e9]
    assert [(has["hw.id"], has["hw.parent"], has["hw.sensor_location"], value)
            for has, value in it.points["hw.temperature"]] == [
        ("GPU-0/gpu", "GPU-0", "gpu", 50), ("GPU-0/memory", "GPU-0", "memory", 60),
    ]  # fmt: skip
    assert {(has["network.io.direction"], value) for has, value in it.points["distui.gpu.pcie.throughput"]} == {
        ("transmit", 5), ("receive", 7),
    }  # fmt: skip
    assert it.values("distui.rank.steps", rank=1) == [6]
    assert it.values("distui.rank.cpu.cores", rank=0) == [1.5]
    assert it.values("distui.run.failures") == [1]
    assert it.values("distui.ranks", state="running") == [2]
    assert it.values("distui.training.mfu", rank=0) == [0.415]
    assert math.isnan(it.values("distui.training.loss", rank=0)[0])
    assert it.state == "running"
    wanted = {
        "hw.gpu.utilization": ("1", "gauge"), "hw.gpu.memory.usage": ("By", "sum"), "hw.power": ("W", "gauge"),
        "hw.temperature": ("Cel", "gauge"), "distui.run.failures": ("{failure}", "counter"),
        "distui.rank.step.duration": ("s", "gauge"), "distui.gpu.pcie.throughput": ("By/s", "gauge"),
        "distui.rank.steps": ("{step}", "counter"),
    }  # fmt: skip
    assert {name: (it.units[name], it.kinds[name]) for name in wanted} == wanted


def test_a_counter_of_ranks_begins_with_their_attempt(collector: Sink) -> None:
    (resource,) = request_of(document(state(), collector)).resource_metrics
    sums = [metric for metric in resource.scope_metrics[0].metrics if metric.HasField("sum")]
    began = {metric.name: metric.sum.data_points[0].start_time_unix_nano for metric in sums}
    assert began["distui.rank.steps"] == int((NOW - 50) * 1e9)
    assert began["distui.run.failures"] == int((NOW - 60) * 1e9)


def test_what_is_unknown_is_not_there(collector: Sink) -> None:
    it = pushed(state(), collector)
    absent = {
        "hw.gpu.utilization",
        "hw.gpu.memory.usage",
        "hw.power",
        "distui.rank.memory.usage",
        "distui.run.exit_code",
    }
    assert not absent & it.points.keys()


def test_the_resource_says_whose_it_is_whatever_a_run_is_called(collector: Sink) -> None:
    it = pushed(state(), collector).resource
    assert it["distui.run.name"] == 'ev"il\\\n{}#\ufffd[31m\ufffd,é'
    wanted = {
        "service.name": "distui", "service.instance.id": "r1/0", "distui.run.id": "r1", "distui.node": 0,
        "host.name": "box",
    }  # fmt: skip
    assert {key: it[key] for key in wanted} == wanted
    assert resource_of({}, "r1", 0, "fallback")["host.name"] == "fallback"


def prometheus(family: MetricFamily) -> str:
    """What the OpenTelemetry specification makes of a name for Prometheus."""
    assert family.otel is not None
    name, unit = family.otel.name.replace(".", "_"), family.otel.unit
    suffix = {
        "s": "seconds",
        "By": "bytes",
        "1": "ratio",
        "{token}/s": "per_second",
        "{sample}/s": "per_second",
    }
    ending = "total" if family.otel.kind == "counter" else suffix.get(unit, "")
    return name if not ending or name.endswith(ending) else f"{name}_{ending}"


def test_prometheus_has_one_name_for_a_metric_on_both_ways() -> None:
    spelled = [family for family in FAMILIES if family.otel is not None]
    assert [family for family in FAMILIES if family.otel is None] == [RUN_INFO]
    for family in spelled:
        if family.name.startswith("distui_"):
            assert prometheus(family) == family.name
    names = [(family.otel.name, family.otel.attributes) for family in spelled if family.otel]
    assert len(set(names)) == len(names)


# --- collectors ---


def test_headers_are_sent_and_nothing_of_other_peoples(
    collector: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password of-somebody-else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    pushed(state(), collector, Authorization="Bearer mine")
    (got,) = collector.got
    assert got.headers["authorization"] == "Bearer mine"
    pushed(state(), collector)
    assert "authorization" not in collector.got[-1].headers


REFUSED = ExportMetricsServiceResponse()
REFUSED.partial_success.rejected_data_points = 3
REFUSED.partial_success.error_message = "\x1b[31m"
OTLP = "HTTP/1.1 200 X\r\nContent-Type: application/x-protobuf\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("200", ""),
        ("400", "HOST answers 400"),
        ("401", "HOST answers 401"),
        ("500", "HOST answers 500"),
        ("redirect", "HOST answers with a redirect (302): write the address that it leads to"),
        ("garbage", "HOST: its answer is not HTTP (BadStatusLine)"),
        ("cut", "HOST: its answer is not HTTP (RemoteDisconnected)"),
        ("endless", ""),
        (OTLP, ""),
        (OTLP + "\xff\xff garbage", ""),
        (OTLP + REFUSED.SerializeToString().decode("latin-1"), "HOST refuses 3 of the values"),
        ("HTTP/1.1 200 X\r\nContent-Type: text/html\r\n\r\n<p>Log in",
         "HOST answers with a web page: the address is none of a collector"),
    ],
)  # fmt: skip
def test_what_a_collector_answers_is_said_without_the_path(
    collector: Sink, answer: str, words: str
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert why(collector, answer) == words
    assert PATH not in words
    assert all(got.path.startswith(PATH) for got in collector.got), "a redirect was followed"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_no_collector_is_a_connection_refused() -> None:
    assert why(Sink(free_port()), "") == "HOST: Connection refused"


@pytest.mark.real
async def test_a_collector_that_hangs_or_drips_costs_its_process_and_the_next_push_arrives(
    collector: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does a process that ends by itself."""
    process = PushProcess({**os.environ, "PYTHONHOME": "/nowhere"}, "HOST")
    monkeypatch.setattr(metrics_push, "WHOLE_S", patience.HANG_S)
    try:
        assert "pip install 'opentelemetry-proto>=" in await process.push(document(state(), collector))
        process._env = dict(os.environ)
        for answer in ("drip", "hang"):
            assert await process.push(document(state(), collector)) == ""
            collector.answers[:] = [answer]
            with monkeypatch.context() as patched:
                patched.setattr(metrics_push, "WHOLE_S", 0.5)
                assert await process.push(document(state(), collector)) == "HOST does not answer within 0 s"
            collector.answers.clear()
        assert await process.push(document(state(), collector)) == ""
        assert decoded(collector.got[-1]).state == "running"
    finally:
        await process.close()


@pytest.mark.long
def test_a_process_whose_agent_was_killed_does_not_hang_for_ever(collector: Sink) -> None:
    collector.answers += ["drip"]
    code = "from distui.runners.telemetry import otlp_process as it; it.LIFE_S = 1; it.main()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out, _ = process.communicate(json.dumps(document(state(), collector)).encode() + b"\n", timeout=60)
    assert out == b""
    assert process.returncode == -signal.SIGALRM


# --- what is decided about pushes ---


def test_a_collector_that_comes_and_goes_is_noted_ever_more_seldom() -> None:
    problem = PushProblem(30)
    changes = [at for at in range(0, 7 * 86400, 10) if problem.heard("" if at // 10 % 2 else "gone", at)]
    assert changes[:3] == [0, 30, 100]
    assert len(changes) < 200
    calm = PushProblem(30)
    assert [at for at in range(0, 3600, 10) if calm.heard("gone", at)] == [0]
    assert calm.heard("", 3600)
    assert calm.words == ""


def test_pushes_to_a_collector_that_takes_none_become_rare() -> None:
    assert [pause_of(10, failures) for failures in range(4)] == [10, 20, 40, 60]
    assert pause_of(1, 10_000) == 60
    assert pause_of(600, 3) == 600


def test_the_network_is_that_of_the_launch_and_the_users_own_export_has_no_say() -> None:
    launch = {"https_proxy": "http://p:1", "OTEL_EXPORTER_OTLP_HEADERS": "a=b"}
    env = environment_of({"PATH": "/bin", "OTEL_SDK_DISABLED": "true", "https_proxy": "x"}, launch.get)
    assert env == {"PATH": "/bin", "https_proxy": "http://p:1"}


# --- settings ---


def test_what_cannot_be_used_is_named_and_nothing_is_pushed() -> None:
    for table, problem in [
        ({"otlp_endpoint": "localhost:4318"}, "export.otlp_endpoint must be the address of a collector"),
        ({"otlp_endpoint": "https://me:pw@h/"}, "export.otlp_endpoint must be only host and path"),
        ({"otlp_endpoint": "https://h/?token=pw"}, "export.otlp_endpoint must be only host and path"),
        ({"otlp_endpoint": "https://h:port/"}, "export.otlp_endpoint must be the address"),
        ({"otlp_endpoint": 4318}, "export.otlp_endpoint must be a string"),
        (
            {"otlp_endpoint": "http://h", "otlp_headers_file": ["pw"]},
            "export.otlp_headers_file must be a string",
        ),
        (
            {"otlp_endpoint": "http://h", "otlp_headers_env": "PLAIN"},
            "the name PLAIN has to look secret",
        ),
        (
            {"otlp_endpoint": "http://h", "otlp_interval": "0.1s"},
            "export.otlp_interval must be a time from 1s to 1h",
        ),
        (
            {"otlp_endpoint": "http://h", "otlp_interval": "often"},
            "export.otlp_interval must be a time from 1s to 1h",
        ),
        ({"otlp_interval": "10s"}, "export.otlp_interval does nothing without otlp_endpoint"),
    ]:
        read = of_table(table, Path("settings.toml"))
        assert read.otlp is None
        assert read.problems == ()
        (said,) = read.otlp_problems
        assert said.startswith("settings.toml: export.")
        assert problem in said
        assert "pw" not in said


def test_an_unknown_key_does_not_keep_the_others_from_counting() -> None:
    read = of_table({"otlp_endpoint": "http://h:1", "otlp_headers": "pw"}, Path("settings.toml"))
    assert read.otlp == OtlpExport("http://h:1")
    assert read.problems == (
        "settings.toml: there is no setting export.otlp_headers; did you mean otlp_headers_env?",
    )


def test_addresses_are_those_of_a_collector_or_of_its_metrics() -> None:
    assert OtlpExport("http://h:4318").url == "http://h:4318/v1/metrics"
    assert OtlpExport("http://h:4318/").url == "http://h:4318/v1/metrics"
    assert OtlpExport("https://h/api/v1/otlp").url == "https://h/api/v1/otlp/v1/metrics"
    assert OtlpExport("https://h/x/v1/metrics").url == "https://h/x/v1/metrics"
    assert OtlpExport("https://h:8/x").host == "h:8"


def test_headers_come_from_a_file_that_others_cannot_read_and_from_a_variable(tmp_path: Path) -> None:
    otlp = OtlpExport("http://h", "headers", "MY_TOKEN")
    file = tmp_path / "headers"
    file.write_text("Authorization: Bearer a:b\n\nX-Scope-OrgID:7\n")
    file.chmod(0o644)
    with pytest.raises(SecretError, match="chmod 600"):
        headers_of(otlp, NONE.get, tmp_path)
    file.chmod(0o600)
    with pytest.raises(SecretError, match="MY_TOKEN is not set"):
        headers_of(otlp, NONE.get, tmp_path)
    read = headers_of(otlp, {"MY_TOKEN": "X-Key: k"}.get, tmp_path)
    assert read == {"Authorization": "Bearer a:b", "X-Scope-OrgID": "7", "X-Key": "k"}
    assert headers_of(OtlpExport("http://h"), NONE.get, tmp_path) == {}
    for line in ("Bearer secret", "X-Key: s\x1becret", "X Key: secret", "Ü: secret"):
        file.write_text(f"A: b\n\n{line}\n")
        with pytest.raises(SecretError) as refused:
            headers_of(otlp, NONE.get, tmp_path)
        assert str(refused.value) == "headers: line 3 is not a header: write NAME: VALUE, in ASCII"
