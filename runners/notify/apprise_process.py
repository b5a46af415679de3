"""`python -m …notify.apprise_process`: send one notification through apprise, and print its outcome as JSON.

Standard input has {"url", "title", "body", "type"}. As for post.py, the parent can kill this process, and no redirect is
followed. No secret is written: apprise's store of tokens needs a directory, and gets none.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import ssl
import sys
from collections.abc import Mapping
from typing import Any

from apprise import Apprise, AppriseAsset, LogCapture, OverflowMode


def send(request: Mapping[str, Any]) -> dict[str, Any]:
    """Send a notification. Return {"status": 200} or {"error": "why"}."""
    services = Apprise(asset=AppriseAsset(app_id="distui", http_redirects=False))
    with LogCapture(level=logging.WARNING, fmt="%(message)s") as log:  # type: ignore[no-untyped-call]
        if not services.add(request["url"]):
            return {"error": _last_line(log.getvalue()) or "apprise knows no such service"}
        for service in services:  # Discord refuses more than 2,000 characters
            service.overflow_mode = OverflowMode.TRUNCATE
        has_arrived = services.notify(
            title=request["title"], body=request["body"], notify_type=request["type"], body_format="text"
        )
        if has_arrived:
            return {"status": 200}
        return {"error": _last_line(log.getvalue()) or "apprise could not send it"}


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def main() -> None:
    """See the module. Certificates are those of the system, as for webhooks, and ~/.netrc is not used."""
    os.environ["NETRC"] = os.devnull
    certificates = ssl.get_default_verify_paths().cafile
    if certificates is not None:
        os.environ.setdefault("REQUESTS_CA_BUNDLE", certificates)
    with contextlib.redirect_stdout(sys.stderr):
        outcome = send(json.load(sys.stdin))
    json.dump(outcome, sys.stdout)


if __name__ == "__main__":
    main()
