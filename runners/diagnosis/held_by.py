"""Name what a sleeping rank waits for, from the kernel and its threads: a file lock, a pipe, a peer or a thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..run.pulse import Pulse, RankThread
from . import activity
from .view import View


class HeldBy(NamedTuple):
    """The reason of a wait, in the words of a finding."""

    does: str = ""
    """"waits for the lock on index.lock, which pid 812 (python) holds"; "" if only `proof` has information."""
    remedy: str = ""
    proof: tuple[str, ...] = ()
    lock: tuple[int, str] | None = None
    """The rank that holds the file lock, and the path of the locked file."""


_THREAD = "press w to see what that thread waits for (in a shell: `distui dump RUN stacks`)"
_DIED = "let the thread pass its exception on, as a future of concurrent.futures does, so that no thread waits for it"
_PIPE = "check who was to write into it"


def of(view: View, rank: int) -> HeldBy:
    """Return what a rank's newest pulse shows about its wait."""
    pulse = view.history[rank][-1]
    threads = tuple(of_thread(thread) for thread in _worth_naming(pulse))
    match pulse.call:
        case "lock":
            return _file_lock(view, pulse)._replace(proof=threads)
        case "read" | "open" if pulse.on.startswith("FIFO ") or pulse.on == "a pipe":
            verb = "opens" if pulse.call == "open" else "reads from"
            return HeldBy(
                f"{verb} {pulse.on}", _PIPE, (*threads, f"{verb} {pulse.on}, to which no process writes")
            )
        case "read" | "connect" if ":" in pulse.on and not pulse.on.startswith("/"):
            return HeldBy(
                f"waits for an answer of {pulse.on}", f"check {pulse.on} and the network to it", threads
            )
        case "wait" if pulse.on:
            return HeldBy(proof=(*threads, f"it waits for its child process {pulse.on}"))
        case "futex" | "sleep" | "poll":
            return _thread(pulse, threads)
    return HeldBy(proof=threads)


def _file_lock(view: View, pulse: Pulse) -> HeldBy:
    name = pulse.on.rpartition("/")[2] or "a file"
    if pulse.holder is None:
        return HeldBy(
            f"waits for the lock on {name}", "find who holds it: lsof or /proc/locks of the file's host"
        )
    ranks = (number for number, entry in view.state.ranks.items() if entry.pid == pulse.holder)
    holder = next(ranks, None)
    who = f"pid {pulse.holder}" + (f" ({pulse.holder_name})" if pulse.holder_name else "")
    remedy = f"check why {who} keeps the lock on {pulse.on}"
    if holder is None:
        return HeldBy(f"waits for the lock on {name}, which {who} holds", remedy)
    does = f"waits for the lock on {name}, which rank {holder} holds"
    return HeldBy(does, remedy, lock=(holder, pulse.on))


def _thread(pulse: Pulse, proof: tuple[str, ...]) -> HeldBy:
    """Describe a wait inside the process. If a thread died, it is the one that would have ended the wait."""
    dead = next((thread for thread in pulse.threads if thread.error), None)
    if pulse.call != "futex" or not pulse.stack:
        return HeldBy(proof=proof)
    does = "is blocked (lock, queue or thread)"
    if dead is None:
        return HeldBy(does, _THREAD if proof else "", proof)
    return HeldBy(f"{does}, and its {_name(dead)} has died of {dead.error}", _DIED, proof)


def _worth_naming(pulse: Pulse) -> Iterable[RankThread]:
    """Return threads that died, and those in the user's own code."""
    return [
        thread
        for thread in pulse.threads
        if thread.error or any(activity.own_code(site.file) for site in thread.stack)
    ][:4]


def _name(thread: RankThread) -> str:
    return thread.name if thread.name.lower().startswith("thread") else f"thread {thread.name}"


def of_thread(thread: RankThread) -> str:
    """Return a sentence with a thread's place or the error that ended it."""
    places = activity.stack_text(activity.telling_frames(thread.stack, 3))
    if thread.error:
        return f"{_name(thread)} died of {thread.error}" + (f" at {places}" if places else "")
    return f"{_name(thread)}: {places}"
