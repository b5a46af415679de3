"""Runs on nodes that SkyPilot brings: their launch, candidates, and what becomes of the cluster."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from ...presets.errors import PlanError
from ...presets.launchers import skypilot
from ...presets.launchers.skypilot import Resources
from ...runners import registry
from ...runners.errors import RunError
from ...runners.hub import after, order
from ...runners.hub.candidates import Candidate
from ...runners.hub.cloud import candidates_for
from ...runners.model import Cluster, Down, SetAutostop
from ...runners.state import RunState
from ...runners.wire.client import new_id
from ..connect import with_link
from ..ordering import Ordered, Wish, again, prepare, prepare_task
from ..rows.cells import plural
from .launch import begin, preset_of, request_of, script_of, show


def prepare_launch(options: argparse.Namespace) -> Ordered:
    """The run that the options mean. Raises RunError and PresetError."""
    wish = Wish(
        resources=resources(options),
        cluster=options.cluster,
        managed=options.managed,
        retry_until_up=options.retry_until_up,
    )
    if options.task is None:
        request = request_of(options, script_of(options))
        return prepare(preset_of(options), options.set, request, wish, options.port)
    if options.preset is not None or options.rest:
        raise RunError("--task FILE says what runs: leave PRESET and SCRIPT out")
    return prepare_task(options.task, request_of(options, {"nnodes": options.nnodes}), wish)


def resources(options: argparse.Namespace) -> Resources:
    """What each node should be. Raises RunError."""
    return Resources(
        infra=None if options.on in ("sky", "local") else options.on,
        gpus=options.gpus,
        cpus=options.cpus,
        memory=options.memory,
        spot=options.spot,
        region=options.region,
        image=options.image,
        network_tier=options.network_tier,
        any_of=tuple(_pairs(one.split(","), "--any-of") for one in options.any_of),
        workdir=options.workdir,
        setup=options.setup,
        mounts=_pairs(options.mount, "--mount"),
        autostop_min=options.autostop,
    )


def _pairs(words: list[str], option: str) -> Mapping[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise RunError(f"{option} {word}: write it as NAME=VALUE")
        found[name] = value
    return found


def candidates(options: argparse.Namespace) -> int:
    """Which nodes SkyPilot would take, cheapest first."""
    text = options.nnodes or "1"
    if not text.isdecimal() or not int(text):
        raise RunError(f"--nnodes {text}: a number of nodes, from 1 on")
    try:
        wish = skypilot.check(resources(options))
    except PlanError as error:
        raise RunError(str(error)) from None
    found = asyncio.run(candidates_for(wish, int(text)))
    if options.json:
        rows = [{field: getattr(one, field) for field in Candidate.__slots__} for one in found]
        sys.stdout.write(json.dumps(rows) + "\n")
        return 0 if found else 1
    sys.stdout.write(table(found))
    return 0 if found else 1


def table(found: list[Candidate]) -> str:
    """The candidates as lines."""
    rows = [("INFRA", "INSTANCE", "VCPUS", "GB", "GPUS", "$/HOUR", "")]
    for one in found:
        price = "n/a" if one.price_per_hour is None else f"{one.price_per_hour:.2f}"
        cells = (
            one.infra,
            one.instance or "-",
            one.vcpus or "-",
            one.memory_gb or "-",
            one.gpus or "-",
            price,
        )
        rows.append((*cells, "chosen" if one.chosen else ""))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def down(options: argparse.Namespace) -> int:
    """Take a run's cluster down, after its name was typed."""
    entry, cluster = _cluster(options.run)
    if cluster.down:
        return _say(options, True, f"cluster {cluster.name} is down already")
    typed = options.yes
    if typed is None:
        sys.stderr.write(_loses(entry, cluster))
        sys.stderr.flush()
        typed = sys.stdin.readline().strip()
    if typed != cluster.name:
        raise RunError(f"{typed!r} is not the name of the cluster ({cluster.name}): nothing was done")
    return _command(options, entry, Down(new_id(), cluster.name))


def _loses(entry: registry.Entry, cluster: Cluster) -> str:
    lines = [
        f"cluster {cluster.name} ({cluster.infra or 'not up yet'}, {cluster.resources or 'no nodes known'})"
    ]
    if not registry.ended(entry):
        lines.append(f"  run {entry.record.name} is live on it: {_at(entry.state())}")
    lines.append("  everything on its disks is lost: checkpoints, logs, data that was not copied")
    lines.append("type its name to take it down: ")
    return "\n".join(lines)


def _at(state: RunState) -> str:
    """Where a live run stands, and what becomes of it."""
    if not state.ranks:
        return f"{state.phase}, no rank yet; it is given up first"
    ranks, nodes = plural(len(state.ranks), "rank"), plural(len(state.nodes), "node")
    return f"{state.phase}, attempt {state.attempt}, {ranks} on {nodes}; they are stopped first"


def autostop(options: argparse.Namespace) -> int:
    """Minutes without a job after which a run's cluster goes."""
    entry, cluster = _cluster(options.run)
    if cluster.down:
        raise RunError(f"cluster {cluster.name} is down")
    return _command(options, entry, SetAutostop(new_id(), options.minutes))


def relaunch(options: argparse.Namespace) -> int:
    """The same launch again."""
    entry = registry.resolve(options.run)
    if not registry.ended(entry) and options.name is None:
        raise RunError(
            f"{entry.record.name} is live: `distui stop {entry.record.name}` first, or --name OTHER"
        )
    prepared = again(entry, options.name)
    return show(prepared, options) if options.dry_run else begin(prepared, options)


def _cluster(run: str | None) -> tuple[registry.Entry, Cluster]:
    """A run and its cluster. Raises RunError."""
    entry = registry.resolve(run)
    found = order.read(entry.path)
    if found is None:
        raise RunError(f"{entry.record.name} has no cluster: it was not launched through SkyPilot")
    if found.managed:
        raise RunError(f"{entry.record.name} is a managed job: SkyPilot takes its cluster down itself")
    known = entry.state().cluster or Cluster()
    return entry, msgspec.structs.replace(known, name=found.cluster)


def _command(options: argparse.Namespace, entry: registry.Entry, command: Down | SetAutostop) -> int:
    """Through the hub where the run is live, else straight to SkyPilot."""

    async def use(entry: registry.Entry, link: Any) -> Any:
        return await link.send(command)

    if registry.ended(entry):
        ok, text = asyncio.run(after.do(entry, command))
    else:
        done = asyncio.run(with_link(entry.record.run, use))
        ok, text = done.ok, done.text
    return _say(options, ok, text)


def _say(options: argparse.Namespace, ok: bool, text: str) -> int:
    if options.json:
        sys.stdout.write(json.dumps({"ok": ok, "text": text}) + "\n")
    elif ok:
        sys.stdout.write(f"{text}\n")
    else:
        sys.stderr.write(f"distui: {text}\n")
    return 0 if ok else 1
