"""The text of a run's samples for Prometheus. Pure.

It is in the Prometheus text format (0.0.4), which node_exporter's textfile collector reads: gauges and counters, without
timestamps. It is not OpenMetrics, which has another counter name in its TYPE line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from .exported_samples import FAMILIES, MetricSample


def text_of(samples: Iterable[MetricSample]) -> bytes:
    """Format the text of a file. The format requires each family's samples together."""
    by_family: dict[str, list[MetricSample]] = {family.name: [] for family in FAMILIES}
    for sample in samples:
        by_family[sample.family.name].append(sample)
    lines: list[str] = []
    for of_family in filter(None, by_family.values()):
        family = of_family[0].family
        lines += [f"# HELP {family.name} {family.about}", f"# TYPE {family.name} {family.kind}"]
        lines += [
            f"{family.name}{{{_labels(dict(sample.labels))}}} {_number(sample.value)}"
            for sample in of_family
        ]
    return "\n".join([*lines, ""]).encode()


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if abs(value) < 1e15 and value == int(value) else repr(float(value))
