"""What came to a sink by OTLP, decoded with OpenTelemetry's own classes."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from typing import Any, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from web_sink import Got


class Pushed(NamedTuple):
    """One request."""

    resource: dict[str, Any]
    units: dict[str, str]
    """By the names of metrics."""
    kinds: dict[str, str]
    points: dict[str, list[tuple[dict[str, Any], float]]]

    def values(self, name: str, **attributes: Any) -> list[float]:
        """Of that metric, where `distui.…` attributes are these."""
        wanted = {f"distui.{key}": value for key, value in attributes.items()}.items()
        return [value for has, value in self.points.get(name, []) if wanted <= has.items()]

    @property
    def state(self) -> str:
        """That the run was in."""
        states = (has["distui.state"] for has, value in self.points["distui.run.state"] if value == 1)
        return str(next(states))


def decoded(got: Got) -> Pushed:
    """A request that a collector would take."""
    assert got.path.endswith("/v1/metrics")
    assert got.headers["content-type"] == "application/x-protobuf"
    body = gzip.decompress(got.raw) if got.headers.get("content-encoding") == "gzip" else got.raw
    (whole,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
    (scope,) = whole.scope_metrics
    pushed = Pushed(_plain(whole.resource.attributes), {}, {}, {})
    for metric in scope.metrics:
        kind = metric.WhichOneof("data")
        assert kind in ("gauge", "sum")
        assert metric.name not in pushed.points
        data = metric.gauge if kind == "gauge" else metric.sum
        monotonic = kind == "sum" and metric.sum.is_monotonic
        pushed.units[metric.name] = metric.unit
        pushed.kinds[metric.name] = "counter" if monotonic else kind
        pushed.points[metric.name] = [
            (_plain(point.attributes), point.as_double if kind == "gauge" else point.as_int)
            for point in data.data_points
        ]
        seen = [sorted(attributes.items()) for attributes, _ in pushed.points[metric.name]]
        assert all(seen.count(each) == 1 for each in seen), metric.name
    return pushed


def _plain(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in attributes}
