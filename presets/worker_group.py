"""The worker group of a plan: nodes, ranks, seats, and the environment of a rank.

The environment has four layers, and later layers have priority: the variables that distui needs to watch and restart a
run, the values of these variables in the user's shell, the preset, and the request. Some variables are reserved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .finding import PlanError
from .plurals import noun_form, plural

if TYPE_CHECKING:
    from .model import Preset

CPU_RANKS_PER_CORE = 8
"""Most ranks per core. A larger number is considered a typing error."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Ranks and backend of a topology."""

    nproc: int
    """Ranks per node."""
    backend: Literal["nccl", "gloo"]
    notes: tuple[str, ...] = ()


def parse_nproc(text: int | str) -> int | Literal["gpu", "cpu", "auto"]:
    """Parse a number of ranks, or "gpu", "cpu", "auto". Raises PlanError."""
    match text:
        case "gpu" | "cpu" | "auto":
            return text
    try:
        number = int(text)
    except ValueError:
        raise PlanError(f"nproc_per_node {text!r} is not valid: write a number, gpu, cpu or auto") from None
    if number < 1:
        raise PlanError(f"nproc_per_node {number} starts no rank: give 1 or more")
    return number


def parse_nnodes(text: int | str) -> tuple[int | None, int]:
    """Return fewest and most nodes of "N" (fewest is None) or of an elastic "MIN:MAX". Raises PlanError."""
    low, colon, high = str(text).partition(":")
    try:
        fewest, most = int(low), int(high) if colon else int(low)
    except ValueError:
        raise PlanError(f"nnodes {text!r} is not a number of nodes: write 4, or 2:4") from None
    if colon and not 1 <= fewest <= most:
        raise PlanError(f"nnodes {text} is not a range of nodes: write MIN:MAX with 1 ≤ MIN ≤ MAX")
    return (fewest if fewest < most else None), most


def check_nodes(preset: Preset, nodes: int | None) -> None:
    """Raise PlanError unless the preset fits on `nodes` machines. None means as many as requested."""
    nnodes, fewest = preset.topology.nnodes, preset.topology.nnodes_min
    if nnodes < 1:
        raise PlanError(f"nnodes {nnodes} is too few: give 1 or more")
    if fewest is not None and not 1 <= fewest <= nnodes:
        raise PlanError(f"nnodes_min {fewest} is not between 1 and nnodes {nnodes}: give one that is")
    if nodes is None or nnodes <= nodes:
        return
    if nodes == 1:
        raise PlanError(
            f"nnodes {nnodes} needs more machines than this one: add --hosts A,B or --on sky, or give 1"
        )
    raise PlanError(f"nnodes {nnodes} > {nodes} available nodes: give at most {nodes}")


SHARED_GPU = "NCCL_MULTI_RANK_GPU_ENABLE"
"""1 lets NCCL (2.30 and newer) run several ranks on one GPU."""


def ranks(preset: Preset, gpus: int, cores: int, nodes: int | None, env: Mapping[str, str]) -> Ranks:
    """Return ranks and backend of `preset` on a node with these GPUs and cores. Raises PlanError.

    `nodes`: available nodes, or None for as many as requested. `env` says which GPUs are visible, and if ranks share
    one.
    """
    check_nodes(preset, nodes)
    gpus = visible_gpus(gpus, env)
    where = "this machine" if nodes == 1 else "a node"
    asked = parse_nproc(preset.topology.nproc_per_node)
    nproc = _nproc(asked, gpus, cores, where)
    if preset.strategy.kind == "single" and nproc > 1:
        raise PlanError(f"strategy single is one rank, not nproc_per_node {nproc}: take the preset ddp")
    on_gpu = gpus > 0 and asked != "cpu"
    if on_gpu:
        _check_gpus(nproc, gpus, env)
    else:
        _check_cores(nproc, cores)
    if preset.strategy.kind == "single" and preset.topology.nnodes > 1:
        raise PlanError(
            f"strategy single is one rank, not nnodes {preset.topology.nnodes}: take the preset ddp"
        )
    return Ranks(nproc, "nccl" if on_gpu else "gloo", _backend_notes(gpus, asked, nproc, where))


def _check_gpus(nproc: int, gpus: int, env: Mapping[str, str]) -> None:
    if nproc > gpus and env.get(SHARED_GPU) != "1":
        raise PlanError(
            f"nproc_per_node {nproc} > {plural(gpus, 'GPU')}: give at most {gpus}, "
            f"or --env CUDA_VISIBLE_DEVICES= to run on CPU, or --env {SHARED_GPU}=1 to have ranks share a GPU"
        )


