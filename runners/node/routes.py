"""Routes to the nodes of a run, kept in nodes.json; also for a viewer on one of the nodes.

No text in nodes.json can become an option or a word of a shell.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
from msgspec import Struct

from ...presets.finding import PlanError
from ...presets.plan import Plan
from ...presets.plan_json import plan_from_json, plan_to_json
from ..run import file_io, own_runs, run_directories
from ..run.errors import RunError, UnreachableError
from ..run.run_record import RunRecord
from ..run.wire.client import stem

NAME = "nodes.json"
KINDS = ("unix", "ssh", "via")
_WORD = re.compile(r"[A-Za-z0-9._/~-]+")
_DESTINATION = re.compile(r"[A-Za-z0-9_.@:%\[\]/+-]+")


class Route(Struct, frozen=True, omit_defaults=True):
    node: int
    host: str
    """Name on screens."""
    kind: str
    """Kind of the route. "unix": `target` is the agent's socket on this machine. "ssh": `target` is a destination of the
    user's ssh. "via": `target` is the socket of an agent on this machine that relays to the node."""
    target: str
    options: tuple[str, ...] = ()
    """Additional ssh options, e.g. ("-F", FILE)."""
    remote: tuple[str, ...] = ()
    """Words of the bridge's command on an ssh host."""


def check(route: Route) -> Route:
    """Return the route if it is valid. Raises RunError."""
    if route.kind not in KINDS:
        raise RunError(f"node {route.node}: unknown route {route.kind!r}: use unix, ssh or via")
    if route.kind != "ssh":
        if not route.target.startswith("/"):
            raise RunError(f"node {route.node}: {route.target!r} is not the absolute path of a socket")
        return route
    check_destination(route.target)
    if not route.remote:
        raise RunError(f"node {route.node}: no command for {route.target} is given")
    for word in route.remote:
        check_remote_word(word)
    return route


def check_destination(text: str) -> str:
    """Return a destination for ssh that cannot be taken for an option. Raises RunError."""
    if text.startswith("-"):
        raise RunError(f"host {text!r} begins with '-': ssh would take it for an option, rename it")
    if not _DESTINATION.fullmatch(text):
        raise RunError(f"host {text!r} is not a host name: use letters, digits, '.', '-', '_' and '@'")
    return text


def check_remote_word(word: str) -> str:
    """Return a word that every shell (bash, fish, csh) passes unchanged without quotes. Raises RunError."""
    if not _WORD.fullmatch(word):
        raise RunError(
            f"{word!r} cannot be sent through ssh: only letters, digits and ./_~- pass every shell"
        )
    return word


def read(run_dir: Path) -> list[Route]:
    """Read the routes of nodes.json, by node; [] if it does not exist yet. Raises RunError."""
    path = run_dir / NAME
    try:
        routes = msgspec.json.decode(path.read_bytes(), type=list[Route])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as error:
        raise RunError(f"{path} cannot be read ({error}): remove it, or write it again") from None
    return sorted((check(route) for route in routes), key=lambda route: route.node)


def write(run_dir: Path, routes: Sequence[Route]) -> None:
    """Replace nodes.json. Raises RunError for an invalid route, OSError."""
    checked = [check(route) for route in sorted(routes, key=lambda route: route.node)]
    file_io.write_atomically(run_dir / NAME, msgspec.json.encode(checked))


def keep(part: run_directories.Entry) -> run_directories.Entry:
    """Return the hub's entry for the run of a part, created if missing. Raises RunError."""
    record = part.record
    path = run_directories.runs_dir() / record.whole
    entry = run_directories.at(path)
    if entry is not None:
        return entry
    own_runs.check(part.path)
    ways = ways_from_here(run_directories.parts(record.whole), record.nnodes)
    whole = RunRecord(
        record.whole,
        record.run8.rpartition("n")[0],
        record.name,
        record.created,
        platform.node(),
        "hub",
        nnodes=record.nnodes,
    )
    try:
        plan = _whole_plan(part, record.whole, str(path))
        path.mkdir(mode=0o700, exist_ok=True)
        file_io.write_atomically(
            path / run_directories.PLAN_FILE, json.dumps(plan_to_json(plan), indent=1).encode()
        )
        write(path, ways)
        own_runs.write_mark(path)
        file_io.write_atomically(path / run_directories.RUN_FILE, msgspec.json.encode(whole))
    except (OSError, ValueError, PlanError) as error:
        raise RunError(f"cannot keep {record.name} in {path} ({error}): free space there") from None
    return run_directories.Entry(path, whole)


def _whole_plan(part: run_directories.Entry, run: str, run_dir: str) -> Plan:
    plan = plan_from_json(json.loads((part.path / run_directories.PLAN_FILE).read_text()))
    return replace(plan, run=run, run_dir=run_dir, node=0, env={**plan.env, "DISTUI_RUN_ID": run})


def ways_from_here(parts: list[run_directories.Entry], nnodes: int) -> list[Route]:
    """Routes to the parts on this machine by their sockets, to the others through the first of these.

    Raises UnreachableError if no part is on this machine.
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
