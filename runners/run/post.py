"""`python -m …notify.post`: send one HTTP request from standard input, and print its outcome as JSON.

It is a separate process, so that its parent can kill it whatever a server or resolver does. Redirects are not followed,
because they could send the request and its secrets elsewhere. The output contains no part of the address. The body of
an answer is not read: a server that answers 200 and disconnects has the notification, and a retry would repeat it.
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
    """Returns a redirect as the answer."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Return None: no further request."""


def post(request: dict[str, Any]) -> dict[str, Any]:
    """Send a request. Return {"status": 204} or {"error": "it refused the connection"}."""
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
    """Describe an error without the address."""
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
