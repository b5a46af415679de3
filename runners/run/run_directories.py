"""Run directories: create and list them, resolve a name, and find each run's condition."""

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

from ...presets import base_dirs
from ...presets.base_dirs import private_folder
from ...presets.plurals import plural
from ...presets.spelling import did_you_mean
from . import clock, file_io, file_locks, host_processes, own_runs, run_record
from .errors import NoSuchRunError, RunError
from .history import History, read_history
from .model import RunPhase
from .run_record import RunRecord
from .state import RunState
from .wire.client import stem

RUN_FILE = "run.json"
PLAN_FILE = run_record.PLAN_FILE
AGENT_FILE = "agent.json"
RUNNER_FILE = "runner.json"
AGENT_LOCK = "agent.lock"
"""File in a run directory that its agent or hub locks, from before it answers until it exits."""
RUNNER_LOCK = "runner.lock"
"""File in a run directory that its runner locks."""
START_LOCK = "start.lock"
"""File next to the run directories, locked while one is created, until its agent answers."""
MANIFEST = "MANIFEST.json"
"""File in the directory of an opened bundle, and in no run's."""


HUB_FILES = ("nodes.json", "launch.json")
"""A hub's run directory has one of them: the routes to its nodes, or the description of the launch."""
_RUN_DIR = re.compile(r"(\d{8}-\d{6})-([A-Za-z0-9][A-Za-z0-9._-]{0,63})-([0-9a-f]{8})(?:\.n(\d{1,6}))?")


class Entry(Struct, frozen=True):
    path: Path
    record: RunRecord
    problem: str = ""
    """Problem of run.json, if the record is guessed from the directory's name."""

    def history(self) -> History:
        """Read all its files, with their problems."""
        recorded = read_history(self.path, self.record)
        recorded.problems[:0] = filter(None, (self.problem, _plan_problem(self.path)))
        return recorded

    def state(self) -> RunState:
        """Fold of all its files."""
        return self.history().state

    def agent(self) -> file_io.Identity | None:
        """Identity of its agent or hub if that lives, or may live on another host; else None."""
        who = file_io.read(self.path / AGENT_FILE)
        if who is None or file_io.elsewhere(who):
            return who
        return who if file_io.alive(who) and host_processes.serves(who.pid, self.path, "agent") else None


def runs_dir() -> Path:
    return base_dirs.base("XDG_STATE_HOME", os.environ) / "distui" / "runs"


def checkpoints_dir() -> Path:
    """Folder with one folder per demo for its checkpoints."""
    return runs_dir().parent / "checkpoints"


def new_record(name: str) -> RunRecord:
    """Create a record with an id that sorts by time. Raises RunError for an invalid name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise RunError(
            f"name {name!r}: use up to 64 letters, digits, '.', '_' and '-', beginning with a letter or digit"
        )
    run8 = secrets.token_hex(4)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return RunRecord(f"{stamp}-{name}-{run8}", run8, name, clock.now(), platform.node())


@contextmanager
def start_lock() -> Iterator[None]:
    """Hold the start lock, from the check for taken names until the run is live. Raises RunError."""
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


def free_name(name: str, beside_ended: bool = False) -> str:
    """Return this name, or the first numbered one that no live run has: night-2 for night.

    `beside_ended`: no ended run has it either.
    """
    taken = {entry.record.name for entry in entries() if beside_ended or not ended(entry)}
    plain = re.sub(r"-\d+$", "", name)[:60]
    numbered = (f"{plain}-{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain((name,), numbered) if each not in taken)


def create(record: RunRecord, plan: bytes, files: Mapping[str, str]) -> Path:
    """Create the run directory with its plan and the plan's files. Raises RunError."""
    for entry in (
        entries() if record.kind != "node" else ()
    ):  # parts of a run share its name, even on one host
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
    """Remove the directory of a run without any started process."""
    shutil.rmtree(path, ignore_errors=True)


def entries() -> list[Entry]:
    """All runs, newest first; other directories are skipped.

    For a run on several nodes its hub's entry is listed, or without a hub only one of its parts.
    """
    found = [entry for path in directories() if (entry := served(path)) is not None]
    return wholes(sorted(found, key=lambda entry: entry.record.created, reverse=True))


def wholes(listed: list[Entry]) -> list[Entry]:
    """Remove all parts but one per run without a hub. Pure."""
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
    """Sort key of parts in a shared home: first this machine's, then by node number."""
    return entry.record.host != platform.node(), entry.record.node


def parts(whole: str) -> list[Entry]:
    """Return the parts of a run on several nodes with directories here, by node."""
    found = [served(path) for path in directories() if path.name.startswith(f"{whole}.n")]
    parts = [entry for entry in found if entry is not None and entry.record.whole == whole]
    return sorted(parts, key=lambda entry: entry.record.node)


