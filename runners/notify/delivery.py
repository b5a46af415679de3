"""Notices on their way: tried again with patience, held back where they are too many, and written down.

`notices.jsonl` in the run directory has what became of each, so that no later agent sends it again. A notice whose try
was under way when its agent died is not tried again: it may have arrived. None of this ever holds a run up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from .. import clock, file_io
from .messages import Text
from .notice_rules import LATE_S, Notice
from .rule_words import LAST, ChosenWay
from .sending import SendOutcome

FILE = "notices.jsonl"
WAITS_S = (2.0, 5.0, 15.0, 60.0, 120.0, 300.0, 600.0, 600.0)
"""Between the tries of one notice."""
MOST_WAIT_S = 900.0
"""That a server may ask for."""
MOST, WINDOW_S = 6, 600.0
"""Notices of one way in so long; those about the end of the run come in any case."""
MOST_WAITING = 20
"""Notices of one way that wait for each other."""
MOST_LINES = 5000
"""Of the file; after those nothing is sent any more."""
OPEN = ("due", "later")
"""States in which a notice is tried again by the next agent."""


class NoticeRecord(Struct, frozen=True, omit_defaults=True):
    """A line of the file."""

    at: float
    way: str
    key: str
    state: str
    """"due", "trying", "later" (a try failed), "sent", "failed", "left-out" (by the rate limit) or "late"."""
    rule: str = ""
    title: str = ""
    why: str = ""
    notice: Notice | None = None
    """Of one that is due."""


_records = msgspec.json.Decoder(NoticeRecord)


def records(run_dir: Path) -> list[NoticeRecord]:
    """What became of the notices of a run, oldest first; lines that nobody understands are passed over."""
    kept: list[NoticeRecord] = []
    with contextlib.suppress(file_io.FileError):
        for _, line in file_io.lines(run_dir / FILE):
            record = file_io.decoded(_records, line)
            if record is not None:
                kept.append(record)
            if len(kept) >= MOST_LINES:
                break
    return kept


Send = Callable[[str, Notice, Mapping[str, int]], Awaitable[tuple[Text, SendOutcome]]]
"""Tries a notice once on the way of that name; with what was left out, rule → count."""
Report = Callable[[str, str], None]
"""A way failed for good ("" once it works again): its name, and why."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A notice on its way."""

    notice: Notice
    tries: int = 0
    """That failed."""
    due: float = 0.0
    """When the next one is, by the monotonic clock."""


class Delivery:
    """All ways of one run."""

    def __init__(self, run_dir: Path, ways: Iterable[ChosenWay], send: Send, report: Report) -> None:
        self._path, self._send, self._report = run_dir / FILE, send, report
        self._ways = {each.way: each for each in ways}
        self._queues: dict[str, list[_Waiting]] = {way: [] for way in self._ways}
        self._news = {way: asyncio.Event() for way in self._ways}
        self._recent: dict[str, deque[float]] = {way: deque(maxlen=MOST) for way in self._ways}
        self._left_out: dict[str, Counter[str]] = {way: Counter() for way in self._ways}
        self._settled: set[tuple[str, str]] = set()
        """(way, key) of all that was taken on."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._lines = 0

    def resume(self) -> set[str]:
        """What an earlier agent has done: the keys of all notices; those that are still due go on their way."""
        newest: dict[tuple[str, str], NoticeRecord] = {}
        due: dict[tuple[str, str], Notice] = {}
        for record in records(self._path.parent):
            self._lines += 1
            newest[record.way, record.key] = record
            if record.notice is not None:
                due[record.way, record.key] = record.notice
        self._settled = set(newest)
        for (way, key), record in newest.items():
            if (
                record.state in OPEN
                and way in self._ways
                and clock.now() - record.at < LATE_S
                and (way, key) in due
            ):
                self._put(way, due[way, key])
        return {key for _, key in newest}

    def offer(self, notices: Iterable[Notice], now: float) -> None:
        """Send these on every way whose rules have them on."""
        for notice in notices:
            for way, each in self._ways.items():
                if notice.rule not in each.rules or (way, notice.key) in self._settled:
                    continue
                if notice.minutes is not None and each.rules[notice.rule] != notice.minutes:
                    continue
                self._settled.add((way, notice.key))
                self._take(way, notice, now)

    def _take(self, way: str, notice: Notice, now: float) -> None:
        recent = self._recent[way]
        late = now - notice.at > LATE_S
        last = notice.rule in LAST
        many = len(recent) == MOST and now - recent[0] < WINDOW_S
        waiting = len(self._queues[way]) >= MOST_WAITING
        if late or ((many or waiting) and not last):
            self._left_out[way][notice.rule] += not late
            self._write(way, notice, "late" if late else "left-out")
            return
        recent.append(now)
        self._write(way, notice, "due", notice=notice)
        self._put(way, notice)

    def _put(self, way: str, notice: Notice) -> None:
        self._queues[way].append(_Waiting(notice))
        self._news[way].set()
        task = self._tasks.get(way)
        if task is None or task.done():
            self._tasks[way] = asyncio.create_task(self._deliver(way))

    async def _deliver(self, way: str) -> None:
        """One try after the other, of the notice that is due; what has to wait holds no other one up."""
        queue, news = self._queues[way], self._news[way]
        while queue:
            news.clear()
            now = clock.monotonic()
            each = min(
                queue, key=lambda waiting: (waiting.due > now, waiting.notice.rule not in LAST, waiting.due)
            )
            if each.due > now:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), each.due - now)
            elif await self._is_settled(way, each):
                queue.remove(each)

    async def _is_settled(self, way: str, waiting: _Waiting) -> bool:
        """Try it: whether it has arrived, or nothing more is to be tried."""
        notice = waiting.notice
        if not self._write(way, notice, "trying"):
            return True
        left_out = dict(self._left_out[way])
        text, outcome = await self._send(way, notice, left_out)
        if outcome.ok:
            self._left_out[way] -= Counter(left_out)
            self._write(way, notice, "sent", title=text.title)
            self._report(way, "")
            return True
        if outcome.again and waiting.tries < len(WAITS_S):
            self._write(way, notice, "later", why=outcome.why)
            wait_s = min(max(WAITS_S[waiting.tries], outcome.after_s or 0.0), MOST_WAIT_S)
            waiting.tries, waiting.due = waiting.tries + 1, clock.monotonic() + wait_s
            return False
        self._write(way, notice, "failed", why=outcome.why)
        self._report(way, outcome.why)
        return True

    def _write(self, way: str, about: Notice, state: str, **more: Any) -> bool:
        """A line of the file; where it cannot be written, memory has it. False: there were too many."""
        self._lines += 1
        if self._lines > MOST_LINES:
            return False
        record = NoticeRecord(clock.now(), way, about.key, state, about.rule, **more)
        with contextlib.suppress(OSError), file_io.appending(self._path) as file:
            file.write(msgspec.json.encode(record) + b"\n")
        return True

    async def finish(self, seconds: float) -> None:
        """Wait so long for what is on its way; what then is not there is left."""
        tasks = [task for task in self._tasks.values() if not task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
