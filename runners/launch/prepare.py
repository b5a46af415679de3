"""A launch: the request, its plan under a record, the start; on this machine here, elsewhere in hosts.py and sky.py."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shlex
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from ...presets.finding import PlanError
from ...presets.load import load
from ...presets.nccl import check
from ...presets.plan import Plan, Request, command_plan, make_plan
from ...presets.render import for_host, plan_to_json, render
from ...presets.secrets import MASK
from .. import daemon, environment, local_agent, run_directories
from ..environment import pairs
from ..errors import RunError
from ..hub.launch_order import CARGO, SkyRequest
from ..hub.merged_run import LAUNCH_FILE
from ..hub.on_hosts import HostsRequest
from ..hub.sky_process import check_installed
from ..inrank.secure_channel import KEY_FILE
from ..journal import RunRecord
from ..node.job import HUB_FILE, Document
from . import preview

PORT_OPTIONS = ("--rdzv-endpoint", "--master-port", "--main_process_port", "--master_port")
PORT_VARIABLES = ("NCCL_RAS_ADDR", "MASTER_PORT")


class LaunchPlace(ABC):
    """Where a launch goes; each kind plans for itself."""

    @abstractmethod
    def prepare(self, launch: LaunchRequest) -> Prepared:
        """Plan a run there. Raises RunError, PresetError and PlanError."""


@dataclass(frozen=True, slots=True)
class Here(LaunchPlace):
    """This machine."""

    def prepare(self, launch: LaunchRequest) -> Prepared:
        """A script under a preset, or any command."""
        request, command = launch.request, launch.command
        loaded = load(launch.preset, launch.overrides) if command is None else None
        script = request.script if command is None else next(iter(command), None)
        record = run_directories.new_record(request.name or run_name(script))
        place = local_agent.place(record, request, launch.port)
        plan = make_plan(loaded, request, place) if loaded else command_plan(command or (), request, place)
        plan = for_host(plan, record.host)
        if request.no_python or loaded is None:
            _check_program(plan)
        if loaded is not None:
            local_agent.check_python(plan.python)
        if launch.port is not None:
            _check_free(launch.port)
        return Prepared(plan, record)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """A script under a preset, a command, or a task of SkyPilot, and where."""

    request: Request = field(default_factory=Request)
    """The script with its arguments, and what all of them have: name, variables, restarts."""
    preset: str = ""
    """Name of the preset; "" for a command or a task."""
    overrides: tuple[str, ...] = ()
    """Fields of the preset that are changed: "mesh.tp=2"."""
    command: tuple[str, ...] | None = None
    """Any program, supervised as it is; on this machine."""
    task: str = ""
    """File of a SkyPilot task; on SkyPilot's nodes."""
    place: LaunchPlace = field(default_factory=Here)
    port: int | None = None
    """Of the rendezvous; None: a free one."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A launch that is planned and not started: the plan, and the record under which it would run."""

    plan: Plan
    record: RunRecord
    order: HostsRequest | SkyRequest | None = None
    """What the run's hub carries out; None: this machine's agent starts the plan."""
    hidden: Mapping[str, str] = field(default_factory=dict)
    """Secrets for the hub's memory alone, beside those of the plan."""
    shell: Mapping[str, str] | None = None
    """What the ranks on this machine inherit; None: this process's environment."""
    details: str = ""
    """What is printed below the plan: the hosts, or the SkyPilot task."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """The same as JSON values."""
    yaml: str = ""
    """The task as SkyPilot gets it, secrets masked; "" where SkyPilot brings no nodes."""

    def text(self) -> str:
        """What `--dry-run` prints."""
        text = render(self.plan, preview.lines(self._preview(), self.plan))
        return f"{text}\n{self.details}" if self.details else text

    def json(self) -> dict[str, Any]:
        """The same as JSON values."""
        plan = plan_to_json(self.plan, masked=True) | {"starts": preview.document(self._preview())}
        return plan if self.order is None else {"plan": plan, **self.about}

    def _preview(self) -> preview.Preview:
        if self.order is None:
            return preview.preview(self.plan, os.environ, self.record.run8)
        return preview.preview(self.plan, {}, here=False)

    def start(self) -> run_directories.Entry:
        """Write it down and start its agent, or its hub, which launches.

        Raises RunError; where SkyPilot is missing before anything is written.
        """
        if self.order is None:
            return local_agent.start(self.plan, self.record, shell=self.shell)
        if isinstance(self.order, SkyRequest):
            asyncio.run(check_installed())
        return local_agent.start(self.plan, self.record, self._hubs_files(self.order), self.hidden)

    def _hubs_files(self, order: HostsRequest | SkyRequest) -> dict[str, str]:
        """Order, job document and the run's key; the latter two also where SkyPilot takes them to the nodes."""
        record = self.record
        document = Document(
            run=record.run,
            run8=record.run8,
            name=record.name,
            created=record.created,
            nnodes=self.plan.nnodes,
            plan=plan_to_json(self.plan, masked=True),
            addresses=order.addresses if isinstance(order, HostsRequest) else None,
        )
        text, key = msgspec.json.encode(document).decode(), secrets.token_hex(32)
        files = {
            LAUNCH_FILE: json.dumps(msgspec.to_builtins(order), indent=1),
            HUB_FILE: text,
            KEY_FILE: key,
        }
        if isinstance(order, SkyRequest):
            files |= {f"{CARGO}/jobs/{record.run}.json": text, f"{CARGO}/jobs/{record.run}.key": key}
        return files


