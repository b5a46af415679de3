"""`python -m …telemetry.otlp_process`: push metrics with OpenTelemetry's SDK, from JSON lines on standard input.

Each line is one push; its result is a JSON line on standard output: {"why": ""} or {"why": "HOST answers 503"}. It is a
separate process for three reasons. The agent can end it even if a collector or a resolver hangs. The agent stays small.
It starts without the user's OTEL_* variables. It follows no redirect, reads only the beginning of an answer, and prints
no header or path.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import signal
import ssl
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import requests
import urllib3
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from ..run.post import reason_of

ANSWER_S = 8.0
"""Maximum seconds of a push with its retries, and of each read of an answer."""
LIFE_S = 30
"""Maximum seconds of a push; then this process ends, because its agent gave up or ended long before."""
MOST_ANSWER = 65536
"""Maximum bytes of an answer that are read."""


class BoundedSession(requests.Session):
    """Reads only the beginning of an answer, follows no redirect, sends no password of ~/.netrc; keeps the result."""

    def __init__(self) -> None:
        super().__init__()
        self.auth = lambda request: request
        self.answer: requests.Response | None = None
        self.error: Exception | None = None

    def renew(self, headers: Mapping[str, str]) -> None:
        """Clear the results of earlier requests, and set the headers of the next ones."""
        self.answer = self.error = None
        self.headers.clear()
        self.headers.update(headers)

    def request(self, *words: Any, **options: Any) -> requests.Response:
        """Send a request; signature of `requests.Session.request`."""
        self.answer = self.error = None
        try:
            with super().request(*words, **{**options, "allow_redirects": False, "stream": True}) as whole:
                content = whole.raw.read(MOST_ANSWER, decode_content=False)
        except (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError, ValueError) as error:
            self.error = error
            raise
        self.answer = answer = requests.Response()
        answer.status_code, answer.reason, answer.headers = whole.status_code, whole.reason, whole.headers
        answer.raw = io.BytesIO(content)
        return answer


def data_of(document: Mapping[str, Any]) -> MetricsData:
    """Convert a push to the SDK's data, without the SDK's instruments: those drop NaN, as in a loss."""
    at = _nanoseconds(document["at"])
    version = _version()
    resource = Resource.create({**document["resource"], "service.version": version})
    metrics = [
        Metric(each["name"], each["about"], each["unit"], _points(each, _began(document, each), at))
        for each in document["metrics"]
    ]
    scope = ScopeMetrics(InstrumentationScope("distui", version), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _began(document: Mapping[str, Any], metric: Mapping[str, Any]) -> int:
    """Begin of a sum's counting."""
    return _nanoseconds(document["attempt_began" if metric["of_attempt"] else "began"])


def _points(metric: Mapping[str, Any], began: int, at: int) -> Gauge | Sum:
    if metric["kind"] == "gauge":
        return Gauge([NumberDataPoint(attributes, 0, at, value) for attributes, value in metric["points"]])
    points = [NumberDataPoint(attributes, began, at, value) for attributes, value in metric["points"]]
    return Sum(points, AggregationTemporality.CUMULATIVE, metric["kind"] == "counter")


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _version() -> str:
    try:
        return metadata.version("distui")
    except metadata.PackageNotFoundError:
        return ""


class MetricsPusher:
    """Connection of one run to its collector."""

    def __init__(self, url: str, host: str) -> None:
        """`host`: the part of the address that messages may show."""
        self._host = host
        self._session = BoundedSession()
        self._exporter = OTLPMetricExporter(
            url,
            certificate_file=_certificates(),
            timeout=ANSWER_S,
            compression=Compression.Gzip,
            session=self._session,
        )

    def push(self, document: Mapping[str, Any]) -> str:
        """Push, and return the reason of a failure or ""."""
        self._session.renew(document["headers"])
        self._exporter.export(data_of(document))
        if self._session.error is not None:
            return f"{self._host}: {reason_of(_cause(self._session.error))}"
        if self._session.answer is None:
            return f"{self._host}: the SDK does not send them"
        return judged(self._session.answer, self._host)


def judged(answer: requests.Response, host: str) -> str:
    """Why a collector has not accepted everything; "" if it has."""
    status = answer.status_code
    if 300 <= status < 400:
        return f"{host} answers with a redirect ({status}): write the address that it leads to"
    if not 200 <= status < 300:
        return f"{host} answers {status}"
    if answer.headers.get("Content-Type", "").startswith("text/html"):
        return f"{host} answers with a web page: the address is none of a collector"
    try:
        taken = ExportMetricsServiceResponse.FromString(answer.content)
    except DecodeError:
        return ""  # some collectors answer with a word or with JSON
    refused = taken.partial_success.rejected_data_points
    return f"{host} refuses {refused} of the values" if refused > 0 else ""


def _cause(error: BaseException) -> BaseException:
    """Return the cause below the libraries' errors, which quote the address."""
    seen: list[BaseException] = [error]
    for each in seen:
        own = isinstance(each, (ssl.SSLError, TimeoutError, http.client.HTTPException))
        if own or (isinstance(each, OSError) and each.strerror):
            return each
        inner = (each.__cause__, each.__context__, getattr(each, "reason", None), *each.args)
        seen += [more for more in inner if isinstance(more, BaseException) and more not in seen]
    late = any(isinstance(each, (requests.Timeout, urllib3.exceptions.TimeoutError)) for each in seen)
    return TimeoutError() if late else error


def _certificates() -> str | None:
    """Certificates of the system, as for notifications; None: those of the library."""
    paths = ssl.get_default_verify_paths()
    return paths.cafile or (paths.capath if paths.capath and os.listdir(paths.capath) else None)


def main() -> int:
    """See the module."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # output of a library must not become an answer
    pusher: MetricsPusher | None = None
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        signal.alarm(LIFE_S)
        if pusher is None:
            pusher = MetricsPusher(asked["url"], asked["host"])
        why = pusher.push(asked)
        signal.alarm(0)
        out.write(json.dumps({"why": why}) + "\n")
        out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