def directories() -> list[Path]:
    """All paths in the runs' folder except hidden ones such as pending removals. Raises RunError."""
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
    """Return the run in a directory; None unless its run.json is readable and belongs to this directory."""
    record = file_io.document_or_none(path / RUN_FILE, RunRecord)
    return None if record is None or _contradiction(path, record) else Entry(path, record)


def _contradiction(path: Path, record: RunRecord) -> str:
    """Contradiction between a record and its directory's name and files; "" for none.

    run.json may be another user's text, so the directory decides which sockets, parts and files a run has.
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
    """Kind of a run directory, without run.json: a changed word in it must not start a hub."""
    if path.name.rpartition(".n")[2].isdecimal():
        return "node"
    return "hub" if any(os.path.exists(path / file) for file in HUB_FILES) else "local"


def served(path: Path) -> Entry | None:
    """Return the run in a directory as lists and servers accept it; None if there is none.

    Unlike `at`, it also returns a run with a damaged run.json whose directory's name identifies it, and a copied run.
    """
    return at(path) or _guessed(path) or _copied(path)


def _copied(path: Path) -> Entry | None:
    """Return a copied run: its files are readable, but the run's processes use another directory name.

    It counts as a separate run, without the sockets and parts of the original.
    """
    record = file_io.document_or_none(path / RUN_FILE, RunRecord)
    if record is None:
        return None
    run8 = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:8]
    kind = "hub" if _kind(path) == "hub" else "local"
    own = structs.replace(record, run=path.name, run8=run8, name=path.name, kind=kind, whole="")
    return Entry(path, own, "" if record.run == path.name else _contradiction(path, record))


def _guessed(path: Path) -> Entry | None:
    """Return a run with a missing or damaged run.json by its directory's name.

    Return None if it is not a run directory.
    """
    own = _by_name(path)
    if own is None or (os.path.lexists(path) and not path.is_dir()):
        return None
    try:
        created = time.mktime(time.strptime(path.name[:15], "%Y%m%d-%H%M%S"))
    except (ValueError, OverflowError):
        return None
    return Entry(path, structs.replace(own, created=created), _problem(path))


def _by_name(path: Path) -> RunRecord | None:
    """Record from the name of a run directory, without its time; None for any other name."""
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
    """The fields of every plan; loading a plan checks the rest."""

    run: str
    launcher: str
    cwd: str
    argv: list[str]
    env: dict[str, str]


def _plan_problem(path: Path) -> str:
    """Problem of plan.json; "" if the directory does not exist."""
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
    """Live runs without a directory, found by their processes."""
    base = runs_dir()
    guesses = [
        _guessed(base / name) for name in host_processes.survey(base) if not os.path.lexists(base / name)
    ]
    return wholes([entry for entry in guesses if entry is not None])


def phase(entry: Entry, history: History | None = None) -> RunPhase:
    """Phase of a run from its files and processes, without its agent. `history`: read just before."""
    history = entry.history() if history is None else history
    now = condition_of(entry, history)
    if now is Condition.LOST:
        return RunPhase.LOST
    if not history.journaled and now is not Condition.ENDED and runner(entry) is not None:
        return RunPhase.RUNNING  # its processes prove this
    return history.state.phase


def ended(entry: Entry) -> bool:
    return phase(entry).ended


def resolve(text: str | None) -> Entry:
    """Return the run of a name, an id or a unique prefix; for None, the only live run, else the newest.

    Raises NoSuchRunError.
    """
    listed = entries()
    if text is None:
        return _the_only(listed)
    if not text.strip():
        raise NoSuchRunError("the name of the run is empty: write one that `distui ls` shows")
    exact = _exactly(text, listed) or _exactly(text, strays())
    if len(exact) == 1:
        return exact[0]
    if exact:
        return next((run for run in exact if not ended(run)), exact[0])
    return _by_prefix(text, listed)


def _by_prefix(text: str, listed: list[Entry]) -> Entry:
    """Return the only run with this prefix. Raises NoSuchRunError."""
    near = [entry for entry in listed if _begins(entry.record, text)]
    names = {entry.record.name for entry in near}
    if len(near) == 1 or len(names) == 1:
        return near[0]
    if near:
        raise NoSuchRunError(
            f"{text!r} means several runs ({', '.join(sorted(names))}): write more of the name"
        )
    meant = did_you_mean(text, [entry.record.name for entry in listed])
    raise NoSuchRunError(f"no run {text!r}: {meant and f'{meant} '}`distui ls` lists all runs")


def _begins(record: RunRecord, text: str) -> bool:
    """Whether an id or the name of the run begins with the text."""
    return any(each.startswith(text) for each in (record.run, record.name, record.run8))


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
# The server of a run decides what a viewer may start for it: an agent if a runner lives, never a runner.


class Condition(enum.Enum):
    """Condition of a run as a set of processes and files."""

    SERVED = enum.auto()
    """Its agent or hub lives."""
    COMING = enum.auto()
    """A process that agent.json does not name holds the run: it will soon answer, or the file is damaged."""
    ELSEWHERE = enum.auto()
    """It belongs to another host."""
    UNSERVED = enum.auto()
    """Its ranks live without an agent, or it belongs to a hub that does not live: a viewer starts one."""
    UNREAD = enum.auto()
    """The runner reported the end, but no agent has added it to the journal."""
    ENDED = enum.auto()
    LOST = enum.auto()
    """Neither agent nor runner lives, and no file has the run's end."""


