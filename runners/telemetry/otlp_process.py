"""`python -m …telemetry.otlp_process`: push metrics to an OpenTelemetry collector, from JSON lines on standard input.

Each line is one push; its result is a JSON line on standard output: {"why": ""} or {"why": "HOST answers 503"}. It is a
separate process, so that the agent can end it even if a collector or a resolver hangs, and stays small. It prints no
header and no path.
"""

from __future__ import annotations

import gzip
import json
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

from ... import __version__
from ..run.post import Answer, send

ANSWER_S = 8.0
"""Maximum seconds for the connection and for each read of an answer."""
LIFE_S = 30
"""Maximum seconds of a push; then this process ends, because its agent gave up or ended long before."""
MOST_ANSWER = 65536
"""Maximum bytes of an answer that are read."""
HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "gzip",
    "User-Agent": "distui",
}


def request_of(document: Mapping[str, Any]) -> ExportMetricsServiceRequest:
    """Convert a push to OpenTelemetry's message."""
    request = ExportMetricsServiceRequest()
    whole = request.resource_metrics.add()
    whole.resource.attributes.extend(_attributes({**document["resource"], "service.version": __version__}))
    part = whole.scope_metrics.add()
    part.scope.name, part.scope.version = "distui", __version__
    for each in document["metrics"]:
        began = document["attempt_began" if each["of_attempt"] else "began"]
        part.metrics.append(_metric(each, _nanoseconds(began), _nanoseconds(document["at"])))
    return request


def _metric(each: Mapping[str, Any], began: int, at: int) -> Metric:
    """Convert a metric. `began`: nanoseconds of the begin of its sum. `at`: nanoseconds of its values."""
    metric = Metric(name=each["name"], description=each["about"], unit=each["unit"])
    for attributes, value in each["points"]:
        if each["kind"] == "gauge":
            point = metric.gauge.data_points.add(as_double=value)
        else:
            metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
            metric.sum.is_monotonic = each["kind"] == "counter"
            point = metric.sum.data_points.add(as_int=value, start_time_unix_nano=began)
        point.time_unix_nano = at
        point.attributes.extend(_attributes(attributes))
    return metric


def _attributes(values: Mapping[str, int | str]) -> Iterator[KeyValue]:
    for key, value in values.items():
        if isinstance(value, int):
            yield KeyValue(key=key, value=AnyValue(int_value=value))
        else:
            yield KeyValue(key=key, value=AnyValue(string_value=value))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def push(document: Mapping[str, Any]) -> str:
    """Push, and return the reason of a failure or ""."""
    body = gzip.compress(request_of(document).SerializeToString())
    headers = {**HEADERS, **document["headers"]}
    return judged(send(document["url"], body, headers, ANSWER_S, MOST_ANSWER), document["host"])


def judged(answer: Answer, host: str) -> str:
    """Why a collector has not accepted everything; "" if it has. `host`: the part of the address to show."""
    if answer.error:
        return f"{host}: {answer.error}"
    if 300 <= answer.status < 400:
        return f"{host} answers with a redirect ({answer.status}): write the address that it leads to"
    if not 200 <= answer.status < 300:
        return f"{host} answers {answer.status}"
    if answer.headers.get("Content-Type", "").startswith("text/html"):
        return f"{host} answers with a web page: the address is none of a collector"
    try:
        taken = ExportMetricsServiceResponse.FromString(answer.content)
    except DecodeError:
        return ""  # some collectors answer with a word or with JSON
    refused = taken.partial_success.rejected_data_points
    return f"{host} refuses {refused} of the values" if refused > 0 else ""


def main() -> int:
    """See the module."""
    for line in sys.stdin.buffer:
        document = json.loads(line)
        signal.alarm(LIFE_S)
        why = push(document)
        signal.alarm(0)
        sys.stdout.write(json.dumps({"why": why}) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
