"""LaunchRequest, and what every place prepares from it."""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from ...presets.plan import Plan, Request
from ...presets.render import plan_to_json
from ...presets.skypilot import Resources
from .. import local_agent, run_directories
from ..errors import RunError
from ..history import RunRecord
from ..hub.launch_order import LAUNCH_FILE
from ..inrank.secure_channel import KEY_FILE
from ..node.job import HUB_FILE, Document
from ..remote_hosts import Named

# -----------------------------------------------------------------------------------------------------------
# What to launch and where: one request for every place.


@dataclass(frozen=True, slots=True)
class Here:
    """This machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnHosts:
    """Machines that are reached by ssh."""

    hosts: Sequence[Named]
    options: tuple[str, ...] = ()
    """Options of ssh."""
    head: str = ""
    """Address of the first host, seen from the others; "": as it was reached by ssh."""
    workdir: str = ""
    """Directory here that is copied; "": the code is there already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnSky:
    """Nodes that SkyPilot brings."""

    resources: Resources
    cluster: str | None = None
    """Name of the cluster; None: one of this run alone."""
    managed: bool = False
    retry_until_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """A script under a preset, a command, or a task of SkyPilot, and a place."""

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
    place: Here | OnHosts | OnSky = field(default_factory=Here)
    port: int | None = None
    """Of the rendezvous; None: a free one."""


# -----------------------------------------------------------------------------------------------------------
# A launch that is planned and not started: what it prints, and how its hub starts where a hub launches it.


@dataclass(frozen=True, slots=True)
class Prepared(ABC):
    """A plan and the record under which it would run."""

    plan: Plan
    record: RunRecord

    @abstractmethod
    def start(self) -> run_directories.Entry:
        """Write it down and start it. Raises RunError."""

    @abstractmethod
    def text(self) -> str:
        """What `--dry-run` prints."""

    @abstractmethod
    def json(self) -> dict[str, Any]:
        """The same as JSON values."""

    def task_yaml(self) -> str:
        """The task as SkyPilot gets it, secrets masked; "" where SkyPilot brings no nodes."""
        return ""


def check_port(port: int | None) -> None:
    """A port of the rendezvous of several nodes; the one after it is NCCL's RAS's. Raises RunError."""
    if port is not None and not 0 < port < 65535:
        raise RunError(f"--port {port}: a port is a number from 1 to 65534")


def hub_record(record: RunRecord, plan: Plan) -> RunRecord:
    """The record of a run that a hub keeps."""
    return msgspec.structs.replace(record, kind="hub", nnodes=plan.nnodes)


def start_hub(
    prepared: Prepared,
    order: Struct,
    hidden: Mapping[str, str] | None = None,
    addresses: tuple[str, ...] | None = None,
    cargo: str = "",
) -> run_directories.Entry:
    """Write plan, order, job document and the run's key down and start the hub, which launches. Raises RunError.

    `hidden`: secrets for the hub's environment alone; `cargo`: the folder in which document and key travel to the nodes.
    """
    plan, record = prepared.plan, prepared.record
    document = Document(
        run=record.run,
        run8=record.run8,
        name=record.name,
        created=record.created,
        nnodes=plan.nnodes,
        plan=plan_to_json(plan, masked=True),
        addresses=addresses,
    )
    text, key = msgspec.json.encode(document).decode(), secrets.token_hex(32)
    files = {LAUNCH_FILE: json.dumps(msgspec.to_builtins(order), indent=1), HUB_FILE: text, KEY_FILE: key}
    if cargo:
        files |= {f"{cargo}/jobs/{record.run}.json": text, f"{cargo}/jobs/{record.run}.key": key}
    return local_agent.start(plan, record, files, hidden)