def condition_of(entry: Entry, history: History | None = None) -> Condition:
    """Find the condition of a run, without changing anything. `history`: read just before."""
    who = entry.agent()
    if who is not None:
        return Condition.ELSEWHERE if file_io.elsewhere(who) else Condition.SERVED
    history = entry.history() if history is None else history
    if history.state.phase.ended:
        return Condition.UNREAD if _is_unread(entry, history) else Condition.ENDED
    if _coming(entry):
        return Condition.COMING
    if elsewhere(entry):
        return Condition.ELSEWHERE
    if not own_runs.is_own(entry.path):
        return Condition.LOST
    return Condition.UNSERVED if entry.record.kind == "hub" or runner(entry) is not None else Condition.LOST


def _is_unread(entry: Entry, history: History) -> bool:
    """Whether an agent on this host must still add the end to the journal."""
    return history.unread and not elsewhere(entry) and own_runs.is_own(entry.path)


def elsewhere(entry: Entry) -> str:
    """Sentence about a run with processes that are not visible from here; "" for other runs."""
    original = host_processes.living_of(entry.path).original
    if original is not None:
        home = original.parent.parent.parent
        return (
            f"run {entry.record.name} runs in {original}, of which this is a copy: set XDG_STATE_HOME to {home} "
            "and run distui"
        )
    host = _host_of_processes(entry)
    if host:
        return f"run {entry.record.name} runs on {host}: ssh there and run distui"
    if not any(file_locks.held_unseen(entry.path / name) for name in (AGENT_LOCK, RUNNER_LOCK)):
        return ""
    return (
        f"run {entry.record.name} is held by a process that cannot be seen from here, in another container or on "
        "another host with this home: run distui there"
    )


def _host_of_processes(entry: Entry) -> str:
    """Return the other host whose agent or runner wrote its file here; else "".

    If no file is left, it is the host that began the run.
    """
    files = (file_io.read(entry.path / name) for name in (AGENT_FILE, RUNNER_FILE))
    identities = [who for who in files if who is not None]
    if not identities:
        return entry.record.host if entry.record.host != platform.node() else ""
    return next((who.host for who in identities if file_io.elsewhere(who)), "")


def runner(entry: Entry) -> file_io.Identity | None:
    """Return a run's living runner on this host, from its file or, if that is damaged, by its arguments."""
    who = host_processes.named(entry.path, RUNNER_FILE, "runner")
    if who is not None:
        return who
    runners = host_processes.living_of(entry.path).runners
    return file_io.identify(runners[0], stem(entry.record.run8) + ".run") if runners else None


def ungoverned(entry: Entry) -> bool:
    """Whether the run has neither a living runner nor an end; only for an agent, which holds the run."""
    return not entry.history().state.phase.ended and runner(entry) is None


def socket_of(entry: Entry) -> Path:
    """Socket of a run's agent or hub: from agent.json, or the usual path."""
    who = entry.agent()
    return Path(who.socket if who is not None and who.socket else f"{stem(entry.record.run8)}.sock")


def _coming(entry: Entry) -> bool:
    lock = entry.path / AGENT_LOCK
    if file_locks.locked(lock) or host_processes.living_of(entry.path).agents:
        return True
    new = not os.path.exists(lock) and not any(entry.path.glob("node-*/attempt-*"))
    return new and file_locks.locked(entry.path.parent / START_LOCK)


def orphans(entry: Entry) -> list[int]:
    """Living processes of a lost run, without a runner that supervises them."""
    return host_processes.living_of(entry.path).orphans


def why_lost(entry: Entry, orphans: list[int]) -> str:
    """Why a run is lost, with a remedy, in one sentence."""
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
