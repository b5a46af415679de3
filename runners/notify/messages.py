"""What a notice says on each way. Pure; secrets are masked, and nothing in a text acts on a terminal or in a chat."""

from __future__ import annotations

import json
from collections.abc import Mapping
from email.header import Header
from typing import Any

from msgspec import Struct

from ...presets.plurals import plural
from ...presets.sanitize import clean_text
from ...presets.secrets import MASK, Masker, mask_text
from ..formatting import duration_text
from .notice_rules import LATE_S, Notice
from .ways import NoticeWay, WayTarget

MOST_TITLE, MOST_TEXT = 160, 1200
"""Characters."""
MOST_RANKS, MOST_VARIABLE = 1000, 8000
"""Ranks, and characters of each variable that a command gets: Linux starts no program with one of 128 KiB."""
OLDEST_S = 30 * 86400.0
"""An older one is dated by a clock that was set."""
MOST_ALERT = 220
"""Characters of a terminal's notice: GNU screen passes no more than 256 bytes on."""
_MARKS = {"error": "✖", "warning": "▲", "note": "●"}
_PRIORITIES = {"error": "5", "warning": "4", "note": "3"}
"""Of ntfy."""
_TAGS = {"error": "rotating_light", "warning": "warning", "note": "white_check_mark"}


class Text(Struct, frozen=True):
    """A notice in words."""

    rule: str
    severity: str
    run: str
    """The run's name; "" for a test."""
    host: str
    """Where `attach` is to be typed."""
    title: str
    lines: tuple[str, ...]
    attach: str = ""
    """The command that shows the run."""
    ranks: tuple[int, ...] = ()
    node: int | None = None
    at: float = 0.0

    @property
    def whole(self) -> str:
        """All of it, a line each."""
        return "\n".join((self.title, *self.lines))

    @property
    def body(self) -> str:
        """All but the title."""
        return "\n".join(self.lines)


def text_of(
    notice: Notice, run: str, host: str, left_out: Mapping[str, int] | None = None, now: float = 0.0
) -> Text:
    """What is said of a notice; `left_out`: rule → how many notices the rate limit has held back.

    `now`: unix time, for the age of one that comes late.
    """
    run, host = clean_text(run), clean_text(host)
    attach = f"distui attach {run}"
    lines = [
        cut(f"{notice.text[:1].upper()}{notice.text[1:]}") if notice.text else "",
        cut(f"Remedy: {notice.remedy}") if notice.remedy else "",
        f"On {host}: {attach}",
    ]
    if LATE_S < now - notice.at < OLDEST_S:
        lines.append(f"This was {duration_text(now - notice.at)} ago")
    if left_out:
        counts = ", ".join(f"{plural(left_out[rule], 'notice')} of {rule}" for rule in sorted(left_out))
        lines.append(f"Left out by the rate limit: {counts}")
    return Text(
        notice.rule,
        notice.severity,
        run,
        host,
        cut(f"{run}: {notice.what}", MOST_TITLE),
        tuple(filter(None, lines)),
        attach,
        notice.ranks,
        notice.node,
        notice.at,
    )


def trial_text(host: str, at: float) -> Text:
    """What `distui notify test` sends."""
    lines = (f"Sent by `distui notify test` on {host}: notices of your runs come on this way",)
    return Text("test", "note", "", host, "distui: a test", lines, at=at)


def cut(text: str, most: int = MOST_TEXT) -> str:
    """A line that is clean, without secrets, and not too long."""
    text = mask_text(clean_text(text, 4 * most))
    return text if len(text) <= most else f"{text[: most - 1]}…"


class Posting(Struct, frozen=True):
    """One HTTP request, in memory alone."""

    url: str
    headers: dict[str, str]
    body: str

    def __repr__(self) -> str:
        return "Posting()"


def posting(way: NoticeWay, where: WayTarget, text: Text) -> Posting:
    """The request of a way."""
    headers = {"User-Agent": "distui", "Content-Type": "application/json"}
    if where.token:
        headers["Authorization"] = f"Bearer {where.token}"
    if way.kind == "ntfy":
        headers |= {
            "Content-Type": "text/plain; charset=utf-8",
            "Title": Header(text.title, maxlinelen=10_000).encode(),
            "Priority": _PRIORITIES[text.severity],
            "Tags": _TAGS[text.severity],
        }
        return Posting(where.url, headers, text.body)
    document = {"slack": slack, "discord": discord}.get(way.kind, generic)(text)
    return Posting(where.url, headers, json.dumps(document))


def generic(text: Text) -> dict[str, Any]:
    """Of a webhook of one's own; see docs/notifications.md."""
    return {
        "version": 1,
        "rule": text.rule,
        "severity": text.severity,
        "run": text.run or None,
        "host": text.host,
        "title": text.title,
        "text": text.body,
        "ranks": list(text.ranks),
        "node": text.node,
        "attach": text.attach or None,
        "at": text.at,
    }


def slack(text: Text) -> dict[str, Any]:
    """Slack's `&`, `<` and `>` would call channels and people, and make links."""
    whole = text.whole.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": f"{_MARKS[text.severity]} {whole}"}


def discord(text: Text) -> dict[str, Any]:
    """Discord takes 2000 characters; nobody is mentioned by what a log says."""
    whole = f"{_MARKS[text.severity]} {text.whole}"
    return {"content": whole[:1990], "allowed_mentions": {"parse": []}}


def variables(text: Text) -> dict[str, str]:
    """What a command gets in its environment, shortened; its standard input has all of it as a JSON object."""
    ranks = ",".join(map(str, text.ranks[:MOST_RANKS]))
    if len(text.ranks) > MOST_RANKS:
        ranks += ",…"
    values = {
        "RULE": text.rule,
        "SEVERITY": text.severity,
        "RUN": text.run,
        "HOST": text.host,
        "TITLE": text.title,
        "TEXT": text.body,
        "ATTACH": text.attach,
        "RANKS": ranks,
    }
    return {
        f"DISTUI_NOTIFY_{name}": value.replace("\0", "")[:MOST_VARIABLE] for name, value in values.items()
    }


def desktop_words(text: Text) -> list[str]:
    """The command line of notify-send, whose text knows tags as HTML has."""
    urgency = {"error": "critical", "warning": "normal", "note": "low"}[text.severity]
    body = text.body.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return ["notify-send", "--app-name=distui", f"--urgency={urgency}", "--", text.title, body]


def without(text: str, secrets: set[str]) -> str:
    """A text about a failure, without anything that is secret."""
    masked = Masker(secrets).text(text.encode("utf-8", "replace")).decode("utf-8", "replace")
    for secret in sorted(secrets, key=len, reverse=True):
        masked = masked.replace(secret, MASK)
    return clean_text(masked, 300)
