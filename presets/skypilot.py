"""Convert a plan to a SkyPilot task, with defaults from the preset's table [sky], and wrap a user's task with our agent.

Keys follow SkyPilot's task YAML, release 0.14 (docs.skypilot.co, "Task YAML"). Tests check them with its schema. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from types import NoneType
from typing import Any

from . import model
from .finding import PlanError
from .known_names import known_names
from .request import Request
from .secrets import MASK, holds_secret, mask_text

OWN = {
    "name": "the run's name, --name",
    "num_nodes": "topology.nnodes",
    "run": "the script after --",
    "secrets": "--env, from your shell",
}
"""Keys that distui sets itself → the option to use instead."""

FIELDS = {
    "cpus": "cpus",
    "memory": "memory",
    "region": "region",
    "image_id": "image",
    "network_tier": "network_tier",
    "workdir": "workdir",
    "setup": "setup",
}
"""Key of a task's resources, or of the task → field of a request."""


def filled(wish: Request, table: Mapping[str, Any]) -> Request:
    """Return `wish` with the table's values for unset fields. Raises PlanError."""
    _refuse_own_keys(table)
    wanted = table.get("resources", {})
    if not isinstance(wanted, Mapping):
        raise PlanError(f"sky.resources is {model.show(wanted)}: write a table, [sky.resources]")
    given = {**wanted, "workdir": table.get("workdir"), "setup": table.get("setup")}
    defaults: dict[str, Any] = {
        field: str(given[key]) for key, field in FIELDS.items() if given.get(key) is not None
    }
    if wanted.get("accelerators") is not None:
        defaults["gpus"] = _accelerators(wanted["accelerators"])
    unset = {name: value for name, value in defaults.items() if getattr(wish, name) is None}
    if wish.infra is None and wanted.get("infra") is not None:
        unset["on"] = str(wanted["infra"])
    return replace(wish, **unset)


def _refuse_own_keys(table: Mapping[str, Any]) -> None:
    for key, instead in OWN.items():
        if key in table:
            raise PlanError(f"sky.{key} is set by distui: use {instead}, and remove it from [sky]")


def _accelerators(value: object) -> str:
    """Return "H100:8" for any of SkyPilot's spellings of one kind. Raises PlanError."""
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, count),) = value.items()
        return f"{name}:{count}"
    if isinstance(value, str):
        return value
    raise PlanError("sky.resources.accelerators names several kinds: give one, as in H100:8, or --any-of")


TASK_SCRIPT = "task.sh"
"""File in a part's run directory with the unchanged `run:` of the user's task."""
HOME = "~/.distui"
"""distui's folder on a node."""
MOST_AUTOSTOP = 60 * 24 * 365

