"""Run directories: create, list, resolve a name, recognise the stale."""

from __future__ import annotations

import fcntl
import os
import platform
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from . import identity, journal
from .errors import NoSuchRunError, RunError
from .model import RunPhase
from .state import RunState

LOCK_FILE = "start.lock"
RUN_FILE = "run.json"
PLAN_FILE = "plan.json"
AGENT_FILE = "agent.json"
RUNNER_FILE = "runner.json"


class RunRecord(Struct, frozen=True):
    """run.json: what never changes about a run."""

    run: str
    run8: str
    """Eight hex digits; the stem of its socket names."""
    name: str
    created: float
    host: str
    kind: str = "local"
    """"local": an agent here runs all its ranks; "node": one node's part of a run on several nodes; "hub": a run on
    several nodes, as a hub here keeps it."""
    node: int = 0
    nnodes: int = 1
    whole: str = ""
    """Of a part: the id of the run it belongs to."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One run directory."""

    path: Path
    record: RunRecord

    def state(self) -> RunState:
        """Everything the journal says, folded."""
        return RunState().apply_all(journal.read(self.path))

    def agent(self) -> identity.Identity | None:
        """The agent's identity if it lives, or may live on another host; else None."""
        who = identity.read(self.path / AGENT_FILE)
        if who is None or not (identity.elsewhere(who) or identity.alive(who)):
            return None
        return who


def runs_dir() -> Path:
    """Where the runs are kept."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "distui" / "runs"


def new_record(name: str) -> RunRecord:
    """A record with an id that sorts by time. Raises RunError for a name that cannot be one."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise RunError(
            f"name {name!r}: use up to 64 letters, digits, '.', '_' and '-', beginning with a letter or digit"
        )
    run8 = secrets.token_hex(4)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return RunRecord(f"{stamp}-{name}-{run8}", run8, name, time.time(), platform.node())


@contextmanager
def one_start_at_a_time() -> Iterator[None]:
    """Held from the look at the names that are taken until the run is live. Raises RunError."""
    directory = runs_dir()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritable(directory, error) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _unwritable(path: Path, error: OSError) -> RunError:
    return RunError(
        f"cannot write {path} ({error.strerror}): free space or set XDG_STATE_HOME to a directory you can write"
    )


def create(record: RunRecord, plan: bytes, files: Mapping[str, str]) -> Path:
    """Make the run directory with its plan and the plan's files. Raises RunError."""
    for entry in (
        entries() if record.kind != "node" else ()
    ):  # parts of a run have its name, also on one host
        if entry.record.name == record.name and not ended(entry):
            raise RunError(
                f"a run named {record.name!r} is live ({entry.record.run}): "
                f"`distui attach {record.name}` opens it, `--name OTHER` starts another"
            )
    path = runs_dir() / record.run
    try:
        path.mkdir(mode=0o700, parents=True)
        for name, text in files.items():
            target = path / name
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            identity.write_atomically(target, text.encode())
        identity.write_atomically(path / PLAN_FILE, plan)
        identity.write_atomically(path / RUN_FILE, msgspec.json.encode(record))
    except OSError as error:
        raise _unwritable(path, error) from None
    return path


def entries() -> list[Entry]:
    """All runs, newest first; directories that are no run are passed over.

    The parts of a run on several nodes are left out where a hub keeps the run; else one of them stands for it.
    """
    return wholes(sorted(_entries(), key=lambda entry: entry.record.created, reverse=True))


def wholes(found: list[Entry]) -> list[Entry]:
    """Without the parts that do not stand for their run. Pure."""
    kept = {entry.record.run for entry in found if entry.record.kind == "hub"}
    stands: dict[str, Entry] = {}
    for entry in found:
        whole = entry.record.whole
        if entry.record.kind == "node" and whole not in kept:
            stands[whole] = min(stands.get(whole, entry), entry, key=_nearness)
    return [
        entry for entry in found if entry.record.kind != "node" or stands.get(entry.record.whole) is entry
    ]


def _nearness(entry: Entry) -> tuple[bool, int]:
    """Of the parts in a shared home, this machine's come first, and the head's before others."""
    return entry.record.host != platform.node(), entry.record.node


def parts(whole: str) -> list[Entry]:
    """The parts of a run on several nodes that have directories here, by node."""
    found = [entry for entry in _entries() if entry.record.kind == "node" and entry.record.whole == whole]
    return sorted(found, key=lambda entry: entry.record.node)


def _entries() -> Iterator[Entry]:
    try:
        paths = list(runs_dir().iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise RunError(
            f"cannot read {runs_dir()} ({error.strerror}): set XDG_STATE_HOME to a directory you can read"
        ) from None
    for path in paths:
        entry = at(path)
        if entry is not None:
            yield entry


def at(path: Path) -> Entry | None:
    """The run in a directory; None when there is none."""
    try:
        return Entry(path, msgspec.json.decode((path / RUN_FILE).read_bytes(), type=RunRecord))
    except (OSError, msgspec.MsgspecError):
        return None


def phase(entry: Entry) -> RunPhase:
    """Where a run stands, as far as can be said from here without asking its agent."""
    said = entry.state().phase
    if said.ended or entry.agent() is not None:
        return said
    if entry.record.kind == "hub":
        return said  # its nodes go on without it: the next viewer starts a hub
    runner = identity.read(entry.path / RUNNER_FILE)
    if runner is not None and (identity.elsewhere(runner) or identity.alive(runner)):
        return said  # it goes on without an agent: the next viewer starts one
    return RunPhase.LOST


def ended(entry: Entry) -> bool:
    return phase(entry).ended


def resolve(text: str | None) -> Entry:
    """The run that a name, an id or a unique prefix means; without one, the only live run, else the newest.

    Raises NoSuchRunError.
    """
    known = entries()
    if text is None:
        return _the_only(known)
    exact = [
        entry
        for entry in known
        if text in (entry.record.name, entry.record.run, entry.record.run8, entry.record.whole)
    ]
    if len(exact) == 1:
        return exact[0]
    if exact:
        return next((entry for entry in exact if not ended(entry)), exact[0])
    near = [
        entry
        for entry in known
        if entry.record.run.startswith(text)
        or entry.record.name.startswith(text)
        or entry.record.run8.startswith(text)
    ]
    names = {entry.record.name for entry in near}
    if len(near) == 1 or (near and len(names) == 1):
        return near[0]
    if near:
        raise NoSuchRunError(
            f"{text!r} means several runs ({', '.join(sorted(names))}): write more of the name"
        )
    raise NoSuchRunError(f"no run {text!r}: `distui ls` shows the runs there are")


def _the_only(known: list[Entry]) -> Entry:
    if not known:
        raise NoSuchRunError("there is no run yet: `distui launch PRESET -- SCRIPT` starts one")
    live = [entry for entry in known if not ended(entry)]
    if len(live) > 1:
        raise NoSuchRunError(
            f"several runs are live ({', '.join(entry.record.name for entry in live)}): say which one you mean"
        )
    return live[0] if live else known[0]
