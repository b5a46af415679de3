"""Write docs/grafana/*.json: the same Grafana dashboard for each of the two exports. `python .ci/dashboards.py`.

The names of metrics come from the table of exported values. Prometheus stores what OpenTelemetry sends under other
names: https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from distui.runners.telemetry.exported_samples import FAMILIES
from distui.runners.telemetry.otlp_values import ATTRIBUTES
from distui.runners.telemetry.quantity import MetricFamily

FOLDER = Path(__file__).parent.parent / "docs/grafana"
BY_NAME = {family.name: family for family in FAMILIES}
UNITS = {
    "1": "ratio",
    "s": "seconds",
    "By": "bytes",
    "By/s": "bytes_per_second",
    "Hz": "hertz",
    "Cel": "celsius",
    "W": "watts",
    "{token}/s": "per_second",
    "{sample}/s": "per_second",
}
"""UCUM unit → last part of a name in Prometheus; units in braces have none."""


class Panel(NamedTuple):
    title: str
    query: str
    """PromQL. `<metric>` is a metric of the chosen runs; [rank], [gpu], [node] and [run] are labels."""
    legend: str
    unit: str = "short"
    """A unit of Grafana."""
    kind: str = "timeseries"
    shows: str = "value_and_name"
    """What a panel of the kind "stat" shows of a series."""
    times: Mapping[str, str] = {}
    """Export → factor, if its unit is not `unit`."""


PANELS = (
    Panel("State", "<distui_run_state> == 1", "[run] {{[state]}}", kind="stat", shows="name"),
    Panel(
        "Findings",
        "sum by ([run], [severity]) (<distui_run_findings>)",
        "[run] {{[severity]}}",
        kind="stat",
    ),
    Panel("Failures", "<distui_run_failures_total>", "[run]", kind="stat"),
    Panel("Step", "max by ([run]) (<distui_training_step>)", "[run]", kind="stat"),
    Panel("Loss", "<distui_training_loss>", "[run] rank {{[rank]}}"),
    Panel("Tokens per second", "<distui_training_tokens_per_second>", "[run] rank {{[rank]}}"),
    Panel("Model FLOPs utilisation", "<distui_training_mfu_ratio>", "[run] rank {{[rank]}}", "percentunit"),
    Panel("Time per step", "<distui_rank_step_duration_seconds>", "[run] rank {{[rank]}}", "s"),
    Panel(
        "Steps per minute",
        "60 * rate(<distui_rank_steps_total>[$__rate_interval])",
        "[run] rank {{[rank]}}",
    ),
    Panel(
        "Wait in collectives (the rank that waits least is the slow one)",
        "<distui_rank_collective_wait_ratio>",
        "[run] rank {{[rank]}}",
        "percentunit",
    ),
    Panel(
        "GPU utilisation", "<DCGM_FI_DEV_GPU_UTIL>", "[gpu]", "percentunit", times={"textfile": " / 100"}
    ),
    Panel("GPU memory", "<DCGM_FI_DEV_FB_USED>", "[gpu]", "bytes", times={"textfile": " * 1048576"}),
    Panel("Power", "<DCGM_FI_DEV_POWER_USAGE>", "[gpu]", "watt"),
    Panel("Temperature", "<DCGM_FI_DEV_GPU_TEMP>", "[gpu]", "celsius"),
    Panel("CPU cores per rank", "<distui_rank_cpu_cores>", "[run] rank {{[rank]}}"),
    Panel("Time since output", "<distui_rank_output_age_seconds>", "[run] rank {{[rank]}}", "s"),
)


class Export(NamedTuple):
    """What differs between the two exports."""

    name: str
    title: str
    metric: Callable[[MetricFamily], str]
    """PromQL of a metric of the chosen runs."""
    labels: Mapping[str, str]
    """[word] of a query → label."""
    legends: Mapping[str, str]
    runs: str
    """The query for the names of runs."""


def otel_name(family: MetricFamily) -> str:
    """Return the name under which Prometheus stores a metric of OpenTelemetry."""
    spelling = family.otel
    assert spelling is not None, f"{family.name} is no metric of OpenTelemetry"
    words = re.sub(r"[^a-zA-Z0-9_]", "_", spelling.name)
    unit = UNITS.get(spelling.unit, "")
    if unit == "ratio" and spelling.kind != "gauge":
        unit = ""
    if unit and not words.endswith(unit):
        words = f"{words}_{unit}"
    return f"{words}_total" if spelling.kind == "counter" else words


def otel_label(label: str) -> str:
    """Return the label under which Prometheus stores an attribute."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", ATTRIBUTES.get(label, label))


