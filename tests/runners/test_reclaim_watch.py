"""A node that is taken back: what the metadata services say, by a server on loopback that answers as they do."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from distui.runners.agent import reclaim_watch
from distui.runners.agent.reclaim_watch import Metadata, notice_of, service_here

AWS = "/latest/meta-data/spot/instance-action"
GCP = "/computeMetadata/v1/instance/preempted"
AZURE = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"


class Service(http.server.BaseHTTPRequestHandler):
    """Refuses who does not bring the header of the provider."""

    answers: ClassVar[dict[str, str]] = {}

    def do_PUT(self) -> None:
        self._send("TOKEN" if self.path == "/latest/api/token" else None)

    def do_GET(self) -> None:
        needs = {
            "/latest": ("X-aws-ec2-metadata-token", "TOKEN"),
            "/comput": ("Metadata-Flavor", "Google"),
            "/metada": ("Metadata", "true"),
        }[self.path[:7]]
        self._send(self.answers.get(self.path) if self.headers.get(needs[0]) == needs[1] else None)

    def _send(self, text: str | None) -> None:
        body = (text or "").encode()
        self.send_response(404 if text is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Quiet."""


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(reclaim_watch, "ANSWER_S", 60.0)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
    Service.answers = {}


def preempt(*names: str, kind: str = "Preempt") -> str:
    event = {"EventType": kind, "NotBefore": "Mon, 19 Sep 2026 18:29:47 GMT", "Resources": list(names)}
    return json.dumps({"DocumentIncarnation": 1, "Events": [event]})


@pytest.mark.parametrize(
    ("provider", "answers", "when"),
    [
        ("aws", {}, None), ("gcp", {GCP: "FALSE"}, None), ("azure", {AZURE: '{"Events": []}'}, None),
        ("aws", {AWS: '{"action": "terminate", "time": "2026-09-18T08:22:00Z"}'}, "2026-09-18T08:22:00Z"),
        ("gcp", {GCP: "TRUE"}, ""), ("azure", {AZURE: preempt("vm1"), NAME: "vm1"}, "Mon, 19 Sep 2026 18:29:47 GMT"),
        ("azure", {AZURE: preempt("vm2"), NAME: "vm1"}, None),
        ("azure", {AZURE: preempt("vm1", kind="Reboot"), NAME: "vm1"}, None),
        ("aws", {AWS: "nonsense"}, None), ("azure", {AZURE: "[]"}, None), ("aws", {AWS: "[]"}, None),
    ],
)  # fmt: skip
def test_what_a_provider_says(host: str, provider: str, answers: dict[str, str], when: str | None) -> None:
    Service.answers = answers
    assert notice_of(Metadata(provider, host)) == when


def test_nobody_answers() -> None:
    assert notice_of(Metadata("aws", "127.0.0.1:1")) is None


@pytest.mark.parametrize(
    ("file", "vendor", "provider"),
    [
        ("sys_vendor", "Amazon EC2", "aws"), ("product_name", "Google Compute Engine", "gcp"),
        ("sys_vendor", "Microsoft Corporation", "azure"), ("sys_vendor", "Dell Inc.", None),
    ],
)  # fmt: skip
def test_the_firmware_names_the_provider(
    tmp_path: Path, file: str, vendor: str, provider: str | None
) -> None:
    (tmp_path / file).write_text(f"{vendor}\n")
    service = service_here({}, tmp_path)
    assert (service and service.provider) == provider
    assert service is None or service.host == "169.254.169.254"


def test_a_variable_names_it_for_a_test(tmp_path: Path) -> None:
    assert service_here({reclaim_watch.ADDRESS: "aws 127.0.0.1:8"}, tmp_path) == Metadata(
        "aws", "127.0.0.1:8"
    )
    assert service_here({reclaim_watch.ADDRESS: "nobody 127.0.0.1:8"}, tmp_path) is None
