"""Earlier launch forms: the last launches in a small file, and the form that repeats an earlier run.

Secrets are not kept: variables with a secret's name or value, and arguments with one, are left out.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ...presets import trusted_files
from ...presets.plan import wished_env
from ...presets.request import FORM_OPTIONS, Request
from ...presets.secrets import MASK, holds_secret, mask_words
from ...presets.trusted_files import private_folder
from ..run import file_io
from ..run.errors import RunError
from ..run.run_directories import Entry
from . import rerun
from .launch_form import LaunchForm
from .launch_settings import HOSTS
from .words import shell_words, typed

MOST = 20
MOST_BYTES = 1 << 16
FILE = "recent.json"
FIELDS = (
    "preset",
    "script",
    "args",
    "nproc",
    "name",
    "env",
    "nccl",
    "place",
    "nodes",
    "gpus",
    "cpus",
    "options",
)
"""The fields to remember of a form."""


def path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return `${XDG_STATE_HOME:-~/.local/state}/distui/recent.json`."""
    return trusted_files.base("XDG_STATE_HOME", environ) / "distui" / FILE


def read(environ: Mapping[str, str] = os.environ) -> list[LaunchForm]:
    """Return the remembered launches, newest first, or [] if the file is missing or damaged."""
    try:
        data = file_io.content(path(environ), MOST_BYTES)
        forms = msgspec.json.decode(data, type=list[LaunchForm])
    except (OSError, file_io.FileError, msgspec.DecodeError, RunError):
        return []
    return [form for form in forms[:MOST] if form.preset and form.script]


def remember(form: LaunchForm, environ: Mapping[str, str] = os.environ) -> None:
    """Put a launch first. If the file cannot be written, the launch is not remembered."""
    kept = without_secrets(form)
    forms = [kept, *(each for each in read(environ) if each != kept)][:MOST]
    listed = [{name: getattr(each, name) for name in FIELDS if getattr(each, name)} for each in forms]
    try:
        target = path(environ)
        private_folder(target.parent)
        file_io.write_atomically(target, msgspec.json.encode(listed))
    except (OSError, RunError):
        return


def without_secrets(form: LaunchForm) -> LaunchForm:
    """Return only the remembered fields of a form, without secrets."""
    fields: dict[str, Any] = {name: getattr(form, name) for name in FIELDS}
    options = {name: text for name, text in form.options.items() if not _has_secret(text)}
    return LaunchForm(**fields | {"args": _args(form.args), "env": _env(form.env), "options": options})


def _has_secret(text: str) -> bool:
    pairs = (word.rpartition(":")[2].partition("=") for word in text.split())
    return mask_words([text]) != [text] or any(holds_secret(name, value) for name, _, value in pairs)


def _args(text: str) -> str:
    try:
        words = shell_words(text, "arguments")
    except RunError:
        return ""
    return text if mask_words(words) == words else ""


def _env(text: str) -> str:
    try:
        pairs = [word.partition("=") for word in shell_words(text, "environment")]
    except RunError:
        return ""
    return _pairs((name, value) for name, _, value in pairs)


def _pairs(variables: Iterable[tuple[str, str]]) -> str:
    return shlex.join(
        f"{name}={value}"
        for name, value in variables
        if MASK not in value and not holds_secret(name, value)
    )


def form_of(entry: Entry, cwd: str) -> LaunchForm:
    """Return the form that launches a run again from `cwd`, with its current environment.

    Raises RunError for a run that no form can repeat.
    """
    kept, name = rerun.read(entry), entry.record.name
    request = rerun.with_changes(kept.request, entry.state().changes)
    if not request.preset or not request.script:
        raise RunError(
            f"run {name} is no launch of a script under a preset: `distui rerun {name}` repeats it"
        )
    script = request.script
    is_elsewhere = os.path.abspath(kept.cwd) != os.path.abspath(cwd)
    if is_elsewhere and not request.no_python and not request.module:
        script = os.path.join(kept.cwd, script)
    env = wished_env(request)
    return LaunchForm(
        preset=request.preset,
        script=script,
        args="" if any(MASK in word for word in request.args) else shlex.join(request.args),
        nproc=str(request.nproc_per_node or ""),
        name=name,
        nccl=env.pop("NCCL_DEBUG", ""),
        env=_pairs(sorted(env.items())),
        place=_place(request),
        nodes=str(request.nnodes or ""),
        gpus=request.gpus or "",
        cpus=request.cpus or "",
        options=_options(request),
        overrides=tuple(each for each in request.overrides if MASK not in each),
    )


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
