"""Watch for the reclaim of this node, as announced by the metadata service of AWS, Google Cloud or Azure.

It queries the link-local address, which bypasses proxies, only if a notification rule needs it and the firmware names
such a provider. It raises a finding, which the hub also receives.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from ...presets.finding import Finding
from ...presets.sanitize import clean_text
from ..notify.rule_words import chosen
from .runner_process import ServedRun

EVERY_S = 5.0
"""AWS warns two minutes before, Google and Azure 30 seconds."""
ANSWER_S = 2.0
MOST_ANSWER = 65536
FINDING = RULE = "spot-notice"
ADDRESS = "DISTUI_METADATA"
"""Variable with provider and address for tests: "aws 127.0.0.1:8000"."""
_HOST = "169.254.169.254"
_DMI = {"Amazon EC2": "aws", "Google": "gcp", "Microsoft Corporation": "azure"}
"""Vendor names in the firmware."""
NAMES = {"aws": "AWS", "gcp": "Google Cloud", "azure": "Azure"}


class Metadata(NamedTuple):
    provider: str
    host: str = _HOST


def service_here(environ: dict[str, str], dmi: Path = Path("/sys/class/dmi/id")) -> Metadata | None:
    """Return the metadata service of this node, or None for other providers."""
    provider, _, host = environ.get(ADDRESS, "").partition(" ")
    if provider in NAMES and host:
        return Metadata(provider, host)
    for name in ("sys_vendor", "product_name", "board_vendor"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            vendor = (dmi / name).read_text().strip()
            for text, name_of_it in _DMI.items():
                if vendor.startswith(text):
                    return Metadata(name_of_it)
    return None


class ReclaimWatch:
    """Queries every EVERY_S seconds until a reclaim is announced."""

    def __init__(self, run: ServedRun) -> None:
        self._run = run

    async def run(self) -> None:
        """Query until cancelled. Return immediately if no rule needs it, or no provider is known."""
        wanted = any(RULE in each.rules for each in chosen(self._run.plan.notify))
        service = service_here(dict(os.environ)) if wanted else None
        while service is not None:
            when = await asyncio.to_thread(notice_of, service)
            if when is not None:
                self._run.findings.raise_finding(self._finding(service, when))
                return
            await asyncio.sleep(EVERY_S)

    def _finding(self, service: Metadata, when: str) -> Finding:
        at = f" at {when}" if when else " within seconds"
        text = f"{NAMES[service.provider]} takes this node back{at}"
        remedy = (
            f"`distui restart {self._run.record.name} --save-first` saves now if the plan has --save-on"
        )
        return Finding(FINDING, "warning", text, node=self._run.node, remedy=remedy, value=when)


def notice_of(service: Metadata) -> str | None:
    """Return the reclaim time in the provider's format ("" if unknown), or None if no reclaim is announced."""
    try:
        return {"aws": _aws, "gcp": _gcp, "azure": _azure}[service.provider](service.host)
    except Exception:  # noqa: BLE001 - the service may answer anything, and is asked again
        return None


def _aws(host: str) -> str | None:
    token = _ask(host, "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    headers = {} if token is None else {"X-aws-ec2-metadata-token": token}
    answer = _ask(host, "/latest/meta-data/spot/instance-action", headers)
    return None if answer is None else _words(json.loads(answer).get("time"))


def _gcp(host: str) -> str | None:
    answer = _ask(host, "/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
    return "" if answer is not None and answer.strip() == "TRUE" else None


def _azure(host: str) -> str | None:
    headers = {"Metadata": "true"}
    answer = _ask(host, "/metadata/scheduledevents?api-version=2020-07-01", headers)
    events = [] if answer is None else json.loads(answer)["Events"]
    taken = [event for event in events if event["EventType"] == "Preempt"]
    if not taken:
        return None
    name = _ask(host, "/metadata/instance/compute/name?api-version=2021-02-01&format=text", headers)
    mine = [event for event in taken if name is None or name in event.get("Resources", [name])]
    return _words(mine[0].get("NotBefore")) if mine else None


def _words(value: Any) -> str:
    return clean_text(value, 60) if isinstance(value, str) else ""


def _ask(host: str, path: str, headers: dict[str, str], method: str = "GET") -> str | None:
    """Return the text of an answer, or None for any status but 200. Raises OSError and HTTPException."""
    connection = http.client.HTTPConnection(host, timeout=ANSWER_S)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.read(MOST_ANSWER).decode("utf-8", "replace") if answer.status == 200 else None
    finally:
        connection.close()
