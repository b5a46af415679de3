"""The Grafana dashboards: their queries ask for what is exported, and a real Prometheus answers each of them."""

from __future__ import annotations

import contextlib
import http.server
import importlib.util
import json
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from each import for_each
from patience import HANG_S
from ports import free_port
from test_prometheus_text import NOW, state

from distui.presets.finding import Finding
from distui.runners.run.samples import RankSample, TrainingSample
from distui.runners.run.state import RunState
from distui.runners.telemetry.exported_samples import MetricSample, samples_of
from distui.runners.telemetry.otlp_values import metrics_of
from distui.runners.telemetry.prometheus_text import text_of

ROOT = Path(__file__).parents[3]
_spec = importlib.util.spec_from_file_location("dashboards", ROOT / ".ci/dashboards.py")
assert _spec is not None
assert _spec.loader is not None
dashboards = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(dashboards)
NAMES = [export.name for export in dashboards.EXPORTS]


def panels(name: str) -> list[dict[str, Any]]:
    """The panels of the file that users import."""
    document = json.loads((ROOT / f"docs/grafana/distui-{name}.json").read_text(encoding="utf-8"))
    return list(document["panels"])


def busy() -> RunState:
    """A run with a value for each panel."""
    made = state(util=98.0, mem_used=3 << 30, power_w=500.0, temp_c=60.0)
    for rank in (0, 1):
        made.ranks[rank].sample = RankSample(
            rank, 10, step=5, step_s=0.25, gpu=0, cpu_percent=150.0, wait_percent=30.0, log_age_s=1
        )
    made.training[0] = TrainingSample(0, NOW - 2, step=40, mfu=41.5, loss=1.5, tokens_s=900.0)
    made.findings["hang", None, None] = Finding("hang", "error", "a rank hangs")
    return made


def samples() -> list[MetricSample]:
    return samples_of(busy(), "r1", 0, NOW)


def pushed_text() -> str:
    """The text of the series that Prometheus makes of a push: a label per attribute, and the resource's two."""
    families = {family.otel.name: family for family in dashboards.BY_NAME.values() if family.otel}
    lines = []
    for metric in metrics_of(samples()):
        name = dashboards.otel_name(families[metric["name"]])
        for attributes, value in metric["points"]:
            labels = {dashboards.otel_label(key): text for key, text in attributes.items()}
            labels |= {"job": "distui", "instance": "r1/0"}
            text = ",".join(f"{key}={json.dumps(str(value))}" for key, value in labels.items())
            lines.append(f"{name}{{{text}}} {value}")
    return "\n".join([*lines, ""])


TEXTS = {"textfile": lambda: text_of(samples()).decode(), "otlp": pushed_text}


def test_the_files_are_those_of_the_script() -> None:
    for export in dashboards.EXPORTS:
        text = (ROOT / f"docs/grafana/distui-{export.name}.json").read_text(encoding="utf-8")
        assert json.loads(text) == dashboards.dashboard(export), "run `python .ci/dashboards.py`"


@for_each("name", NAMES)
def test_each_panel_asks_for_series_and_labels_that_are_exported(name: str) -> None:
    series: dict[str, set[str]] = {}
    for line in TEXTS[name]().splitlines():
        if found := re.match(r"(\w+)\{(.*)\} ", line):
            series.setdefault(found[1], set()).update(re.findall(r'(\w+)="', found[2]))
    for panel in panels(name):
        query, legend = panel["targets"][0]["expr"], panel["targets"][0]["legendFormat"]
        ((metric, chosen),) = re.findall(r"(\w+)\{(.*)\}", query)
        assert metric in series, panel["title"]
        wanted = set(re.findall(r"(\w+)=", chosen)) | set(re.findall(r"\{\{(\w+)\}\}", legend))
        grouped = re.search(r"by \(([^)]*)\)", query)
        wanted |= set(grouped[1].split(", ") if grouped else ())
        assert wanted <= series[metric], panel["title"]


@pytest.mark.real
@for_each("name", NAMES)
def test_prometheus_answers_every_panel(name: str, tmp_path: Path) -> None:
    with served(TEXTS[name]()) as port, prometheus(tmp_path, port) as asked:
        for panel in panels(name):
            query = panel["targets"][0]["expr"].replace("$run", ".*").replace("$__rate_interval", "1m")
            result = asked(query)
            limit = time.monotonic() + HANG_S
            while not result and time.monotonic() < limit:  # a rate needs two scrapes
                time.sleep(0.5)
                result = asked(query)
            assert result, panel["title"]


@contextlib.contextmanager
def served(text: str) -> Iterator[int]:
    """Serve a text on loopback for Prometheus to scrape."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def prometheus(folder: Path, port: int) -> Iterator[Any]:
    """Run a Prometheus that scrapes a port, and yield a function that returns the series of a query."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("Prometheus is not installed (Debian's package prometheus)")
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: node\n  honor_labels: true\n"
        f"  static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n"
    )
    mine = free_port()
    words = [program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*words, f"--web.listen-address=127.0.0.1:{mine}"], stdout=log, stderr=subprocess.STDOUT
        )

    def asked(query: str) -> list[Any]:
        url = f"http://127.0.0.1:{mine}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(url, timeout=HANG_S) as answer:
            return list(json.load(answer)["data"]["result"])

    try:
        limit = time.monotonic() + HANG_S
        while True:
            with contextlib.suppress(OSError):
                if asked("up == 1"):
                    break
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < limit, (folder / "log").read_text()
            time.sleep(0.2)
        yield asked
    finally:
        process.terminate()
        process.wait()
