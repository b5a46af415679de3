"""The runs of other hosts, in the run list."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from types import ModuleType
from typing import Any

from ..presets.sanitize import clean_text
from ..runners.run import run_directories
from ..runners.run.errors import RunError
from ..runners.run.model import RunPhase
from ..runners.run.wire.ssh import HostError, Way
from .rows.runs import RunEntry

HOST = "host:"
"""Prefix of host and run in the id of a run that another machine keeps."""

ASK_S = 60.0
"""Seconds between two queries of other hosts while the run list is shown."""
ANSWER_S = 10.0
"""Timeout of a host's answer in seconds."""
AT_ONCE = 8
"""Maximum number of hosts that are queried at the same time."""


def _hosts() -> ModuleType:
    """Import the client of other hosts on demand: it is slow to load and often not needed."""
    from ..runners.launch import hosts

    return hosts


class OtherHosts:
    """The runs of hosts that this user reaches by ssh without a password, as of the last query of each."""

    def __init__(self) -> None:
        self._ways: dict[str, Way] = {}
        self._entries: dict[str, list[RunEntry]] = {}
        """Entries by host."""

    def entries(self, here: Collection[str], now: float) -> list[RunEntry]:
        """Return the entries to list, except runs that this machine (`here`) also lists."""
        return [
            entry.as_of(now)
            for entries in self._entries.values()
            for entry in entries
            if whole_of(entry.id.removeprefix(f"{HOST}{entry.host}:")) not in here
        ]

    async def attach_words(self, entry_id: str, *flags: str) -> list[str]:
        """Return the command that opens the host's cockpit on an entry's run. Raises RunError."""
        host, _, run = entry_id.removeprefix(HOST).rpartition(":")
        way = self._ways.get(host)
        if way is None or not run:
            raise RunError("this line is not a run: choose one")
        hosts = _hosts()
        try:
            words: list[str] = hosts.attach_words(way, await hosts.command_on(way), run, *flags)
        except HostError as error:
            raise RunError(str(error)) from None
        return words

    async def ask(self, named: Sequence[str]) -> None:
        """Query these hosts, and those of earlier launches, for their runs. The failure of one host affects no other."""
        try:
            ways = await asyncio.to_thread(_ways, named)
        except RunError as error:
            self._entries = {"": [host_entry("", "not asked", str(error))]}
            return
        self._ways = {way.destination: way for way in ways}
        self._entries = {
            host: self._entries.get(host) or [host_entry(host, "asking", "")] for host in self._ways
        }
        gate = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(self._ask(way, gate) for way in ways))

    async def _ask(self, way: Way, gate: asyncio.Semaphore) -> None:
        async with gate:
            self._entries[way.destination] = await _runs_on(way)


def _ways(named: Sequence[str]) -> list[Way]:
    """Return the connections to these hosts and to those of launches on hosts; [] at no cost if there are none."""
    if not named and not any(entry.record.kind == "hub" for entry in run_directories.entries()):
        return []
    ways: list[Way] = _hosts().ways_of(named)
    return ways


async def _runs_on(way: Way) -> list[RunEntry]:
    """Return the runs of one host, or a line with the reason for their absence."""
    host = way.destination
    runs: list[dict[str, Any]]
    problems: list[str]
    try:
        async with asyncio.timeout(ANSWER_S):
            runs, problems = await _hosts().list_on([way])
    except TimeoutError:
        runs, problems = [], [f"{host} has not answered within {ANSWER_S:.0f} s: `ssh {host}` shows why"]
    listed = [entry for run in runs if (entry := entry_elsewhere(host, run)) is not None]
    return listed or [host_entry(host, "no answer", text) for text in problems]


def host_entry(host: str, phase: str, text: str) -> RunEntry:
    """Return the line of a host whose runs are unknown."""
    return RunEntry(
        id=f"{HOST}{host}:",
        name="-",
        phase=phase,
        live=False,
        readonly=True,
        preset="",
        problem=clean_text(text),
        host=host,
        instead=clean_text(text) or f"{host}: its runs are asked for",
    )


class _UntrustedRun:
    """A document that may contain anything: a value of the wrong type is unknown."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def text(self, name: str) -> str:
        value = self._document.get(name)
        return clean_text(value) if isinstance(value, str) else ""

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._document.get(name)
        if not isinstance(value, list):
            return ()
        return tuple(clean_text(each) for each in value[:64] if isinstance(each, str))

    def number(self, name: str) -> float | None:
        value = self._document.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        return float(value) if 0 <= value < 1e12 else None

    def count(self, name: str) -> int | None:
        value = self.number(name)
        return None if value is None else int(value)


def entry_elsewhere(host: str, run: Mapping[str, Any]) -> RunEntry | None:
    """Return an entry for a run in another machine's `ls --json`, without its ages; None if it is invalid.

    The document is untrusted and may contain anything.
    """

    about = _UntrustedRun(run)
    text, number, count = about.text, about.number, about.count
    if not text("run"):
        return None
    problems = run.get("problems")
    damaged = isinstance(problems, list) and problems
    live = text("state") in {str(phase) for phase in RunPhase if not phase.ended}
    return RunEntry(
        id=f"{HOST}{host}:{text('run')}",
        name=text("name") or text("run"),
        phase=text("state") or "unknown",
        began=number("created"),
        ended=number("ended"),
        live=live,
        readonly=True,
        preset=text("preset"),
        host=host,
        nodes=count("nodes"),
        ranks=count("ranks"),
        step=count("step"),
        total=count("total"),
        exit_code=count("exit_code"),
        lasted_s=number("lasted_s"),
        tags=about.texts("tags"),
        note=text("note"),
        attempt=count("attempt"),
        size=count("size"),
        finding=text("finding"),
        hung=run.get("hung") is True,
        problem=clean_text(f"damaged: {problems[0]}") if damaged and isinstance(problems, list) else "",
    )


def whole_of(run: str) -> str:
    """Return the id of the whole run that a node's part belongs to."""
    whole, dot, number = run.rpartition(".n")
    return whole if dot and number.isdecimal() else run
