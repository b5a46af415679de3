"""A launch on named hosts over ssh."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...presets.finding import PlanError
from ...presets.load import load
from ...presets.model import Loaded
from ...presets.nccl import check
from ...presets.plan import Place, Request, make_plan
from ...presets.render import plan_to_json, render, rendezvous_port
from ...presets.worker_group import parse_nnodes
from .. import local_agent, preview, remote_hosts, run_directories
from ..environment import pairs
from ..errors import RunError, UnreachableError
from ..history import RunRecord
from ..hub.on_hosts import KIND, HostsRequest
from ..remote_hosts import HostFacts, Named, Wanted, Way, addresses, ask_all, notes
from .request import LaunchRequest, OnHosts, Prepared, check_port, hub_record, start_hub

# -----------------------------------------------------------------------------------------------------------
# Words that a user types (`K=V`, `HOSTS:K=V`, a script's path) as what a request holds.


def host_pairs(words: Sequence[str]) -> dict[str, dict[str, str]]:
    """`--env-on HOSTS:K=V` words: pattern of host names → variables. Raises RunError."""
    by_pattern: dict[str, dict[str, str]] = {}
    for word in words:
        pattern, colon, pair = word.partition(":")
        if not colon or not pattern:
            raise RunError(
                f"--env-on {word}: write it as HOSTS:NAME=VALUE, as in gpu0?:NCCL_SOCKET_IFNAME==eth1"
            )
        by_pattern.setdefault(pattern, {}).update(pairs([pair], "--env-on"))
    return by_pattern


def nccl_pairs(words: Sequence[str]) -> dict[str, str]:
    """`--nccl K=V` words, checked against the catalogue. Raises RunError."""
    values = pairs(words, "--nccl", "NCCL_")
    for name, value in values.items():
        problem = check(name, value)
        if problem is not None:
            raise RunError(problem)
    return values


def shell_words(text: str, field: str) -> list[str]:
    """What was typed as the words that a shell makes of it. Raises RunError."""
    try:
        return shlex.split(text)
    except ValueError:
        raise RunError(f"{field}: a quote is open in {text}: close it") from None


def run_name(script: str | None) -> str:
    """A run's name from its script: the stem, with what no name may hold replaced."""
    stem = (script or "run").rsplit("/", 1)[-1].removesuffix(".py")
    kept = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in stem
    )
    return kept.lstrip("._-")[:64] or "run"


# -----------------------------------------------------------------------------------------------------------
# A run on hosts that the user names: what they are and lack, the plan, the order for the hub.


@dataclass(frozen=True, slots=True)
class PreparedHosts(Prepared):
    """A plan for all nodes, and the hosts."""

    order: HostsRequest
    facts: tuple[HostFacts, ...]

    def text(self) -> str:
        """What `--dry-run` prints."""
        lines = [
            f"  node {node}  {host.destination}  {address}  {host.gpus} GPUs  {host.cores} cores"
            f"  torch {host.torch or 'n/a'}"
            for node, (host, address) in enumerate(zip(self.facts, self.order.addresses, strict=True))
        ]
        code = (
            f"  {self.order.workdir} is copied to ~/.distui/{self.order.work}" if self.order.workdir else ""
        )
        return "\n".join(
            [
                render(self.plan, preview.elsewhere(self.plan)),
                "Hosts",
                "",
                *lines,
                *filter(None, [code]),
                "",
            ]
        )

    def json(self) -> dict[str, Any]:
        """The same as JSON values."""
        hosts = [
            {"host": host.destination, "address": address, "gpus": host.gpus, "cores": host.cores, "torch": host.torch}
            for host, address in zip(self.facts, self.order.addresses, strict=True)
        ]  # fmt: skip
        return {
            "plan": plan_to_json(self.plan, masked=True) | preview.there(self.plan),
            "hosts": hosts,
            "workdir": self.order.workdir or None,
        }

    def start(self) -> run_directories.Entry:
        """Write it down and start the hub, which launches. Raises RunError."""
        return start_hub(self, self.order, addresses=self.order.addresses)


