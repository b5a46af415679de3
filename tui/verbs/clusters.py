"""candidates, down, autostop, relaunch: nodes that SkyPilot brings, and what becomes of a run's cluster."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any

import msgspec

from ...presets import skypilot
from ...presets.finding import PlanError
from ...presets.sanitize import clean_text
from ...runners import run_directories
from ...runners.errors import RunError
from ...runners.hub import launch_order, sky_cloud
from ...runners.hub.sky_process import Candidate, candidates_for
from ...runners.launch import prepare, sky
from ...runners.local_agent import with_link
from ...runners.model import (
    Cluster,
    Down,
    SetAutostop,
)
from ...runners.wire.client import new_id
from ..rows import confirm
from ..rows.form import candidate_table
from ..rows.glyphs import plain
from .launch import begin, node_resources, show


def candidates(options: argparse.Namespace) -> int:
    """Which nodes SkyPilot would take, cheapest first."""
    text = options.nnodes or "1"
    if not text.isdecimal() or not int(text):
        raise RunError(f"--nnodes {text}: a number of nodes, from 1 on")
    try:
        wish = skypilot.check(node_resources(options))
    except PlanError as error:
        raise RunError(str(error)) from None
    offers = asyncio.run(candidates_for(wish, int(text)))
    if options.json:
        rows = [{field: getattr(offer, field) for field in Candidate.__slots__} for offer in offers]
        sys.stdout.write(json.dumps(rows) + "\n")
        return 0 if offers else 1
    sys.stdout.write("\n".join(candidate_table(offers)) + "\n")
    return 0 if offers else 1


def down(options: argparse.Namespace) -> int:
    """Take a run's cluster down, after its name was typed."""
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
    """Minutes without a job after which a run's cluster goes."""
    entry, cluster = _cluster(options.run)
    if cluster.down:
        raise RunError(f"cluster {cluster.name} is down")
    return _command(options, entry, SetAutostop(new_id(), options.minutes))


def relaunch(options: argparse.Namespace) -> int:
    """The same launch again, as a new run."""
    entry = run_directories.resolve(options.run)
    if not run_directories.ended(entry) and options.name is None and not options.dry_run:
        raise RunError(
            f"{entry.record.name} is live: `distui stop {entry.record.name}` first, or --name OTHER"
        )
    place = prepare if launch_order.read(entry.path) is None else sky
    launch = place.again(entry, options.name)
    return show(launch, options) if options.dry_run else begin(launch, options)


def _cluster(run: str | None) -> tuple[run_directories.Entry, Cluster]:
    """A run and its cluster. Raises RunError."""
    entry = run_directories.resolve(run)
    launched = launch_order.read(entry.path)
    if launched is None:
        raise RunError(f"{entry.record.name} has no cluster: it was not launched through SkyPilot")
    if launched.managed:
        raise RunError(f"{entry.record.name} is a managed job: SkyPilot takes its cluster down itself")
    cluster = entry.state().cluster or Cluster()
    return entry, msgspec.structs.replace(cluster, name=launched.cluster)


def _command(options: argparse.Namespace, entry: run_directories.Entry, command: Down | SetAutostop) -> int:
    """Through the hub where the run is live, else straight to SkyPilot."""

    async def use(entry: run_directories.Entry, link: Any) -> Any:
        return await link.send(command)

    if run_directories.ended(entry):
        ok, text = asyncio.run(sky_cloud.carry_out(entry, command))
    else:
        done = asyncio.run(with_link(entry.record.run, use))
        ok, text = done.ok, done.text
    return _answer(options, ok, text)


def _answer(options: argparse.Namespace, ok: bool, text: str) -> int:
    if options.json:
        sys.stdout.write(json.dumps({"ok": ok, "text": text}) + "\n")
    elif ok:
        sys.stdout.write(f"{clean_text(text)}\n")
    else:
        sys.stderr.write(f"distui: {clean_text(text)}\n")
    return 0 if ok else 1
