"""Runs that other machines keep (ls --host, attach --host)."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping

from ...presets.sanitize import clean_text
from ...runners.errors import RunError, UnreachableError
from ...runners.hub.routes import check_remote_word
from ...runners.remote_hosts import HostError, Named, Way, checked, command_on, list_on, ssh_options
from ..rows.glyphs import ago, table


def ls(options: argparse.Namespace) -> int:
    """The runs on other hosts; 4 when one cannot be asked."""
    named = checked([Named(host) for host in options.host], "--host")
    config = ssh_options(options.ssh_config)
    runs, problems = asyncio.run(list_on([Way(host.destination, config) for host in named]))
    for problem in problems:
        sys.stderr.write(f"distui: {clean_text(problem)}\n")
    if options.json:
        sys.stdout.write(json.dumps(runs) + "\n")
    elif runs:
        rows: list[tuple[str, ...]] = [
            ("host", "name", "state", "preset", "attempt", "ranks", "began", "id")
        ]
        for run in sorted(runs, key=_created, reverse=True):
            began = ago(_created(run), time.time())
            words = [run.get(key) for key in ("on", "name", "state", "preset", "attempt", "ranks")]
            rows.append(
                (*("" if word is None else str(word) for word in words), began, str(run.get("run")))
            )
        sys.stdout.write("\n".join(table(rows, frozenset({4, 5}))) + "\n")
    elif not problems:
        sys.stdout.write("no runs there\n")
    return UnreachableError.code if problems else 0


def _created(run: Mapping[str, object]) -> float:
    """When, by what another machine says, which may be anything."""
    value = run.get("created")
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e11 else 0.0


def attach(options: argparse.Namespace) -> int:
    """The cockpit of that host, in this terminal through ssh. Raises RunError."""
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        raise RunError("the cockpit needs a terminal: `distui ls --host` prints text")
    (host,) = checked([Named(options.host)], "--host")
    config = ssh_options(options.ssh_config)
    try:
        command = asyncio.run(command_on(Way(host.destination, config)))
    except HostError as error:
        raise UnreachableError(str(error)) from None
    words = ssh_words(host.destination, config, command, options)
    os.execvp(words[0], words)


def ssh_words(
    destination: str, config: tuple[str, ...], command: str, options: argparse.Namespace
) -> list[str]:
    """What is executed in place of this process. Raises RunError for words that no shell passes on."""
    flags = [flag for flag, on in (("--readonly", options.readonly), ("--ascii", options.ascii)) if on]
    remote = [command, *flags, "attach", *filter(None, [options.run])]
    for word in remote:
        check_remote_word(word)
    return [
        "ssh",
        *config,
        "-t",
        "-oServerAliveInterval=5",
        "-oServerAliveCountMax=3",
        "--",
        destination,
        *remote,
    ]