def prepare(launch: LaunchRequest, place: OnHosts) -> PreparedHosts:
    """Ask every host, and plan a run on them. Raises RunError and PresetError."""
    loaded, request = load(launch.preset, launch.overrides), launch.request
    check_port(launch.port)
    record = run_directories.new_record(request.name or run_name(request.script))
    try:
        place = replace(place, hosts=_as_many(place.hosts, request))
        request = _request(loaded, request, place)
        facts = _probed(place, wanted(request, place))
        where, problem = addresses(facts, place.head)
        if problem:
            raise RunError(problem)
        plan = make_plan(loaded, request, _facts(record, request, place, facts, launch.port))
    except PlanError as error:
        raise RunError(str(error)) from None
    plan = replace(plan, notes=(*plan.notes, *notes(facts)))
    order = HostsRequest(
        kind=KIND,
        hosts=tuple(host.destination for host in facts),
        names=tuple(_names(facts)),
        addresses=tuple(where),
        options=place.options,
        workdir=place.workdir,
        work=_work(record) if place.workdir else "",
    )
    return PreparedHosts(plan, hub_record(record, plan), order, tuple(facts))


def _as_many(hosts: Sequence[Named], request: Request) -> Sequence[Named]:
    """The hosts that are used: all, or the first of them. Raises RunError and PlanError."""
    if request.nnodes is None:
        return hosts
    _, most = parse_nnodes(request.nnodes)
    if most > len(hosts):
        raise RunError(f"--nnodes {request.nnodes} needs {most} hosts, and {len(hosts)} are named")
    return hosts[: max(most, 1)]


def _request(loaded: Loaded, request: Request, place: OnHosts) -> Request:
    """With the number of nodes, and the ranks that a hostfile's slots ask for. Raises RunError."""
    per_node = request.nproc_per_node
    if per_node is None:
        per_node = remote_hosts.slots(list(place.hosts))
    nnodes = request.nnodes
    if nnodes is None:
        fewest = loaded.preset.topology.nnodes_min
        nnodes = (
            len(place.hosts) if fewest is None else f"{min(fewest, len(place.hosts))}:{len(place.hosts)}"
        )
    python = request.python
    if python and "/" in python and not python.startswith("~"):
        python = str(Path.cwd() / python)
    return replace(request, nproc_per_node=per_node, nnodes=nnodes, python=python)


def _probed(place: OnHosts, wants: Wanted) -> list[HostFacts]:
    """What every host is. Raises UnreachableError that names each that cannot be used."""
    ways = [Way(host.destination, place.options) for host in place.hosts]
    facts, refused = asyncio.run(ask_all(ways, wants))
    if refused:
        count = f"{len(refused)} of {len(ways)} hosts" if len(ways) > 1 else "the host"
        raise UnreachableError(f"{count} cannot be used, and nothing was started:", refused)
    return facts


def wanted(request: Request, place: OnHosts) -> Wanted:
    """What each host must have. Raises PlanError."""
    script = "" if request.no_python or request.module else request.script or ""
    if place.workdir:
        if script and not Path(script).is_absolute() and not (Path(place.workdir) / script).is_file():
            raise PlanError(f"There is no script {script} in {place.workdir}: give its path from there.")
        outside = Path(script).is_absolute() or script.startswith("~")
        return Wanted(
            script=script if outside else "", python=request.python or "", torch=not request.no_python
        )
    return Wanted(str(Path.cwd()), script, request.python or "", not request.no_python)


def _facts(
    record: RunRecord,
    request: Request,
    place: OnHosts,
    facts: Sequence[HostFacts],
    port: int | None,
) -> Place:
    port = rendezvous_port(record.run8) if port is None else port
    return Place(
        run=record.run,
        run_dir=str(run_directories.runs_dir() / record.run),
        port=port,
        ras_port=port + 1,
        gpus=min(host.gpus for host in facts),
        cores=min(host.cores for host in facts),
        cwd=f"~/.distui/{_work(record)}" if place.workdir else str(Path.cwd()),
        python="",
        nodes=len(facts),
        script_source=(source := _source(request, place)),
        script_beside=local_agent.read_beside(Path(place.workdir or ".") / (request.script or ""), source),
    )


def _source(request: Request, place: OnHosts) -> bytes | None:
    """The script's text where it is here, too."""
    if request.script is None or request.no_python or request.module:
        return None
    return local_agent.read_source(Path(place.workdir or ".") / request.script)


def _work(record: RunRecord) -> str:
    """Below ~/.distui on every host: one directory a run, so that nothing under a live one changes."""
    return f"work/{record.run}"


def _names(facts: Sequence[HostFacts]) -> list[str]:
    """How the screen names the hosts: by their own names where those differ."""
    own = [host.hostname or host.destination for host in facts]
    return own if not remote_hosts.duplicates(own) else [host.destination for host in facts]
