"""A run on several nodes, seen from one of them: who looks there makes a hub for it on the spot."""

from __future__ import annotations

import json
import platform
from dataclasses import replace

import msgspec

from ...presets.finding import PlanError
from ...presets.plan import Plan
from ...presets.render import plan_from_json, plan_to_json
from .. import file_io, run_directories
from ..errors import RunError, UnreachableError
from ..history import RunRecord
from ..wire.client import stem
from . import routes
from .routes import Route


def keep(part: run_directories.Entry) -> run_directories.Entry:
    """The hub's record of the run that a part belongs to, made if there is none. Raises RunError."""
    record = part.record
    path = run_directories.runs_dir() / record.whole
    entry = run_directories.at(path)
    if entry is not None:
        return entry
    ways = ways_from_here(run_directories.parts(record.whole), record.nnodes)
    whole = RunRecord(
        record.whole, record.run8.rpartition("n")[0], record.name, record.created, platform.node(), "hub",
        nnodes=record.nnodes,
    )  # fmt: skip
    try:
        plan = _whole_plan(part, record.whole, str(path))
        path.mkdir(mode=0o700, exist_ok=True)
        file_io.write_atomically(
            path / run_directories.PLAN_FILE, json.dumps(plan_to_json(plan), indent=1).encode()
        )
        routes.write(path, ways)
        file_io.write_atomically(path / run_directories.RUN_FILE, msgspec.json.encode(whole))
    except (OSError, ValueError, PlanError) as error:
        raise RunError(f"cannot keep {record.name} in {path} ({error}): free space there") from None
    return run_directories.Entry(path, whole)


def _whole_plan(part: run_directories.Entry, run: str, run_dir: str) -> Plan:
    plan = plan_from_json(json.loads((part.path / run_directories.PLAN_FILE).read_text()))
    return replace(plan, run=run, run_dir=run_dir, node=0, env={**plan.env, "DISTUI_RUN_ID": run})


def ways_from_here(parts: list[run_directories.Entry], nnodes: int) -> list[Route]:
    """To the parts on this machine by their sockets, to the others through the first of these.

    Raises UnreachableError where no part is on this machine.
    """
    here = {part.record.node: part for part in parts if part.record.host == platform.node()}
    if not here:
        there = ", ".join(dict.fromkeys(part.record.host for part in parts))
        raise UnreachableError(
            f"no part of this run is on this machine: ssh to {there} and run distui there"
        )
    hosts = {part.record.node: part.record.host for part in parts}
    relay = _socket(here[min(here)])
    return [
        Route(node, hosts[node], "unix", _socket(here[node]))
        if node in here
        else Route(node, hosts.get(node, ""), "via", relay)
        for node in range(nnodes)
    ]


def _socket(part: run_directories.Entry) -> str:
    return f"{stem(part.record.run8)}.sock"
