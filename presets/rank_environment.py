"""The environment that a plan adds to every rank.

Four layers, the later wins: what distui sets so that a run can be watched and restarted, what the user's
shell already holds under those names, the preset, the request. Then what nobody may change.
"""

from __future__ import annotations

from collections.abc import Mapping

WATCHED: Mapping[str, str] = {
    # The ranks must not share the launcher's store: a restarted group would read the addresses of the
    # group before it, and hang. The launcher itself reads this variable too.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    # NCCL and Python buffer stdout; a killed rank would take its last lines with it.
    "PYTHONUNBUFFERED": "1",
    # All three present from the start: a live switch then replaces entries instead of growing the
    # environment under a thread that reads it, and NCCL 2.24 to 2.26 keep the old mask when it is unset.
    "NCCL_DEBUG": "WARN",
    "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV",
    "NCCL_DEBUG_TIMESTAMP_LEVELS": "ALL",
    # The flight recorder, under its name and the one before torch 2.8.
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    # CUDA then counts GPUs as the driver does, so that a rank's number names the same GPU everywhere.
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}
"""Set for every launcher, each overridable by the user."""

PER_RANK = frozenset({"NCCL_DEBUG_FILE", "TORCHELASTIC_ERROR_FILE"})
"""The runner gives each rank its own value."""

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
"""The launcher computes these for each rank."""

INSIDE: Mapping[str, str] = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
"""Set for torchrun on one node: ranks that have only each other need not listen where others can connect. Whoever says
otherwise, in the shell too, is obeyed."""

INHERITED = (*WATCHED, *INSIDE, "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", *sorted(PER_RANK))
"""Names whose value in the user's own environment changes a plan."""


def inherited(user: Mapping[str, str]) -> dict[str, str]:
    """The part of the user's environment that a plan depends on: what a Place holds."""
    return {name: user[name] for name in INHERITED if name in user}


def common(run: str, ras_port: int) -> dict[str, str]:
    """What every rank gets before anyone's wishes."""
    return {**WATCHED, "NCCL_RAS_ADDR": f"localhost:{ras_port}", "DISTUI_RUN_ID": run}


def refusal(wished: Mapping[str, str]) -> str | None:
    """Why a variable of `wished` cannot be given to every rank, as a sentence; None when all can."""
    for name, value in wished.items():
        if not name.isprintable() or set(name) & {"=", " "} or not name:
            return f"{name!r} is not a name for an environment variable: write NAME=VALUE."
        if "\0" in value:
            return f"the value of {name} holds a NUL, which no environment variable can."
        if name in LAUNCHER_OWN:
            return f"{name} is computed for each rank by the launcher: leave it out."
        if name.startswith("DISTUI_"):
            return f"{name} is distui's own: leave it out; a preset's fields set it."
    return None


def layered(
    common_env: Mapping[str, str], user: Mapping[str, str], wished: Mapping[str, str]
) -> dict[str, str]:
    """`common_env`, where the user's shell `user` holds another value that one, then `wished`."""
    kept = {name: user[name] for name in common_env if name in WATCHED and name in user}
    return {**common_env, **kept, **{k: v for k, v in wished.items() if k not in PER_RANK}}


def notes(env: Mapping[str, str], user: Mapping[str, str], wished: Mapping[str, str]) -> list[str]:
    """What the user should know about the layers, a sentence each."""
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
    """How many of `gpus` CUDA_VISIBLE_DEVICES in `env` leaves; CUDA reads up to its first bad entry."""
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
"""The runner takes it away where torch is 2.9 or newer, which warns of it: see inrank/elastic.py."""
SHELL, PRESET, COMMAND_LINE, DISTUI, TORCH = "shell", "preset", "command line", "distui", "torch"
"""Where a variable of a rank comes from."""


def origins(
    env: Mapping[str, str], user: Mapping[str, str], preset: Mapping[str, str], asked: Mapping[str, str]
) -> dict[str, str]:
    """Where each variable of `env` comes from.

    `user`: what the shell holds; `preset`: name → file or option that set it in the preset; `asked`: of the request.
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
