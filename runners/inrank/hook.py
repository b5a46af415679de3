"""The hook inside every rank: a unix socket on which the agent asks, and a daemon thread that answers.

Requests and answers are one JSON object a line. Stdlib only; torch is looked at only after the user's script
imported it.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from . import debug, dumps, leaving, pulse, quiet, traces
from .control import accept_forever, listen, request_in

MISTAKES = (OSError, RuntimeError, AttributeError, ImportError, ValueError, LookupError, TypeError)
"""What answering may raise in a rank that is in any state whatever."""


def _nothing() -> None:
    """A reference that refers to nothing yet."""


class Steps:
    """Counts optimizer steps through torch's public global hook."""

    def __init__(self) -> None:
        self.count = 0
        self.last = 0.0
        """Unix time of the newest step; 0 before the first."""
        self.first = 0.0
        self._optimizer: Callable[[], Any] = _nothing

    def arm(self) -> bool:
        """Register with torch.optim once it is imported; True when armed."""
        module = sys.modules.get("torch.optim.optimizer")
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is None:
            return False

        register(self._stepped)
        return True

    def _stepped(
        self, optimizer: Any, args: Any, kwargs: Any, now: Callable[[], float] = time.time
    ) -> None:
        # A sharded optimizer calls an inner one: count only whoever came first.
        if self._optimizer() is optimizer:
            self.count += 1
            self.last = now()
        elif self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
            self.count += 1
            self.first = self.last = now()

    _stepped._torchdynamo_disable = True  # type: ignore[attr-defined]  # a compiled step must not trace it


class Hook:
    """Everything a rank answers."""

    def __init__(self, path: str, steps: Steps) -> None:
        self.steps = steps
        self.levels = debug.Levels()
        self._pulse = pulse.Pulse()
        self.armed = False
        self._leaving = leaving.Leaving()
        self._server = listen(path)
        self._peers: dict[socket.socket, threading.Lock] = {}
        self._answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "hello": lambda request: self.hello(),
            "steps": lambda request: self.counted(),
            "pulse": self.pulse,
            "nccl": lambda request: self.levels.set_nccl(request["env"], request.get("lasting", True)),
            "c10d": lambda request: self.levels.set_c10d(request["level"], request.get("lasting", True)),
            "back": lambda request: self.levels.back(),
            "stacks": lambda request: {"text": stacks()},
            "flight": lambda request: {"text": dumps.flight()},
            "memory": lambda request: {"text": dumps.memory()},
            "record": lambda request: {"text": dumps.record()},
            "leave": lambda request: self._leaving.soon(),
        }
        os.register_at_fork(after_in_child=self._leave_to_parent)

    def run(self) -> None:
        """Answer from now on."""
        arguments = (self._server, self._serve, "distui-serve")
        threading.Thread(target=accept_forever, args=arguments, name="distui-hook", daemon=True).start()
        threading.Thread(target=self._arm, name="distui-arm", daemon=True).start()

    def _leave_to_parent(self) -> None:
        """In a fork of the rank: its sockets must not live on in a child that cannot answer."""
        for one in (self._server, *self._peers):
            with contextlib.suppress(OSError):
                os.close(one.detach())

    def _arm(self) -> None:
        """torch is imported some time after the start; look seldom once a minute has passed."""
        began = time.monotonic()
        while not self.steps.arm():
            time.sleep(0.05 if time.monotonic() - began < 60 else 1.0)
        self.armed = True
        with contextlib.suppress(*MISTAKES):
            self._tell({"push": "armed", "nccl": debug.nccl_state()})

    def _tell(self, message: dict[str, Any]) -> None:
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
                for line in lines:
                    request = request_in(line)
                    answer = json.dumps(dict(self.answer(request), id=request.get("id")))
                    with sending:
                        peer.sendall(answer.encode() + b"\n")
        except (OSError, ValueError):
            pass  # gone, or no agent
        finally:
            self._peers.pop(peer, None)

    def hello(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "rank": os.environ.get("RANK"),
            "armed": self.armed,
            "nccl": debug.nccl_state(),
            "faulthandler": owns_signal(),
        }

    def counted(self) -> dict[str, Any]:
        steps = self.steps
        return {
            "count": steps.count,
            "last": steps.last,
            "first": steps.first,
            "faulthandler": owns_signal(),
        }

    def pulse(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the rank is doing; "samples": looks at the stack, "whole", "sites": see collectives.py."""
        asked = {key: request[key] for key in ("samples", "whole", "sites") if key in request}
        return self._pulse.take(self.steps.count, self.steps.last, **asked)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request → one answer; what went wrong comes back as {"error": sentence}."""
        op = request.get("op")
        asked = self._answers.get(op) if isinstance(op, str) else None
        if asked is None:
            return {"error": "unknown request %r" % (op,)}
        try:
            return asked(request)
        except MISTAKES as error:
            return {"error": "%s: %s" % (type(error).__name__, error)}


def owns_signal() -> bool:
    """Whether SIGUSR2 still writes stacks: a script may have taken it for itself."""
    return signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


def stacks_by_signal() -> None:
    """Have SIGUSR2 write the stacks also while the GIL is held: faulthandler does so from the signal's handler itself.

    The interpreter takes that handler away long before a process with torch in it has ended: what it then puts back is
    to ignore the signal, which would end the rank else. Python's own table still says "default", as scripts expect.
    """
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ignore = ctypes.CDLL(None).signal
        ignore.argtypes, ignore.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
        ignore(signal.SIGUSR2, int(signal.SIG_IGN))
    file = open(os.environ["DISTUI_RANK_FILES"] + ".stacks", "w")  # noqa: SIM115
    faulthandler.register(signal.SIGUSR2, file, all_threads=True)


def stacks() -> str:
    """Python stacks of all threads, as faulthandler writes them."""
    path = "%s.stacks.%d" % (os.environ["DISTUI_RANK_FILES"], time.time_ns())
    with open(path, "w+") as file:
        os.unlink(path)
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


def note_exceptions(steps: Steps) -> None:
    """Write down when and where an uncaught exception came: exits alone cannot tell the culprit from its victims.

    A script that reached its end says so, too: the interpreter may still crash while it shuts down.
    """
    chained, rank = sys.excepthook, os.getpid()
    raised = threading.Event()

    def noted(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        try:
            if os.getpid() == rank:
                raised.set()
                with contextlib.suppress(*MISTAKES):
                    _note("exc", dict(traces.note_of(kind, value, trace), step=steps.count))
        finally:
            chained(kind, value, trace)

    def ended() -> None:
        if os.getpid() == rank and not raised.is_set():
            _note("end", {})

    sys.excepthook = noted
    atexit.register(ended)


def _note(ending: str, what: dict[str, Any]) -> None:
    with (
        contextlib.suppress(OSError, KeyError),
        open("%s.%s" % (os.environ["DISTUI_RANK_FILES"], ending), "w") as file,
    ):
        json.dump(dict(what, time=time.time()), file)


def attach() -> None:
    """Called once by sitecustomize in a rank."""
    quiet.survive_full_disk()
    steps = Steps()
    note_exceptions(steps)
    stacks_by_signal()
    Hook(os.environ["DISTUI_HOOK"], steps).run()
