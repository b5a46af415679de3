"""distui from Python: all that the command line does, as typed calls.

    from distui import api

    run = api.launch("train.py", "--lr", "1e-3", preset="ddp", nproc_per_node=2)
    run.wait("running")
    run.restart(env={"NCCL_DEBUG": "INFO"})
    for line in run.logs(ranks=[0]):
        print(line)
    run.stop()

These calls block until they are complete. Where an event loop runs, as in a notebook, they refuse: `await` those of
`api.aio` there. A wrong argument type raises TypeError, every other problem a `RunError`; both have a text of one
sentence. A run outlives the program that launched it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

from ..run.errors import (
    NoSuchRunError,
    NoTorchError,
    RefusedError,
    RunError,
    UnknownOutcomeError,
    UnreachableError,
)
from . import aio
from .async_run import AsyncRun, RunFacts
from .blocking import blocking, blocking_method, blocking_stream

__all__ = [
    "AsyncRun",
    "NoSuchRunError",
    "NoTorchError",
    "RefusedError",
    "Run",
    "RunError",
    "UnknownOutcomeError",
    "UnreachableError",
    "advise",
    "aio",
    "attach",
    "candidates",
    "diagnose_files",
    "diff",
    "doctor",
    "execute",
    "jobs",
    "launch",
    "lint",
    "lint_command",
    "lint_files",
    "ls",
    "plan",
    "preset",
    "presets",
    "prunable",
    "prune",
    "runs",
    "watch",
]

P = ParamSpec("P")


def _giving_a_run(call: Callable[P, AsyncRun]) -> Callable[P, Run]:
    """Return the call, with a Run in place of an AsyncRun."""

    @functools.wraps(call)
    def form(*args: P.args, **kwargs: P.kwargs) -> Run:
        return Run(call(*args, **kwargs).entry)

    return form


class Run(RunFacts):
    """A run, live or ended. Its calls block; `aio` is the same run with asynchronous calls."""

    __slots__ = ()

    @property
    def aio(self) -> AsyncRun:
        return AsyncRun(self.entry)

    status = blocking_method(AsyncRun.status)
    wait = blocking_method(AsyncRun.wait)
    logs = blocking_stream(AsyncRun.logs)
    events = blocking_stream(AsyncRun.events)
    metrics = blocking_method(AsyncRun.metrics)
    diagnose = blocking_method(AsyncRun.diagnose)
    dump = blocking_method(AsyncRun.dump)
    profile = blocking_method(AsyncRun.profile)
    export = blocking_method(AsyncRun.export)

    restart = blocking_method(AsyncRun.restart)
    nccl = blocking_method(AsyncRun.nccl)
    signal = blocking_method(AsyncRun.signal)
    stop = blocking_method(AsyncRun.stop)
    share = blocking_method(AsyncRun.share)
    unshare = blocking_method(AsyncRun.unshare)
    autostop = blocking_method(AsyncRun.autostop)
    down = blocking_method(AsyncRun.down)
    remove = blocking_method(AsyncRun.remove)

    notes = blocking_method(AsyncRun.notes)
    note = blocking_method(AsyncRun.note)
    clear_notes = blocking_method(AsyncRun.clear_notes)
    tag = blocking_method(AsyncRun.tag)

    rerun = _giving_a_run(blocking_method(AsyncRun.rerun))


launch = _giving_a_run(blocking(aio.launch))
execute = _giving_a_run(blocking(aio.execute))
attach = _giving_a_run(blocking(aio.attach))
plan = blocking(aio.plan)
lint = blocking(aio.lint)
lint_files = blocking(aio.lint_files)
lint_command = blocking(aio.lint_command)
advise = blocking(aio.advise)
presets = blocking(aio.presets)
preset = blocking(aio.preset)
candidates = blocking(aio.candidates)
doctor = blocking(aio.doctor)
ls = blocking(aio.ls)
jobs = blocking(aio.jobs)
watch = blocking(aio.watch)
diff = blocking(aio.diff)
diagnose_files = blocking(aio.diagnose_files)
prune = blocking(aio.prune)
prunable = blocking(aio.prunable)


def runs() -> list[Run]:
    """Return every known run on this machine, newest first. Raises RunError."""
    return [Run(each.entry) for each in blocking(aio.runs)()]
