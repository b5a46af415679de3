"""attach, replay: the cockpit on a run or on the list of runs, here or through ssh."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
from pathlib import Path
from typing import Any

from ...runners.run import run_directories, shared_sockets
from ...runners.run.errors import RunError, UnreachableError
from ...runners.run.wire.client import LinkError
from ...runners.run.wire.ssh import HostError
from ..terminal import complaint, draws_ascii_alone


def open_cockpit(options: argparse.Namespace) -> int:
    """Open the only live run, or the list (`distui` without a verb)."""
    live = [entry for entry in run_directories.entries() if not run_directories.ended(entry)]
    return show(live[0].record.run if len(live) == 1 else None, options.readonly, options.ascii)


def attach(options: argparse.Namespace) -> int:
    """Open one run."""
    if options.host is not None:
        return _attach_on_host(options)
    if options.run is not None and options.run.endswith(f"/{shared_sockets.NAME}"):
        return _attach_shared(Path(options.run), options.ascii)
    run = run_directories.resolve(options.run).record.run
    return show(run, options.readonly, options.ascii)


def replay(options: argparse.Namespace) -> int:
    """Open the record of a run that has ended, or a bundle that another person exported."""
    if options.run is not None and os.path.isfile(options.run):
        from ...runners.reports.bundle_reader import opened  # rarely needed

        check_terminal()
        with opened(Path(options.run)) as manifest:
            return show(manifest.run, readonly=True, ascii_only=options.ascii, replay=True)
    entry = run_directories.resolve(options.run)
    if not run_directories.ended(entry):
        raise RunError(f"run {entry.record.name} is live: `distui attach {entry.record.name}` opens it")
    return show(entry.record.run, readonly=True, ascii_only=options.ascii, replay=True)


def check_terminal() -> None:
    """Raise RunError if there is no terminal."""
    if problem := complaint():
        raise RunError(problem)


def show(run: str | None, readonly: bool, ascii_only: bool, **options: Any) -> int:
    """Run the cockpit and return its exit status. `options` are those of CockpitApp; `source`: its runs."""
    check_terminal()
    gc.disable()  # start-up creates no garbage; the app enables it again
    from .. import app, source

    runs = options.pop("source", None) or source.LocalSource(readonly)
    plain = ascii_only or draws_ascii_alone(os.environ)
    return app.run_cockpit(runs, run, readonly=readonly, ascii_only=plain, **options)


def _attach_shared(path: Path, ascii_only: bool) -> int:
    """Open a run that another user of this host shares. Raises RunError."""
    from ...runners.run.wire import shared_link
    from ..shared_source import SharedSource

    async def try_link() -> None:
        link = await shared_link.connect(path)
        await link.close()

    check_terminal()
    try:
        asyncio.run(try_link())
    except LinkError as error:
        raise UnreachableError(str(error)) from None
    return show(str(path), readonly=True, ascii_only=ascii_only, source=SharedSource(path))


def _attach_on_host(options: argparse.Namespace) -> int:
    """Run the other host's cockpit in this terminal through ssh. Raises RunError."""
    from ...runners.launch.hosts import attach_words, command_on, named_ways

    check_terminal()
    (way,) = named_ways([options.host], "--host", options.ssh_config)
    try:
        command = asyncio.run(command_on(way))
    except HostError as error:
        raise UnreachableError(str(error)) from None
    flags = [flag for flag, on in (("--readonly", options.readonly), ("--ascii", options.ascii)) if on]
    words = attach_words(way, command, options.run, *flags)
    os.execvp(words[0], words)