def _check_cores(nproc: int, cores: int) -> None:
    most = cores * CPU_RANKS_PER_CORE
    if nproc > most:
        raise PlanError(
            f"nproc_per_node {nproc} > {cores} cores × {CPU_RANKS_PER_CORE} = {most}: give at most {most}"
        )


def _nproc(asked: int | str, gpus: int, cores: int, where: str) -> int:
    if asked == "gpu" and not gpus:
        raise PlanError(f"nproc_per_node gpu, but no GPU is visible on {where}: give a number, cpu or auto")
    if asked == "gpu" or (asked == "auto" and gpus):
        return gpus
    return cores if isinstance(asked, str) else asked


def _backend_notes(gpus: int, asked: int | str, nproc: int, where: str) -> tuple[str, ...]:
    if not gpus:
        ranks_of = f", {nproc} ranks (one per core)" if asked == "auto" and nproc > 1 else ""
        return (f"No GPU is visible on {where}: backend gloo{ranks_of}.",)
    if asked == "cpu":
        return (
            f"The ranks run on CPU as requested: backend gloo; they do not use the {noun_form(gpus, 'GPU')} of {where}.",
        )
    if nproc < gpus:
        return (f"Uses {nproc} of {gpus} GPUs.",)
    return ()


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of a node among the nodes of a job."""

    node: int
    """Node number. The head is 0."""
    addresses: tuple[str, ...]
    """Address of every node by number, reachable from the other nodes."""
    source: str
    """ "SkyPilot" or "the launch"."""


def seat(env: Mapping[str, str], nnodes: int, nnodes_min: int | None = None) -> Seat:
    """Return this node's seat from SkyPilot's variables. Raises PlanError if they are missing or contradict the plan."""
    if "SKYPILOT_NODE_RANK" not in env:
        raise PlanError("The node number is unknown: SKYPILOT_NODE_RANK is unset")
    addresses = tuple(env.get("SKYPILOT_NODE_IPS", "").split())
    count = _number(env, "SKYPILOT_NUM_NODES")
    if count is not None and count != len(addresses):
        raise PlanError(
            f"SKYPILOT_NUM_NODES is {count}, and SKYPILOT_NODE_IPS names {len(addresses)} nodes: the two have to agree"
        )
    node = _number(env, "SKYPILOT_NODE_RANK")
    return check_seat(Seat(node or 0, addresses, "SkyPilot"), nnodes, nnodes_min)


def given_seat(node: int, addresses: Sequence[str], nnodes: int, nnodes_min: int | None = None) -> Seat:
    """Return the seat that the launch assigned. Raises PlanError."""
    return check_seat(Seat(node, tuple(addresses), "the launch"), nnodes, nnodes_min)


def check_seat(seat: Seat, nnodes: int, nnodes_min: int | None) -> Seat:
    """Return `seat` if it fits the plan. Raises PlanError."""
    count, least = len(seat.addresses), nnodes if nnodes_min is None else nnodes_min
    if not 0 <= seat.node < count:
        raise PlanError(f"{seat.source} has an impossible node number: {seat.node} of {count} nodes")
    if not least <= count <= nnodes:
        asked = nnodes if least == nnodes else f"{least} to {nnodes}"
        raise PlanError(
            f"{seat.source} gives {count} nodes, and the plan is for {asked}: launch it with --nnodes {count}"
        )
    return seat


def _number(env: Mapping[str, str], name: str) -> int | None:
    """Return the number in a variable, or None if it is empty. Raises PlanError for other text."""
    text = env.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise PlanError(f"{name} is {text!r}, and must be a number")
    return int(text)


WATCHED: Mapping[str, str] = {
    # The ranks must not share the launcher's store: a restarted group would read the addresses of the previous group,
    # and hang. The launcher reads this variable too.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    # NCCL and Python buffer stdout, and a killed rank would lose its last lines.
    "PYTHONUNBUFFERED": "1",
    # All three are set from the start: a live switch then replaces entries instead of growing the environment while
    # another thread reads it, and NCCL 2.24 to 2.26 keep the old mask when it is unset.
    "NCCL_DEBUG": "WARN",
    "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV",
    "NCCL_DEBUG_TIMESTAMP_LEVELS": "ALL",
    # The flight recorder, under its current name and its name before torch 2.8.
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    # CUDA then numbers GPUs like the driver.
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}
"""Set for every launcher. The user can override each."""

PER_RANK = frozenset({"NCCL_DEBUG_FILE", "TORCHELASTIC_ERROR_FILE"})
"""The runner sets a different value per rank."""

LAUNCHER_OWN = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "ROLE_NAME",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
    }
)
"""The launcher computes these per rank."""

INSIDE: Mapping[str, str] = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
"""Set for torchrun on one node, so that ranks listen only on loopback. The user and the shell can override them."""

INHERITED = (*WATCHED, *INSIDE, "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", *sorted(PER_RANK))
"""Variables whose value in the user's environment changes a plan."""


