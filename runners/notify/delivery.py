"""Delivery of notifications: retry, rate limit, and record.

`notices.jsonl` in the run directory records the state of each notification, so that no later process sends it again. If
a process died during a try, its notification is not tried again, because it may have arrived; a notification on the end
of the run is. For the end of a run, only the number of tries is limited. Delivery never delays a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ..run import clock, file_io
from .messages import Text
from .notice_rules import LATE_S, Notice
from .rule_words import LAST, ChosenChannel
from .sending import SendOutcome

FILE = "notices.jsonl"
WAITS_S = (2.0, 5.0, 15.0, 60.0, 120.0, 300.0, 600.0, 600.0)
"""Seconds between the tries of one notification."""
MOST_WAIT_S = 900.0
"""Longest delay, in seconds, that a server may request."""
MOST, WINDOW_S = 6, 600.0
"""Most notifications of a channel per window. Notifications on the end of the run are not limited."""
MOST_READ = 20_000
"""Most lines to read, the newest ones: the file of a damaged run may have any size."""
GIVE_UP_S = 7 * 86400.0
"""Age, in seconds, that gives up an undelivered notification on the end of a run."""


class NoticeRecord(Struct, frozen=True, omit_defaults=True):
    """A line of the file."""

    at: float
    channel: str
    key: str
    state: str
    """One of "due", "trying", "later" (a try failed), "sent", "failed", "left-out" (by the rate limit) or "late"."""
    rule: str = ""
    title: str = ""
    why: str = ""
    notice: Notice | None = None
    """Set for state "due"."""


_records = msgspec.json.Decoder(NoticeRecord)


def records(run_dir: Path) -> list[NoticeRecord]:
    """Return the records of a run, oldest first. Invalid lines are skipped."""
    kept: deque[NoticeRecord] = deque(maxlen=MOST_READ)
    with contextlib.suppress(file_io.FileError):
        for _, line in file_io.lines(run_dir / FILE):
            record = file_io.decoded(_records, line)
            if record is not None:
                kept.append(record)
    return list(kept)


@dataclass(slots=True)
class NoticeSummary:
    """The state of one notification on one channel."""

    first: NoticeRecord
    newest: NoticeRecord
    tries: int = 0
    failures: int = 0
    notice: Notice | None = None

    def is_open(self, now: float) -> bool:
        """Return True if it must still be sent."""
        age = now - self.newest.at
        if self.newest.rule in LAST:
            return self.newest.state in ("due", "later", "trying") and age < GIVE_UP_S
        return self.newest.state in ("due", "later") and age < LATE_S


def summaries(kept: Iterable[NoticeRecord]) -> list[NoticeSummary]:
    """Return the notifications per channel in their original order."""
    found: dict[tuple[str, str], NoticeSummary] = {}
    for record in kept:
        each = found.setdefault((record.channel, record.key), NoticeSummary(record, record))
        each.newest = record
        each.tries += record.state == "trying"
        each.failures += record.state in ("later", "failed")
        each.notice = record.notice or each.notice
    return list(found.values())


def wanted_on(channels: Iterable[ChosenChannel], notices: Iterable[Notice]) -> Iterator[tuple[str, Notice]]:
    """Yield each notification with the name of each channel whose rules enable it."""
    for notice in notices:
        for channel, rules in channels:
            if notice.rule in rules and notice.minutes in (None, rules[notice.rule]):
                yield channel, notice


Send = Callable[[str, Notice, Mapping[str, int]], Awaitable[tuple[Text, SendOutcome]]]
"""Tries a notification once on a named channel, with the counts of suppressed ones by rule."""
Report = Callable[[str, str], None]
"""Receives a channel's name, and why it does not work even after a retry, or "" when it works again."""


@dataclass(slots=True, eq=False)
class _Waiting:
    notice: Notice
    failures: int = 0
    due: float = 0.0
    """Monotonic time of the next try."""


def _next(queue: Iterable[_Waiting], now: float) -> _Waiting | None:
    """Return the due notification, of several the end of the run, or the one that is due first."""
    return min(
        queue,
        key=lambda waiting: (waiting.due > now, waiting.notice.rule not in LAST, waiting.due),
        default=None,
    )


