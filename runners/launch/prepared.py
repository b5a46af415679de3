"""A planned launch: its plan and record, its printed form, and its start."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ...presets.finding import PlanError
from ...presets.node_plans import rendezvous_port
from ...presets.plan import Place, Plan
from ...presets.plan_json import plan_to_json
from ...presets.render import render
from ...presets.request import Request
from ...presets.secrets import mask, mask_value, mask_words
from ..hub.launch_order import CARGO, SkyRequest
from ..hub.merged_run import LAUNCH_FILE
from ..hub.on_hosts import HostsRequest
from ..hub.sky_process import check_installed
from ..inrank.secure_channel import KEY_FILE
from ..node import local_agent, script_files
from ..node.job_document import HUB_FILE, Document
from ..run import machine, run_directories
from ..run.errors import RunError
from ..run.run_record import RunRecord
from .start_preview import Preview, preview_of

REQUEST_FILE = "request.json"
"""File in a run directory with the `Request` and the directory of the launch."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A planned launch that is not started: the plan, and the record of the future run."""

    plan: Plan
    record: RunRecord
    order: HostsRequest | SkyRequest | None = None
    """The order for the run's hub, or None if this machine's agent starts the plan."""
    hidden: Mapping[str, str] = field(default_factory=dict)
    """More secrets, which only the hub's memory holds."""
    shell: Mapping[str, str] | None = None
    """Environment that the ranks on this machine inherit, or None for this process's."""
    details: str = ""
    """Text below the plan: the hosts, or the SkyPilot task."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """The details as JSON values."""
    yaml: str = ""
    """The task as SkyPilot gets it, with secrets masked, or "" without SkyPilot."""
    asked: Request | None = None
    """The request, which the run directory keeps for a rerun."""
    cwd: str = ""
    """The directory of the request, or "" for this process's."""

    def text(self) -> str:
        """Return the output of `--dry-run`."""
        text = render(self.plan, self._preview().lines(self.plan))
        return f"{text}\n{self.details}" if self.details else text

    def json(self) -> dict[str, Any]:
        """Return the output as JSON values."""
        plan = plan_to_json(self.plan, masked=True) | {"starts": asdict(self._preview().masked())}
        return plan if self.order is None else {"plan": plan, **self.about}

    def _preview(self) -> Preview:
        if self.order is None:
            shell = os.environ if self.shell is None else self.shell
            return preview_of(self.plan, shell, self.record.run8)
        return preview_of(self.plan, {}, here=False)

    def start(self) -> run_directories.Entry:
        """Write the run's files, and start its agent or hub, which launches.

        Raises RunError. If SkyPilot is missing, nothing is written before.
        """
        machine.check_system()
        asked = (
            {} if self.asked is None else {REQUEST_FILE: request_text(self.asked, self.cwd or os.getcwd())}
        )
        if self.order is None:
            return local_agent.start(self.plan, self.record, asked, shell=self.shell)
        if isinstance(self.order, SkyRequest):
            asyncio.run(check_installed())
        files = asked | self._hubs_files(self.order)
        return local_agent.start(self.plan, self.record, files, self.hidden)

    def _hubs_files(self, order: HostsRequest | SkyRequest) -> dict[str, str]:
        """Return order, job document and the run's key. SkyPilot also takes the latter two to the nodes."""
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


def request_text(request: Request, cwd: str) -> str:
    """Return the request as JSON, with secrets masked."""
    masked: dict[str, Any] = mask_value(msgspec.to_builtins(request))
    masked |= {"env": _masked(request.env), "nccl": _masked(request.nccl)}
    masked["env_on"] = {pattern: _masked(values) for pattern, values in request.env_on.items()}
    masked["args"] = mask_words(request.args)
    masked["command"] = None if request.command is None else mask_words(request.command)
    return json.dumps({"cwd": cwd, "request": masked}, indent=1)


def _masked(values: Mapping[str, str]) -> dict[str, str]:
    return {name: mask(name, value) for name, value in values.items()}


def place_of_nodes(record: RunRecord, port: int | None, **about: Any) -> Place:
    """Return the place of a run on other machines. `port`: of the rendezvous, or None for the one from the run's ID."""
    port = rendezvous_port(record.run8) if port is None else port
    run_dir = str(run_directories.runs_dir() / record.run)
    return Place(run=record.run, run_dir=run_dir, port=port, ras_port=port + 1, python="", **about)


def script_texts(request: Request) -> dict[str, Any]:
    """Return the texts of a Python script that is also on this machine, as fields of `Place`."""
    folder = Path(request.workdir or ".")
    path = folder / (request.script or "")
    is_file = bool(request.script) and not request.no_python and not request.module
    source = script_files.read_source(path) if is_file else None
    beside, config = script_files.read_around(path, source, folder, request.args)
    return {"script_source": source, "script_beside": beside, "script_config": config}


def check_inside(script: str | None, workdir: str) -> None:
    """Check that a script, relative to `workdir`, lies in it, because only `workdir` is copied. Raises PlanError."""
    if script is None or "://" in workdir or Path(script).is_absolute() or script.startswith("~"):
        return
    if not (Path(workdir) / script).resolve().is_relative_to(Path(workdir).resolve()):
        raise PlanError(
            f"Script {script} lies outside {workdir}, and only that directory is copied to the nodes: cd to a "
            "directory that holds the script, or name one with --workdir"
        )


def hub_record(record: RunRecord, plan: Plan) -> RunRecord:
    """Return the record of a run with a hub."""
    return msgspec.structs.replace(record, kind="hub", nnodes=plan.nnodes)


def check_port(port: int | None) -> None:
    """Check a rendezvous port of several nodes. The next port is for NCCL's RAS. Raises RunError."""
    if port is not None and not 0 < port < 65535:
        raise RunError(f"--port {port}: a port is a number from 1 to 65534")


def run_name(script: str | None) -> str:
    """Return a run's name from its script: the stem, with invalid characters replaced."""
    stem = (script or "run").rsplit("/", 1)[-1].removesuffix(".py")
    kept = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in stem
    )
    return kept.lstrip("._-")[:64] or "run"
