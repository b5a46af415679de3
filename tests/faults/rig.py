"""Starts a job that breaks, and follows the run's events until the verdict: who was named, and how soon."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.runs import Run, World, until
from patience import HANG_S

from . import table

SCRIPTS = Path(__file__).with_name("scripts")
AFTER_S = 5.0
"""Seconds after the verdict in which a wrong one may still come."""


@dataclass(frozen=True, slots=True)
class Told:
    """A finding as it was raised."""

    at: float
    """Unix time."""
    finding: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.finding["id"])

    @property
    def alarm(self) -> bool:
        """Whether it disturbs the user."""
        return self.finding["severity"] in ("warning", "error")

    @property
    def words(self) -> str:
        """All that it says."""
        found = self.finding
        return "\n".join([found["text"], found.get("remedy", ""), *found.get("evidence", ())])

    def __str__(self) -> str:
        return f"{self.finding['severity']} {self.id}: {self.finding['text']}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What the diagnosis has to say."""

    ids: tuple[str, ...]
    """Any of these."""
    rank: int | None = None
    """Whom it has to name; None: nobody in particular."""
    node: int | None = None
    words: tuple[str, ...] = ()
    """What its text, remedy or evidence must hold."""
    alongside: tuple[str, ...] = ()
    """Further alarms that are true of this fault as well."""

    def fits(self, told: Told) -> bool:
        """Whether this is the verdict, in the words that are wanted."""
        return told.id in self.ids and all(word in told.words for word in self.words)

    def wrongs(self, told: Sequence[Told], verdict: Told | None, seconds: float) -> list[str]:
        """What is wrong with what was said, a phrase each."""
        if verdict is None:
            return [f"no verdict in {HANG_S:.0f} s"]
        found = verdict.finding
        wrong = [f"names rank {found.get('rank')}"] if self.rank not in (None, found.get("rank")) else []
        wrong += [f"names node {found.get('node')}"] if self.node not in (None, found.get("node")) else []
        wrong += [f"does not say {word!r}" for word in self.words if word not in verdict.words]
        wrong += [] if found.get("evidence") else ["has no evidence"]
        others = {one.id for one in told if one.alarm} - {*self.ids, *self.alongside}
        return wrong + [f"also {one}" for one in sorted(others)]


