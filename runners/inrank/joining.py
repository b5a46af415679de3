"""Announce a process that a launcher in the user's command started as a rank of the run.

A process with a launcher's rank variables joins after its import of torch. Others join before they initialize a process
group (children of multiprocessing, workers of Ray), or at their first optimizer step (a script below a shell script). A
process that does none of these is not changed.
"""

from __future__ import annotations

import functools
import os
import threading
from types import ModuleType
from typing import Any

from .import_watch import PATCH_ERRORS, untraced, when_imported, wrap_imported

PATIENCE_S = 2.0
"""Timeout of the runner's answer in seconds; without one a rank continues without a hook."""

VARIABLES = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"),
)
"""Variables with rank, local rank and world size: torchrun, accelerate and deepspeed; Open MPI; MVAPICH2; MPICH and
Intel MPI; Slurm."""


def watch(below: bool) -> None:
    """Let this process join once it acts as a rank. `below`: it is below the command, not the command itself."""
    when_imported("torch", _drop_deprecated_variable)
    if below and _by_variables() is not None:
        when_imported("torch", lambda module: _join_by_variables())
    wrap_imported("torch.distributed.distributed_c10d", "", "init_process_group", _joining_first)
    if below:
        when_imported("torch.optim.optimizer", _watch_steps)


def _drop_deprecated_variable(torch: ModuleType) -> None:
    major, minor = torch.__version__.split(".")[:2]
    drop_deprecated_variable((int(major), int(minor)))


def drop_deprecated_variable(version: tuple[int, int]) -> None:
    """Remove the flight recorder's old variable if the new one equals it: torch 2.9 and newer warn about it."""
    old = os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE")
    if version >= (2, 9) and old == os.environ.get("TORCH_FR_BUFFER_SIZE"):
        os.environ.pop("TORCH_NCCL_TRACE_BUFFER_SIZE", None)


def _by_variables() -> tuple[int, int | None, int, dict[str, str]] | None:
    """Return rank, local rank, world size, and the launcher's variables; None without them."""
    for names in VARIABLES:
        values = {name: os.environ[name] for name in names if name in os.environ}
        rank, local, world = (values.get(name, "") for name in names)
        if rank.isdecimal() and world.isdecimal():
            return int(rank), int(local) if local.isdecimal() else None, int(world), values
    return None


def _join_by_variables() -> None:
    own = _by_variables()
    if own is not None:
        join(*own)


def _joining_first(theirs: Any) -> Any:
    """Return a wrapper that joins before the process group is initialized: NCCL then reads its variables."""

    @functools.wraps(theirs)
    def init_process_group(*args: Any, **named: Any) -> Any:
        try:
            _join_group(*args, **named)
        except PATCH_ERRORS:
            pass  # what is wrong with the arguments is torch's to say
        return theirs(*args, **named)

    return init_process_group


def _join_group(
    backend: Any = None,
    init_method: Any = None,
    timeout: Any = None,
    world_size: int = -1,
    rank: int = -1,
    *rest: Any,
    **named: Any,
) -> None:
    """Join with the arguments of torch's init_process_group (2.7 to 2.15); -1 means torchrun's variables."""
    environ = os.environ
    number = rank if rank >= 0 else int(environ["RANK"])
    world = world_size if world_size > 0 else int(environ["WORLD_SIZE"])
    local = environ.get("LOCAL_RANK", "")
    join(number, int(local) if local.isdecimal() else None, world, {})


def _watch_steps(module: ModuleType) -> None:
    first = threading.Lock()

    @untraced
    def stepping(*_: Any) -> None:
        if first.acquire(blocking=False):
            try:
                join(0, 0, 1, {})
            except PATCH_ERRORS:
                pass

    module.register_optimizer_step_pre_hook(stepping)


def join(rank: int, local: int | None, world: int, variables: dict[str, str]) -> None:
    """Announce this process as a rank, and attach the hook if the runner accepts it. Raises OSError, ValueError."""
    environ = os.environ
    if environ.get("DISTUI_JOINED") or "DISTUI_RUNNER_PID" in environ:
        return
    request = {
        "op": "join",
        "attempt": environ["DISTUI_ATTEMPT"],
        "rank": rank,
        "local_rank": local,
        "world": world,
        "variables": variables,
    }
    from . import control, hook

    answer = control.ask(environ["DISTUI_SOCKETS"] + ".run", request, PATIENCE_S)
    if not answer.get("ok"):
        return
    environ["DISTUI_JOINED"] = str(os.getpid())
    environ["DISTUI_RANK_FILES"], environ["DISTUI_HOOK"] = answer["files"], answer["hook"]
    environ["NCCL_DEBUG_FILE"] = answer["files"] + ".nccl"
    hook.attach()
