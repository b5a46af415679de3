"""The hook inside every rank: a unix socket on which the agent asks, and a daemon thread that answers.

Requests and answers are one JSON object a line. Standard library alone; torch is read only after the user's script
imported it. Optimizer steps are counted, and at the first one the objects are inspected. Nothing is called that changes
anything.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import faulthandler
import functools
import json
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import IO, Any, NamedTuple, NoReturn

from . import checkpoint_saves, gloo_workers, rank_changes, rank_profile, rank_pulse, tracebacks
from .adopt import arming
from .adopt.report import adopted, initialising
from .control import Peers, accept_forever, listen, private, requests
from .import_watch import MISTAKES
from .thread_waits import Threads
from .training_signals import TrainingSignals
from .wrapping import describe, grouped, optimizers

MOST_LINE = 64 << 10
"""Bytes of one request to a rank."""
MOST_PEERS = 8
"""Connections at a time: the agent's, and a short one of the runner's."""
LAST_ANSWER_S = 5.0
"""The longest that the end of the process waits for an answer under way."""
INSPECT_S = 5.0
"""The longest that the first step waits for the inspection of the objects; it takes about 0.1 s."""
MOST_INSPECTIONS = 4
"""A script may make a new optimizer again and again."""


class Steps:
    """Counts optimizer steps through torch's public global hook."""

    def __init__(self) -> None:
        self.on_made: Callable[[dict[str, Any]], None] = lambda made: None
        self.begin()

    def begin(self) -> None:
        """Nothing is counted so far."""
        self.count = 0
        self.last = 0.0
        """Unix time of the newest step; 0 before the first."""
        self.first = 0.0
        self.optimizers = 0
        """Made since torch was imported."""
        self.made: dict[str, Any] | None = None
        """What the model was wrapped with at the first step; None before, or where it is unknown."""
        self._inspected: weakref.WeakSet[Any] = weakref.WeakSet()
        self._inspections = 0
        self._optimizer: Callable[[], Any] = lambda: None
        """A weak reference to the optimizer whose steps count."""
        self.watch: Callable[[int], None] | None = None
        """Called after each step with their number."""

    def arm(self) -> bool:
        """Register with torch.optim once it is imported; True when armed."""
        module = sys.modules.get("torch.optim.optimizer")
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is None:
            return False

        register(self._stepped)
        with contextlib.suppress(*MISTAKES):
            self._count_optimizers(module.Optimizer)  # type: ignore[union-attr]
        return True

    def _count_optimizers(self, kind: Any) -> None:
        """An optimizer that never steps is gone by the exit, and torch has no hook for its construction."""
        init = kind.__init__

        @functools.wraps(init)
        def counted(*args: Any, **named: Any) -> None:
            self.optimizers += 1
            init(*args, **named)

        kind.__init__ = counted

    @property
    def counted(self) -> int | None:
        """Steps so far; None while there has been no optimizer: a loop without one may be far."""
        return self.count if self.count or self.optimizers else None

    @property
    def pace(self) -> float | None:
        """Mean seconds a step; None before the second."""
        return (self.last - self.first) / (self.count - 1) if self.count > 1 else None

    def note(self) -> dict[str, Any]:
        """How far training is, for the note of an exception. Untrained: there is an optimizer without any step.

        A loop without an optimizer of torch's may be far: its steps are not counted.
        """
        return {"step": self.count, "untrained": not self.count and self._has_optimizer()}

    def at_end(self) -> dict[str, Any]:
        """The same for the note of an exit, with whether there was an optimizer, and a process group."""
        group = grouped()
        return {
            "step": self.count,
            "made": self.made,
            "optimizer": self._has_optimizer(),
            "alone": "torch" in sys.modules and group is False,
        }

    def _has_optimizer(self) -> bool:
        return bool(self.optimizers or optimizers())

    def _stepped(
        self, optimizer: Any, args: Any, kwargs: Any, now: Callable[[], float] = time.time
    ) -> None:
        if initialising():
            return
        # A sharded optimizer calls an inner optimizer: only the first that steps is counted.
        if self._optimizer() is optimizer:
            self.count += 1
            self.last = now()
        elif self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
            self.count += 1
            self.first = self.last = now()
        else:
            self._inspect_new(optimizer)  # its states are divided, too
            return
        if not self._inspections and self._inspect_new(optimizer) and self.count == 1:
            self.first = self.last = now()
        watch = self.watch
        if watch is not None:
            watch(self.count)

    def _inspect_new(self, optimizer: Any) -> bool:
        """Inspect the objects at the first steps of the first optimizer, and of some others where a preset is applied.

        Returns whether it did.
        """
        first = self._optimizer()
        if optimizer is not first and not (adopted.calls and self._inspections):
            return False
        if self._inspections >= MOST_INSPECTIONS or optimizer in self._inspected:
            return False
        self._inspected.add(optimizer)
        self._inspections += 1
        self._inspect(first)
        return True

    def _inspect(self, optimizer: Any) -> None:
        """Inspect the objects; in a thread of its own, whose frames no compiler traces."""
        seen = threading.Event()

        def inspect() -> None:
            with contextlib.suppress(*MISTAKES):
                self.made = describe(optimizer)
            seen.set()
            if self.made is not None:
                self.on_made(self.made)

        threading.Thread(target=inspect, name="distui-inspect", daemon=True).start()
        seen.wait(INSPECT_S)

    _inspect_new._torchdynamo_disable = _inspect._torchdynamo_disable = True  # type: ignore[attr-defined]
    _stepped._torchdynamo_disable = True  # type: ignore[attr-defined]  # a compiled step must not trace it