@dataclass(slots=True)
class Watching:
    """The events of a run, read by `distui events RUN -f --json` as they come."""

    follow: Callable[[], subprocess.Popen[bytes]]
    describe: Callable[[], str]
    """How the run stands, for the message of a failed test."""
    told: list[Told] = field(default_factory=list)
    ended: bool = False
    _lines: queue.SimpleQueue[bytes] = field(default_factory=queue.SimpleQueue)

    @contextlib.contextmanager
    def going_on(self) -> Iterator[Watching]:
        """Follow the run meanwhile."""
        process = self.follow()
        reader = threading.Thread(target=self._read, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            yield self
        finally:
            process.kill()
            reader.join(10)
            process.communicate()

    def _read(self, lines: Any) -> None:
        for line in lines:
            self._lines.put(line)

    def first(self, wanted: Callable[[dict[str, Any]], object], seconds: float) -> dict[str, Any] | None:
        """The next event of which it is true, or None after `seconds`."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                stamped = json.loads(self._lines.get(timeout=left))
            except queue.Empty:
                break
            event: dict[str, Any] = stamped["event"]
            self.ended = self.ended or event["type"] == "RunEnded"
            if event["type"] == "FindingRaised":
                self.told.append(Told(stamped["time"], event["finding"]))
            if wanted(event):
                return event
        return None

    def verdict(self, wanted: Wanted, seconds: float) -> Told | None:
        """The first finding that says what is wanted, else the first of its ids; None when none comes in `seconds`.

        What is known grows: a verdict may name its reason a look later.
        """
        deadline = time.monotonic() + seconds
        while not (known := [told for told in self.told if wanted.fits(told)]):
            left = deadline - time.monotonic()
            if not self.first(lambda event: event["type"] == "FindingRaised", left):
                known = [told for told in self.told if told.id in wanted.ids]
                break
        return known[0] if known else None

    def dump(self) -> str:
        """All that helps to see why a verdict did not come."""
        said = [f"{told.at:.1f} {told}\n    {told.finding.get('evidence')}" for told in self.told]
        return "\n".join([*said, self.describe()])


def sign_of(world: World) -> Path:
    """The file that tells when the fault began."""
    return world.work / "sign"


def signed(path: Path, dump: Callable[[], str]) -> float:
    """Unix time of the sign, once it is there."""
    assert until(path.exists), f"the fault did not come\n{dump()}"
    return float(path.read_text().split()[0])


def start(world: World, script: str, *args: str, ranks: int = 2, options: Sequence[str] = ()) -> Run:
    """Launch one of this folder's scripts."""
    words = ("--nproc-per-node", str(ranks), "--grace", "2", "--restarts", "0", *options)
    env = ("--env", f"FAULT_SIGN={sign_of(world)}")
    return world.run("launch", "ddp", *words, *env, "--", str(SCRIPTS / script), *args)


def execute(world: World, script: str, *args: str, env: Mapping[str, str]) -> Run:
    """Run one of this folder's scripts by `distui exec`, with variables of one's own before it, as in a shell."""
    pairs = {**env, "FAULT_SIGN": str(sign_of(world))}
    words = ("env", *(f"{name}={value}" for name, value in pairs.items()))
    command = (*words, sys.executable, "-u", str(SCRIPTS / script), *args)
    return world.run("exec", "--grace", "2", "--", *command)


def watching(run: Run) -> Watching:
    """Follow a run of this machine."""
    return Watching(lambda: run.world.start("events", run.id, "-f", "--json"), lambda: _describe(run))


def _describe(run: Run) -> str:
    logs = [
        f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}"
        for path in sorted(run.path.glob("node-*/attempt-*/*.err"))
    ]
    return "\n".join([run.path.name, run.describe(), *logs, run.distui("dump", "stacks").out[-6000:]])


def see(name: str, run: Run, wanted: Wanted, sign: float | None = None) -> Told:
    """The verdict on a run of this machine; stops it. Fails where anything about the verdict is wrong."""
    with watching(run).going_on() as looking:
        began = signed(sign_of(run.world), looking.dump) if sign is None else sign
        try:
            return judge(name, looking, wanted, began)
        finally:
            run.distui("stop", "--yes", "--grace", "1")


def judge(name: str, looking: Watching, wanted: Wanted, sign: float) -> Told:
    """Wait for the verdict on the fault that came at `sign`, and keep it for the table."""
    verdict = looking.verdict(wanted, HANG_S)
    looking.first(lambda event: event["type"] == "RunEnded", AFTER_S)
    seconds = 0.0 if verdict is None else max(0.0, verdict.at - sign)
    wrong = wanted.wrongs(looking.told, verdict, seconds)
    text = next((told.finding["text"] for told in looking.told if told.alarm), "")
    said = text if verdict is None else verdict.finding["text"]
    table.remember(name, table.Seen(said, None if verdict is None else round(seconds, 1), "; ".join(wrong)))
    assert not wrong, f"{name}: {wrong}\n{looking.dump()}"
    assert verdict is not None
    return verdict


def see_peace(name: str, run: Run, seconds: float) -> None:
    """A healthy run ends by itself within `seconds`, and no alarm sounds."""
    with watching(run).going_on() as looking:
        over = looking.ended or looking.first(lambda event: event["type"] == "RunEnded", seconds + HANG_S)
        alarms = [str(told) for told in looking.told if told.alarm]
        hints = [told.finding["text"] for told in looking.told if not told.alarm]
        said = ("no alarm; says: " + "; ".join(dict.fromkeys(hints))) if hints else "no alarm"
        table.remember(
            name,
            table.Seen("; ".join(alarms) or said, None, "a false alarm" if alarms else ""),
            healthy=True,
        )
        assert not alarms, f"{alarms}\n{looking.dump()}"
        assert over, f"it did not end in {seconds:g} s\n{looking.dump()}"
    status = run.status()
    assert status["state"] == "succeeded", looking.dump()
