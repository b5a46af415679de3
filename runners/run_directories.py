"""Run directories: create, list, resolve a name, and the condition of each run."""

from __future__ import annotations

import enum
import fcntl
import hashlib
import itertools
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from ..presets import trusted_files
from ..presets.finding import did_you_mean
from ..presets.plurals import plural
from ..presets.trusted_files import private_folder
from . import clock, file_io, host_processes, journal, own_runs
from .errors import NoSuchRunError, RunError
from .journal import History, RunRecord
from .model import RunPhase
from .state import RunState
from .wire.client import stem

RUN_FILE = "run.json"
PLAN_FILE = journal.PLAN_FILE
AGENT_FILE = "agent.json"
RUNNER_FILE = "runner.json"
AGENT_LOCK = "agent.lock"
"""In a run directory: held by its agent or hub from before it answers until it leaves."""
RUNNER_LOCK = "runner.lock"
"""The same of its runner."""
START_LOCK = "start.lock"
"""Beside the run directories: held while one of them is made, until its agent answers."""
MANIFEST = "MANIFEST.json"
"""In the directory of an opened bundle, and in no run's."""


HUB_FILES = ("nodes.json", "launch.json")
"""One of them is in the directory of a run that a hub keeps: the ways to its nodes, or what the hub is to launch."""
_RUN_DIR = re.compile(r"(\d{8}-\d{6})-([A-Za-z0-9][A-Za-z0-9._-]{0,63})-([0-9a-f]{8})(?:\.n(\d{1,6}))?")


class Entry(Struct, frozen=True):
    path: Path
    record: RunRecord
    problem: str = ""
    """What is wrong with run.json, where the record is guessed from the directory's name."""

    def history(self) -> History:
        """All that its files hold, and what is wrong with them."""
        recorded = journal.read_history(self.path, self.record)
        recorded.problems[:0] = filter(None, (self.problem, _plan_problem(self.path)))
        return recorded

    def state(self) -> RunState:
        """All that its files hold, folded."""
        return self.history().state

    def agent(self) -> file_io.Identity | None:
        """The identity of its agent or hub if that lives, or may live on another host; else None."""
        who = file_io.read(self.path / AGENT_FILE)
        if who is None or file_io.elsewhere(who):
            return who
        return who if file_io.alive(who) and host_processes.serves(who.pid, self.path, "agent") else None


def runs_dir() -> Path:
    return trusted_files.base("XDG_STATE_HOME", os.environ) / "distui" / "runs"


def checkpoints_dir() -> Path:
    """Where the demos have a folder each for their checkpoints."""
    return runs_dir().parent / "checkpoints"


