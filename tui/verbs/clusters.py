"""candidates, down, autostop: the nodes that SkyPilot would take, and the cluster of a run."""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import asdict
from typing import TypedDict

from ...runners.hub import cluster_commands
from ...runners.launch import sky
from ...runners.launch.words import request_of
from ...runners.run import clock, run_directories
from ...runners.run.commands import Down
from ...runners.run.model import Cluster, CommandDone
from ..rows import confirm
from ..rows.candidates import candidate_table
from ..rows.glyphs import plain
from ..terminal import answer, complain


def candidates(options: argparse.Namespace) -> int:
    """Print SkyPilot's candidate nodes, cheapest first."""
    offers = asyncio.run(sky.candidates(request_of(vars(options))))
    answer(options.json, [asdict(offer) for offer in offers], candidate_table(offers))
    return 0 if offers else 1


def down(options: argparse.Namespace) -> int:
    """Take a run's cluster down, after the user typed its name."""
    entry = run_directories.resolve(options.run)
    cluster, typed = cluster_commands.cluster_of(entry), options.yes
    if typed is None and not cluster.down:
        typed = _typed_name(entry, cluster)
    return _report(options, asyncio.run(cluster_commands.tear_down(entry, typed or "")))


def _typed_name(entry: run_directories.Entry, cluster: Cluster) -> str:
    """Show the consequences, and return the name that the user types."""
    state = entry.state()
    state.cluster, state.phase = cluster, run_directories.phase(entry)
    asked = confirm.down(state, Down("", cluster.name), clock.now())
    sys.stderr.write("\n".join([asked.title, *plain(asked.lines), "type its name to take it down: "]))
    sys.stderr.flush()
    return sys.stdin.readline().strip()


def autostop(options: argparse.Namespace) -> int:
    """Set the idle minutes before a run's cluster is taken down."""
    entry = run_directories.resolve(options.run)
    return _report(options, asyncio.run(cluster_commands.set_autostop(entry, options.minutes)))


class Answer(TypedDict):
    """`down`, `autostop`."""

    ok: bool
    text: str


def _report(options: argparse.Namespace, done: CommandDone) -> int:
    if done.ok or options.json:
        answer(options.json, Answer(ok=done.ok, text=done.text), [done.text])
    else:
        complain(done.text)
    return 0 if done.ok else 1
