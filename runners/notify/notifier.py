"""The notices of one run, in the process that keeps its whole state: its agent, or the hub of its nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...presets.finding import Finding
from .. import clock
from ..settings_file import Lookup
from . import ways
from .delivery import Delivery
from .messages import Text, text_of
from .notice_rules import Notice, Rules, wanted_of
from .rule_words import chosen
from .sending import SendOutcome, send

if TYPE_CHECKING:
    from ..daemon import DaemonRun

EVERY_S = 2.0
AT_END_S = 120.0
"""How long an agent stays for notices after the end of its run."""
FAILED = "notify-failed"
RULES = "notify-rules"
"""The part that judges the rules."""


class RunNotices:
    """Judges the rules every EVERY_S seconds, and has their notices sent."""

    def __init__(self, run: DaemonRun, lookup: Lookup) -> None:
        """`lookup`: variables of the launch."""
        self._run, self._lookup = run, lookup
        # The cockpit rings the terminal: it knows whether somebody sits there.
        self._ways = [each for each in chosen(run.plan.notify) if each.way != "terminal"]
        self._rules = Rules(wanted_of(each.rules for each in self._ways))
        self._delivery = Delivery(run.run_dir, self._ways, self._send, self._report)
        self._failing: dict[str, str] = {}

    def begin(self) -> None:
        """Begin, after the journal was replayed; nothing happens where no way was chosen."""
        if not self._ways:
            return
        self._rules.resume(self._delivery.resume())
        self._run.parts.start(RULES, self._judge_often)

    async def _judge_often(self) -> None:
        while True:
            await self._judge_once()
            await asyncio.sleep(EVERY_S)

    async def _judge_once(self) -> None:
        now = clock.now()
        self._delivery.offer(self._rules.judge(self._run.state, now), now)

    async def finish(self) -> None:
        """The run has ended, or is served no more: send what is left to say."""
        if not self._ways:
            return
        await self._run.parts.stop(RULES)
        await self._run.parts.guard(RULES, self._judge_once())
        await self._delivery.finish(AT_END_S if self._run.state.phase.ended else 0.0)

    async def _send(
        self, way: str, notice: Notice, left_out: Mapping[str, int]
    ) -> tuple[Text, SendOutcome]:
        text = text_of(notice, self._run.record.name, self._run.record.host, left_out)
        configured = await asyncio.to_thread(ways.load)  # as the settings are by now
        if way not in configured.ways:
            why = next(
                (each for each in configured.problems if way in each), "there is no such way any more"
            )
            return text, SendOutcome(False, why)
        return text, await send(configured.ways[way], text, self._lookup, configured.path.parent)

    def _report(self, way: str, why: str) -> None:
        if self._run.state.phase.ended:
            return  # its end is its last word
        if why:
            self._failing[way] = why
        else:
            self._failing.pop(way, None)
        texts = [f"on the way {name}: {each}" for name, each in self._failing.items()]
        if texts:
            remedy = f"`distui notify test {next(iter(self._failing))}` tries it"
            text = f"notices are not sent {'; '.join(texts)}"
            self._run.findings.raise_finding(Finding(FAILED, "warning", text, role="fact", remedy=remedy))
        else:
            self._run.findings.clear(FAILED)
