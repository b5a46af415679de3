"""The texts of notifications per channel. Pure. Secrets are masked, and texts cannot act on a terminal or a chat."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from ...presets.masker import Masker
from ...presets.plurals import plural
from ...presets.sanitize import clean_text
from ...presets.secrets import MASK, mask_text
from ..run.formatting import duration_text
from .channels import ChannelTarget
from .notice_rules import LATE_S, Notice

MOST_TITLE, MOST_TEXT = 160, 1200
"""Most characters."""
MOST_VARIABLE = 8000
"""Most characters per variable of a command: Linux starts no program with a variable of 128 KiB."""
OLDEST_S = 30 * 86400.0
"""Largest plausible age in seconds. An older one results from a changed clock."""
MOST_ALERT = 220
"""Most characters of a terminal's notification: GNU screen passes at most 256 bytes on."""
_TYPES = {"error": "failure", "warning": "warning", "note": "info"}
"""Severity → apprise's type of a notification."""
_MENTION = re.compile(r"<(?=[!@#])|@(?=(?:all|channel|everyone|here)\b)")
"""Begin of what chats read as a mention of users or channels."""


class Text(Struct, frozen=True):
    """A notification in words."""

    rule: str
    severity: str
    run: str
    """The run's name, or "" for a test."""
    host: str
    """Host for the command `attach`."""
    title: str
    lines: tuple[str, ...]
    attach: str = ""
    """The command that shows the run."""
    ranks: tuple[int, ...] = ()
    node: int | None = None
    at: float = 0.0

    @property
    def whole(self) -> str:
        """Return all lines."""
        return "\n".join((self.title, *self.lines))

    @property
    def body(self) -> str:
        """Return all lines except the title."""
        return "\n".join(self.lines)


def text_of(
    notice: Notice, run: str, host: str, left_out: Mapping[str, int] | None = None, now: float = 0.0
) -> Text:
    """Return the text of a notification. `left_out`: rule → number of notifications suppressed by the rate limit.

    `now`: Unix time, for the age of a late notification.
    """
    run, host = clean_text(run), clean_text(host)
    attach = f"distui attach {run}"
    lines = []
    if notice.text:
        lines.append(cut(f"{notice.text[:1].upper()}{notice.text[1:]}"))
    if notice.remedy:
        lines.append(cut(f"Remedy: {notice.remedy}"))
    lines.append(cut(f"On {host}: {attach}"))
    if LATE_S < now - notice.at < OLDEST_S:
        lines.append(f"This was {duration_text(now - notice.at)} ago")
    if left_out:
        counts = ", ".join(
            f"{plural(left_out[rule], 'notification')} of {rule}" for rule in sorted(left_out)
        )
        lines.append(f"Left out by the rate limit: {counts}")
    return Text(
        notice.rule,
        notice.severity,
        run,
        host,
        cut(f"{run}: {notice.what}", MOST_TITLE),
        tuple(lines),
        attach,
        notice.ranks,
        notice.node,
        notice.at,
    )


def trial_text(host: str, at: float) -> Text:
    """Return the text of `distui notify test`."""
    lines = (f"Sent by `distui notify test` on {host}: notifications of your runs use this channel",)
    return Text("test", "note", "", host, "distui: a test", lines, at=at)


def cut(text: str, most: int = MOST_TEXT) -> str:
    """Return a clean line of limited length, without secrets and without mentions of a chat's users."""
    text = _MENTION.sub("\\g<0>\u200b", mask_text(clean_text(text, 4 * most)))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def webhook_request(where: ChannelTarget, text: Text) -> dict[str, Any]:
    """Return a webhook's request, only for memory: see post.py."""
    headers = {"User-Agent": "distui", "Content-Type": "application/json"}
    if where.token:
        headers["Authorization"] = f"Bearer {where.token}"
    return {"url": where.url, "headers": headers, "body": json.dumps(generic(text))}


def apprise_request(where: ChannelTarget, text: Text) -> dict[str, Any]:
    """Return a notification for apprise, only for memory: see apprise_process.py."""
    return {"url": where.url, "title": text.title, "body": text.body, "type": _TYPES[text.severity]}


def generic(text: Text) -> dict[str, Any]:
    """Return the JSON of a webhook: see docs/notifications.md. Slack and Mattermost show `text`."""
    return {
        "version": 1,
        "rule": text.rule,
        "severity": text.severity,
        "run": text.run or None,
        "host": text.host,
        "title": text.title,
        "text": text.whole,
        "ranks": list(text.ranks),
        "node": text.node,
        "attach": text.attach or None,
        "at": text.at,
    }


def variables(text: Text) -> dict[str, str]:
    """Return a command's environment variables, shortened. Its standard input has the complete JSON object."""
    values = {
        "RULE": text.rule,
        "SEVERITY": text.severity,
        "RUN": text.run,
        "HOST": text.host,
        "TITLE": text.title,
        "TEXT": text.whole,
        "ATTACH": text.attach,
    }
    return {
        f"DISTUI_NOTIFY_{name}": value.replace("\0", "")[:MOST_VARIABLE] for name, value in values.items()
    }


def desktop_words(text: Text) -> list[str]:
    """Return the command line of notify-send, whose text may contain HTML tags."""
    urgency = {"error": "critical", "warning": "normal", "note": "low"}[text.severity]
    body = text.body.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return ["notify-send", "--app-name=distui", f"--urgency={urgency}", "--", text.title, body]


def without(text: str, secrets: set[str]) -> str:
    """Remove the secrets from a text about a failure."""
    masked = Masker(secrets).text(text.encode("utf-8", "replace")).decode("utf-8", "replace")
    for secret in sorted(secrets, key=len, reverse=True):
        masked = masked.replace(secret, MASK)
    return clean_text(masked, 300)
