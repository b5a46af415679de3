"""From what a user typed to a run on hosts that the user named: who they are, what they lack, plan, order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..presets.errors import PlanError
from ..presets.load import load
from ..presets.model import Loaded
from ..presets.plan import Place, Plan, Request, make_plan
from ..presets.render import plan_to_json, render
from ..presets.spread import rendezvous_port
from ..presets.topology import parse_nnodes
from ..runners import local, registry
from ..runners.errors import RunError, UnreachableError
from ..runners.hosts import names
from ..runners.hosts.calls import Way
from ..runners.hosts.names import Named
from ..runners.hosts.probe import Found, Wanted, addresses, ask_all, notes
from ..runners.hub.on_hosts import KIND, Order
from . import spreading
from .starting import run_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Where, and how the hosts are reached."""

    hosts: Sequence[Named]
    options: tuple[str, ...] = ()
    """Of ssh."""
    head: str = ""
    """Address of the first host, seen from the others; "": as it was reached by ssh."""
    workdir: str = ""
    """Directory here that is copied; "": the code is there already."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """A plan for all nodes, its record, and the hosts. Starts as starting.Prepared does."""

    plan: Plan
    record: registry.RunRecord
    order: Order
    found: tuple[Found, ...]

    def text(self) -> str:
        """What `--dry-run` prints."""
        lines = [
            f"  node {node}  {host.destination}  {address}  {host.gpus} GPUs  {host.cores} cores"
            f"  torch {host.torch or 'n/a'}"
            for node, (host, address) in enumerate(zip(self.found, self.order.addresses, strict=True))
        ]
        code = (
            f"  {self.order.workdir} is copied to ~/.distui/{self.order.work}" if self.order.workdir else ""
        )
        return "\n".join([render(self.plan), "Hosts", "", *lines, *filter(None, [code]), ""])

    def json(self) -> dict[str, Any]:
        """The same as JSON values."""
        hosts = [
            {"host": host.destination, "address": address, "gpus": host.gpus, "cores": host.cores, "torch": host.torch}
            for host, address in zip(self.found, self.order.addresses, strict=True)
        ]  # fmt: skip
        return {
            "plan": plan_to_json(self.plan, masked=True),
            "hosts": hosts,
            "workdir": self.order.workdir or None,
        }

    def start(self) -> registry.Entry:
        """Write it down and start the hub, which launches. Raises RunError."""
        return spreading.start(self.plan, self.record, self.order, addresses=self.order.addresses)


def prepare(
    preset: str, overrides: Sequence[str], request: Request, wish: Wish, port: int | None = None
) -> Ordered:
    """Ask every host, and plan a run on them. Raises RunError and PresetError."""
    loaded = load(preset, overrides)
    spreading.check_port(port)
    record = registry.new_record(request.name or run_name(request.script))
    try:
        wish = replace(wish, hosts=_as_many(wish.hosts, request))
        asked = _request(loaded, request, wish)
        found = _asked(wish, wanted(asked, wish))
        where, problem = addresses(found, wish.head)
        if problem:
            raise RunError(problem)
        plan = make_plan(loaded, asked, _place(record, asked, wish, found, port))
    except PlanError as error:
        raise RunError(str(error)) from None
    plan = replace(plan, notes=(*plan.notes, *notes(found)))
    order = Order(
        kind=KIND,
        hosts=tuple(host.destination for host in found),
        names=tuple(_names(found)),
        addresses=tuple(where),
        options=wish.options,
        workdir=wish.workdir,
        work=_work(record) if wish.workdir else "",
    )
    return Ordered(plan, spreading.hub_record(record, plan), order, tuple(found))


def _as_many(hosts: Sequence[Named], request: Request) -> Sequence[Named]:
    """The hosts that are used: all, or the first of them. Raises RunError and PlanError."""
    if request.nnodes is None:
        return hosts
    _, most = parse_nnodes(request.nnodes)
    if most > len(hosts):
        raise RunError(f"--nnodes {request.nnodes} needs {most} hosts, and {len(hosts)} are named")
    return hosts[: max(most, 1)]


def _request(loaded: Loaded, request: Request, wish: Wish) -> Request:
    """With the number of nodes, and the ranks that a hostfile's slots ask for. Raises RunError."""
    per_node = request.nproc_per_node
    if per_node is None:
        per_node = names.slots(list(wish.hosts))
    nnodes = request.nnodes
    if nnodes is None:
        fewest = loaded.preset.topology.nnodes_min
        nnodes = len(wish.hosts) if fewest is None else f"{min(fewest, len(wish.hosts))}:{len(wish.hosts)}"
    python = request.python
    if python and "/" in python and not python.startswith("~"):
        python = str(Path.cwd() / python)
    return replace(request, nproc_per_node=per_node, nnodes=nnodes, python=python)


def _asked(wish: Wish, wants: Wanted) -> list[Found]:
    """What every host is. Raises UnreachableError that names each that cannot be used."""
    ways = [Way(host.destination, wish.options) for host in wish.hosts]
    found, refused = asyncio.run(ask_all(ways, wants))
    if refused:
        count = f"{len(refused)} of {len(ways)} hosts" if len(ways) > 1 else "the host"
        listed = "".join(f"\n  {why}" for why in refused)
        raise UnreachableError(f"{count} cannot be used, and nothing was started:{listed}")
    return found


def wanted(request: Request, wish: Wish) -> Wanted:
    """What each host must have. Raises PlanError."""
    script = "" if request.no_python or request.module else request.script or ""
    if wish.workdir:
        if script and not Path(script).is_absolute() and not (Path(wish.workdir) / script).is_file():
            raise PlanError(f"There is no script {script} in {wish.workdir}: give its path from there.")
        outside = Path(script).is_absolute() or script.startswith("~")
        return Wanted(
            script=script if outside else "", python=request.python or "", torch=not request.no_python
        )
    return Wanted(str(Path.cwd()), script, request.python or "", not request.no_python)


def _place(
    record: registry.RunRecord, request: Request, wish: Wish, found: Sequence[Found], port: int | None
) -> Place:
    port = rendezvous_port(record.run8) if port is None else port
    return Place(
        run=record.run,
        run_dir=str(registry.runs_dir() / record.run),
        port=port,
        ras_port=port + 1,
        gpus=min(host.gpus for host in found),
        cores=min(host.cores for host in found),
        cwd=f"~/.distui/{_work(record)}" if wish.workdir else str(Path.cwd()),
        python="",
        nodes=len(found),
        script_source=_source(request, wish),
    )


def _source(request: Request, wish: Wish) -> bytes | None:
    """The script's text where it is here, too."""
    if request.script is None or request.no_python or request.module:
        return None
    return local.read_source(Path(wish.workdir or ".") / request.script)


def _work(record: registry.RunRecord) -> str:
    """Below ~/.distui on every host: one directory a run, so that nothing under a live one changes."""
    return f"work/{record.run}"


def _names(found: Sequence[Found]) -> list[str]:
    """How the screen names the hosts: by their own names where those differ."""
    own = [host.hostname or host.destination for host in found]
    return own if not names.duplicates(own) else [host.destination for host in found]