def prepare(launch: LaunchRequest) -> Prepared:
    """Plan a run, wherever it goes; nothing is started. Raises RunError and PresetError."""
    try:
        return launch.place.prepare(launch)
    except PlanError as error:
        raise RunError(str(error)) from None


def hub_record(record: RunRecord, plan: Plan) -> RunRecord:
    """The record of a run that a hub keeps."""
    return msgspec.structs.replace(record, kind="hub", nnodes=plan.nnodes)


def check_port(port: int | None) -> None:
    """A port of the rendezvous of several nodes; the one after it is NCCL's RAS's. Raises RunError."""
    if port is not None and not 0 < port < 65535:
        raise RunError(f"--port {port}: a port is a number from 1 to 65534")


def _check_program(plan: Plan) -> None:
    """What cannot be executed is refused before anything starts. Raises RunError."""
    problem = local_agent.refusal(plan.command[0], plan.cwd, {**os.environ, **plan.env})
    if problem is not None:
        raise RunError(problem)


def _check_free(port: int) -> None:
    if not 0 < port < 65536:
        raise RunError(f"--port {port}: a port is a number from 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise RunError(
                f"port {port} is not free ({error.strerror}): choose another, or leave --port out"
            ) from None


# -----------------------------------------------------------------------------------------------------------
# The launch of an earlier run once more.


def again(entry: run_directories.Entry, name: str | None) -> Prepared:
    """The launch of `entry` under a new id. Raises RunError."""
    if entry.record.kind != "local":
        raise RunError(
            f"run {entry.record.name} was launched on several hosts: `distui launch` starts it anew"
        )
    before, kept = daemon.load(entry), environment.read(entry.path)
    if kept is None:
        raise RunError(
            f"{entry.path / environment.FILE} is missing or damaged: `distui launch` starts {entry.record.name} anew"
        )
    if any(MASK in word for word in before.argv):
        raise RunError(
            f"arguments of {entry.record.name} hold secrets, which are never written down: "
            "`distui launch` starts it anew"
        )
    missing = sorted(name for name in kept.hidden if name not in os.environ)
    if missing:
        raise RunError(
            f"{', '.join(missing)}: secrets are never written down; export them here and relaunch again"
        )
    hidden = {name: os.environ[name] for name in kept.hidden}
    record = run_directories.new_record(name or entry.record.name)
    return Prepared(_moved(before, record, hidden), record, shell={**kept.values, **hidden})


def _moved(before: Plan, record: RunRecord, hidden: Mapping[str, str]) -> Plan:
    """The plan with the new run's id, directory and ports, and its secrets filled in; what the user wrote stays."""
    ports: dict[str, str] = {}

    def renamed(text: str) -> str:
        return text.replace(before.run, record.run)

    def ported(text: str) -> str:
        return re.sub(r"\d+$", lambda old: ports.setdefault(old[0], str(local_agent.free_port())), text)

    own = len(before.argv) - len(before.command)
    argv = [renamed(word) if at < own else word for at, word in enumerate(before.argv)]
    for at in range(1, own):
        if argv[at - 1] in PORT_OPTIONS:
            argv[at] = ported(argv[at])
    env = {name: hidden.get(name, renamed(value)) for name, value in before.env.items()}
    env |= {name: ported(env[name]) for name in PORT_VARIABLES if name in env}
    run_dir = str(run_directories.runs_dir() / record.run)
    return replace(
        before,
        run=record.run,
        name=record.name,
        run_dir=run_dir,
        # Files of the plan lie in the run directory, also where the user's own words name them by it.
        argv=tuple(word.replace(before.run_dir, run_dir) for word in argv),
        env=env,
        files={name: renamed(text) for name, text in before.files.items()},
    )


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
