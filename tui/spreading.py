"""What every launch on several nodes has, whoever brings the nodes: a port, a record, and how its hub starts."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from ..presets.plan import Plan
from ..presets.render import plan_to_json
from ..runners import local, registry
from ..runners.agent.sealing import KEY_FILE
from ..runners.errors import RunError
from ..runners.hub.seam import LAUNCH_FILE
from ..runners.node.document import HUB_FILE, Document


def check_port(port: int | None) -> None:
    """A port of the rendezvous that a user named; the one after it is NCCL's RAS's. Raises RunError."""
    if port is not None and not 0 < port < 65535:
        raise RunError(f"--port {port}: a port is a number from 1 to 65534")


def hub_record(record: registry.RunRecord, plan: Plan) -> registry.RunRecord:
    """The record of a run that a hub keeps."""
    return msgspec.structs.replace(record, kind="hub", nnodes=plan.nnodes)


def start(
    plan: Plan,
    record: registry.RunRecord,
    order: Struct,
    hidden: Mapping[str, str] | None = None,
    addresses: tuple[str, ...] | None = None,
    cargo: str = "",
) -> registry.Entry:
    """Write plan, order, job document and the relay's key down and start the hub, which launches. Raises RunError.

    `hidden`: secrets for the hub's environment alone; `cargo`: the folder in which document and key travel to the nodes.
    """
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
    told = {LAUNCH_FILE: json.dumps(msgspec.to_builtins(order), indent=1), HUB_FILE: text, KEY_FILE: key}
    if cargo:
        told |= {f"{cargo}/jobs/{record.run}.json": text, f"{cargo}/jobs/{record.run}.key": key}
    return local.start(plan, record, told, hidden)