class Hook:
    """Everything a rank answers."""

    def __init__(self, path: str, steps: Steps, signals: TrainingSignals, threads: Threads) -> None:
        self.steps, self.signals = steps, signals
        self.levels = rank_changes.Levels()
        self._pulse, self._profiles = rank_pulse.PulseSampler(threads), rank_profile.Profiles(steps)
        self.armed = False
        steps.on_made = lambda made: self._push({"push": "made", "made": made})
        self._leaving = rank_changes.Leaving()
        self._server, self._pid = listen(path), os.getpid()
        self._thread: threading.Thread | None = None
        """SIGUSR2 may go to this thread: it interrupts no call of the script's."""
        self._peers: dict[socket.socket, threading.Lock] = {}
        self._bounded = Peers(MOST_PEERS)
        self._quiet = _Quiet()
        self._began = dict(os.environ)
        """The environment before the script's first line."""
        self._answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "hello": lambda request: self.hello(),
            "steps": self.counted,
            "pulse": self.pulse,
            "nccl": lambda request: self.levels.set_nccl(request["env"], request.get("lasting", True)),
            "c10d": lambda request: self.levels.set_c10d(request["level"], request.get("lasting", True)),
            "back": lambda request: self.levels.back(),
            "stacks": lambda request: {"text": stacks()},
            "flight": lambda request: {"text": rank_pulse.flight()},
            "memory": lambda request: {"text": rank_pulse.memory()},
            "record": lambda request: {"text": rank_pulse.record()},
            "profilable": self._profiles.ready,
            "profile": self._profiles.arm,
            "profiled": self._profiles.progress,
            "environ": lambda request: {"env": {name: self._began.get(name) for name in request["names"]}},
            "leave": lambda request: self._leaving.soon(),
        }
        os.register_at_fork(after_in_child=self._leave_to_parent)

    def run(self) -> None:
        """Answer from now on."""
        self.armed = self.steps.arm()  # before the first hello, which says it
        self._listen()
        if not self.armed:
            threading.Thread(target=self._arm, name="distui-arm", daemon=True).start()

    def move(self) -> None:
        """Answer at the socket that the environment names by now, too: this process, or a fork of it, became a rank."""
        if self._pid != os.getpid():
            self._pid, self._peers, self._bounded = os.getpid(), {}, Peers(MOST_PEERS)
            self._quiet = _Quiet()
            self.steps.begin()
            self._profiles.begin()
            EndNotes(self.steps, self.signals).arm()
        self._server = listen(os.environ["DISTUI_HOOK"])
        self._listen()

    def _listen(self) -> None:
        arguments = (self._server, self._serve, "distui-serve", self._bounded)
        self._thread = threading.Thread(
            target=accept_forever, args=arguments, name="distui-hook", daemon=True
        )
        self._thread.start()

    def _leave_to_parent(self) -> None:
        """In a fork of the rank: its sockets must not live on in a child that cannot answer."""
        for sock in (self._server, *self._peers):
            with contextlib.suppress(OSError):
                os.close(sock.detach())

    def _arm(self) -> None:
        """torch is imported some time after the start; poll seldom once a minute has passed."""
        began = time.monotonic()
        while not self.steps.arm():
            time.sleep(0.05 if time.monotonic() - began < 60 else 1.0)
        self.armed = True
        with contextlib.suppress(*MISTAKES):
            self._push({"push": "armed", "nccl": rank_changes.nccl_state()})

    def _push(self, message: dict[str, Any]) -> None:
        for peer, sending in list(self._peers.items()):
            with sending, contextlib.suppress(OSError):
                peer.sendall(json.dumps(message).encode() + b"\n")

    def _serve(self, peer: socket.socket) -> None:
        sending = threading.Lock()
        try:
            with peer, peer.makefile("rb") as lines:
                with sending:  # nothing comes before the hello
                    self._peers[peer] = sending
                    peer.sendall(json.dumps(self.answer({"op": "hello"})).encode() + b"\n")
                for request in requests(lines, MOST_LINE):
                    self._bounded.asked(peer)
                    answer = json.dumps(dict(self.answer(request), id=request.get("id")))
                    with sending:
                        peer.sendall(answer.encode() + b"\n")
        except (OSError, ValueError):
            pass  # gone, or no agent
        finally:
            self._profiles.gone()
            self._peers.pop(peer, None)
            self._bounded.leave(peer)

    def hello(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "rank": os.environ.get("RANK"),
            "armed": self.armed,
            "made": self.steps.made,
            "nccl": rank_changes.nccl_state(),
            "faulthandler": owns_signal(),
            "thread": self._thread.native_id if self._thread is not None else None,
        }

    def counted(self, request: dict[str, Any]) -> dict[str, Any]:
        """Steps; with "signals", the version of training signals that the asker has, also those where newer."""
        steps = self.steps
        answer: dict[str, Any] = {
            "count": steps.counted,
            "last": steps.last,
            "first": steps.first,
            "faulthandler": owns_signal(),
        }
        if "signals" in request:
            newer = self.signals.since(request["signals"])
            if newer is not None:
                answer["signals"] = newer
        return answer

    def pulse(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the rank is doing; "samples": of the stack, "whole", "sites": see rank_pulse.Collectives.sample."""
        asked = {key: request[key] for key in ("samples", "whole", "sites") if key in request}
        return self._pulse.take(self.steps.count, self.steps.last, **asked)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request → one answer; what went wrong comes back as {"error": sentence}."""
        op = request.get("op")
        asked = self._answers.get(op) if isinstance(op, str) else None
        if asked is None:
            return {"error": "unknown request %r" % (op,)}
        try:
            with self._quiet.until_answered():
                return asked(request)
        except rank_pulse.NotReady as error:
            return {"error": str(error)}
        except MISTAKES as error:
            return {"error": "%s: %s" % (type(error).__name__, error)}


class _Quiet:
    """No thread is inside torch when the interpreter ends: one that waits for the GIL there would abort the process."""

    def __init__(self) -> None:
        self._busy, self._over, self._changed = 0, False, threading.Condition()
        self._pid = os.getpid()
        atexit.register(self._end)

    @contextlib.contextmanager
    def until_answered(self) -> Iterator[None]:
        """Around one answer. Raises NotReady at the end of the process."""
        with self._changed:
            if self._over:
                raise rank_pulse.NotReady("the rank is ending")
            self._busy += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def _end(self) -> None:
        if os.getpid() != self._pid:  # a fork, whose copy of the lock nobody may ever release
            return
        with self._changed:
            self._over = True
            self._changed.wait_for(lambda: not self._busy, LAST_ANSWER_S)


def owns_signal() -> bool:
    """Whether SIGUSR2 still writes stacks: a script may have installed a handler of its own."""
    return signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


def stacks_by_signal() -> None:
    """Have SIGUSR2 write the stacks also while the GIL is held: faulthandler does so from the signal's handler itself.
    So do signals that end a process for what it does itself, as SIGSEGV.

    The interpreter removes that handler long before a process with torch in it has ended. It then restores what is
    set here, to ignore the signal, which would otherwise kill the rank. Python's own table keeps "default", as scripts
    expect.
    """
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ignore = ctypes.CDLL(None).signal
        ignore.argtypes, ignore.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
        ignore(signal.SIGUSR2, int(signal.SIG_IGN))
    file = open(os.environ["DISTUI_RANK_FILES"] + ".stacks", "w", opener=private)  # noqa: SIM115
    faulthandler.register(signal.SIGUSR2, file, all_threads=True)
    if not faulthandler.is_enabled():  # else PYTHONFAULTHANDLER has it on stderr
        faulthandler.enable(file, all_threads=True)  # crashes, too; the signal then kills as it would have


def stacks() -> str:
    """Python stacks of all threads, as faulthandler writes them: into memory, as the disk may be full.

    Raises OSError where there is neither memory nor disk for them.
    """
    with _scratch() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        if not os.fstat(file.fileno()).st_size:
            raise OSError(errno.ENOSPC, "there is no room for the stacks")
        file.seek(0)
        return file.read()


def _scratch() -> IO[str]:
    """A file without a name. Pythons that were built for an old glibc have no memfd_create."""
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):  # a sandbox forbids it
            return open(os.memfd_create("stacks"), "w+")
    path = "%s.stacks.%d" % (os.environ["DISTUI_RANK_FILES"], time.time_ns())
    file = open(path, "w+", opener=private)  # noqa: SIM115
    os.unlink(path)
    return file


