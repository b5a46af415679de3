"""The hook inside every rank: a unix socket for the agent's requests, and a daemon thread that answers.

Requests and answers are one JSON object per line. The hook uses the standard library only, and reads torch only after
the user's script has imported it. It counts optimizer steps, and inspects the objects at the first one. It calls no
function that changes them.
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
"""Most bytes of one request to a rank."""
MOST_PEERS = 8
"""Most connections at a time: the agent's, and a short one of the runner's."""
LAST_ANSWER_S = 5.0
"""Most seconds to wait for a pending answer at the end of the process."""
INSPECT_S = 5.0
"""Most seconds that the first step waits for the inspection of the objects; it takes about 0.1 s."""
MOST_INSPECTIONS = 4
"""Most inspections: a script may make new optimizers repeatedly."""


class Steps:
    """Counts optimizer steps through torch's public global hook."""

    def __init__(self) -> None:
        self.on_made: Callable[[dict[str, Any]], None] = lambda made: None
        self.begin()

    def begin(self) -> None:
        """Reset all counts."""
        self.count = 0
        self.last = 0.0
        """Unix time of the newest step; 0 before the first."""
        self.first = 0.0
        self.optimizers = 0
        """Number of optimizers made since torch was imported."""
        self.made: dict[str, Any] | None = None
        """Result of `describe()` at the first step; None before, or if it failed."""
        self._inspected: weakref.WeakSet[Any] = weakref.WeakSet()
        self._inspections = 0
        self._optimizer: Callable[[], Any] = lambda: None
        """Weak reference to the optimizer whose steps are counted."""
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
        """Count constructed optimizers: one without steps may be freed by the exit, and torch has no hook for this."""
        init = kind.__init__

        @functools.wraps(init)
        def counted(*args: Any, **named: Any) -> None:
            self.optimizers += 1
            init(*args, **named)

        kind.__init__ = counted

    @property
    def counted(self) -> int | None:
        """Steps so far; None before the first optimizer: a loop without an optimizer may have trained, too."""
        return self.count if self.count or self.optimizers else None

    @property
    def pace(self) -> float | None:
        """Mean seconds per step; None before the second."""
        return (self.last - self.first) / (self.count - 1) if self.count > 1 else None

    def note(self) -> dict[str, Any]:
        """Return the progress of training for the note of an exception.

        Untrained: an optimizer exists without any step. Without torch's optimizers, steps are not counted.
        """
        return {"step": self.count, "untrained": not self.count and self._has_optimizer()}

    def at_end(self) -> dict[str, Any]:
        """Return the progress for the note of an exit, and whether an optimizer and a process group existed."""
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
            self._inspect_new(optimizer)  # zero1 divides its states, too
            return
        if not self._inspections and self._inspect_new(optimizer) and self.count == 1:
            self.first = self.last = now()
        watch = self.watch
        if watch is not None:
            watch(self.count)

    def _inspect_new(self, optimizer: Any) -> bool:
        """Inspect the objects at the first step of the first optimizer, and of some others if --adopt applies a preset.

        Return whether it inspected them.
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
        """Inspect the objects in a separate thread: torch.compile does not trace its frames."""
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
    """Answers the agent's requests in a rank."""

    def __init__(self, path: str, steps: Steps, signals: TrainingSignals, threads: Threads) -> None:
        self.steps, self.signals = steps, signals
        self.levels = rank_changes.Levels()
        self._pulse, self._profiles = rank_pulse.PulseSampler(threads), rank_profile.Profiles(steps)
        self.armed = False
        steps.on_made = lambda made: self._push({"push": "made", "made": made})
        self._leaving = rank_changes.Leaving()
        self._server, self._pid = listen(path), os.getpid()
        self._thread: threading.Thread | None = None
        """Thread that may receive SIGUSR2, so that the signal interrupts no call of the script."""
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
        self.armed = self.steps.arm()  # before the first hello, which reports it
        self._listen()
        if not self.armed:
            threading.Thread(target=self._arm, name="distui-arm", daemon=True).start()

    def move(self) -> None:
        """Answer at the environment's new socket, too: this process, or a fork of it, became a rank."""
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
        """Close the sockets in a fork of the rank: the child has no thread that answers."""
        for sock in (self._server, *self._peers):
            with contextlib.suppress(OSError):
                os.close(sock.detach())

    def _arm(self) -> None:
        """Poll until the script has imported torch: every 0.05 s in the first minute, then every second."""
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
                with sending:  # the hello comes first
                    self._peers[peer] = sending
                    peer.sendall(json.dumps(self.answer({"op": "hello"})).encode() + b"\n")
                for request in requests(lines, MOST_LINE):
                    self._bounded.asked(peer)
                    answer = json.dumps(dict(self.answer(request), id=request.get("id")))
                    with sending:
                        peer.sendall(answer.encode() + b"\n")
        except (OSError, ValueError):
            pass  # the peer has closed, or is no agent
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
        """Return the steps. "signals" is the agent's version of the training signals: add them if they are newer."""
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
        """Return the rank's pulse. "samples": number of stacks; "whole", "sites": see rank_pulse.Collectives.sample."""
        asked = {key: request[key] for key in ("samples", "whole", "sites") if key in request}
        return self._pulse.take(self.steps.count, self.steps.last, **asked)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one request; on failure with {"error": sentence}."""
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
    """Waits for answers before the interpreter ends: a thread in torch that then needs the GIL aborts the process."""

    def __init__(self) -> None:
        self._busy, self._over, self._changed = 0, False, threading.Condition()
        self._pid = os.getpid()
        atexit.register(self._end)

    @contextlib.contextmanager
    def until_answered(self) -> Iterator[None]:
        """Enclose one answer. Raises NotReady at the end of the process."""
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
        if os.getpid() != self._pid:  # a fork: its copy of the lock may never be released
            return
        with self._changed:
            self._over = True
            self._changed.wait_for(lambda: not self._busy, LAST_ANSWER_S)


def owns_signal() -> bool:
    """Whether SIGUSR2 still writes stacks: a script may have installed another handler."""
    return signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


def stacks_by_signal() -> None:
    """Have SIGUSR2 write the stacks, also while the GIL is held: faulthandler writes them in the signal handler.

    SIGSEGV and other fatal signals write them, too. The interpreter removes the handler of SIGUSR2 long before a process
    with torch ends, and restores the earlier one. That is to ignore the signal, as set here: the default would kill the
    rank. Python's table of handlers keeps "default", as scripts expect.
    """
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ignore = ctypes.CDLL(None).signal
        ignore.argtypes, ignore.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
        ignore(signal.SIGUSR2, int(signal.SIG_IGN))
    file = open(os.environ["DISTUI_RANK_FILES"] + ".stacks", "w", opener=private)  # noqa: SIM115
    faulthandler.register(signal.SIGUSR2, file, all_threads=True)
    if not faulthandler.is_enabled():  # else PYTHONFAULTHANDLER has it on stderr
        faulthandler.enable(
            file, all_threads=True
        )  # crashes, too; the signal then ends the process as usual


def stacks() -> str:
    """Return the Python stacks of all threads from faulthandler, written into memory as the disk may be full.

    Raises OSError if neither memory nor disk has room for them.
    """
    with _scratch() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        if not os.fstat(file.fileno()).st_size:
            raise OSError(errno.ENOSPC, "there is no room for the stacks")
        file.seek(0)
        return file.read()


def _scratch() -> IO[str]:
    """Open a file without a name. Pythons built for an old glibc have no memfd_create."""
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):  # a sandbox forbids it
            return open(os.memfd_create("stacks"), "w+")
    path = "%s.stacks.%d" % (os.environ["DISTUI_RANK_FILES"], time.time_ns())
    file = open(path, "w+", opener=private)  # noqa: SIM115
    os.unlink(path)
    return file


class EndNotes:
    """Writes how a rank ends: exit codes do not separate the culprit from its victims.

    A note has the time and place of an uncaught exception, or says that the script reached its end, as the interpreter
    may crash later. It also has the last steps and training signals, as the agent may not request them again.
    """

    def __init__(self, steps: Steps, signals: TrainingSignals) -> None:
        self._steps, self._signals, self._pid, self._code = steps, signals, os.getpid(), 0
        self._chained, self._leave = sys.excepthook, sys.exit
        self._over = threading.Event()

    def arm(self) -> None:
        """Write notes for this process from now on, but not for its forks."""
        sys.excepthook = self._raised
        atexit.register(self._ended)
        if os.environ.get("DISTUI_JOINED") == str(
            self._pid
        ):  # the runner sees the exit code of other ranks
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
        """Keep the code given to sys.exit(): exit functions cannot read it otherwise."""
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
        """Note a child's exception: multiprocessing handles it, and torch's `spawn` makes it the context of an exit."""
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
    """Return the stem of this rank's files; "…/command" for a command whose child processes became the ranks."""
    stem = os.environ["DISTUI_RANK_FILES"]
    if "DISTUI_RUNNER_PID" in os.environ or os.environ.get("DISTUI_JOINED") == str(os.getpid()):
        return stem
    command = os.path.join(os.path.dirname(stem), "command")
    return command if os.path.exists(command + ".out") else stem


class _Attached(NamedTuple):
    hook: Hook
    saves: checkpoint_saves.Saves


_attached: list[_Attached] = []
"""The hook of this process, or of the process that it was forked from; empty before attach()."""


def attach() -> None:
    """Start the hook in a rank, or move it when a process becomes one. The environment names its files and socket."""
    files = os.environ["DISTUI_RANK_FILES"]
    if _attached:
        hook, saves = _attached[0]
        saves.move(files + ".saves")
        stacks_by_signal()
        hook.move()
        return
    gloo_workers.arm()  # before other exit functions, so that it runs last
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
