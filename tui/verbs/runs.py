"""ls, events, wait, attach, replay: the runs of this machine and of others, and the cockpit on one."""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, structs

from ...presets.sanitize import LONGEST, clean_text, escaped_json
from ...runners import journal, run_directories
from ...runners.errors import RunError, UnreachableError
from ...runners.formatting import NA, time_of_day
from ...runners.journal import History
from ...runners.local_agent import follow_until, reached, with_link
from ...runners.model import FindingRaised, RankTick, RunEnded, RunPhase, Stamped
from ...runners.progress import hung
from ...runners.state import RunState
from ...runners.status import DAMAGED, HUNG, figures, hidden, status_json
from ...runners.wire.client import Link
from ...runners.wire.ssh import HostError, Way
from ..rows.glyphs import ago, table
from ..terminal import complain, complaint, draws_ascii_alone

if TYPE_CHECKING:
    from ...runners.export import Manifest

# -----------------------------------------------------------------------------------------------------------
# ls, events, wait: looking at runs from the command line.


LOST = 6
"""Exit code of `wait` for a run whose agent and runner are gone."""
TIMED_OUT = 124
"""Exit status of a wait whose time was over, as timeout(1) has it: the run may still come there."""


Verb = Callable[[argparse.Namespace], int]


def run_or_bundle(verb: Verb) -> Verb:
    """A verb whose RUN may be the file of a bundle, whose run is meant then. Raises RunError."""

    @functools.wraps(verb)
    def of_bundle(options: argparse.Namespace) -> int:
        if options.run is None or not _is_packed(options.run):
            return verb(options)
        with _opened(options.run) as manifest:
            options.run = manifest.run
            return verb(options)

    return of_bundle


def _opened(bundle: str) -> AbstractContextManager[Manifest]:
    from ...runners.export import opened  # few name one

    return opened(Path(bundle))