def new_record(name: str) -> RunRecord:
    """A record with an id that sorts by time. Raises RunError for a name that cannot be one."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise RunError(
            f"name {name!r}: use up to 64 letters, digits, '.', '_' and '-', beginning with a letter or digit"
        )
    run8 = secrets.token_hex(4)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return RunRecord(f"{stamp}-{name}-{run8}", run8, name, clock.now(), platform.node())


@contextmanager
def start_lock() -> Iterator[None]:
    """Held from the check of the names that are taken until the run is live. Raises RunError."""
    directory = runs_dir()
    try:
        str(directory).encode()
    except UnicodeEncodeError:
        raise RunError(
            f"{directory} is not UTF-8 text, which every plan is: set XDG_STATE_HOME to another directory"
        ) from None
    try:
        file_io.make_own_folder(directory.parent)
        file_io.make_own_folder(directory)
        lock = os.open(directory / START_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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


def free_name(name: str) -> str:
    """This name, or the first that no live run has: night-2 for night."""
    live = {entry.record.name for entry in entries() if not ended(entry)}
    plain = re.sub(r"-\d+$", "", name)[:60]
    numbered = (f"{plain}-{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain((name,), numbered) if each not in live)


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
        file_io.make_own_folder(path.parent)
        path.mkdir(mode=0o700)
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        path.chmod(0o700)
        for name, text in files.items():
            target = path / name
            private_folder(target.parent)
            file_io.write_atomically(target, text.encode())
        file_io.write_atomically(path / PLAN_FILE, plan)
        own_runs.write_mark(path)
        file_io.write_atomically(path / RUN_FILE, msgspec.json.encode(record))
    except RunError:
        discard(path)
        raise
    except OSError as error:
        discard(path)
        raise _unwritable(path, error) from None
    return path


def discard(path: Path) -> None:
    """Remove the directory of a run that nothing was started for."""
    shutil.rmtree(path, ignore_errors=True)


def entries() -> list[Entry]:
    """All runs, newest first; directories that are no run are passed over.

    The parts of a run on several nodes are left out where a hub keeps the run; else one of them stands for it.
    """
    found = [entry for path in directories() if (entry := served(path)) is not None]
    return wholes(sorted(found, key=lambda entry: entry.record.created, reverse=True))


def wholes(listed: list[Entry]) -> list[Entry]:
    """Without the parts that do not stand for their run. Pure."""
    kept = {entry.record.run for entry in listed if entry.record.kind == "hub"}
    stands: dict[str, Entry] = {}
    for entry in listed:
        whole = entry.record.whole
        if entry.record.kind == "node" and whole not in kept:
            stands[whole] = min(stands.get(whole, entry), entry, key=_nearness)
    return [
        entry for entry in listed if entry.record.kind != "node" or stands.get(entry.record.whole) is entry
    ]


def _nearness(entry: Entry) -> tuple[bool, int]:
    """Of the parts in a shared home, this machine's come first, and the head's before others."""
    return entry.record.host != platform.node(), entry.record.node


def parts(whole: str) -> list[Entry]:
    """The parts of a run on several nodes that have directories here, by node."""
    found = [served(path) for path in directories() if path.name.startswith(f"{whole}.n")]
    parts = [entry for entry in found if entry is not None and entry.record.whole == whole]
    return sorted(parts, key=lambda entry: entry.record.node)


def directories() -> list[Path]:
    """All that is in the directory of the runs, but for what is being removed. Raises RunError."""
    file_io.check_owner(runs_dir().parent)
    file_io.check_owner(runs_dir())
    try:
        return [path for path in runs_dir().iterdir() if not path.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RunError(
            f"cannot read {runs_dir()} ({error.strerror}): set XDG_STATE_HOME to a directory you can read"
        ) from None


def at(path: Path) -> Entry | None:
    """The run in a directory; None when there is none whose run.json can be read and is that of this directory."""
    record = file_io.document_or_none(path / RUN_FILE, RunRecord)
    return None if record is None or _contradiction(path, record) else Entry(path, record)


def _contradiction(path: Path, record: RunRecord) -> str:
    """What a record says that the name and the files of its directory do not; "" for nothing.

    run.json may be another user's text. So whose sockets, parts and files a run has is decided by its directory.
    """
    own = _by_name(path)
    if own is None or record.run != path.name:
        return f"{RUN_FILE} is that of {record.run}, of which this may be a copy"
    if record.kind == "local":  # also a part, out of a bundle
        own = structs.replace(own, kind="local", node=record.node, whole="")
    for field in ("run8", "name", "kind", "node", "whole"):
        said, is_ = getattr(record, field), getattr(own, field)
        if said != is_:
            return f"{RUN_FILE} has {field} {said!r}, and its directory {is_!r}"
    return ""


def _kind(path: Path) -> str:
    """The kind of a run directory, not by run.json: a changed word there must start no hub."""
    if path.name.rpartition(".n")[2].isdecimal():
        return "node"
    return "hub" if any(os.path.exists(path / file) for file in HUB_FILES) else "local"


def served(path: Path) -> Entry | None:
    """The same for its server: also where run.json is damaged and the directory's name identifies the run."""
    return at(path) or _guessed(path) or _copied(path)


def _copied(path: Path) -> Entry | None:
    """A copy of a run's directory: its files can be read, and its name is not that of the run's processes.

    It is a run of its own, with no other's sockets and parts.
    """
    record = file_io.document_or_none(path / RUN_FILE, RunRecord)
    if record is None:
        return None
    run8 = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:8]
    kind = "hub" if _kind(path) == "hub" else "local"
    own = structs.replace(record, run=path.name, run8=run8, name=path.name, kind=kind, whole="")
    return Entry(path, own, "" if record.run == path.name else _contradiction(path, record))


