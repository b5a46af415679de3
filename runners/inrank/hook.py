"""The hook inside every rank: a unix socket for the agent's requests, and a daemon thread that answers.

Requests and answers are one JSON object per line. The hook uses the standard library only, and reads torch only after
the user's script has imported it. It counts optimizer steps, and inspects the objects at the first one. It calls no
function that changes them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

from . import (
    checkpoint_saves,
    collectives,
    debug_levels,
    gloo_workers,
    memory_dump,
    rank_changes,
    rank_profile,
    rank_pulse,
)
from .adopt import arming
from .control import Control, NotReady
from .end_notes import EndNotes
from .import_watch import PATCH_ERRORS, import_faster, when_imported
from .optimizer_steps import Steps
from .script_threads import Threads
from .stack_dumps import owns_signal, register_stack_signal, stacks
from .training_signals import TrainingSignals

SLOW_IMPORTS = ("torch", "torch._dynamo")
"""Modules whose import takes a tenth to a third less CPU without garbage collection; DDP imports the second."""
MOST_LINE = 64 << 10
"""Most bytes of one request to a rank."""
MOST_PEERS = 8
"""Most connections at a time: the agent's, and a short one of the runner's."""
LAST_ANSWER_S = 5.0
"""Most seconds to wait for a pending answer at the end of the process."""


class Hook:
    """Answers the agent's requests in a rank."""

    def __init__(self, path: str, steps: Steps, signals: TrainingSignals, threads: Threads) -> None:
        self.steps, self.signals = steps, signals
        self.levels = debug_levels.Levels()
        self._pulse, self._profiles = rank_pulse.PulseSampler(threads), rank_profile.Profiles(steps)
        self.armed = False
        steps.on_made = lambda made: self._push({"push": "made", "made": made})
        self._leaving = rank_changes.Leaving()
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        """Thread that may receive SIGUSR2, so that the signal interrupts no call of the script."""
        self._sockets = [self._control(path)]
        self._quiet = _Quiet(lambda: self._push({"push": "leaving"}))
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
            "flight": lambda request: {"text": collectives.flight()},
            "memory": lambda request: {"text": memory_dump.memory()},
            "record": lambda request: {"text": memory_dump.record()},
            "profilable": self._profiles.ready,
            "profile": self._profiles.arm,
            "profiled": self._profiles.progress,
            "environ": lambda request: {"env": {name: self._began.get(name) for name in request["names"]}},
            "leave": lambda request: self._leaving.soon(),
        }
        os.register_at_fork(after_in_child=self._leave_to_parent)

    def _control(self, path: str) -> Control:
        return Control(
            path,
            lambda request, peer: self.answer(request),
            lambda peer: self._profiles.gone(),
            greeting=lambda: self.answer({"op": "hello"}),
            most_line=MOST_LINE,
            most_peers=MOST_PEERS,
        )

    def run(self) -> None:
        """Answer from now on."""
        for name in SLOW_IMPORTS:
            import_faster(name)
        when_imported("torch.optim.optimizer", self._arm)  # before the first hello, which reports it
        self._thread = self._sockets[-1].start("distui-hook")

    def move(self) -> None:
        """Answer at the environment's new socket, too: this process, or a fork of it, became a rank."""
        if self._pid != os.getpid():
            self._pid, self._sockets = os.getpid(), []
            self._quiet = _Quiet(lambda: self._push({"push": "leaving"}))
            self.steps.begin()
            self._profiles.begin()
            EndNotes(self.steps, self.signals).arm()
        self._sockets.append(self._control(os.environ["DISTUI_HOOK"]))
        self._thread = self._sockets[-1].start("distui-hook")

    def _leave_to_parent(self) -> None:
        for control in self._sockets:
            control.close_in_fork()

    def _arm(self, module: ModuleType) -> None:
        self.steps.arm(module)
        self.armed = True
        self._push({"push": "armed", "nccl": debug_levels.nccl_state()})

    def _push(self, message: dict[str, Any]) -> None:
        for control in self._sockets:
            control.push(message)

    def hello(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "rank": os.environ.get("RANK"),
            "armed": self.armed,
            "made": self.steps.made,
            "nccl": debug_levels.nccl_state(),
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
        """Return the rank's pulse. "samples": number of stacks; "whole", "sites": see Collectives.sample."""
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
        except NotReady as error:
            return {"error": str(error)}
        except PATCH_ERRORS as error:
            return {"error": "%s: %s" % (type(error).__name__, error)}


class _Quiet:
    """Waits for answers before the interpreter ends: a thread in torch that then needs the GIL aborts the process."""

    def __init__(self, announce: Callable[[], None]) -> None:
        """`announce` tells the agent that no further answer comes."""
        self._busy, self._over, self._changed = 0, False, threading.Condition()
        self._pid, self._announce = os.getpid(), announce
        atexit.register(self._end)

    @contextlib.contextmanager
    def until_answered(self) -> Iterator[None]:
        """Enclose one answer. Raises NotReady at the end of the process."""
        with self._changed:
            if self._over:
                raise NotReady("the rank is ending")
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
        self._announce()


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
        register_stack_signal()
        hook.move()
        return
    gloo_workers.arm()  # before other exit functions, so that it runs last
    rank_changes.keep_store_on_loopback()
    rank_changes.survive_full_disk()
    steps, signals = Steps(), TrainingSignals()
    arming.arm()
    signals.file = files + ".reports" if os.environ.get("DISTUI_TRY") else ""
    signals.arm()
    threads = Threads()
    threads.arm()
    EndNotes(steps, signals).arm()
    saves = checkpoint_saves.Saves(files + ".saves", lambda: steps.count)
    saves.arm()
    register_stack_signal()
    hook = Hook(os.environ["DISTUI_HOOK"], steps, signals, threads)
    _attached.append(_Attached(hook, saves))
    hook.run()
