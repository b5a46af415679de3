"""Launch an earlier run again as a new run, with optional changes.

Without changes, a run on this machine has the plan of the earlier one. With changes, and on hosts, it is planned again
from the earlier request (`request.json`), in the earlier directory and environment.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import Struct

from ...presets.plan import Plan
from ...presets.request import FORM_OPTIONS, Request
from ...presets.secrets import MASK
from ...presets.worker_group import COMMAND_LINE
from ..hub import launch_order
from ..node import local_agent
from ..run import daemon, environment, file_io, machine, run_directories
from ..run.environment import Kept
from ..run.errors import RunError
from ..run.formatting import agreeing, listed
from ..run.journal import RunRecord
from . import sky
from .prepare import prepare
from .prepared import PORT_OPTIONS, PORT_VARIABLES, REQUEST_FILE, Prepared
from .words import typed

OURS = ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "DISTUI_SOCKET_DIR", "HOME")
"""Variables that locate this process's own files, regardless of the earlier launch."""


class LaunchChanges(Struct, frozen=True):
    """The requested differences."""

    name: str | None = None
    set: tuple[str, ...] = ()
    """Fields of the preset, such as "mesh.tp=2"."""
    env: Mapping[str, str] = {}
    unset: tuple[str, ...] = ()

    @property
    def changes(self) -> dict[str, str | None]:
        """Return the changes of the environment. None unsets a variable."""
        return {**dict.fromkeys(self.unset), **self.env}


class KeptRequest(Struct, frozen=True):
    """The content of `request.json`."""

    cwd: str
    request: Request


def again(entry: run_directories.Entry, wanted: LaunchChanges) -> Prepared:
    """Plan the launch of `entry` under a new ID. Raises RunError and PresetError."""
    name = entry.record.name
    if entry.record.kind == "node":
        raise RunError(
            f"run {name} is a node's part of {entry.record.whole}: rerun it where that was launched"
        )
    if why := environment.refusal(wanted.changes):
        raise RunError(why)
    if wanted.set and not daemon.load(entry).preset:
        raise RunError(f"--set changes fields of a preset, and run {name} has none: leave it out")
    lasting = entry.state().changes
    changes = {**lasting, **wanted.changes}
    changes = {var: _revealed(var, value) for var, value in changes.items()}
    if entry.record.kind == "local":
        return _here(entry, wanted, changes)
    if not wanted.set and not changes and launch_order.read(entry.path) is not None:
        return _with_request(sky.again(entry, wanted.name), entry)
    return _anew(entry, wanted, changes, None)


def _revealed(name: str, value: str | None) -> str | None:
    """Return the value of a change that was masked because it is secret. Raises RunError."""
    if value != MASK:
        return value
    if name not in os.environ:
        raise RunError(f"{name}: secrets are never stored: export it here, or give --env or --unset {name}")
    return os.environ[name]


# -----------------------------------------------------------------------------------------------------------
# On this machine.


def _here(
    entry: run_directories.Entry, wanted: LaunchChanges, changes: Mapping[str, str | None]
) -> Prepared:
    kept = environment.read(entry.path)
    if kept is None:
        raise RunError(
            f"{entry.path / environment.FILE} is missing or damaged: start {entry.record.name} with `distui launch`"
        )
    shell = _shell(kept, changes)
    if wanted.set or (changes and (entry.path / REQUEST_FILE).exists()):
        return _anew(entry, wanted, changes, shell)
    before = daemon.load(entry)
    if any(MASK in word for word in before.argv):
        raise RunError(
            f"arguments of {entry.record.name} hold secrets, which are never stored: "
            "start it with `distui launch`"
        )
    record = run_directories.new_record(wanted.name or entry.record.name)
    plan = _changed(
        _moved(before, record, {name: shell[name] for name in kept.hidden if name in shell}), changes
    )
    prepared = _with_request(Prepared(plan, record, shell=shell), entry)
    with _as_then(plan.cwd, None):
        _still_here(prepared)
    return prepared


def _still_here(prepared: Prepared) -> None:
    """Raise RunError if the script or its Python no longer exists."""
    plan, asked = prepared.plan, prepared.asked
    if plan.python and shutil.which(plan.python) is None:
        raise RunError(
            f"{plan.python}, the Python of that launch, is gone: `distui launch --python PATH` takes another"
        )
    if asked is not None and asked.command is None and not local_agent.script_source(asked)[0]:
        raise RunError(
            f"the script of that launch, {asked.script}, is no longer in {plan.cwd}: put it back, "
            "or `distui launch` another"
        )


def _with_request(prepared: Prepared, entry: run_directories.Entry) -> Prepared:
    """Add the request of the earlier run, if there is one, so that the new run can be rerun."""
    try:
        kept = read(entry)
    except RunError:
        return prepared
    return replace(prepared, asked=replace(kept.request, name=prepared.record.name), cwd=kept.cwd)