class Delivery:
    """All channels of one run."""

    def __init__(
        self, run_dir: Path, channels: Iterable[ChosenChannel], send: Send, report: Report
    ) -> None:
        self._path, self._send, self._report = run_dir / FILE, send, report
        self._channels = list(channels)
        self._queues: dict[str, list[_Waiting]] = {each.channel: [] for each in self._channels}
        self._news = {channel: asyncio.Event() for channel in self._queues}
        self._recent: dict[str, deque[float]] = {channel: deque(maxlen=MOST) for channel in self._queues}
        self._left_out: dict[str, Counter[str]] = {channel: Counter() for channel in self._queues}
        self._settled: set[tuple[str, str]] = set()
        """(channel, key) of all accepted notifications."""
        self._patience_s: float | None = None
        """See `leave`."""

    @property
    def is_open(self) -> bool:
        """Return True if a notification must still be sent."""
        return any(self._queues.values())

    def resume(self) -> set[str]:
        """Continue the delivery of an earlier process. Return the keys of all notifications."""
        found, now = summaries(records(self._path.parent)), clock.now()
        for each in found:
            channel, key, age_s = each.newest.channel, each.newest.key, now - each.first.at
            self._settled.add((channel, key))
            if channel not in self._queues or each.notice is None:
                continue
            if 0 <= age_s < WINDOW_S:
                self._recent[channel].append(clock.monotonic() - age_s)
            if each.is_open(now):
                self._put(channel, each.notice, each.failures)
        return {each.newest.key for each in found}

    def offer(self, notices: Iterable[Notice]) -> None:
        """Send these on every channel whose rules enable them."""
        for channel, notice in wanted_on(self._channels, notices):
            if (channel, notice.key) in self._settled:
                continue
            self._settled.add((channel, notice.key))
            if notice.rule in LAST or self._may_send(channel, notice):
                self._recent[channel].append(clock.monotonic())
                self._write(channel, notice, "due", notice=notice)
                self._put(channel, notice)

    def _may_send(self, channel: str, notice: Notice) -> bool:
        """Return True if no limit applies. Otherwise count the notification, and record the first suppressed one."""
        recent, left_out = self._recent[channel], self._left_out[channel]
        if clock.now() - notice.at > LATE_S:
            self._write(channel, notice, "late")
            return False
        if len(recent) == MOST and clock.monotonic() - recent[0] < WINDOW_S:
            if not left_out:
                self._write(channel, notice, "left-out")
            left_out[notice.rule] += 1
            return False
        return True

    def _put(self, channel: str, notice: Notice, failures: int = 0) -> None:
        self._queues[channel].append(_Waiting(notice, failures))
        self._news[channel].set()

    async def run(self) -> None:
        """Deliver on all channels. A cancelled try may have arrived: see `leave`."""
        async with asyncio.TaskGroup() as group:
            for channel in self._queues:
                group.create_task(self._deliver(channel))

    def leave(self, patience_s: float = math.inf) -> None:
        """Make `run` return when all is done, or when the next try of each channel is later than `patience_s`."""
        self._patience_s = patience_s
        for news in self._news.values():
            news.set()

    async def _deliver(self, channel: str) -> None:
        """Try the due notifications one after the other. A waiting one delays no other."""
        queue, news = self._queues[channel], self._news[channel]
        while True:
            news.clear()
            now = clock.monotonic()
            each = _next(queue, now)
            if each is not None and each.due <= now:
                if await self._is_settled(channel, each):
                    queue.remove(each)
                continue
            pause_s = each.due - now if each is not None else None
            if self._patience_s is not None and (pause_s is None or pause_s > self._patience_s):
                return
            await clock.wait_set(news, pause_s)

    async def _is_settled(self, channel: str, waiting: _Waiting) -> bool:
        """Try once. Return True if it has arrived or must not be tried again."""
        notice = waiting.notice
        self._write(channel, notice, "trying")
        left_out = dict(self._left_out[channel])
        text, outcome = await self._send(channel, notice, left_out)
        if outcome.ok:
            self._left_out[channel] -= Counter(left_out)
            self._write(channel, notice, "sent", title=text.title)
            self._report(channel, "")
            return True
        if outcome.again and waiting.failures < len(WAITS_S):
            self._write(channel, notice, "later", why=outcome.why)
            if waiting.failures:
                self._report(channel, outcome.why)
            wait_s = min(max(WAITS_S[waiting.failures], outcome.after_s or 0.0), MOST_WAIT_S)
            waiting.failures, waiting.due = waiting.failures + 1, clock.monotonic() + wait_s
            return False
        self._write(channel, notice, "failed", why=outcome.why)
        self._report(channel, outcome.why)
        return True

    def _write(self, channel: str, about: Notice, state: str, **more: Any) -> None:
        """Append a line to the file. If that fails, the state is only in memory."""
        record = NoticeRecord(clock.now(), channel, about.key, state, about.rule, **more)
        with contextlib.suppress(OSError), file_io.appending(self._path) as file:
            file.write(msgspec.json.encode(record) + b"\n")
