"""Launch an earlier run again as a new run, with optional changes.

It is planned again from the earlier request (`request.json`), in the earlier directory and environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import Struct

from ...presets.rank_env import SHELL
from ...presets.request import Request
from ...presets.secrets import MASK
from ..hub import launch_order
from ..hub.launch_order import SkyRequest
from ..run import daemon, environment, file_io, run_directories
from ..run.errors import RunError
from ..run.formatting import agreeing, listed
from .prepare import prepare
from .prepared import REQUEST_FILE, Prepared

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


def check_name(entry: run_directories.Entry, wanted: LaunchChanges) -> None:
    """Raise RunError for a live run without another name for the new one."""
    name = entry.record.name
    if wanted.name is None and not run_directories.ended(entry):
        raise RunError(f"run {name} is live: `distui stop {name}` first, or --name OTHER")


def again(entry: run_directories.Entry, wanted: LaunchChanges) -> Prepared:
    """Plan the launch of `entry` under a new ID. Raises RunError and PresetError."""
    name = entry.record.name
    if entry.record.kind == "node":
        raise RunError(
            f"run {name} is a node's part of {entry.record.whole}: rerun it where that was launched"
        )
    if why := environment.refusal(wanted.changes):
        raise RunError(why)
    kept = read(entry)
    if wanted.set and not kept.request.preset:
        raise RunError(f"--set changes fields of a preset, and run {name} has none: leave it out")
    changes = {**entry.state().changes, **wanted.changes}
    changes = {var: _revealed(var, value) for var, value in changes.items()}
    shell = _shell(entry, changes) if entry.record.kind == "local" else None
    request = with_changes(_filled(kept.request, changes), changes)
    if MASK in msgspec.json.encode(request).decode():
        raise RunError(
            f"arguments of {name} hold secrets, which are never stored: start it with `distui launch`"
        )
    request = replace(
        request,
        name=wanted.name or name,
        overrides=(*request.overrides, *wanted.set),
        cluster=_same_cluster(entry, request),
    )
    with _as_then(kept.cwd, shell):
        prepared = replace(prepare(request), cwd=kept.cwd, shell=shell)
    return _without(_on_same_cluster(prepared, request), changes)


def _revealed(name: str, value: str | None) -> str | None:
    """Return the value of a change that was masked because it is secret. Raises RunError."""
    if value != MASK:
        return value
    if name not in os.environ:
        raise RunError(f"{name}: secrets are never stored: export it here, or give --env or --unset {name}")
    return os.environ[name]


def _shell(entry: run_directories.Entry, changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the environment of the earlier launch with changes, without the variables that its plan added.

    Raises RunError if a secret is missing.
    """
    kept = environment.read(entry.path)
    if kept is None:
        raise RunError(
            f"{entry.path / environment.FILE} is missing or damaged: start {entry.record.name} with `distui launch`"
        )
    plan = daemon.load(entry)
    planned = {name for name in plan.env if plan.origins.get(name) != SHELL}
    secrets = kept.hidden - changes.keys() - planned
    missing = sorted(secrets - os.environ.keys())
    if missing:
        raise RunError(
            f"{', '.join(missing)}: secrets are never stored: export {agreeing(missing, 'it', 'them')} here, "
            f"or leave out with {' '.join(f'--unset {name}' for name in missing)}"
        )
    own = {name: value for name, value in kept.values.items() if name not in planned}
    env = {**own, **{name: os.environ[name] for name in secrets}, **changes}
    return {name: value for name, value in env.items() if value is not None}


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


def with_changes(request: Request, changes: Mapping[str, str | None]) -> Request:
    """Return a request with a changed environment. None unsets a variable."""
    env = {name: value for name, value in {**request.env, **changes}.items() if value is not None}
    nccl = {name: value for name, value in request.nccl.items() if name not in changes}
    return replace(request, env=env, nccl=nccl)


def _without(prepared: Prepared, changes: Mapping[str, str | None]) -> Prepared:
    """Remove the unset variables also from the preset's and distui's own."""
    gone = {name for name, value in changes.items() if value is None}
    plan = prepared.plan
    env = {name: value for name, value in plan.env.items() if name not in gone}
    origins = {name: origin for name, origin in plan.origins.items() if name not in gone}
    return replace(prepared, plan=replace(plan, env=env, origins=origins))


def _on_same_cluster(prepared: Prepared, request: Request) -> Prepared:
    """Skip `setup:` on a cluster that is up, which has done it."""
    order = prepared.order
    if not isinstance(order, SkyRequest) or request.cluster is None:
        return prepared
    return replace(prepared, order=msgspec.structs.replace(order, fast=True))


def _same_cluster(entry: run_directories.Entry, request: Request) -> str | None:
    """Return the earlier run's cluster for a run through SkyPilot."""
    order = launch_order.read(entry.path)
    if order is None or order.managed or not request.through_sky:
        return request.cluster
    return order.cluster


def _filled(request: Request, changes: Mapping[str, str | None]) -> Request:
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
    return request


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
