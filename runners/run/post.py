"""`python -m …run.post`: send one HTTP request from standard input, and print its outcome as JSON.

It is a separate process, so that its parent can kill it whatever a server or resolver does. Redirects are not followed,
because they could send the request and its secrets elsewhere. The output contains no part of the address.
"""

from __future__ import annotations

import email.message
import http.client
import json
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Returns a redirect as the answer."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Return None: no further request."""


class Answer(NamedTuple):
    """A server's answer, or the error without one."""

    status: int = 0
    headers: email.message.Message = email.message.Message()
    content: bytes = b""
    """The beginning of its body."""
    error: str = ""


def send(url: str, body: bytes, headers: Mapping[str, str], seconds: float, most: int) -> Answer:
    """Send a request. `seconds`: for each part of the answer. `most`: bytes of the answer's body to read."""
    request = urllib.request.Request(url, body, dict(headers), method="POST")
    opener = urllib.request.build_opener(NoRedirect)
    try:
        with opener.open(request, timeout=seconds) as answer:
            return Answer(answer.status, answer.headers, answer.read(most) if most else b"")
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.headers)
    except urllib.error.URLError as error:
        return Answer(error=reason_of(error.reason))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer(error=reason_of(error))


def post(request: dict[str, Any]) -> dict[str, Any]:
    """Send a request. Return {"status": 204, "retry_after": None} or {"error": "it refused the connection"}.

    The answer's body is not read: a server that answers 200 and disconnects has the notification, and a retry would
    repeat it.
    """
    answer = send(
        request["url"], request["body"].encode("utf-8"), request["headers"], request["seconds"], 0
    )
    if answer.error:
        return {"error": answer.error}
    return {"status": answer.status, "retry_after": _seconds(answer.headers.get("Retry-After", ""))}


def _seconds(text: str) -> float | None:
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
        return f"its answer is not HTTP ({type(error).__name__})"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return type(error).__name__


if __name__ == "__main__":
    json.dump(post(json.load(sys.stdin)), sys.stdout)
