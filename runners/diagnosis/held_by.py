"""Name what a sleeping rank waits for, from the kernel and its threads: a file lock, a pipe, a peer or a thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..inrank.asyncio_tasks import TASK
from ..inrank.thread_waits import LISTENING
from ..run.pulse import LockWait, Pulse, RankThread
from . import activity
from .activity import Kind
from .view import View


class HeldBy(NamedTuple):
    """The reason of a wait, in the words of a finding."""

    does: str = ""
    """"waits for the lock on index.lock, which pid 812 (python) holds"; "" if only `proof` has information."""
    remedy: str = ""
    proof: tuple[str, ...] = ()
    worker: str = ""
    """ "worker 812 is in the system call open (/data/part)", of the data loader that it waits for."""
    external: bool = False
    """Whether it waits for something outside of the job that may take long: an answer, a file."""
    lock: tuple[int, str] | None = None
    """The rank that holds the file lock, and the path of the locked file."""


_THREAD = "press w to see what that thread waits for (in a shell: `distui dump RUN stacks`)"
_DIED = "let the thread pass its exception on, as a future of concurrent.futures does, so that no thread waits for it"
_TASK = "check which task was to go on: asyncio.all_tasks() lists them; give awaits a time-out with asyncio.wait_for"
_CONNECT = (
    "check that address and port are right, that a server listens there, and route and firewall; "
    "give the connect a time-out"
)
_ACCEPTS = "check which process was to connect to this address, and whether it reached that line"
_UNREAD = (
    "read its output before you wait for its end: subprocess.run(capture_output=True) or communicate(), "
    "and get() before join() with a queue of multiprocessing"
)
_FORKED = (
    "a fork copies the locks that other threads hold, and nobody releases the copies: use the start method "
    "`spawn` or `forkserver`, or fork before threads start"
)
_READS, _WRITES = "check who was to write into it", "check who was to read from it"
_KEY = "check which rank was to set this key, and whether it reached that line"
_STALE = "check which process was to remove this file: one that died leaves it behind; then `rm {file}`"
_FILE = "check which process was to write this file, and that this node sees it"


def of(view: View, rank: int) -> HeldBy:
    """Return what a rank's newest pulse shows about its wait."""
    pulse = view.history[rank][-1]
    threads = tuple(of_thread(thread) for thread in _worth_naming(pulse))
    if pulse.child is not None and activity.position_of(pulse.stack).kind is Kind.LOADER:
        does = f"worker {pulse.child.pid} is in the system call {pulse.child.call}"
        return HeldBy(worker=does + (f" ({pulse.child.on})" if pulse.child.on else ""), proof=threads)
    if pulse.wanted and pulse.call != "lock":
        return _wanted(pulse, threads)
    connection = _connection(pulse, threads)
    if connection is not None:
        return connection
    match pulse.call:
        case "lock":
            return _file_lock(view, pulse)._replace(proof=threads)
        case "read" | "write" | "open" | "poll" if pulse.on.startswith("FIFO ") or pulse.on == "a pipe":
            return _pipe(view, pulse, threads)
        case "write" if pulse.on.startswith("/"):
            return HeldBy(f"writes to {pulse.on}", f"check the file system of {pulse.on}", threads)
        case "open" if pulse.on.startswith("/"):
            remedy = f"check the file system of {pulse.on}; if it is a named pipe, {_READS}"
            return HeldBy(f"opens {pulse.on}", remedy, threads)
        case "wait" if pulse.on:
            return _child(pulse, threads)
        case "futex" | "sleep" | "poll":
            return _thread(pulse, threads)
    return HeldBy(proof=threads)


def _connection(pulse: Pulse, proof: tuple[str, ...]) -> HeldBy | None:
    """Describe a wait at a socket; None if it waits at none."""
    unanswered = next((stall.remote for stall in pulse.stalls if stall.state == "SYN_SENT"), None)
    if unanswered is not None and pulse.call in ("connect", "poll", "sleep", None):
        return HeldBy(f"gets no answer from {unanswered} to its connect", _CONNECT, proof)
    if pulse.on.startswith(LISTENING):
        return HeldBy(f"waits for a connection to {pulse.on.removeprefix(LISTENING)}", _ACCEPTS, proof)
    if not pulse.on or pulse.on.startswith("/") or pulse.on == "a pipe" or pulse.on.startswith("FIFO "):
        return None
    if pulse.call == "write":
        remedy = f"check why {pulse.on} does not read, and the network to it"
        return HeldBy(f"sends to {pulse.on}, which takes nothing", remedy, proof)
    if pulse.call in ("read", "connect", "poll") and ":" in pulse.on:
        remedy = f"check {pulse.on} and the network to it"
        return HeldBy(f"waits for an answer of {pulse.on}", remedy, proof, external=not pulse.stalls)
    return None


def _wanted(pulse: Pulse, proof: tuple[str, ...]) -> HeldBy:
    """Describe a wait for a file that a loop checks, or for a key of the store."""
    if pulse.wanted.startswith("/"):
        if pulse.until_gone:
            remedy = _STALE.replace("{file}", pulse.wanted)
            return HeldBy(f"waits until the file {pulse.wanted} is gone", remedy, proof, external=True)
        return HeldBy(f"polls for the file {pulse.wanted}", _FILE, proof, external=True)
    return HeldBy(f"waits for the key {pulse.wanted!r} of the store", _KEY, proof)


