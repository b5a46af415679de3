"""candidates, down, autostop: the nodes that SkyPilot would take, and the cluster of a run."""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import asdict
from typing import Any, TypedDict

import msgspec

from ...presets import skypilot
from ...presets.finding import PlanError
from ...runners.hub import launch_order, sky_cloud
from ...runners.hub.sky_process import candidates_for
from ...runners.launch import sky
from ...runners.launch.words import request_of
from ...runners.node.local_agent import with_link
from ...runners.run import run_directories
from ...runners.run.commands import Down, SetAutostop
from ...runners.run.errors import RunError
from ...runners.run.model import Cluster
from ...runners.run.wire.client import new_id
from ..rows import confirm
from ..rows.candidates import candidate_table
from ..rows.glyphs import plain
from ..terminal import answer, complain


def candidates(options: argparse.Namespace) -> int:
    """Print SkyPilot's candidate nodes, cheapest first."""
    try:
        config = {} if options.task is None else sky.read_task(options.task)
        wish = skypilot.check(request_of(vars(options)))
    except PlanError as error:
        raise RunError(str(error)) from None
    text = options.nnodes or str(config.get("num_nodes") or 1)
    if not text.isdecimal() or not int(text):
        raise RunError(f"--nnodes {text}: a number of nodes, from 1 on")
    offers = asyncio.run(candidates_for(wish, int(text), config.get("resources") or {}))
    answer(options.json, [asdict(offer) for offer in offers], candidate_table(offers))
    return 0 if offers else 1


def down(options: argparse.Namespace) -> int:
    """Take a run's cluster down, after the user typed its name."""
    entry, cluster = _cluster(options.run)
    if cluster.down:
        return _answer(options, True, f"cluster {cluster.name} is down already")
    command, typed = Down(new_id(), cluster.name), options.yes
    if typed is None:
        state = entry.state()
        state.cluster, state.phase = cluster, run_directories.phase(entry)
        asked = confirm.down(state, command)
        sys.stderr.write("\n".join([asked.title, *plain(asked.lines), "type its name to take it down: "]))
        sys.stderr.flush()
        typed = sys.stdin.readline().strip()
    if typed != cluster.name:
        raise RunError(f"{typed!r} is not the name of the cluster ({cluster.name}): nothing was done")
    return _command(options, entry, command)


def autostop(options: argparse.Namespace) -> int:
    """Set the idle minutes before a run's cluster is taken down."""
    entry, cluster = _cluster(options.run)
    if cluster.down:
        raise RunError(f"cluster {cluster.name} is down")
    return _command(options, entry, SetAutostop(new_id(), options.minutes))


def _cluster(run: str | None) -> tuple[run_directories.Entry, Cluster]:
    """Return a run and its cluster. Raises RunError."""
    entry = run_directories.resolve(run)
    launched = launch_order.read(entry.path)
    if launched is None:
        raise RunError(f"run {entry.record.name} has no cluster: it was not launched through SkyPilot")
    if launched.managed:
        raise RunError(f"run {entry.record.name} is a managed job: SkyPilot takes its cluster down itself")
    cluster = entry.state().cluster or Cluster()
    return entry, msgspec.structs.replace(cluster, name=launched.cluster)


def _command(options: argparse.Namespace, entry: run_directories.Entry, command: Down | SetAutostop) -> int:
    """Send a command through the hub if the run is live, else directly to SkyPilot."""

    async def use(entry: run_directories.Entry, link: Any) -> Any:
        return await link.send(command)

    if run_directories.ended(entry):
        ok, text = asyncio.run(sky_cloud.carry_out(entry, command))
    else:
        done = asyncio.run(with_link(entry.record.run, use))
        ok, text = done.ok, done.text
    return _answer(options, ok, text)


class Answer(TypedDict):
    """`down`, `autostop`."""

    ok: bool
    text: str


def _answer(options: argparse.Namespace, ok: bool, text: str) -> int:
    if ok or options.json:
        answer(options.json, Answer(ok=ok, text=text), [text])
    else:
        complain(text)
    return 0 if ok else 1
