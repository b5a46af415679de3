"""Profile some steps of this rank with torch.profiler, from a step boundary that the agent chooses for all ranks.

A thread of the hook arms the request. The optimizer step then starts and stops the profiler in the training thread, as
torch requires. The thread that requests the trace writes it. torch runs one profiler at a time; the script's profiler
has precedence. No error of this module reaches the script.
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

from .control import NotReady, private
from .import_watch import PATCH_ERRORS, untraced
from .rank_changes import defaulted

MOST_STEPS = 100
"""Most steps of a profile: each step takes memory of the rank until the trace is written."""
LEAST_FREE = 256 << 20
"""Bytes that must be free on the disk of the trace."""
LONGEST_S = 600.0
"""A recording ends at the first step boundary after this many seconds."""
STEP_MARK = "distui.step#"
"""Prefix of the name of the mark at each step boundary, before the number of the finished step."""
GUARDED = ("_prepare_profiler", "_enable_profiler")
"""Functions of torch.autograd.profiler that every profiler calls at its start."""
OWN = "torch.profiler is in use by the script itself, which goes first: profile once that is over"
BUSY = "a profile is under way: profile again once it is over"
_FOLDER = re.compile(r"[0-9A-Za-z-]{1,64}")


class ProfileRequest:
    def __init__(self, folder: str, first: int, steps: int, thread: int) -> None:
        self.folder, self.first, self.last = folder, first, first + steps - 1
        """First and last recorded step, in the numbers of Steps."""
        self.thread = thread
        """Thread of the requesting connection. If that closes, the profile is dropped."""
        self.state = "armed"
        """Next: "warm" (the last step before the recording), "recording", "recorded"; or "off"."""
        self.why = ""
        """Reason for "off"."""
        self.torch: Any = None
        """torch's profiler, from "warm" on."""
        self.trainer = 0
        """Id of the training thread."""
        self.began, self.pid = 0.0, os.getpid()

    def left_out(self) -> bool:
        """Return whether the profile is recorded or dropped."""
        return self.state in ("recorded", "off")