def _shell(kept: Kept, changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the environment of the earlier launch with changes. Raises RunError if a secret is missing."""
    secrets = kept.hidden - changes.keys()
    missing = sorted(secrets - os.environ.keys())
    if missing:
        raise RunError(
            f"{', '.join(missing)}: secrets are never stored: export {agreeing(missing, 'it', 'them')} here, "
            f"or leave out with {' '.join(f'--unset {name}' for name in missing)}"
        )
    env = {**kept.values, **{name: os.environ[name] for name in secrets}, **changes}
    return {name: value for name, value in env.items() if value is not None}


def _moved(before: Plan, record: RunRecord, hidden: Mapping[str, str]) -> Plan:
    """Return the plan with the new run's ID, directory, ports and secrets. The user's words stay unchanged."""
    ports: dict[str, str] = {}

    def renamed(text: str) -> str:
        return text.replace(before.run, record.run)

    def ported(text: str) -> str:
        return re.sub(r"\d+$", lambda old: ports.setdefault(old[0], str(machine.free_port())), text)

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
        # The plan's files lie in the run directory, and the user's words may name them there.
        argv=tuple(word.replace(before.run_dir, run_dir) for word in argv),
        env=env,
        files={name: renamed(text) for name, text in before.files.items()},
    )


def _changed(plan: Plan, changes: Mapping[str, str | None]) -> Plan:
    """Return the plan with a changed environment. Changes override all other origins."""
    env = {**plan.env, **{name: value for name, value in changes.items() if value is not None}}
    origins = {**plan.origins, **dict.fromkeys(changes, COMMAND_LINE)}
    gone = {name for name, value in changes.items() if value is None}
    return replace(
        plan,
        env={name: value for name, value in env.items() if name not in gone},
        origins={name: origin for name, origin in origins.items() if name not in gone},
    )


# -----------------------------------------------------------------------------------------------------------
# A new plan from the earlier request.


def read(entry: run_directories.Entry) -> KeptRequest:
    """Return the request of a launch. Raises RunError."""
    path, name = entry.path / REQUEST_FILE, entry.record.name
    try:
        return msgspec.convert(file_io.document(path, dict[str, Any]), KeptRequest)
    except file_io.FileError as error:
        why = (
            "was launched by a version that kept no request"
            if error.missing
            else f"has no request: {error}"
        )
        raise RunError(f"run {name} {why}; `distui launch` starts it again") from None
    except msgspec.ValidationError as error:
        raise RunError(f"{path} is damaged ({error}); start {name} with `distui launch`") from None


def _anew(
    entry: run_directories.Entry,
    wanted: LaunchChanges,
    changes: Mapping[str, str | None],
    shell: Mapping[str, str] | None,
) -> Prepared:
    """Plan again. `shell`: environment of a run on this machine, or None for a run on other nodes. Raises RunError."""
    kept = read(entry)
    request = with_changes(_filled(entry.record.name, kept.request, changes), changes)
    request = replace(
        request,
        name=wanted.name or entry.record.name,
        overrides=(*request.overrides, *wanted.set),
        cluster=_same_cluster(entry, request),
    )
    with _as_then(kept.cwd, shell):
        prepared = replace(prepare(request), cwd=kept.cwd)
    unset = dict.fromkeys(_gone(changes))
    if shell is None:
        return replace(prepared, plan=_changed(prepared.plan, unset)) if unset else prepared
    return replace(prepared, plan=_changed(prepared.plan, unset), shell=shell)


def with_changes(request: Request, changes: Mapping[str, str | None]) -> Request:
    """Return a request with a changed environment. None unsets a variable."""
    env = {name: value for name, value in {**request.env, **changes}.items() if value is not None}
    nccl = {name: value for name, value in request.nccl.items() if name not in changes}
    return replace(request, env=env, nccl=nccl)


def _gone(changes: Mapping[str, str | None]) -> set[str]:
    return {name for name, value in changes.items() if value is None}


def _same_cluster(entry: run_directories.Entry, request: Request) -> str | None:
    """Return the earlier run's cluster for a run through SkyPilot."""
    order = launch_order.read(entry.path)
    if order is None or order.managed or not request.through_sky:
        return request.cluster
    return order.cluster


def _filled(name: str, request: Request, changes: Mapping[str, str | None]) -> Request:
    """Fill in secrets from this process's environment. Raises RunError if one is missing."""
    missing = list[str]()

    def filled(values: Mapping[str, str]) -> dict[str, str]:
        hidden = [var for var, value in values.items() if MASK in value and var not in changes]
        missing.extend(var for var in hidden if var not in os.environ)
        return {
            var: os.environ.get(var, value) if MASK in value else value for var, value in values.items()
        }

    request = replace(
        request,
        env=filled(request.env),
        nccl=filled(request.nccl),
        env_on={pattern: filled(values) for pattern, values in request.env_on.items()},
    )
    if missing:
        raise RunError(f"{listed(missing)}: secrets are never stored: export them here and rerun it")
    _check_no_mask(name, request)
    return request


def _check_no_mask(name: str, request: Request) -> None:
    """Raise RunError if a value other than a variable was a secret."""
    options = [typed(each, getattr(request, each)) for each in FORM_OPTIONS]
    words = (*request.args, *(request.command or ()), *request.overrides, *options)
    if any(MASK in word for word in words):
        raise RunError(
            f"arguments of {name} hold secrets, which are never stored: start it with `distui launch`"
        )


@contextmanager
def _as_then(cwd: str, shell: Mapping[str, str] | None) -> Iterator[None]:
    """Use the directory and environment of the earlier launch within this context. Raises RunError."""
    before, env = os.getcwd(), dict(os.environ)
    try:
        os.chdir(cwd)
    except OSError as error:
        raise RunError(
            f"the directory of that launch, {cwd}, cannot be entered ({error.strerror}): make it, "
            "or `distui launch` from another"
        ) from None
    try:
        if shell is not None:
            mine = {name: env[name] for name in OURS if name in env}
            os.environ.clear()
            os.environ.update({**shell, **mine})
        yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(env)
