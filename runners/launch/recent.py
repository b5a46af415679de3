"""Launch forms that repeat earlier runs. Secrets are left out, since no run keeps them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace

from ...presets.plan import wished_env
from ...presets.request import FORM_OPTIONS, Request
from ...presets.secrets import MASK, holds_secret
from ..run import run_directories
from ..run.errors import RunError
from ..run.run_directories import Entry
from . import rerun
from .launch_form import LaunchForm
from .launch_settings import HOSTS
from .words import typed

MOST = 20
"""Most forms to offer."""
MOST_RUNS = 200
"""Most runs to read for them."""


def read() -> list[LaunchForm]:
    """Return the launches of the newest runs, newest first, without repetitions."""
    forms: list[LaunchForm] = []
    for entry in run_directories.entries()[:MOST_RUNS]:
        try:
            kept = rerun.read(entry)
            form = _form(kept.request, kept.request.name or "", kept.cwd, os.getcwd())
        except RunError:  # it kept no request, or runs a command
            continue
        if form not in forms:
            forms.append(form)
    return forms[:MOST]


def form_of(entry: Entry, cwd: str) -> LaunchForm:
    """Return the form that launches a run again from `cwd`, with its current environment.

    Raises RunError for a run that no form can repeat.
    """
    kept, name = rerun.read(entry), entry.record.name
    return _form(rerun.with_changes(kept.request, entry.state().changes), name, kept.cwd, cwd)


def _form(request: Request, name: str, directory: str, cwd: str) -> LaunchForm:
    """Return the form of a request that was made in `directory`. Raises RunError."""
    if not request.preset or not request.script:
        raise RunError(
            f"run {name} is no launch of a script under a preset: `distui rerun {name}` repeats it"
        )
    variables = wished_env(request)
    level = variables.pop("NCCL_DEBUG", "")
    return LaunchForm(
        preset=request.preset,
        script=_script(request, directory, cwd),
        args="" if any(MASK in word for word in request.args) else shlex.join(request.args),
        nproc=str(request.nproc_per_node or ""),
        nccl_debug=level,
        place=_place(request),
        options=_options(replace(request, name=name or None, env=_without_secrets(variables))),
        overrides=tuple(each for each in request.overrides if MASK not in each),
    )


def _script(request: Request, directory: str, cwd: str) -> str:
    """Return the script of a request that was made in `directory` as `cwd` reaches it."""
    script = request.script or ""
    is_path = not request.no_python and not request.module
    is_elsewhere = os.path.abspath(directory) != os.path.abspath(cwd)
    return os.path.join(directory, script) if is_path and is_elsewhere else script


def _without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(variables.items())
        if MASK not in value and not holds_secret(name, value)
    }


def _place(request: Request) -> str:
    if request.hosts:
        return f"{HOSTS} {','.join(host.destination for host in request.hosts)}"
    return request.on if request.through_sky else ""


def _options(request: Request) -> dict[str, str]:
    """Return the options of LaunchForm.options as text, without options that contain a secret."""
    usual = Request()
    texts = {
        name: typed(name, getattr(request, name))
        for name in FORM_OPTIONS
        if getattr(request, name) != getattr(usual, name)
    }
    return {name: text for name, text in texts.items() if text and MASK not in text}
