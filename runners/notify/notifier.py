"""The notifications of one run, in the process with its whole state: its agent, or the hub of its nodes."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from msgspec import structs

from ...presets.finding import Finding
from ...presets.masker import Masker, secrets_in
from ..run import clock
from ..run.host_processes import StartMode
from ..run.settings_file import Lookup
from . import couriers
from .delivery import Delivery
from .notice_rules import Notice, Rules, ends, wanted_of
from .rule_words import called
from .sending import send_notice
from .unreported import FAILED

if TYPE_CHECKING:
    from ..run.daemon_run import DaemonRun

EVERY_S = 2.0
AT_END_S = 120.0
"""Seconds for tries that are active or due at the end of a run."""
RULES, DELIVERY, OTHERS = "notify-rules", "notify-delivery", "notify-others"
"""Parts that judge the rules, send notifications, and search for other runs with unsent ones."""
OTHERS_S = 10.0
"""Seconds for that search at the end of a short run."""


class RunNotices:
    """Judges the rules every EVERY_S seconds, and sends their notifications."""

    def __init__(self, run: DaemonRun, lookup: Lookup) -> None:
        """`lookup`: variables of the launch."""
        self._run, self._lookup = run, lookup
        self._channels = called(run.plan.notify)
        self._rules = Rules(wanted_of(each.rules for each in self._channels))
        send = partial(send_notice, run.record.name, run.record.host, lookup)
        self._delivery = Delivery(run.run_dir, self._channels, send, self._report)
        self._failing: dict[str, str] = {}

    def begin(self, mode: StartMode) -> None:
        """Start after the journal's replay. Without a channel nothing is sent. Readers do not search for other runs."""
        if mode is not StartMode.READ:
            self._run.parts.once(OTHERS, couriers.start_for_others(self._lookup))
        if not self._channels:
            return
        self._rules.resume(self._delivery.resume())
        self._run.parts.start(RULES, self._judge_often)
        self._run.parts.start(DELIVERY, self._delivery.run)

    async def _judge_often(self) -> None:
        while True:
            await self._judge_once()
            await asyncio.sleep(EVERY_S)

    async def _judge_once(self) -> None:
        found = self._rules.judge(self._run.state, clock.now(), clock.monotonic())
        self._delivery.offer(map(self._masked, found))

    async def _report_end(self) -> None:
        self._delivery.offer(map(self._masked, ends(self._run.state, clock.now())))

    def _masked(self, notice: Notice) -> Notice:
        """Mask the values of secret variables of the launch and of restarts."""
        names = {*self._run.record.fingerprints, *self._run.state.changes}
        masker = Masker(secrets_in({name: value for name in names if (value := self._lookup(name))}))
        return structs.replace(
            notice,
            what=masker.value(notice.what),
            text=masker.value(notice.text),
            remedy=masker.value(notice.remedy),
        )

    async def finish(self) -> None:
        """Send the due notifications of an ended run, and let a courier deliver the rest."""
        parts = self._run.parts
        await parts.wait(OTHERS, OTHERS_S)
        if not self._channels:
            return
        await parts.stop(RULES)
        await parts.guard(RULES, self._report_end())
        await parts.guard(RULES, self._judge_once())
        self._delivery.leave(0.0)
        await parts.wait(DELIVERY, AT_END_S)
        await parts.stop(DELIVERY)
        if self._delivery.is_open and self._run.state.phase.ended:
            couriers.start([self._run.run_dir], self._lookup)

    def _report(self, channel: str, why: str) -> None:
        if self._run.state.phase.ended:
            return  # RunEnded is the last event: `status` reads the rest from the file
        if why:
            self._failing[channel] = why
        else:
            self._failing.pop(channel, None)
        texts = [f"on the channel {name}: {each}" for name, each in self._failing.items()]
        if texts:
            remedy = f"`distui notify test {next(iter(self._failing))}` sends a test notification over this channel"
            text = f"notifications are not sent {'; '.join(texts)}"
            self._run.findings.raise_finding(Finding(FAILED, "warning", text, role="fact", remedy=remedy))
        else:
            self._run.findings.clear(FAILED)
