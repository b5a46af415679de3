"""The environment of a run: that of its launch, kept in the run directory, and each change that a restart made since.

Values that may be secret are not written: they are in the memory of the run's own processes, and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from ..presets.secrets import MASK, holds_secret
from . import file_io
from .errors import RunError
from .inrank.env_changes import UNSET, too_much
from .inrank.env_changes import refusal as changes_refusal

FILE = "environ"
"""As /proc/PID/environ: NAME=VALUE, each with a NUL behind it; NAME alone where the value is not written; an empty entry
at the end, by which a file that is cut off is recognised."""
USERS_PYTHONPATH = "DISTUI_USER_PYTHONPATH"
"""What PYTHONPATH was before it became that of a bundle's library: see node/boot.py."""
RESTART = "DISTUI_RESTART"
"""The restart that an agent of a lost run is started for, as JSON."""

_OF_A_RUN = frozenset(
    f"DISTUI_{name}"
    for name in (
        "RUN_ID",
        "ATTEMPT",
        "HOOK",
        "RUNNER_PID",
        "RANK_FILES",
        "SOCKETS",
        "RUN_DIR",
        "NESTED",
        "UNSET",
        "AGAIN",
        "RELAY_KEY",
        "USER_PYTHONPATH",
        "STRATEGY",
        "STRATEGY_OPTIONS",
        "MESH",
        "BATCH",
        "PRECISION",
        "BACKEND",
        "NODE",
        "NNODES",
        "HEAD",
        "CHANGED",
        "SECRET_WORDS",
        "SECRET_SETUP",
        "SECRET_RUN",
        "RESTART",
    )
)
"""What distui itself sets for the processes of one run: nothing for a run that is launched inside a rank."""

_DAEMONS = frozenset(
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "HOSTNAME"]
)
_DAEMONS_PREFIXES = ("LC_", "XDG_", "DISTUI_")
_INTERPRETERS = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "LD_LIBRARY_PATH")
"""Where this very interpreter finds itself and distui: an agent is started by the same one."""


class Kept(Struct, frozen=True):
    values: Mapping[str, str]
    hidden: frozenset[str]
    """Names of variables whose values are not written."""


class Started(Struct):
    env: dict[str, str]
    missing: list[str] = field(default_factory=list)
    """Names of variables whose values no process of the run has any more."""


def refusal(changes: Mapping[str, str | None]) -> str:
    """Why no restart can change this, as a sentence; "" when it can. None unsets a variable."""
    return changes_refusal(changes) or too_much(changes)


def of_launch(shell: Mapping[str, str], planned: Mapping[str, str]) -> dict[str, str]:
    """The environment of a launch from `shell` with a plan's variables; MASK where a value is not at hand."""
    env = {name: value for name, value in shell.items() if name not in _OF_A_RUN}
    if USERS_PYTHONPATH in shell:
        env["PYTHONPATH"] = shell[USERS_PYTHONPATH]
        if not env["PYTHONPATH"]:
            del env["PYTHONPATH"]
    for name, value in planned.items():
        if not name.startswith("DISTUI_"):
            env[name] = env.get(name, MASK) if value == MASK else value
    return env


def is_hidden(name: str, value: str) -> bool:
    """Whether a value is left out of every file."""
    return value == MASK or holds_secret(name, value)


def shown(name: str, value: str | None) -> str | None:
    """A value as a file may hold it: all of it, or MASK."""
    return MASK if value is not None and is_hidden(name, value) else value


def hidden(env: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that only memory may keep."""
    return {name: value for name, value in env.items() if value != MASK and is_hidden(name, value)}


def write(run_dir: Path, env: Mapping[str, str]) -> None:
    """Keep the environment of a launch, its umask with it. Raises OSError."""
    env = {file_io.UMASK: f"{file_io.users_umask():03o}", **env}
    entries = [
        os.fsencode(name if is_hidden(name, value) else f"{name}={value}") for name, value in env.items()
    ]
    file_io.write_atomically(run_dir / FILE, b"".join(entry + b"\0" for entry in entries) + b"\0")


def read(run_dir: Path) -> Kept | None:
    """The environment of the launch; None where the file is missing, damaged, or was cut off."""
    try:
        data = file_io.content(run_dir / FILE)
    except file_io.FileError:
        return None
    if not data.endswith(b"\0\0"):
        return None
    values, names = {}, set()
    for entry in data[:-2].split(b"\0"):
        name, equals, value = os.fsdecode(entry).partition("=")
        if not name:
            return None
        if equals:
            values[name] = value
        else:
            names.add(name)
    return Kept(values, frozenset(names))


def of_daemon(kept: Kept | None, shell: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """What an agent starts with: what it needs itself, from the launch, not from the viewer here, and `given`."""
    launch = shell if kept is None else kept.values
    own = {name: value for name, value in launch.items() if _is_daemons(name) and name not in _OF_A_RUN}
    interpreter = {name: shell[name] for name in _INTERPRETERS if name in shell}
    return {**own, **interpreter, **given}


def _is_daemons(name: str) -> bool:
    return (name in _DAEMONS or name.startswith(_DAEMONS_PREFIXES)) and not is_hidden(name, "x")


def of_hub(
    shell: Mapping[str, str], planned: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """What a hub starts with: ssh and SkyPilot as the viewer here has them; of the job's secrets only those `given`."""
    withheld = {name for name, value in planned.items() if value == MASK} | _OF_A_RUN
    return {**{name: value for name, value in shell.items() if name not in withheld}, **given}


def of_runner(
    launch: Kept, planned: Mapping[str, str], changes: Mapping[str, str | None], secrets: Mapping[str, str]
) -> Started:
    """The launch's variables, the plan's own of distui, then the changes; MASK stands for one of `secrets`."""
    env = {name: value for name, value in launch.values.items() if not name.startswith("DISTUI_")}
    env |= {name: value for name, value in planned.items() if name.startswith("DISTUI_")}
    wanted = {**dict.fromkeys(launch.hidden, MASK), **changes}
    missing = []
    for name, value in wanted.items():
        if value == MASK and name not in secrets:
            missing.append(name)
        if value is None or (value == MASK and name not in secrets):
            env.pop(name, None)
        else:
            env[name] = secrets[name] if value == MASK else value
    if unset := [name for name, value in changes.items() if value is None]:
        env[UNSET] = "\n".join(unset)
    return Started(env, sorted(missing))


def remembered(names: Iterable[str], *processes: Mapping[str, str]) -> dict[str, str]:
    """Values of hidden variables that living processes of the run still have; the later process wins."""
    values: dict[str, str] = {}
    for process in processes:
        values |= {name: process[name] for name in names if name in process}
    return values


def pairs(words: Sequence[str], option: str) -> dict[str, str]:
    """`K=V` words as a mapping. Raises RunError."""
    values = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.replace("_", "").isalnum():
            raise RunError(f"{option} {word}: write it as NAME=VALUE")
        values[name] = value
    return values