def _of_file(family: MetricFamily) -> str:
    return f'{family.name}{{run=~"$run"}}'


def _of_otlp(family: MetricFamily) -> str:
    assert family.otel is not None
    chosen = "".join(f', {otel_label(name)}="{value}"' for name, value in family.otel.attributes)
    return f'{otel_name(family)}{{job="distui", instance=~"$run"{chosen}}}'


EXPORTS = (
    Export(
        "textfile",
        "distui, by node_exporter's textfile collector",
        _of_file,
        {"run": "run", "rank": "rank", "state": "state", "severity": "severity"},
        {"run": "{{run}}", "gpu": "{{Hostname}} GPU {{gpu}}"},
        "label_values(distui_run_info, run)",
    ),
    Export(
        "otlp",
        "distui, by OTLP",
        _of_otlp,
        {"run": "instance", **{name: otel_label(name) for name in ("rank", "state", "severity")}},
        {"run": "{{instance}}", "gpu": f"{{{{instance}}}} GPU {{{{{otel_label('gpu')}}}}}"},
        'label_values(distui_run_state{job="distui"}, instance)',
    ),
)


def query_of(panel: Panel, export: Export) -> str:
    """Return the PromQL of a panel."""
    query = re.sub(r"<(\w+)>", lambda found: export.metric(BY_NAME[found[1]]), panel.query)
    for word, label in export.labels.items():
        query = query.replace(f"[{word}]", label)
    return query + panel.times.get(export.name, "")


def dashboard(export: Export) -> dict[str, Any]:
    """Return the dashboard in Grafana's JSON model (schema 39, Grafana 10 and newer)."""
    panels, y, x = [], 0, 0
    for number, panel in enumerate(PANELS, 1):
        small = panel.kind == "stat"
        width, height = (6, 4) if small else (8, 8)
        if x + width > 24:
            x, y = 0, y + height
        panels.append(_panel(number, panel, export, {"x": x, "y": y, "w": width, "h": height}))
        x += width
        if small and x == 24:
            x, y = 0, y + height
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    runs = {
        "name": "run",
        "label": "Run",
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": export.runs, "refId": "runs"},
        "definition": export.runs,
        "multi": True,
        "includeAll": True,
        "refresh": 2,
        "sort": 2,
    }
    return {
        "uid": f"distui-{export.name}",
        "title": export.title,
        "tags": ["distui", "pytorch"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source, runs]},
        "panels": panels,
    }


SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _panel(number: int, panel: Panel, export: Export, place: dict[str, int]) -> dict[str, Any]:
    legend = panel.legend
    for word, text in export.legends.items():
        legend = legend.replace(f"[{word}]", text)
    for word, label in export.labels.items():
        legend = legend.replace(f"[{word}]", label)
    target = {"refId": "A", "datasource": SOURCE, "expr": query_of(panel, export), "legendFormat": legend}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": [target],
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": {}}, "overrides": []},
        "options": {"textMode": "value_and_name"}
        if panel.kind == "stat"
        else {"tooltip": {"mode": "multi"}},
    }


def main() -> None:
    """Write the files."""
    for export in EXPORTS:
        text = json.dumps(dashboard(export), indent=1, ensure_ascii=False)
        (FOLDER / f"distui-{export.name}.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
