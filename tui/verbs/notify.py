"""notify: the configured channels and rules, a test of them, and a run's notifications."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
from collections.abc import Sequence

from msgspec import Struct

from ...runners.notify import channels, delivery
from ...runners.notify.channels import POSTED, Configured, NotificationChannel
from ...runners.notify.messages import trial_text
from ...runners.notify.rule_words import RULES, rules_word
from ...runners.notify.sending import SendOutcome, send
from ...runners.notify.unreported import unreported
from ...runners.run import clock, run_directories
from ...runners.run.errors import RunError
from ...runners.run.formatting import time_of_day
from ...runners.run.settings_file import SecretError
from ..alert_bytes import alert_bytes
from ..due_alerts import ring
from ..terminal import answer, complain


class ListedChannel(Struct, frozen=True):
    channel: str
    type: str
    to: str
    rules: str
    problem: str


class ListedRule(Struct, frozen=True):
    rule: str
    when: str


class ListedChannels(Struct, frozen=True):
    """`notify`."""

    path: str
    send: list[str]
    channels: list[ListedChannel]
    rules: list[ListedRule]
    problems: list[str]


class TriedChannel(Struct, frozen=True):
    channel: str
    type: str
    ok: bool
    seconds: float
    why: str | None


class TriedChannels(Struct, frozen=True):
    """`notify test`."""

    channels: list[TriedChannel]


class SentNotice(Struct, frozen=True):
    channel: str
    rule: str
    state: str
    at: float
    tries: int
    title: str | None
    why: str | None


class SentNotices(Struct, frozen=True):
    """`notify log`."""

    run: str
    notices: list[SentNotice]


def notify(options: argparse.Namespace) -> int:
    if options.action == "log":
        return _log(options)
    configured = channels.load()
    if options.action == "test":
        return _test(options, configured)
    if options.name is not None:
        raise RunError("notify list takes no name: `distui notify test CHANNEL` tests a channel")
    return _list(configured, options.json)


# --- list ---


def _list(configured: Configured, as_json: bool) -> int:
    rows = [_about(channel, configured) for channel in configured.channels.values()]
    rules = [ListedRule(name, when) for name, when in RULES.items()]
    document = ListedChannels(
        str(configured.path), list(configured.send), rows, rules, list(configured.problems)
    )
    lines = ["channels"]
    for row in rows:
        lines.append(f"  {row.channel:<12} {row.type:<9} {row.to or row.problem}  ({row.rules})")
    send = ", ".join(configured.send) or "none: a launch sends nothing without --notify"
    lines += ["", f"launches without --notify use: {send}", "", "rules"]
    lines += [f"  {name:<19} {when}" for name, when in RULES.items()]
    answer(as_json, document, lines)
    for problem in () if as_json else configured.problems:
        complain(problem)
    return 1 if configured.problems else 0


def _about(channel: NotificationChannel, configured: Configured) -> ListedChannel:
    """Return a channel without its secrets; of an address only the host."""
    to, problem = "", ""
    if channel.kind in POSTED:
        try:
            to = channels.target(channel, os.environ.get, configured.path.parent).host
        except SecretError as error:
            problem = str(error)
    elif channel.kind == "command":
        to = channel.command[0]
    else:
        terminal = "the terminal of a cockpit without the focus, or of the launch"
        to = terminal if channel.kind == "terminal" else "notify-send"
    return ListedChannel(channel.name, channel.kind, to, rules_word(channel.rules), problem)


# --- test ---


def _test(options: argparse.Namespace, configured: Configured) -> int:
    problems: Sequence[str] = ()
    if options.name is not None:
        chosen = [channels.channel_of(options.name, configured, "notify test")]
    else:
        chosen, problems = _used(configured), configured.problems
    for problem in problems:
        complain(problem)
    if not chosen:
        raise RunError(
            f"no channel is configured in {configured.path}: docs/notifications.md has examples, and "
            "`distui notify test terminal` needs none"
        )
    rows = asyncio.run(_try_all(chosen, configured))
    lines = []
    for row in rows:
        outcome = f"sent in {row.seconds:.1f} s" if row.ok else f"not sent: {row.why}"
        lines.append(f"{row.channel}: {outcome}")
    answer(options.json, TriedChannels(rows), lines)
    return 0 if all(row.ok for row in rows) and not problems else 1


def _used(configured: Configured) -> list[NotificationChannel]:
    """Return the user's own channels, and the built-in ones that the configuration names."""
    sent = {word.partition(":")[0] for word in configured.send}
    return [
        channel
        for channel in configured.channels.values()
        if channel.name in sent or channel.name not in channels.OWN
    ]


async def _try_all(chosen: list[NotificationChannel], configured: Configured) -> list[TriedChannel]:
    return list(await asyncio.gather(*(_try(channel, configured) for channel in chosen)))


async def _try(channel: NotificationChannel, configured: Configured) -> TriedChannel:
    text, began = trial_text(platform.node(), clock.now()), clock.monotonic()
    if channel.kind == "terminal":
        outcome = _ring(alert_bytes(text, os.environ, channel.sequence))
    else:
        outcome = await send(channel, text, os.environ.get, configured.path.parent)
    seconds = round(clock.monotonic() - began, 3)
    return TriedChannel(channel.name, channel.kind, outcome.ok, seconds, outcome.why or None)


def _ring(data: str) -> SendOutcome:
    """Ring the terminal regardless of its focus, since the user requested it."""
    return SendOutcome(True) if ring(data) else SendOutcome(False, "there is no terminal here")


# --- log ---


def _log(options: argparse.Namespace) -> int:
    """Print the newest state of each notification of a run."""
    entry = run_directories.resolve(options.name)
    rows: list[SentNotice] = []
    for each in delivery.summaries(delivery.records(entry.path)):
        last = each.newest
        about = last.title or None, last.why or None
        rows.append(SentNotice(last.channel, last.rule, last.state, each.first.at, each.tries, *about))
    lines = [] if rows else [f"run {entry.record.name} has sent no notifications"]
    for row in rows:
        text = ": ".join(filter(None, (row.title, row.why)))
        lines.append(f"{time_of_day(row.at)}  {row.channel}  {row.rule}  {row.state}  {text}".rstrip())
    lines += [finding.text for finding in unreported(entry)]
    answer(options.json, SentNotices(entry.record.run, rows), lines)
    return 0
