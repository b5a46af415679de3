"""`python -m …notify.post`: one HTTP request, from standard input; its outcome as JSON on standard output.

A process of its own: whatever a server or a resolver does, whoever waits for it can end it. No redirect is followed: it
could take the request, and what it holds, elsewhere. What is printed holds no part of the address. The body of an answer
is not read: who answers 200 and breaks off has the notice, and another try would send it twice.
"""

from __future__ import annotations

import email.message
import http.client
import json
import ssl
import sys
import urllib.error
import urllib.request
from typing import Any


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Leaves a redirect as the answer."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """No further request."""


def post(request: dict[str, Any]) -> dict[str, Any]:
    """{"status": 204} or {"error": "it refused the connection"}."""
    made = urllib.request.Request(
        request["url"], request["body"].encode("utf-8"), request["headers"], method="POST"
    )
    opener = urllib.request.build_opener(NoRedirect)
    try:
        with opener.open(made, timeout=request["seconds"]) as answer:
            return {"status": answer.status}
    except urllib.error.HTTPError as error:
        with error:
            return {"status": error.code, "retry_after": _seconds(error.headers)}
    except urllib.error.URLError as error:
        return {"error": reason_of(error.reason)}
    except (OSError, http.client.HTTPException, ValueError) as error:
        return {"error": reason_of(error)}


def _seconds(headers: email.message.Message | None) -> float | None:
    text = (headers.get("Retry-After") or "") if headers is not None else ""
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 7 else None


def reason_of(error: object) -> str:
    """What went wrong, without the address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate cannot be verified ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason})"
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, http.client.HTTPException):
        return f"its answer is no HTTP ({type(error).__name__})"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return type(error).__name__


if __name__ == "__main__":
    json.dump(post(json.load(sys.stdin)), sys.stdout)