class EndNotes:
    """Writes down how a rank ends: exits alone do not separate the culprit from its victims.

    When and where an uncaught exception came; that a script reached its end, as the interpreter may still crash while
    it shuts down. Also the last steps and training signals, which no agent asks for any more.
    """

    def __init__(self, steps: Steps, signals: TrainingSignals) -> None:
        self._steps, self._signals, self._pid, self._code = steps, signals, os.getpid(), 0
        self._chained, self._leave = sys.excepthook, sys.exit
        self._over = threading.Event()

    def arm(self) -> None:
        """From now on, of this process and not of its forks."""
        sys.excepthook = self._raised
        atexit.register(self._ended)
        if os.environ.get("DISTUI_JOINED") == str(self._pid):  # of others the runner sees the exit code
            sys.exit = self._exit
        processes, util = (sys.modules.get("multiprocessing." + name) for name in ("process", "util"))
        if processes is not None and util is not None and processes.parent_process() is not None:
            util.Finalize(None, self._child_ended, exitpriority=0)

    def _raised(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        try:
            self._note_exception(kind, value, trace)
        finally:
            self._chained(kind, value, trace)

    def _note_exception(
        self, kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        if os.getpid() == self._pid:
            self._over.set()
            with contextlib.suppress(*MISTAKES):
                noted = dict(tracebacks.note_of(kind, value, trace), **self._steps.note())
                _note("exc", dict(noted, signals=self._signals.since(0)))

    def _exit(self, code: str | int | None = None) -> NoReturn:
        """What sys.exit is asked for, which nothing else has when exit functions run."""
        if threading.current_thread() is threading.main_thread():
            self._keep(code)
        self._leave(code)

    def _keep(self, code: object) -> None:
        if isinstance(code, int):
            self._code = code
        else:
            self._code = 1 if code else 0

    def _ended(self) -> None:
        if os.getpid() == self._pid and not self._over.is_set():
            self._over.set()
            made: dict[str, Any] = {"step": self._steps.count}
            with contextlib.suppress(*MISTAKES):
                made = self._steps.at_end()
            with contextlib.suppress(*MISTAKES):
                made["signals"] = self._signals.since(0)
            _note("end", dict(made, code=self._code))

    def _child_ended(self) -> None:
        """multiprocessing keeps what its children raise to itself, torch's `spawn` as the context of an exit."""
        value = sys.exc_info()[1]
        cause = value.__context__ if isinstance(value, SystemExit) and value.code else value
        if cause is not None and not isinstance(cause, SystemExit):
            self._note_exception(type(cause), cause, cause.__traceback__)
            return
        if isinstance(value, SystemExit):
            self._keep(value.code)
        self._ended()


def _note(ending: str, what: dict[str, Any]) -> None:
    with (
        contextlib.suppress(OSError, KeyError),
        open("%s.%s" % (_files(), ending), "w", opener=private) as file,
    ):
        json.dump(dict(what, time=time.time()), file)


def _files() -> str:
    """The stem of this rank's files; "…/command" for a command of which other processes became the ranks."""
    stem = os.environ["DISTUI_RANK_FILES"]
    if "DISTUI_RUNNER_PID" in os.environ or os.environ.get("DISTUI_JOINED") == str(os.getpid()):
        return stem
    command = os.path.join(os.path.dirname(stem), "command")
    return command if os.path.exists(command + ".out") else stem


class _Attached(NamedTuple):
    hook: Hook
    saves: checkpoint_saves.Saves


_attached: list[_Attached] = []
"""What this process, or the one that it is a fork of, has; empty before."""


def attach() -> None:
    """Called by sitecustomize in a rank, and when a process becomes one; the environment names its files and socket."""
    files = os.environ["DISTUI_RANK_FILES"]
    if _attached:
        hook, saves = _attached[0]
        saves.move(files + ".saves")
        stacks_by_signal()
        hook.move()
        return
    gloo_workers.arm()  # before what else the end of the process calls, so that it comes last
    rank_changes.keep_store_on_loopback()
    rank_changes.survive_full_disk()
    steps, signals = Steps(), TrainingSignals()
    arming.arm()
    signals.arm()
    threads = Threads()
    threads.arm()
    EndNotes(steps, signals).arm()
    saves = checkpoint_saves.Saves(files + ".saves", lambda: steps.count)
    saves.arm()
    stacks_by_signal()
    hook = Hook(os.environ["DISTUI_HOOK"], steps, signals, threads)
    _attached.append(_Attached(hook, saves))
    hook.run()