class Profiles:
    """The profiles of this rank, one at a time."""

    def __init__(self, steps: Any) -> None:
        """Prepare profiles of this rank; `steps` is the hook's Steps."""
        self._steps = steps
        self._job: ProfileRequest | None = None
        self._lock = threading.RLock()
        self._real: dict[str, Any] = {}
        """Name → function that `_guard` has replaced."""
        self._mine = False
        """True during this module's calls into torch."""
        self._closes = False
        """True once `_end` is registered with atexit."""

    # --- called by threads of the hook

    def arm(self, request: dict[str, Any]) -> dict[str, Any]:
        """Arm a recording of "steps" steps from step "first" on, into "folder". Answers "late" if that step is too near.

        Raises NotReady with the reason if no profile is possible.
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
        # the warm-up begins at a boundary in the future
        if self._steps.count >= first - 2 and job.state == "armed":
            self._drop(job, "too late")
            return {"late": self._steps.count}
        return {"count": self._steps.count}

    def ready(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return steps and seconds per step if a profile is possible. Raises NotReady."""
        if not self._steps.count:
            raise NotReady("no optimizer step so far, and a profile is of steps")
        self._torch()
        job = self._job
        if job is not None and not job.left_out():
            raise NotReady(BUSY)
        return {"count": self._steps.count, "step_s": self._steps.pace}

    def progress(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the progress of the profile. Once it is recorded, write the trace and return its "file"."""
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
        """Drop the profile of this thread, whose connection is closed."""
        job = self._job
        if job is not None and job.thread == threading.get_ident():
            self._drop(job, "no viewer waits for it any more")

    def begin(self) -> None:
        """Reset the state in a fork that has become a rank."""
        self._job, self._lock, self._mine = None, threading.RLock(), False
        self._steps.watch = None

    def _drop(self, job: ProfileRequest, why: str) -> None:
        """Drop a profile without a trace. A running profiler stops at the next step boundary."""
        with self._lock:
            on = job.state in ("warm", "recording")
            job.state, job.why = "off", why
            if not on:
                job.torch = None
                self._over(job)

    def _over(self, job: ProfileRequest) -> None:
        """Restore torch's functions and the hook's Steps."""
        if self._job is job:
            self._steps.watch = None
            self._unguard()

    # --- called by the training thread

    @untraced
    def _stepped(self, count: int) -> None:
        """Advance the profile after an optimizer step."""
        job = self._job
        if job is None or job.pid != os.getpid():
            return
        with self._lock:
            try:
                with self._own_call():
                    self._advance(job, count)
            except PATCH_ERRORS as error:
                job.state, job.torch = "off", None
                job.why = "torch.profiler failed: %s: %s" % (type(error).__name__, error)
                self._over(job)

    def _advance(self, job: ProfileRequest, count: int) -> None:
        if job.state == "armed":
            self._warm_up(job, count)
        elif job.state == "off":
            self._stop(job)
        elif job.trainer == threading.get_ident():
            self._record(job, count)

    def _warm_up(self, job: ProfileRequest, count: int) -> None:
        """Prepare the profiler two steps before the first recorded one."""
        if count < job.first - 2:
            return
        if count > job.first - 2:
            job.state, job.why = "off", "step %d had passed before the profile could begin" % job.first
            self._over(job)
            return
        job.torch, job.trainer = _made(self._torch()), threading.get_ident()
        with defaulted("KINETO_LOG_LEVEL", "99"):  # else Kineto logs each start and stop
            job.torch.prepare_trace()
        job.state = "warm"

    def _record(self, job: ProfileRequest, count: int) -> None:
        """Start the recording after the warm-up, and stop it after the last step."""
        if job.state == "warm":
            with defaulted("KINETO_LOG_LEVEL", "99"):  # else Kineto logs each start and stop
                job.torch.start_trace()
            job.state, job.began = "recording", time.monotonic()
            _mark(count)
        elif job.state == "recording":
            _mark(count)
            if count >= job.last or time.monotonic() - job.began > LONGEST_S:
                job.torch.stop_trace()
                job.state = "recorded"
                self._over(job)

    def _stop(self, job: ProfileRequest) -> None:
        """Stop the profiler of a dropped profile."""
        if job.torch is not None and job.trainer == threading.get_ident():
            if not job.began:
                job.torch.start_trace()  # a prepared trace must start before it can stop
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
        """Patch torch so that a profiler of the script first stops this one: torch crashes with two."""
        module = torch.autograd.profiler
        for name in GUARDED:
            if name not in self._real:
                self._real[name] = getattr(module, name)
                setattr(module, name, self._guarded(self._real[name]))

    def _guarded(self, real: Any) -> Any:
        @untraced
        def begun(*args: Any, **named: Any) -> Any:
            if not self._mine:
                with contextlib.suppress(*PATCH_ERRORS):
                    self._give_way()
            return real(*args, **named)

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
        """Stop the profiler at exit. Without that, the process dies of a segmentation fault."""
        job = self._job
        if (
            job is not None and not job.left_out() and job.pid == os.getpid()
        ):  # in a fork the lock may be held
            with self._lock, contextlib.suppress(*PATCH_ERRORS), self._own_call():
                job.state, job.why = "off", "ended before step %d" % job.last
                self._stop(job)

    def _torch(self) -> Any:
        """Return torch if it has the profiler's expected attributes. Raises NotReady."""
        torch = sys.modules.get("torch")
        profiler = getattr(torch, "profiler", None)
        module = sys.modules.get("torch.autograd.profiler")
        if not hasattr(profiler, "_KinetoProfile") or not all(hasattr(module, name) for name in GUARDED):
            raise NotReady("this torch has no torch.profiler that distui can start")
        if not getattr(module, "kineto_available", bool)():
            raise NotReady("this torch was built without Kineto, which torch.profiler needs")
        return torch


def _folder(name: str) -> str:
    """Return the folder for the trace, next to those of the attempts. Raises NotReady if the disk has no room."""
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
    """Return whether a profiler of the script is running or in its warm-up."""
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
    """Create torch's profiler for the CPU and for the device types that this process uses."""
    kinds = torch.profiler.ProfilerActivity
    activities = [kinds.CPU]
    for name in ("cuda", "xpu"):
        device = getattr(torch, name, None)
        if device is not None and hasattr(kinds, name.upper()) and device.is_initialized():
            activities.append(getattr(kinds, name.upper()))
    return torch.profiler._KinetoProfile(activities=activities)


def _mark(count: int) -> None:
    """Add an empty span at a step boundary to the trace."""
    with sys.modules["torch"].autograd.profiler.record_function("%s%d" % (STEP_MARK, count)):
        pass


def _written(job: ProfileRequest) -> str:
    """Write the trace as JSON and return its path. Raises NotReady if it could not be written completely."""
    path = os.path.join(job.folder, "rank-%s.json" % os.environ.get("RANK", "0"))
    torch, job.torch = job.torch, None
    try:
        os.makedirs(job.folder, mode=0o700, exist_ok=True)
        with open(path, "xb", opener=private):
            pass
        torch.export_chrome_trace(path)
        os.chmod(path, 0o600)  # Kineto has replaced the file
        _check(path)
    except OSError as error:
        for left in (path, path + ".tmp"):  # the .tmp is Kineto's
            with contextlib.suppress(OSError):
                os.unlink(left)
        raise NotReady("%s could not be written: %s" % (path, error.strerror or error)) from None
    return path


def _check(path: str) -> None:
    """Check that the file ends with "}", because Kineto reports no write errors. Raises OSError."""
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 64))
        whole = file.read().rstrip().endswith(b"}")
    if not whole:
        raise OSError(28, "it is cut: the disk is full, or the quota is used up")
