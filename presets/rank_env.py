"""The environment of a rank, in four layers. Later layers have priority.

They are the variables that distui needs to watch and restart a run, the values of these variables in the user's shell,
the preset, and the request. Some variables are reserved: see env_names.
"""

from __future__ import annotations

from collections.abc import Mapping

from .env_names import PER_RANK

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
        sources[OLD_RECORDER] += ", only if torch is older than 2.9"
    return sources