def _guessed(path: Path) -> Entry | None:
    """A run whose run.json is missing or damaged, by its directory's name; None for what is no run directory."""
    own = _by_name(path)
    if own is None or (os.path.lexists(path) and not path.is_dir()):
        return None
    try:
        created = time.mktime(time.strptime(path.name[:15], "%Y%m%d-%H%M%S"))
    except (ValueError, OverflowError):
        return None
    return Entry(path, structs.replace(own, created=created), _problem(path))


def _by_name(path: Path) -> RunRecord | None:
    """The record of the run that a directory is named after, without its time; None for any other name."""
    named = _RUN_DIR.fullmatch(path.name)
    if named is None:
        return None
    _, name, run8, node = named.groups()
    own = RunRecord(path.name, run8, name, 0.0, platform.node(), _kind(path))
    if node is None:
        return own
    whole, number = path.name.rpartition(".n")[0], int(node)
    return structs.replace(own, run8=f"{run8}n{node}", node=number, nnodes=number + 1, whole=whole)


class _Planned(Struct):
    """The fields that every plan has; loading a plan checks the rest."""

    run: str
    launcher: str
    cwd: str
    argv: list[str]
    env: dict[str, str]


def _plan_problem(path: Path) -> str:
    """What is wrong with plan.json; "" where the directory is gone."""
    try:
        file_io.document(path / PLAN_FILE, _Planned)
    except file_io.FileError as error:
        return f"{error.name} {error.why}" if path.is_dir() else ""
    return ""


def _problem(path: Path) -> str:
    try:
        record = file_io.document(path / RUN_FILE, RunRecord)
    except file_io.FileError as error:
        return f"{error.name} {error.why}" if path.is_dir() else "its directory is gone"
    return _contradiction(path, record)


def strays() -> list[Entry]:
    """Runs that live though their directories are gone, by the processes that were started for them."""
    base = runs_dir()
    guesses = [
        _guessed(base / name) for name in host_processes.survey(base) if not os.path.lexists(base / name)
    ]
    return wholes([entry for entry in guesses if entry is not None])


def phase(entry: Entry, history: History | None = None) -> RunPhase:
    """The phase of a run as its files and processes show it, without its agent. `history`: read just now."""
    history = entry.history() if history is None else history
    now = condition_of(entry, history)
    if now is Condition.LOST:
        return RunPhase.LOST
    if not history.journaled and now is not Condition.ENDED and runner(entry) is not None:
        return RunPhase.RUNNING  # its processes show that much
    return history.state.phase


def ended(entry: Entry) -> bool:
    return phase(entry).ended


