"""The environment of a run: that of its launch, in the run directory, and the changes of each restart.

Values that may be secret are never written to disk: only the run's own processes have them in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from ...presets.secrets import MASK, holds_secret
from ..inrank.env_changes import UNSET, too_long_for_request
from ..inrank.env_changes import refusal as changes_refusal
from . import file_io
from .errors import RunError

FILE = "environ"
"""File in the format of /proc/PID/environ: NAME=VALUE with a NUL after each. A value that is not written leaves only
NAME. An empty entry marks the end, so that a cut file is recognized."""
USERS_PYTHONPATH = "DISTUI_USER_PYTHONPATH"
"""PYTHONPATH before it was replaced for a bundle's library: see node/boot.py."""
RESTART = "DISTUI_RESTART"
"""JSON of the restart that an agent of a lost run is started for."""

_NAMES = """
    RUN_ID ATTEMPT HOOK RUNNER_PID RANK_FILES SOCKETS RUN_DIR NESTED UNSET AGAIN RELAY_KEY
    USER_PYTHONPATH STRATEGY STRATEGY_OPTIONS MESH BATCH PRECISION BACKEND NODE NNODES HEAD CHANGED
    SECRET_WORDS SECRET_SETUP SECRET_RUN RESTART
"""
_OF_A_RUN = frozenset(f"DISTUI_{name}" for name in _NAMES.split())
"""Variables that distui sets for the processes of one run; a run that is launched inside a rank drops them."""

_DAEMONS = frozenset(
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "HOSTNAME"]
)
_DAEMONS_PREFIXES = ("LC_", "XDG_", "DISTUI_")
_INTERPRETERS = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "LD_LIBRARY_PATH")
"""Variables that locate this interpreter and distui; an agent uses the same interpreter."""


class Kept(Struct, frozen=True):
    values: Mapping[str, str]
    hidden: frozenset[str]
    """Names of variables without written values."""


class Started(Struct):
    env: dict[str, str]
    missing: list[str] = field(default_factory=list)
    """Names of variables with values that no process of the run has any more."""


def refusal(changes: Mapping[str, str | None]) -> str:
    """Why a restart cannot make these changes, as a sentence; "" if it can. None unsets a variable."""
    return changes_refusal(changes) or too_long_for_request(changes)


def of_launch(shell: Mapping[str, str], planned: Mapping[str, str]) -> dict[str, str]:
    """Merge the environment `shell` of a launch with a plan's variables; MASK if a secret's value is not available."""
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
    """Whether a value must not be written to any file."""
    return value == MASK or holds_secret(name, value)


def shown(name: str, value: str | None) -> str | None:
    """Return a value for a file: itself or MASK."""
    return MASK if value is not None and is_hidden(name, value) else value


def hidden(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that may be kept only in memory."""
    return {name: value for name, value in env.items() if value != MASK and is_hidden(name, value)}


def write(run_dir: Path, env: Mapping[str, str]) -> None:
    """Write the environment of a launch, with its umask. Raises OSError."""
    env = {file_io.UMASK: f"{file_io.users_umask():03o}", **env}
    entries = [
        os.fsencode(name if is_hidden(name, value) else f"{name}={value}") for name, value in env.items()
    ]
    file_io.write_atomically(run_dir / FILE, b"".join(entry + b"\0" for entry in entries) + b"\0")


def read(run_dir: Path) -> Kept | None:
    """Read the environment of the launch; None if the file is missing, damaged or cut."""
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
    """Environment of an agent: the variables it needs, from the launch instead of the viewer, and `given`."""
    launch = shell if kept is None else kept.values
    own = {name: value for name, value in launch.items() if _is_daemons(name) and name not in _OF_A_RUN}
    interpreter = {name: shell[name] for name in _INTERPRETERS if name in shell}
    return {**own, **interpreter, **given}


def _is_daemons(name: str) -> bool:
    return (name in _DAEMONS or name.startswith(_DAEMONS_PREFIXES)) and not is_hidden(name, "x")


def of_hub(
    shell: Mapping[str, str], planned: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """Environment of a hub: the viewer's here, for ssh and SkyPilot, with only those of the job's secrets in `given`."""
    withheld = {name for name, value in planned.items() if value == MASK} | _OF_A_RUN
    return {**{name: value for name, value in shell.items() if name not in withheld}, **given}


def of_runner(
    launch: Kept, planned: Mapping[str, str], changes: Mapping[str, str | None], secrets: Mapping[str, str]
) -> Started:
    """Merge the launch's variables, the plan's DISTUI_ variables and the changes; MASK becomes a value of `secrets`."""
    env = {name: value for name, value in launch.values.items() if not name.startswith("DISTUI_")}
    env |= {name: value for name, value in planned.items() if name.startswith("DISTUI_")}
    wanted = {**dict.fromkeys(launch.hidden, MASK), **changes}
    missing = []
    for name, value in wanted.items():
        known = secrets.get(name) if value == MASK else value
        if known is not None:
            env[name] = known
            continue
        env.pop(name, None)
        if value == MASK:
            missing.append(name)
    if unset := [name for name, value in changes.items() if value is None]:
        env[UNSET] = "\n".join(unset)
    return Started(env, sorted(missing))


def remembered(names: Iterable[str], *processes: Mapping[str, str]) -> dict[str, str]:
    """Values of hidden variables that living processes of the run still have; later processes take precedence."""
    values: dict[str, str] = {}
    for process in processes:
        values |= {name: process[name] for name in names if name in process}
    return values


def pairs(words: Sequence[str], option: str) -> dict[str, str]:
    """Parse `K=V` words into a mapping. Raises RunError."""
    values = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.replace("_", "").isalnum():
            raise RunError(f"{option} {word}: write it as NAME=VALUE")
        values[name] = value
    return values
