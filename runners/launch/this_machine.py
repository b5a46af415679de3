"""A run on this machine: from a request to its plan, and the launch of an earlier run once more."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...presets.finding import PlanError
from ...presets.load import load
from ...presets.plan import Plan, command_plan, make_plan
from ...presets.render import for_host, plan_to_json, render
from ...presets.secrets import MASK
from .. import daemon, environment, local_agent, preview, run_directories
from ..errors import RunError
from ..history import RunRecord
from ..local_agent import refusal
from .hosts import run_name
from .request import LaunchRequest, Prepared

PORT_OPTIONS = ("--rdzv-endpoint", "--master-port", "--main_process_port", "--master_port")
PORT_VARIABLES = ("NCCL_RAS_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class PreparedHere(Prepared):
    """A plan for this machine."""

    shell: Mapping[str, str] | None = None
    """What the ranks inherit; None: this process's environment."""

    def start(self) -> run_directories.Entry:
        """Write it down and start its agent, which starts the ranks. Raises RunError."""
        return local_agent.start(self.plan, self.record, shell=self.shell)

    def text(self) -> str:
        """What `--dry-run` prints."""
        return render(self.plan, preview.lines(self._preview(), self.plan))

    def json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return plan_to_json(self.plan, masked=True) | {"starts": preview.document(self._preview())}

    def _preview(self) -> preview.Preview:
        return preview.preview(self.plan, os.environ, self.record.run8)


def prepare(launch: LaunchRequest) -> PreparedHere:
    """Plan a run of a script under a preset. Raises RunError and PresetError."""
    loaded, request = load(launch.preset, launch.overrides), launch.request
    record = run_directories.new_record(request.name or run_name(request.script))
    place = local_agent.place(record, request, launch.port)
    try:
        plan = for_host(make_plan(loaded, request, place), record.host)
    except PlanError as error:
        raise RunError(str(error)) from None
    if request.no_python:
        _check_program(plan)
    local_agent.check_python(plan.python)
    if launch.port is not None:
        _check_port(launch.port)
    return PreparedHere(plan, record)


def prepare_command(launch: LaunchRequest) -> PreparedHere:
    """Plan a run of any command. Raises RunError."""
    command, request = launch.command or (), launch.request
    record = run_directories.new_record(request.name or run_name(command[0] if command else None))
    try:
        plan = for_host(command_plan(command, request, local_agent.place(record, request)), record.host)
    except PlanError as error:
        raise RunError(str(error)) from None
    _check_program(plan)
    return PreparedHere(plan, record)


def _check_program(plan: Plan) -> None:
    """What cannot be executed is refused before anything starts. Raises RunError."""
    problem = refusal(plan.command[0], plan.cwd, {**os.environ, **plan.env})
    if problem is not None:
        raise RunError(problem)


def _check_port(port: int) -> None:
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


def again(entry: run_directories.Entry, name: str | None) -> PreparedHere:
    """The launch of `entry` under a new id. Raises RunError."""
    if entry.record.kind != "local":
        raise RunError(f"{entry.record.name} was launched on several hosts: `distui launch` starts it anew")
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
    missing = sorted(names for names in kept.hidden if names not in os.environ)
    if missing:
        raise RunError(
            f"{', '.join(missing)}: secrets are never written down; export them here and relaunch again"
        )
    secrets = {hidden: os.environ[hidden] for hidden in kept.hidden}
    record = run_directories.new_record(name or entry.record.name)
    return PreparedHere(_moved(before, record, secrets), record, {**kept.values, **secrets})


def _moved(before: Plan, record: RunRecord, secrets: Mapping[str, str]) -> Plan:
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
    env = {name: secrets.get(name, renamed(value)) for name, value in before.env.items()}
    env |= {name: ported(env[name]) for name in PORT_VARIABLES if name in env}
    return replace(
        before,
        run=record.run,
        name=record.name,
        run_dir=str(run_directories.runs_dir() / record.run),
        argv=_with_folder(argv, before, record),
        env=env,
        files={name: renamed(text) for name, text in before.files.items()},
    )


def _with_folder(argv: Sequence[str], before: Plan, record: RunRecord) -> tuple[str, ...]:
    """Files of the plan lie in the run directory, also where the user's own words name them by it."""
    new = str(run_directories.runs_dir() / record.run)
    return tuple(word.replace(before.run_dir, new) for word in argv)