def inherited_env(user: Mapping[str, str]) -> dict[str, str]:
    """Return the user's variables that a plan depends on, for Place.user_env."""
    return {name: user[name] for name in INHERITED if name in user}


def common_env(run: str, ras_port: int) -> dict[str, str]:
    """Return the first layer: the variables of every rank before the user's."""
    return {**WATCHED, "NCCL_RAS_ADDR": f"localhost:{ras_port}", "DISTUI_RUN_ID": run}


def env_refusal(wished: Mapping[str, str]) -> str | None:
    """Return one sentence if a variable of `wished` cannot be given to every rank, else None."""
    for name, value in wished.items():
        if not name.isprintable() or set(name) & {"=", " "} or name[:1] in ("", "-"):
            return f"{name!r} is not a valid name of an environment variable: take letters, digits and _"
        if "\0" in value:
            return f"the value of {name} holds a NUL, which no environment variable can"
        if name in LAUNCHER_OWN:
            return f"{name} is computed for each rank by the launcher: leave it out"
        if name.startswith("DISTUI_"):
            return f"{name} is distui's own: leave it out; a preset's fields set it"
    return None


def layered_env(
    common_env: Mapping[str, str], user: Mapping[str, str], wished: Mapping[str, str]
) -> dict[str, str]:
    """Return `common_env`, overridden by its variables in the user's shell `user`, and then by `wished`."""
    kept = {name: user[name] for name in common_env if name in WATCHED and name in user}
    return {**common_env, **kept, **{k: v for k, v in wished.items() if k not in PER_RANK}}


def env_notes(env: Mapping[str, str], user: Mapping[str, str], wished: Mapping[str, str]) -> list[str]:
    """Return one sentence per fact about the layers that the user should know."""
    lines = [
        f"{name}={env[name]} comes from your environment."
        for name in WATCHED
        if name in user and name not in wished and user[name] != WATCHED[name]
    ]
    for name in sorted(PER_RANK & (user.keys() | wished.keys())):
        lines.append(f"{name} is set by the runner for each rank; your value is not used.")
    if env.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1":
        lines.append("Without TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 a restarted worker group can hang.")
    return lines


def visible_gpus(gpus: int, env: Mapping[str, str]) -> int:
    """Return how many of `gpus` CUDA_VISIBLE_DEVICES leaves visible. CUDA stops at its first invalid entry."""
    listed = env.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return gpus
    count = 0
    for entry in (part.strip() for part in listed.split(",")):
        if not entry or (entry.lstrip("-").isdigit() and not 0 <= int(entry) < gpus):
            break
        count += 1
    return min(count, gpus) if gpus else 0


OLD_RECORDER = "TORCH_NCCL_TRACE_BUFFER_SIZE"
"""Removed if torch is 2.9 or newer, which warns about it: see inrank/joining.py."""
SHELL, PRESET, COMMAND_LINE, DISTUI, TORCH = "shell", "preset", "command line", "distui", "torch"
"""Origins of a rank's variables."""


def env_origins(
    env: Mapping[str, str], user: Mapping[str, str], preset: Mapping[str, str], asked: Mapping[str, str]
) -> dict[str, str]:
    """Return the origin of each variable of `env`.

    `user`: the user's shell. `preset`: name → file or option that set it in the preset. `asked`: the request's
    variables.
    """
    sources = {}
    for name in env:
        if name in asked:
            sources[name] = COMMAND_LINE
        elif name in preset:
            option = preset[name].startswith("--set ")
            sources[name] = f"{COMMAND_LINE}, {preset[name]}" if option else f"{PRESET}, {preset[name]}"
        else:
            kept = name in WATCHED and name in user and env[name] == user[name]
            sources[name] = SHELL if kept else DISTUI
    if OLD_RECORDER in env and env[OLD_RECORDER] == env.get("TORCH_FR_BUFFER_SIZE"):
        sources[OLD_RECORDER] += ", only where torch is older than 2.9"
    return sources