KINDS = {str: "a text", int: "a number"}
_COUNT = re.compile(r"\d+(?:\.\d+)?(?:\+|x)?")
_ACCELERATOR = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*(?::\d+)?")
_INFRA = re.compile(r"[A-Za-z0-9*][A-Za-z0-9_.@:*-]*(?:/[A-Za-z0-9_.@:*-]+){0,3}")
_CLUSTER = re.compile(r"[a-zA-Z]([-_.a-zA-Z0-9]*[a-zA-Z0-9])?")
_ALTERNATIVES = {
    "infra": "infra",
    "gpus": "accelerators",
    "cpus": "cpus",
    "memory": "memory",
    "spot": "use_spot",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cargo:
    """Files and secrets that distui sends to each node."""

    run: str
    """ID of the whole run."""
    bundle: str
    """Name of the bundle's directory."""
    source: str
    """Local directory with the bundle, the job document and the relay's key.

    The key is a file, because SkyPilot passes secrets to the nodes of a Slurm cluster as arguments of `srun`, which
    every user of the node can read (release 0.14).
    """
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variables that SkyPilot passes as secrets."""

    @property
    def folder(self) -> str:
        """Return the bundle's folder on the nodes."""
        return f"{HOME}/{self.bundle}"

    @property
    def command(self) -> str:
        """Return the command that the nodes execute."""
        return f"exec sh {self.folder}/node.sh job {self.run}\n"

    @property
    def mounts(self) -> dict[str, str]:
        """Return one mount, because SkyPilot copies each mount to all nodes before the next one (release 0.14)."""
        return {HOME: self.source}


def check(wish: Request) -> Request:
    """Return `wish` if SkyPilot can read it. Raises PlanError with one sentence."""
    _check_place(wish)
    _check_amounts(wish)
    if wish.region is not None and wish.infra is not None and "/" in wish.infra:
        raise PlanError(
            f"--region {wish.region}: {wish.infra} already names a region: leave one of the two out"
        )
    for alternative in wish.any_of:
        unknown = sorted(set(alternative) - set(_ALTERNATIVES))
        if unknown:
            allowed = ", ".join(_ALTERNATIVES)
            raise PlanError(f"--any-of {unknown[0]}=…: unknown key: an alternative has {allowed}")
    for there in wish.mounts:
        if not there.startswith(("/", "~/")):
            raise PlanError(f"--mount {there}=…: the path on the nodes has to begin with / or ~/")
    return wish


def _check_place(wish: Request) -> None:
    if wish.infra is not None and not _INFRA.fullmatch(wish.infra):
        raise PlanError(f"--on {wish.infra}: write CLOUD, CLOUD/REGION or slurm/CLUSTER/PARTITION")
    cloud = (wish.infra or "*").partition("/")[0].lower()
    clouds = known_names("skypilot")["clouds"]
    if cloud not in ("*", *clouds):
        raise PlanError(
            f"--on {wish.infra}: unknown place: write local, sky, or one of {', '.join(clouds)}"
        )


def _check_amounts(wish: Request) -> None:
    for name, text in (("--cpus", wish.cpus), ("--memory", wish.memory)):
        if text is not None and not _COUNT.fullmatch(text):
            raise PlanError(f"{name} {text}: write a number, or 4+ for at least 4")
    if wish.gpus is not None:
        gpus(wish.gpus)
    if wish.network_tier not in (None, "best", "standard"):
        raise PlanError(f"--network-tier {wish.network_tier}: write best or standard")
    if wish.autostop_min is not None and not 0 < wish.autostop_min <= MOST_AUTOSTOP:
        raise PlanError(f"--autostop {wish.autostop_min}: give minutes, from 1 on")


def note_on_command(command: Sequence[str]) -> str:
    """Return a sentence if a command is SkyPilot's own program, whose nodes distui does not watch, else ""."""
    words = [PurePath(word).name for word in command[:3]]
    if words[:2] not in (["sky", "launch"], ["sky", "exec"], ["sky", "jobs"]):
        return ""
    return "distui does not see the nodes that sky starts: `distui launch --task FILE` does the same and watches them."


_COUNT_FIRST = re.compile(r"(\d+)\s*[x×*]\s*([A-Za-z].*)")


def accelerator(text: str) -> str:
    """Return SkyPilot's spelling of accelerators: "8xH100" → "H100:8". Other texts stay as they are."""
    match = _COUNT_FIRST.fullmatch(text.strip())
    return f"{match[2]}:{match[1]}" if match else text


def gpus(text: str) -> tuple[str, int]:
    """Return name and number per node: "H100:8" → ("H100", 8). Raises PlanError."""
    name, _, count = text.partition(":")
    if not _ACCELERATOR.fullmatch(text) or count == "0":
        raise PlanError(f"--gpus {text}: write NAME:COUNT, the count of one node, as in H100:8")
    return name, int(count or 1)


def check_cluster(name: str) -> str:
    """Return `name` if SkyPilot accepts it. Raises PlanError."""
    if not _CLUSTER.fullmatch(name) or len(name) > 60:
        raise PlanError(
            f"--cluster {name}: use a letter, then letters, digits, '.', '_' and '-'; end with a letter or digit"
        )
    return name


_PLACE = ("cloud", "region", "zone")
"""Keys that SkyPilot refuses next to `infra`."""


def cluster_name(name: str, run8: str) -> str:
    """Return the cluster name of a run, in lower case, because some clouds accept no other."""
    kept = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:20].strip("-")
    return f"{kept if kept[:1].isalpha() else f'run-{kept}'.rstrip('-')}-{run8}"


