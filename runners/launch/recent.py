"""Launch forms that repeat earlier runs. Secrets are left out, since no run keeps them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from ...presets.plan import wished_env
from ...presets.request import FORM_OPTIONS, Request
from ...presets.secrets import MASK, holds_secret
from ..run import run_directories
from ..run.errors import RunError
from ..run.formatting import listed
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
        except RunError:  # it kept no request, or one with secrets
            continue
        if form not in forms and not form.repeats:
            forms.append(form)
    return forms[:MOST]


class CopiedForm(NamedTuple):
    """The form of a run."""

    form: LaunchForm
    note: str
    """What the form's first rows do not show: further options, and what it leaves out."""


def copied(entry: Entry, cwd: str) -> CopiedForm:
    """Return the form that launches a run from `cwd`, with its current environment.

    Raises RunError for a run that no form can hold.
    """
    kept, name = rerun.read(entry), entry.record.name
    request = rerun.with_changes(kept.request, entry.state().changes)
    form = _form(request, name, kept.cwd, cwd)
    also = " ".join(_further_words(form))
    left_out = listed(list(_left_out(request)))
    parts = [f"copied from {name}"]
    parts += [f"also: {also}"] if also else []
    parts += [f"starts here, not in {kept.cwd}"] if _is_elsewhere(kept.cwd, cwd) else []
    parts += [f"without {left_out}: secrets are never stored"] if left_out else []
    return CopiedForm(form, " · ".join(parts))


def _further_words(form: LaunchForm) -> Iterator[str]:
    """Yield the options of a form whose rows are at its end, as the command line takes them."""
    for name, text in form.options.items():
        option = FORM_OPTIONS[name]
        if not option.label:
            yield f"{option.flags[-1]} {text}" if option.takes else option.flags[-1]


def _left_out(request: Request) -> Iterator[str]:
    """Yield what a form of this request lacks, because it is secret."""
    variables = wished_env(request)
    yield from sorted(variables.keys() - _without_secrets(variables).keys())
    if any(MASK in word for word in request.args):
        yield "the arguments"
    yield from (f"--set {pair.partition('=')[0]}" for pair in request.overrides if MASK in pair)


def _form(request: Request, name: str, directory: str, cwd: str) -> LaunchForm:
    """Return the form of a request that was made in `directory`. Raises RunError."""
    if any(MASK in word for word in request.command or ()):
        raise RunError(
            f"the command of {name} holds secrets, which are never stored: start it in the shell"
        )
    variables = wished_env(request)
    level = variables.pop("NCCL_DEBUG", "")
    return LaunchForm(
        preset=request.preset,
        command=request.command or (),
        task=_path(request.task or "", directory, cwd),
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
    return _path(script, directory, cwd) if is_path else script


def _path(path: str, directory: str, cwd: str) -> str:
    return os.path.join(directory, path) if path and _is_elsewhere(directory, cwd) else path


def _is_elsewhere(directory: str, cwd: str) -> bool:
    return os.path.abspath(directory) != os.path.abspath(cwd)


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