def _is_packed(name: str) -> bool:
    """Whether a name is that of a regular file that begins as gzip's do, whatever its ending."""
    try:
        with open(os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return stat.S_ISREG(os.fstat(file.fileno()).st_mode) and file.read(2) == b"\x1f\x8b"
    except (OSError, ValueError):
        return False


def ls(options: argparse.Namespace) -> int:
    """The runs there are, newest first."""
    if options.host:
        return _ls_of_hosts(options)
    runs = [_Listed.of(entry) for entry in (*run_directories.entries(), *run_directories.strays())]
    if options.json:
        sys.stdout.write(json.dumps([run.brief() for run in runs]) + "\n")
        return 0
    if not runs:
        sys.stdout.write(
            "no runs yet: `distui launch PRESET -- SCRIPT` starts one, `distui demo` shows one\n"
        )
        return 0
    rows = [("name", "state", "preset", "attempt", "ranks", "began", "id"), *(run.row() for run in runs)]
    if sys.stdout.isatty():
        rows = narrowed(rows, shutil.get_terminal_size().columns)
    notes = [f"{run.entry.record.run}: {problem}" for run in runs for problem in run.notes()]
    lines = [*table(rows, frozenset({3, 4})), *([""] if notes else []), *map(clean_text, notes)]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def narrowed(rows: list[tuple[str, ...]], width: int) -> list[tuple[str, ...]]:
    """The rows of `ls` for a terminal: where they are wider, the ends of the ids, which the verbs take as well."""
    if max(map(len, table(rows))) <= width:
        return rows
    return [(*row[:-1], row[-1].rpartition("-")[2]) for row in rows]


class _Listed(Struct, frozen=True):
    """One line of `ls`."""

    entry: run_directories.Entry
    history: History
    phase: RunPhase
    orphans: list[int]

    @classmethod
    def of(cls, entry: run_directories.Entry) -> _Listed:
        """What a run's own files and processes say of it; none of it can keep others from being listed."""
        history = entry.history()
        phase = run_directories.phase(entry, history)
        return cls(entry, history, phase, run_directories.orphans(entry) if phase is RunPhase.LOST else [])

    def number(self, count: int, unknown: str | None = NA) -> int | str | None:
        """A number of attempts or ranks; `unknown` where damage has hidden them."""
        return unknown if hidden(self.history.state, bool(self.history.problems)) else count

    def row(self) -> tuple[str, ...]:
        """As text."""
        record, state = self.entry.record, self.history.state
        preset = state.plan.preset or state.plan.launcher if state.plan else ""
        began = ago(record.created, time.time())
        words = HUNG if hung(state) and not self.phase.ended else str(self.phase)
        return (
            record.name, words, preset, str(self.number(state.attempt)), str(self.number(len(state.ranks))),
            began, record.run,
        )  # fmt: skip

    def brief(self) -> dict[str, Any]:
        """As JSON values."""
        entry, state = self.entry, self.history.state
        its = figures(entry, self.history, self.phase, time.time())
        return {
            "run": entry.record.run, "name": entry.record.name, "state": str(self.phase),
            "attempt": self.number(state.attempt, None), "created": entry.record.created,
            "host": entry.record.host, "path": str(entry.path),
            "preset": state.plan.preset if state.plan else None, **structs.asdict(its),
            "problems": self.history.problems, "orphans": self.orphans,
        }  # fmt: skip

    def notes(self) -> list[str]:
        """What a person has to know beside the line, a sentence each."""
        notes = [f"damaged: {problem}" for problem in self.history.problems]
        return [*notes, run_directories.why_lost(self.entry, self.orphans)] if self.orphans else notes


@run_or_bundle
def events(options: argparse.Namespace) -> int:
    """The journal, as it stands, or on and on."""
    if not options.follow:
        entry = run_directories.resolve(options.run)
        for stamped in journal.read(entry.path):
            if not _of_opening(stamped):
                _print_event(stamped, options.json)
        for problem in entry.history().problems:
            complain(f"{entry.record.name}: {problem}")
        return 0

    async def use(entry: run_directories.Entry, link: Link) -> int:
        async for stamped in link.events():
            if stamped.seq and not _of_opening(stamped):
                _print_event(stamped, options.json)
            elif isinstance(stamped.event, FindingRaised) and stamped.event.finding.id == DAMAGED:
                complain(stamped.event.finding.text)
        return 0

    return asyncio.run(with_link(options.run, use))


def _of_opening(stamped: Stamped) -> bool:
    """Whether it only says how far a bundle goes: nothing that happened in the run (see `export.opened`)."""
    event = stamped.event
    return isinstance(event, RankTick) or (isinstance(event, RunEnded) and event.phase is RunPhase.EXPORTED)


def _print_event(stamped: Stamped, as_json: bool) -> None:
    if as_json:
        line = escaped_json(msgspec.json.encode(stamped).decode())
    else:
        fields = {name: getattr(stamped.event, name) for name in stamped.event.__struct_fields__}
        values = " ".join(
            f"{name}={msgspec.json.encode(value).decode()}"
            for name, value in fields.items()
            if value not in (None, "", (), {}) and name != "last"  # samples: status shows them
        )
        clock = time_of_day(stamped.time)
        line = clean_text(
            f"{stamped.seq:>5}  {clock}  {type(stamped.event).__name__:<15} {values}", LONGEST
        )
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def wait(options: argparse.Namespace) -> int:
    """Wait until the run is as far as asked; 1 when it never will be, TIMED_OUT when it is not yet."""
    state = RunState()

    async def use(entry: run_directories.Entry, link: Link) -> int:
        async with asyncio.timeout(options.timeout):
            return await _wait(link, options.until, state, options.json)

    try:
        status = asyncio.run(with_link(options.run, use))
    except TimeoutError:
        complain(f"not {options.until} after {options.timeout:g} s")
        status = TIMED_OUT
    if options.json:
        sys.stdout.write(json.dumps(status_json(state)) + "\n")
    return status


async def _wait(link: Link, until: str, state: RunState, as_json: bool) -> int:
    await follow_until(link, until, state)
    if until != "done" and reached(state, until):
        return 0
    if state.phase is RunPhase.LOST:
        complain(state.end_text)
        return LOST
    if not state.phase.ended:
        raise UnreachableError(
            next((item.text for item in state.findings.values() if item.id == "no-agent"), "no agent")
        )
    if state.phase is RunPhase.SUCCEEDED and state.attempts and state.attempts[-1].idle and not as_json:
        sys.stdout.write(clean_text(f"{state.name}: {state.end_text}") + "\n")
    return 0 if state.phase is RunPhase.SUCCEEDED else 1


# -----------------------------------------------------------------------------------------------------------
# The cockpit on a run, or on the list of runs.


def open_cockpit(options: argparse.Namespace) -> int:
    """`distui` alone: the only live run, or the list."""
    live = [entry for entry in run_directories.entries() if not run_directories.ended(entry)]
    return show(live[0].record.run if len(live) == 1 else None, options.readonly, options.ascii)


def attach(options: argparse.Namespace) -> int:
    """Open one run."""
    if options.host is not None:
        return _attach_on_host(options)
    return show(run_directories.resolve(options.run).record.run, options.readonly, options.ascii)


def replay(options: argparse.Namespace) -> int:
    """Open the record of a run that has ended, or a bundle that another person exported."""
    if options.run is not None and os.path.isfile(options.run):
        check_terminal()
        with _opened(options.run) as manifest:
            return show(manifest.run, True, options.ascii, replay=True)
    entry = run_directories.resolve(options.run)
    if not run_directories.ended(entry):
        raise RunError(f"run {entry.record.name} is live: `distui attach {entry.record.name}` opens it")
    return show(entry.record.run, True, options.ascii, replay=True)


def check_terminal() -> None:
    """Raises RunError where there is none."""
    if problem := complaint():
        raise RunError(problem)


def show(run: str | None, readonly: bool, ascii_only: bool, replay: bool = False) -> int:
    """Run the cockpit and return its exit status."""
    check_terminal()
    gc.disable()  # nothing of what a start makes is garbage; the app turns it on again
    from .. import app, source

    plain = ascii_only or draws_ascii_alone(os.environ)
    return app.run_cockpit(source.LocalSource(readonly), run, readonly, plain, replay)


# -----------------------------------------------------------------------------------------------------------
# Runs that other machines keep: ls --host, attach --host.


def _ls_of_hosts(options: argparse.Namespace) -> int:
    """The runs on other hosts; 4 when one cannot be asked."""
    from ...runners.launch.hosts import (
        Named,
        check_hosts,
        list_on,
        ssh_options,
    )  # slow to load, and few name hosts

    named = check_hosts([Named(host) for host in options.host], "--host")
    config = ssh_options(options.ssh_config)
    runs, problems = asyncio.run(list_on([Way(host.destination, config) for host in named]))
    for problem in problems:
        complain(problem)
    if options.json:
        sys.stdout.write(json.dumps(runs) + "\n")
    elif runs:
        rows: list[tuple[str, ...]] = [
            ("host", "name", "state", "preset", "attempt", "ranks", "began", "id")
        ]
        for run in sorted(runs, key=_created, reverse=True):
            began = ago(_created(run), time.time())
            words = [run.get(key) for key in ("on", "name", "state", "preset", "attempt", "ranks")]
            rows.append(
                (*("" if word is None else str(word) for word in words), began, str(run.get("run")))
            )
        sys.stdout.write("\n".join(table(rows, frozenset({4, 5}))) + "\n")
    elif not problems:
        sys.stdout.write("no runs on these hosts\n")
    return UnreachableError.code if problems else 0


def _created(run: Mapping[str, object]) -> float:
    """When, by what another machine says, which may be anything."""
    value = run.get("created")
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e11 else 0.0


def _attach_on_host(options: argparse.Namespace) -> int:
    """The cockpit of that host, in this terminal through ssh. Raises RunError."""
    from ...runners.launch.hosts import Named, attach_words, check_hosts, command_on, ssh_options

    check_terminal()
    (host,) = check_hosts([Named(options.host)], "--host")
    way = Way(host.destination, ssh_options(options.ssh_config))
    try:
        command = asyncio.run(command_on(way))
    except HostError as error:
        raise UnreachableError(str(error)) from None
    flags = [flag for flag, on in (("--readonly", options.readonly), ("--ascii", options.ascii)) if on]
    words = attach_words(way, command, options.run, *flags)
    os.execvp(words[0], words)
