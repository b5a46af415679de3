"""A run's samples as OpenTelemetry metrics, in the JSON that the process with the SDK reads. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .exported_samples import MetricSample, printable
from .gpu_quantities import SENSOR
from .quantity import MetricFamily, OtelSpelling

ATTRIBUTES = {
    "rank": "distui.rank",
    "local_rank": "distui.local_rank",
    "gpu": "distui.gpu.index",
    "state": "distui.state",
    "severity": "distui.severity",
    "UUID": "hw.id",
    "modelName": "hw.model",
    "device": "hw.name",
}
"""Label → OpenTelemetry attribute; other labels become resource attributes."""
_NUMBERS = ("distui.rank", "distui.local_rank", "distui.gpu.index")
_RESOURCE = {
    "name": "distui.run.name",
    "preset": "distui.preset",
    "launcher": "distui.launcher",
    "host": "host.name",
}
"""Key of `facts_of` → resource attribute."""


def resource_of(facts: Mapping[str, str], run: str, node: int, host: str) -> dict[str, Any]:
    """Resource attributes of a run's pushes from one node. `host`: default if `facts` has none."""
    return {
        "service.name": "distui",
        "service.instance.id": f"{run}/{node}",
        "distui.run.id": run,
        "distui.node": node,
        "host.name": printable(host),
        **{_RESOURCE[key]: text for key, text in facts.items()},
    }


def metrics_of(samples: Iterable[MetricSample]) -> list[dict[str, Any]]:
    """One object per metric, with points of attributes and value, including NaN and Inf."""
    metrics: dict[str, dict[str, Any]] = {}
    for family, labels, value in samples:
        spelling = family.otel
        if spelling is None:
            continue
        metric = metrics.setdefault(spelling.name, _empty(family, spelling))
        metric["points"].append([_attributes(spelling, labels), _value(spelling, value)])
    return list(metrics.values())


def _empty(family: MetricFamily, spelling: OtelSpelling) -> dict[str, Any]:
    about = spelling.about or family.about.rstrip(".")
    return {
        "name": spelling.name,
        "unit": spelling.unit,
        "kind": spelling.kind,
        "about": about,
        "of_attempt": spelling.of_attempt,
        "points": [],
    }


def _attributes(spelling: OtelSpelling, labels: Iterable[tuple[str, str]]) -> dict[str, Any]:
    attributes: dict[str, Any] = dict(spelling.attributes)
    for label, text in labels:
        key = ATTRIBUTES.get(label)
        if key is not None:
            attributes[key] = int(text) if key in _NUMBERS else text
    if SENSOR in attributes:  # is a separate component with the GPU as its parent
        attributes["hw.parent"] = attributes["hw.id"]
        attributes["hw.id"] += f"/{attributes[SENSOR]}"
    return attributes


def _value(spelling: OtelSpelling, value: float) -> float | int:
    """Convert a value; counts become integers."""
    value = value * spelling.times / spelling.divisor
    return value if spelling.kind == "gauge" else round(value)
