"""torch.profiler on request: some steps of this rank, from a step boundary that the agent has chosen for all ranks.

The request is armed by a thread of the hook's. The optimizer step then starts and stops the profiler in the training's
own thread, which is the only thread that may; the trace is written by the thread that asks for it. The script's own use
of a profiler goes first: torch has no more than one at a time. Nothing that goes wrong here reaches the script.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from .control import private
from .import_watch import MISTAKES
from .rank_pulse import NotReady

MOST_STEPS = 100
"""Steps of one profile: each costs memory of the rank until the trace is written."""
LEAST_FREE = 256 << 20
"""Bytes that have to be free where the trace is written."""
LONGEST_S = 600.0
"""A recording ends at the first step boundary after this, whatever was asked for."""
STEP_MARK = "distui.step#"
"""Begins the name of the mark at each step boundary; the number of the step that is over follows."""
GUARDED = ("_prepare_profiler", "_enable_profiler")
"""Functions of torch.autograd.profiler by which every profiler begins."""
OWN = "torch.profiler is in use by the script itself, which goes first: profile once that is over"
BUSY = "a profile is under way: profile again once it is over"
_FOLDER = re.compile(r"[0-9A-Za-z-]{1,64}")


class ProfileRequest:
    def __init__(self, folder: str, first: int, steps: int, thread: int) -> None:
        self.folder, self.first, self.last = folder, first, first + steps - 1
        """The steps that are recorded, counted as Steps counts them."""
        self.thread = thread
        """Of the connection that asked: where that closes, nobody wants the trace any more."""
        self.state = "armed"
        """Then "warm" (its last step before the recording), "recording", "recorded"; or "off"."""
        self.why = ""
        """Why it is off."""
        self.torch: Any = None
        """torch's own object, from "warm" on."""
        self.trainer = 0
        """The thread that trains."""
        self.began, self.pid = 0.0, os.getpid()

    def left_out(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state in ("recorded", "off")


class Profiles:
    """The profiles of this rank, one at a time."""

    def __init__(self, steps: Any) -> None:
        """`steps`: the hook's Steps."""
        self._steps = steps
        self._job: ProfileRequest | None = None
        self._lock = threading.RLock()
        self._real: dict[str, Any] = {}
        """What `_guard` has replaced."""
        self._mine = False
        """Whether the call into torch is this module's."""
        self._closes = False
        """Whether the end of the process is watched for."""

    # --- called by threads of the hook

    def arm(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have "steps" recorded from step "first" on, into "folder". The answer has "late" where that step is too near.

        Raises NotReady with the reason where no profile can be.
        """
        first, steps, name = int(request["first"]), int(request["steps"]), str(request["folder"])
        if not 1 <= steps <= MOST_STEPS or not _FOLDER.fullmatch(name):
            raise NotReady("a profile has 1 to %d steps" % MOST_STEPS)
        torch = self._torch()
        job = ProfileRequest(_folder(name), first, steps, threading.get_ident())
        with self._lock:
            if self._job is not None and not self._job.left_out():
                raise NotReady(BUSY)
            self._job = job
            self._guard(torch)
        try:
            if _of_script(torch):
                raise NotReady(OWN)
        except NotReady:
            self._drop(job, OWN)
            raise
        if not self._closes:
            self._closes = True
            atexit.register(self._end)
        self._steps.watch = self._stepped
        # its warm-up begins at a boundary that has to lie ahead
        if self._steps.count >= first - 2 and job.state == "armed":
            self._drop(job, "too late")
            return {"late": self._steps.count}
        return {"count": self._steps.count}

    def ready(self, request: dict[str, Any]) -> dict[str, Any]:
        """Steps and seconds a step, where a profile may begin. Raises NotReady."""
        if not self._steps.count:
            raise NotReady("no optimizer step so far, and a profile is of steps")
        self._torch()
        job = self._job
        if job is not None and not job.left_out():
            raise NotReady(BUSY)
        return {"count": self._steps.count, "step_s": self._steps.pace}

    def progress(self, request: dict[str, Any]) -> dict[str, Any]:
        """How far it is; once it is recorded the trace is written, and the answer has its "file"."""
        job = self._job
        if job is None or job.thread != threading.get_ident():
            raise NotReady("no profile was asked for on this connection")
        if job.state == "off":
            raise NotReady(job.why)
        if job.state != "recorded":
            return {"state": job.state, "count": self._steps.count}
        try:
            return {"state": "written", "count": self._steps.count, "file": _written(job)}
        finally:
            self._drop(job, "it was written")

    def gone(self) -> None:
        """The connection of this thread is closed."""
        job = self._job
        if job is not None and job.thread == threading.get_ident():
            self._drop(job, "nobody waits for it any more")

    def begin(self) -> None:
        """In a fork that became a rank itself."""
        self._job, self._lock, self._mine = None, threading.RLock(), False
        self._steps.watch = None

    def _drop(self, job: ProfileRequest, why: str) -> None:
        """No trace comes of it; a profiler that is on is stopped at the next step boundary."""
        with self._lock:
            on = job.state in ("warm", "recording")
            job.state, job.why = "off", why
            if not on:
                job.torch = None
                self._over(job)

    def _over(self, job: ProfileRequest) -> None:
        """torch is as it was before."""
        if self._job is job:
            self._steps.watch = None
            self._unguard()

    # --- called by the thread that trains

    def _stepped(self, count: int) -> None:
        """After each optimizer step while there is a request."""
        job = self._job
        if job is None or job.pid != os.getpid():
            return
        with self._lock:
            try:
                with self._own_call():
                    self._advance(job, count)
            except MISTAKES as error:
                job.state, job.torch = "off", None
                job.why = "torch.profiler failed: %s: %s" % (type(error).__name__, error)
                self._over(job)

    _stepped._torchdynamo_disable = True  # type: ignore[attr-defined]  # a compiled step must not trace it

    def _advance(self, job: ProfileRequest, count: int) -> None:
        if job.state == "armed" and count >= job.first - 2:
            if count > job.first - 2:
                job.state, job.why = "off", "step %d had passed before the profile could begin" % job.first
                self._over(job)
                return
            job.torch, job.trainer = _made(self._torch()), threading.get_ident()
            with _quietly():
                job.torch.prepare_trace()
            job.state = "warm"
        elif job.state == "warm" and job.trainer == threading.get_ident():
            with _quietly():
                job.torch.start_trace()
            job.state, job.began = "recording", time.monotonic()
            _mark(count)
        elif job.state == "recording" and job.trainer == threading.get_ident():
            _mark(count)
            if count >= job.last or time.monotonic() - job.began > LONGEST_S:
                job.torch.stop_trace()
                job.state = "recorded"
                self._over(job)
        elif job.state == "off":
            self._stop(job)

    def _stop(self, job: ProfileRequest) -> None:
        """End a profiler of which nothing is wanted any more."""
        if job.torch is not None and job.trainer == threading.get_ident():
            if not job.began:
                job.torch.start_trace()  # what was prepared ends in no other way
            job.torch.stop_trace()
            job.torch = None
        self._over(job)

    @contextlib.contextmanager
    def _own_call(self) -> Iterator[None]:
        self._mine = True
        try:
            yield
        finally:
            self._mine = False

    # --- one profiler at a time

    def _guard(self, torch: Any) -> None:
        """The script's own profiler ends this one before it begins: torch crashes where two are on."""
        module = torch.autograd.profiler
        for name in GUARDED:
            if name not in self._real:
                self._real[name] = getattr(module, name)
                setattr(module, name, self._guarded(self._real[name]))

    def _guarded(self, real: Any) -> Any:
        def begun(*args: Any, **named: Any) -> Any:
            if not self._mine:
                with contextlib.suppress(*MISTAKES):
                    self._give_way()
            return real(*args, **named)

        begun._torchdynamo_disable = True  # type: ignore[attr-defined]
        return begun

    def _unguard(self) -> None:
        module = sys.modules.get("torch.autograd.profiler")
        for name, real in self._real.items():
            setattr(module, name, real)
        self._real = {}

    def _give_way(self) -> None:
        with self._lock:
            job = self._job
            if job is None or job.left_out():
                return
            job.state, job.why = "off", OWN
            with self._own_call():
                self._stop(job)

    def _end(self) -> None:
        """A process that exits while its profiler is on is ended by a segmentation fault."""
        job = self._job
        if (
            job is not None and not job.left_out() and job.pid == os.getpid()
        ):  # no fork, whose lock may be taken
            with self._lock, contextlib.suppress(*MISTAKES), self._own_call():
                job.state, job.why = "off", "ended before step %d" % job.last
                self._stop(job)

    def _torch(self) -> Any:
        """torch, where its profiler is as it is known here. Raises NotReady."""
        torch = sys.modules.get("torch")
        profiler = getattr(torch, "profiler", None)
        module = sys.modules.get("torch.autograd.profiler")
        if not hasattr(profiler, "_KinetoProfile") or not all(hasattr(module, name) for name in GUARDED):
            raise NotReady("this torch has no torch.profiler that distui can start")
        if not getattr(module, "kineto_available", bool)():
            raise NotReady("this torch was built without Kineto, which torch.profiler needs")
        return torch


def _folder(name: str) -> str:
    """Where the trace is written: beside the folders of the attempts. Raises NotReady where there is no room."""
    node = os.path.dirname(os.path.dirname(os.path.abspath(os.environ["DISTUI_RANK_FILES"])))
    try:
        room = os.statvfs(node)
    except OSError as error:
        raise NotReady("%s cannot be written: %s" % (node, error.strerror)) from None
    if room.f_bavail * room.f_frsize < LEAST_FREE:
        raise NotReady(
            "less than %d MiB are free on the disk of %s: make room there" % (LEAST_FREE >> 20, node)
        )
    return os.path.join(node, "profiles", name)


def _of_script(torch: Any) -> bool:
    """Whether a profiler of the script's own is on, or warms up."""
    if (
        getattr(torch.autograd.profiler, "_is_profiler_enabled", False)
        or torch._C._autograd._profiler_enabled()
    ):
        return True
    idle = getattr(torch.profiler.ProfilerAction, "NONE", None)
    kind = torch.profiler.profile
    return any(
        item.current_action is not idle
        and getattr(item, "profiler", None) is not None
        and getattr(item.profiler, "kineto_results", None) is None
        for item in gc.get_objects()
        if issubclass(type(item), kind)
    )


def _made(torch: Any) -> Any:
    """torch's profiler of the CPU, and of the device that this process uses."""
    kinds = torch.profiler.ProfilerActivity
    activities = [kinds.CPU]
    for name in ("cuda", "xpu"):
        device = getattr(torch, name, None)
        if device is not None and hasattr(kinds, name.upper()) and device.is_initialized():
            activities.append(getattr(kinds, name.upper()))
    return torch.profiler._KinetoProfile(activities=activities)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Kineto reads this variable at its first start, and writes of each start and stop without it."""
    name = "KINETO_LOG_LEVEL"
    if name in os.environ:
        yield
        return
    os.environ[name] = "99"
    try:
        yield
    finally:
        os.environ.pop(name, None)


def _mark(count: int) -> None:
    """A span of no length at a step boundary, in the trace."""
    with sys.modules["torch"].autograd.profiler.record_function("%s%d" % (STEP_MARK, count)):
        pass


def _written(job: ProfileRequest) -> str:
    """The path of the trace, as JSON. Raises NotReady where it could not be written whole."""
    path = os.path.join(job.folder, "rank-%s.json" % os.environ.get("RANK", "0"))
    torch, job.torch = job.torch, None
    try:
        os.makedirs(job.folder, mode=0o700, exist_ok=True)
        with open(path, "xb", opener=private):
            pass
        torch.export_chrome_trace(path)
        os.chmod(path, 0o600)  # Kineto has replaced it by a file of its own
        _check(path)
    except OSError as error:
        for left in (path, path + ".tmp"):  # Kineto's own
            with contextlib.suppress(OSError):
                os.unlink(left)
        raise NotReady("%s could not be written: %s" % (path, error.strerror or error)) from None
    return path


def _check(path: str) -> None:
    """Kineto reports no error of a write: what is cut ends otherwise. Raises OSError."""
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 64))
        whole = file.read().rstrip().endswith(b"}")
    if not whole:
        raise OSError(28, "it is cut: the disk is full, or the quota is used up")
