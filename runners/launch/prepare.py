"""Plan a request for any place: here for this machine, in hosts.py for hosts, in sky.py for cloud nodes."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import replace

from ...presets import skypilot
from ...presets.finding import PlanError
from ...presets.launch_option import NODES
from ...presets.load import load
from ...presets.node_plans import for_host
from ...presets.plan import Plan, command_plan, make_plan
from ...presets.render import LOG_CAP
from ...presets.request import REQUEST_OPTIONS, Request
from ..logs import log_settings
from ..node import executable, local_agent
from ..notify import channels
from ..notify.rule_words import OFF
from ..run import machine, run_directories
from ..run.errors import RunError
from . import hosts, sky
from .prepared import Prepared, run_name


def prepare(request: Request) -> Prepared:
    """Plan a run in any place without starting it. Raises RunError and PresetError."""
    configured = channels.load()
    words = channels.resolved(request.notify, configured)
    request = hosts.settled(request)
    _check_place(request)
    try:
        ready = _planned(request)
    except PlanError as error:
        raise RunError(str(error)) from None
    plan, wrong = ready.plan, () if words == (OFF,) else configured.problems
    cap, kept = request.log_cap, log_settings.LogSettings()
    if cap is None:
        kept = log_settings.load()
        cap, wrong = kept.cap, tuple(dict.fromkeys((*wrong, *kept.problems)))
    plan = replace(
        plan,
        log_cap=cap,
        origins={**plan.origins, LOG_CAP: str(configured.path)} if kept.cap else plan.origins,
        notify=words,
        notes=(*plan.notes, *wrong),
        passed=(*plan.passed, *wrong),
    )
    return replace(ready, plan=plan, asked=request)


def _check_place(request: Request) -> None:
    """Raise RunError for options that do not belong to the place of the run."""
    of_nodes = [
        option.flags[0]
        for field, option in REQUEST_OPTIONS.items()
        if option.heading == NODES and getattr(request, field)
    ]
    if request.hosts:
        _check_hosts(request, of_nodes)
    elif of_nodes and not request.through_sky:
        raise RunError(f"{of_nodes[0]} is for nodes through SkyPilot: add --on sky, or --on INFRA")
    if request.task is not None and request.adopt:
        raise RunError(
            "--adopt needs a preset and a script, and --task FILE has neither: leave one of them out"
        )


def _check_hosts(request: Request, of_nodes: Sequence[str]) -> None:
    """Raise RunError for options that the user's own hosts cannot have."""
    if request.on != "local":
        raise RunError(f"--on {request.on} and named hosts exclude each other: leave one out")
    foreign = [flag for flag in of_nodes if flag != "--workdir"]
    if foreign:
        raise RunError(f"{foreign[0]} is for nodes through SkyPilot, not for hosts of your own")


def _planned(request: Request) -> Prepared:
    """Plan a request in its place. Raises RunError, PresetError and PlanError."""
    if request.hosts:
        return hosts.prepare(request)
    if request.through_sky:
        return sky.prepare(request)
    return _here(request)


def _here(request: Request) -> Prepared:
    """Plan a script under a preset, or any command, on this machine."""
    command = request.command
    loaded = load(request.preset, request.overrides) if command is None else None
    script = request.script if command is None else next(iter(command), None)
    record = run_directories.new_record(request.name or run_name(script))
    place = local_agent.place(record, request)
    plan = make_plan(loaded, request, place) if loaded else command_plan(command or (), request, place)
    plan = for_host(plan, record.host)
    if request.no_python or loaded is None:
        _check_program(plan)
    if loaded is not None:
        machine.check_python(plan.python)
    if request.port is not None:
        _check_free(request.port)
    return Prepared(plan, record)


def _check_program(plan: Plan) -> None:
    """Refuse a program that cannot be executed, before anything starts. Raises RunError."""
    problem = executable.refusal(plan.command[0], plan.cwd, {**os.environ, **plan.env})
    if problem is not None:
        raise RunError(". ".join(filter(None, (problem, skypilot.note_on_command(plan.command)))))


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