def resources(wish: Request) -> dict[str, Any]:
    return _merged({}, wish)


def _merged(before: Mapping[str, Any], wish: Request) -> dict[str, Any]:
    """Return the `resources:` of a task with the wishes of a launch, which apply to each of the task's alternatives.

    SkyPilot treats keys next to alternatives as their defaults, and not as an alternative. They become the first
    alternative, unless the launch's alternatives only add to them.
    """
    stated = _stated(wish)
    replaced = {*stated, *_PLACE} if "infra" in stated else {*stated}
    made = {**model.without(before, replaced), **stated}
    listed = "ordered" if before.get("ordered") else "any_of"
    own = {key: made[key] for key in _ALTERNATIVES.values() if key in made}
    choices = [model.without(choice, replaced) for choice in before.get(listed) or ()]
    added = [_alternative(choice) for choice in wish.any_of]
    if not choices and _is_choice(own, added):
        choices = [own]
    if alternatives := [*choices, *added]:
        made[listed] = alternatives
    return made


def _is_choice(own: Mapping[str, Any], added: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if the user's keys are one of the alternatives, and not only defaults."""
    names_no_gpus = "accelerators" not in own and any("accelerators" in choice for choice in added)
    if names_no_gpus:
        return False
    return any(own.get(key, value) != value for choice in added for key, value in choice.items())


def _stated(wish: Request) -> dict[str, Any]:
    """Return the user's choice with SkyPilot's keys."""
    pairs = {
        "infra": wish.infra if wish.region is None else f"{wish.infra or '*'}/{wish.region}",
        "accelerators": wish.gpus,
        "cpus": wish.cpus,
        "memory": wish.memory,
        "use_spot": wish.spot or None,
        "image_id": wish.image,
        "network_tier": wish.network_tier,
        "autostop": None
        if wish.autostop_min is None
        else {"idle_minutes": wish.autostop_min, "down": True},
    }
    return {name: value for name, value in pairs.items() if value is not None}


def _alternative(wish: Mapping[str, str]) -> dict[str, Any]:
    made: dict[str, Any] = {_ALTERNATIVES[name]: value for name, value in wish.items()}
    if "use_spot" in made:
        made["use_spot"] = str(made["use_spot"]).lower() in ("true", "yes", "1")
    return made


def accelerators(wish: Request) -> list[str]:
    """Return each alternative's accelerators per node, or ""."""
    wanted = resources(wish)
    default = wanted.get("accelerators", "")
    return [choice.get("accelerators", default) for choice in wanted.get("any_of") or [{}]]


def own_task(documents: Sequence[Any], where: str) -> dict[str, Any]:
    """Return the only task in a user's file. Raises PlanError."""
    if len(documents) != 1 or not isinstance(documents[0], Mapping):
        remedy = "name the file of a task"
        if not documents:
            actual = "no task"
        elif len(documents) > 1:
            actual = "several documents"
            remedy = f"`sky jobs launch {where}` launches a group"
        else:
            actual = "no mapping"
        raise PlanError(f"{where} holds {actual}, and distui launches one SkyPilot task: {remedy}")
    config = dict(documents[0])
    for key in ("service", "pool"):
        if key in config:
            raise PlanError(f"{where} has {key}, so it is not a training task: launch it with `sky` itself")
    if not isinstance(config.get("run"), str) or not config["run"].strip():
        raise PlanError(f"{where} has no run: add the command that distui should watch")
    if isinstance(config.get("secrets"), list):  # names of SkyPilot's own secrets, without values
        config["secrets"] = dict.fromkeys(config["secrets"])
    _check_types(config, where)
    return config


def _check_types(config: Mapping[str, Any], where: str) -> None:
    for key, kind in (("name", str), ("num_nodes", int), ("setup", str)):
        if not isinstance(config.get(key), (kind, NoneType)):
            raise PlanError(f"{where}: {key} is {model.show(config[key])}, and has to be {KINDS[kind]}")
    for key in ("resources", "file_mounts", "envs", "secrets"):
        if config.get(key) is not None and not isinstance(config[key], Mapping):
            raise PlanError(f"{where}: {key} has to be a mapping, since distui adds keys to it")


def wrap(
    config: Mapping[str, Any], wish: Request, nnodes: int | None, cargo: Cargo, env: Mapping[str, str]
) -> dict[str, Any]:
    """Return a task with the options of the launch, and with our agent in the place of its `run:`. Raises PlanError.

    `config`: a user's task, of which the plan keeps the unedited `run:` as TASK_SCRIPT, or name and table [sky] of a
    preset. `env`: the ranks of a preset get their variables with the plan, `setup:` here.
    """
    check(wish)
    made = dict(config)
    if nnodes is not None:
        made["num_nodes"] = nnodes
    if wished := _merged(_section(config, "resources"), wish):
        made["resources"] = wished
    if wish.workdir is not None:
        made["workdir"] = wish.workdir
    if wish.setup:
        made["setup"] = wish.setup
    made["file_mounts"] = {**_section(config, "file_mounts"), **wish.mounts, **cargo.mounts}
    envs = _variables(_section(config, "envs"), env, cargo)
    if envs or "envs" in made:
        made["envs"] = envs
    if cargo.secrets:
        made["secrets"] = {**_section(config, "secrets"), **cargo.secrets}
    made["run"] = cargo.command
    return made


def _section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return config.get(key) or {}


def _variables(own: Mapping[str, Any], env: Mapping[str, str], cargo: Cargo) -> dict[str, Any]:
    """Return a task's variables with those of the launch, without secrets. Raises PlanError for one without a value."""
    envs = {**own, **_plain(env)}
    for name in [name for name, value in envs.items() if value is None]:
        if name not in env.keys() | cargo.secrets:
            raise PlanError(f"envs.{name} has no value: add --env {name}=VALUE")
        del envs[name]  # it is passed as a secret
    return envs


def _plain(env: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in env.items() if not holds_secret(key, value)}


def own_command() -> tuple[str, ...]:
    """Return a command that executes TASK_SCRIPT like SkyPilot: with bash, in the job's first directory."""
    return ("bash", "-c", f'exec bash "$DISTUI_RUN_DIR/{TASK_SCRIPT}"')


_TEXTS = {"setup": "DISTUI_SECRET_SETUP", "run": "DISTUI_SECRET_RUN"}
"""Script parts of a task → the variable that holds a script with a secret."""


def masked(config: Mapping[str, Any]) -> dict[str, Any]:
    """Mask the secrets of a task, and its variables with names of secrets."""
    made = dict(config)
    secrets = made.get("secrets")
    if isinstance(secrets, Mapping):
        made["secrets"] = {name: None if value is None else MASK for name, value in secrets.items()}
    envs = made.get("envs")
    if isinstance(envs, Mapping):
        made["envs"] = {name: MASK if _hides(name, value) else value for name, value in envs.items()}
    return {**made, **dict.fromkeys(_secret_texts(config), MASK)}


def _hides(name: str, value: Any) -> bool:
    return value is not None and holds_secret(name, str(value))


def _secret_texts(config: Mapping[str, Any]) -> list[str]:
    texts = [key for key in _TEXTS if isinstance(config.get(key), str)]
    return [key for key in texts if mask_text(config[key]) != config[key]]


def hidden(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the values that `masked` hides, by name."""
    given = {name: str(value) for name, value in _section(config, "secrets").items() if value is not None}
    envs = _section(config, "envs").items()
    named = {name: str(value) for name, value in envs if _hides(name, value)}
    return {**given, **named, **{_TEXTS[key]: config[key] for key in _secret_texts(config)}}


def revealed(config: Mapping[str, Any], values: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return a masked task with its values, and the names without a known value."""
    made, missing = dict(config), []
    for key in ("secrets", "envs"):
        if isinstance(made.get(key), Mapping):
            made[key] = section = dict(made[key])
            for name in [name for name, value in section.items() if value == MASK]:
                section[name] = values.get(name, MASK)
                if name not in values:
                    missing.append(name)
    for key, variable in _TEXTS.items():
        if made.get(key) == MASK:
            made[key] = values.get(variable, MASK)
            if variable not in values:
                missing.append(f"the task's {key}:")
    return made, missing