def resolve(text: str | None) -> Entry:
    """The run that a name, an id or a unique prefix means; without one, the only live run, else the newest.

    Raises NoSuchRunError.
    """
    listed = entries()
    if text is None:
        return _the_only(listed)
    if not text.strip():
        raise NoSuchRunError("the name of the run is empty: write one that `distui ls` shows")
    exact = _exactly(text, listed) or _exactly(text, strays())
    if exact:
        return exact[0] if len(exact) == 1 else next((run for run in exact if not ended(run)), exact[0])
    near = [
        entry
        for entry in listed
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
    meant = did_you_mean(text, [entry.record.name for entry in listed])
    raise NoSuchRunError(f"no run {text!r}: {meant and f'{meant} '}`distui ls` lists all runs")


def _exactly(text: str, listed: list[Entry]) -> list[Entry]:
    return [
        entry
        for entry in listed
        if text
        in (entry.record.name, entry.record.run, entry.record.run8, entry.record.whole, entry.path.name)
    ]


def _the_only(listed: list[Entry]) -> Entry:
    if not listed:
        raise NoSuchRunError("there is no run yet: `distui launch PRESET -- SCRIPT` starts one")
    live = [entry for entry in listed if not ended(entry)]
    if len(live) > 1:
        raise NoSuchRunError(
            f"several runs are live ({', '.join(entry.record.name for entry in live)}): name one"
        )
    return live[0] if live else listed[0]


# -----------------------------------------------------------------------------------------------------------
# Who serves a run now, and so what a viewer may start for it: an agent where a runner lives, never a runner.


class Condition(enum.Enum):
    """The condition of a run as a set of processes and files."""

    SERVED = enum.auto()
    """Its agent or hub lives."""
    COMING = enum.auto()
    """A process holds the run, and its agent.json does not name it: it is about to answer, or the file is damaged."""
    ELSEWHERE = enum.auto()
    """It belongs to another host."""
    UNSERVED = enum.auto()
    """Its ranks live without an agent, or it is kept by a hub and has none: a viewer starts one."""
    UNREAD = enum.auto()
    """The runner reported its end, and no agent has taken that into the journal."""
    ENDED = enum.auto()
    LOST = enum.auto()
    """Neither agent nor runner lives, and no file has how it ended."""


def condition_of(entry: Entry, history: History | None = None) -> Condition:
    """The condition of a run now; nothing is changed. `history`: read just now."""
    who = entry.agent()
    if who is not None:
        return Condition.ELSEWHERE if file_io.elsewhere(who) else Condition.SERVED
    history = entry.history() if history is None else history
    if history.state.phase.ended:
        unread = history.unread and not elsewhere(entry) and own_runs.is_own(entry.path)
        return Condition.UNREAD if unread else Condition.ENDED
    if _coming(entry):
        return Condition.COMING
    if elsewhere(entry):
        return Condition.ELSEWHERE
    if not own_runs.is_own(entry.path):
        return Condition.LOST
    return Condition.UNSERVED if entry.record.kind == "hub" or runner(entry) is not None else Condition.LOST


def elsewhere(entry: Entry) -> str:
    """Where a run is whose processes cannot be seen from here, as a sentence; "" for one of this directory."""
    original = host_processes.living_of(entry.path).original
    if original is not None:
        home = original.parent.parent.parent
        return (
            f"run {entry.record.name} runs in {original}, of which this is a copy: set XDG_STATE_HOME to {home} "
            "and run distui"
        )
    files = (file_io.read(entry.path / name) for name in (AGENT_FILE, RUNNER_FILE))
    identities = [who for who in files if who is not None]
    hosts = [who.host for who in identities if file_io.elsewhere(who)]
    if hosts or (entry.record.host != platform.node() and not identities):
        host = hosts[0] if hosts else entry.record.host
        return f"run {entry.record.name} runs on {host}: ssh there and run distui"
    if not any(host_processes.held_unseen(entry.path / name) for name in (AGENT_LOCK, RUNNER_LOCK)):
        return ""
    return (
        f"run {entry.record.name} is held by a process that cannot be seen from here, in another container or on "
        "another host with this home: run distui there"
    )


def runner(entry: Entry) -> file_io.Identity | None:
    """The living runner of a run on this host, by its file or, where that is damaged, by its arguments."""
    who = host_processes.named(entry.path, RUNNER_FILE, "runner")
    if who is not None:
        return who
    runners = host_processes.living_of(entry.path).runners
    return file_io.identify(runners[0], stem(entry.record.run8) + ".run") if runners else None


def ungoverned(entry: Entry) -> bool:
    """Whether neither a living runner nor the report of its end is there: asked by an agent, which holds the run."""
    return not entry.history().state.phase.ended and runner(entry) is None


def socket_of(entry: Entry) -> Path:
    """The socket of a run's agent or hub: the one that it names, or the usual path."""
    who = entry.agent()
    return Path(who.socket if who is not None and who.socket else f"{stem(entry.record.run8)}.sock")


def _coming(entry: Entry) -> bool:
    lock = entry.path / AGENT_LOCK
    if host_processes.locked(lock) or host_processes.living_of(entry.path).agents:
        return True
    new = not os.path.exists(lock) and not any(entry.path.glob("node-*/attempt-*"))
    return new and host_processes.locked(entry.path.parent / START_LOCK)


def orphans(entry: Entry) -> list[int]:
    """Processes of a lost run that live on, which no runner supervises."""
    return host_processes.living_of(entry.path).orphans


def why_lost(entry: Entry, orphans: list[int]) -> str:
    """Why a run is lost and what to do, in one sentence."""
    name = entry.record.name
    if orphans:
        count = plural(len(orphans), "process")
        pids = ", ".join(map(str, orphans[:8]))
        if len(orphans) > 8:
            pids += ", …"
        return (
            f"lost: neither agent nor runner lives, and {count} of the run still do (pid {pids}): "
            f"`distui stop {name}` ends them, `distui restart {name}` ends them and starts the next attempt"
        )
    return (
        "lost: neither agent nor runner lives, and the end was not recorded (a reboot, or all was killed): "
        f"`distui restart {name}` starts the next attempt, `distui stop {name}` closes the run"
    )