def _pipe(view: View, pulse: Pulse, proof: tuple[str, ...]) -> HeldBy:
    """Describe a wait at a pipe, with the process at its other end if the kernel shows it."""
    verb = {"open": "opens", "write": "writes into"}.get(pulse.call or "", "reads from")
    remedy, wanted = (_WRITES, "reads from") if pulse.call == "write" else (_READS, "writes to")
    if pulse.holder is not None:
        who = _process(view, pulse)
        return HeldBy(f"{verb} {pulse.on}, whose other end {who} has", f"check what {who} waits for", proof)
    if pulse.descriptor is None or pulse.on != "a pipe":
        return HeldBy(f"{verb} {pulse.on}", remedy, proof)
    return HeldBy(f"{verb} {pulse.on}", remedy, (*proof, f"no process that is visible here {wanted} it"))


def _process(view: View, pulse: Pulse) -> str:
    """Return "rank 3" or "pid 812 (python)" for the holder of a lock or of the other end of a pipe."""
    ranks = (number for number, entry in view.state.ranks.items() if entry.pid == pulse.holder)
    holder = next(ranks, None)
    if holder is not None:
        return f"rank {holder}"
    return f"pid {pulse.holder}" + (f" ({pulse.holder_name})" if pulse.holder_name else "")


def _file_lock(view: View, pulse: Pulse) -> HeldBy:
    name = pulse.on.rpartition("/")[2] or "a file"
    if pulse.holder is None:
        return HeldBy(
            f"waits for the lock on {name}", "find who holds it: lsof or /proc/locks of the file's host"
        )
    ranks = (number for number, entry in view.state.ranks.items() if entry.pid == pulse.holder)
    holder = next(ranks, None)
    who = _process(view, pulse)
    remedy = f"check why {who} keeps the lock on {pulse.on}"
    if holder is None:
        return HeldBy(f"waits for the lock on {name}, which {who} holds", remedy)
    does = f"waits for the lock on {name}, which rank {holder} holds"
    return HeldBy(does, remedy, lock=(holder, pulse.on))


def _thread(pulse: Pulse, proof: tuple[str, ...]) -> HeldBy:
    """Describe a wait inside the process. If a thread died, it is the one that would have ended the wait."""
    does, died = activity.wait_text(pulse.stack), death(pulse)
    if does == activity.EVENT_LOOP:
        return HeldBy(_task_text(pulse), _TASK, proof)
    if pulse.call != "futex" or not pulse.stack:
        return HeldBy(proof=proof)
    if pulse.lock is not None:
        return _lock(pulse.lock, proof)
    if died is None:
        return HeldBy(does, _THREAD if proof else "", proof)
    return HeldBy(does + died.does, died.remedy, proof)


def _task_text(pulse: Pulse) -> str:
    """Name the first task of asyncio that waits in the user's own code."""
    for thread in pulse.threads:
        own = next((site for site in thread.stack if activity.own_code(site.file)), None)
        if thread.name.startswith(TASK) and own is not None:
            return f"waits in its event loop: its task at {activity.site_text(own)} is not ready"
    return activity.EVENT_LOOP


def _child(pulse: Pulse, proof: tuple[str, ...]) -> HeldBy:
    """Describe a wait for a child process, with what that one waits for."""
    child = pulse.child
    if child is None:
        return HeldBy(proof=(*proof, f"it waits for its child process {pulse.on}"))
    does = f"waits for its child process {child.pid} ({child.name})"
    if child.is_unread:
        return HeldBy(f"{does}, which writes into a full pipe that the rank does not read", _UNREAD, proof)
    if child.call == "futex":
        return HeldBy(f"{does}, which waits for a lock", _FORKED if child.is_fork else "", proof)
    on = f" ({child.on})" if child.on else ""
    return HeldBy(f"{does}, which is in the system call {child.call}{on}", "", proof)


def _lock(lock: LockWait, proof: tuple[str, ...]) -> HeldBy:
    """Describe a wait for a lock of `threading`, and its holder if a thread is seen to hold it."""
    does = f"waits for the lock {lock.name}"
    if not lock.holder:
        return HeldBy(does, "check which thread took this lock and did not release it", proof)
    does += f", which its thread {lock.holder} holds"
    if lock.is_circle:
        does += f" while that waits for {lock.further}: a deadlock"
        return HeldBy(does, "let all threads take these two locks in the same order", proof)
    return HeldBy(does, f"check what the thread {lock.holder} waits for while it holds this lock", proof)


def death(pulse: Pulse) -> HeldBy | None:
    """Describe the thread that an exception has ended; None without one."""
    dead = next((thread for thread in pulse.threads if thread.error), None)
    if dead is None:
        return None
    return HeldBy(f", and its {_name(dead)} has died of {dead.error}", _DIED, (of_thread(dead),))


def _worth_naming(pulse: Pulse) -> Iterable[RankThread]:
    """Return threads that died, and those in the user's own code."""
    return [
        thread
        for thread in pulse.threads
        if thread.error or any(activity.own_code(site.file) for site in thread.stack)
    ][:4]


def _name(thread: RankThread) -> str:
    if not thread.name:
        return "a thread"
    if thread.name.startswith(TASK):
        return thread.name
    return thread.name if thread.name.lower().startswith("thread") else f"thread {thread.name}"


def of_thread(thread: RankThread) -> str:
    """Return a sentence with a thread's place or the error that ended it."""
    places = activity.stack_text(activity.telling_frames(thread.stack, 3))
    if thread.error:
        return f"{_name(thread)} died of {thread.error}" + (f" at {places}" if places else "")
    return f"{_name(thread)}: {places}"
