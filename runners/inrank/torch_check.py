"""Report torch's facts in a training environment, or run one rank of a pair that tests an all-reduce.

The interpreter gets this program as text on stdin (see runners/doctor/node_server.py), so distui need not be installed.
The first line is the task as JSON. Answers are lines of JSON after the prefix DISTUI-DOCTOR.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import warnings
from typing import Any

MAGIC = "DISTUI-DOCTOR "
TORCH_ERRORS = (RuntimeError, ValueError, OSError, TypeError, AttributeError)
"""Exceptions of torch; DistNetworkError and DistBackendError are RuntimeErrors."""
LIBUV_LISTENS = (2, 8)
"""A copy of that in rank_changes.py: a program on stdin cannot import it."""
WARM_BYTES = 1 << 16
BUDGET_SECONDS = 2.0
"""Budget for all timed all-reduces."""
MOST_ROUNDS = 10


def main() -> None:
    """Run the task in the first line of stdin."""
    spec = json.loads(sys.stdin.buffer.readline())
    if spec["do"] == "facts":
        say(facts())
    else:
        pair(spec)


def say(value: dict[str, Any]) -> None:
    sys.stdout.write(MAGIC + json.dumps(value) + "\n")
    sys.stdout.flush()


def facts() -> dict[str, Any]:
    """Return the versions of Python and torch, and torch's GPUs; "problem" if torch cannot be imported."""
    report: dict[str, Any] = {"python": "%d.%d.%d" % sys.version_info[:3], "torch": None, "problem": ""}
    began = time.monotonic()
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name == "torch":
            return report
        return dict(report, problem="%s: %s" % (type(error).__name__, error))
    except (ImportError, SyntaxError, NameError, *TORCH_ERRORS) as error:
        return dict(report, problem="%s: %s" % (type(error).__name__, error))
    report.update(import_s=round(time.monotonic() - began, 2), **_build(torch), **_devices(torch))
    return report


def _build(torch: Any) -> dict[str, Any]:
    distributed = torch.distributed.is_available()
    nccl = None
    if distributed and torch.distributed.is_nccl_available():
        try:
            nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
        except TORCH_ERRORS:
            nccl = None
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "distributed": distributed,
        "nccl": nccl,
        "gloo": distributed and torch.distributed.is_gloo_available(),
        "arches": list(torch.cuda.get_arch_list()) if torch.version.cuda else [],
    }


def _devices(torch: Any) -> dict[str, Any]:
    """Return the GPUs that torch can use, or its error or warning."""
    gpus: list[dict[str, Any]] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
                gpu = torch.cuda.get_device_properties(index)
                gpus.append(
                    {"name": gpu.name, "memory": gpu.total_memory, "capability": [gpu.major, gpu.minor]}
                )
        except TORCH_ERRORS as error:
            return {"gpus": gpus, "cuda_problem": first_line(error)}
    texts = [first_line(warning.message) for warning in caught]
    return {"gpus": gpus, "cuda_problem": texts[0] if texts and not gpus else ""}


def first_line(error: object) -> str:
    """Return the first line of an error or a warning, at most 300 characters."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def pair(spec: dict[str, Any]) -> None:
    """Connect the ranks through a store on rank 0, run all-reduces, and report their duration.

    Reports the start of each stage, so that doctor knows the stage of a silent rank.
    """
    stage = "import"
    try:
        import torch

        say({"stage": "ready"})
        go = json.loads(sys.stdin.buffer.readline() or b"{}")
        if "go" not in go:
            return
        _leave_with_stdin_after(spec)
        stage = "connect"
        group = _meet(torch, spec)
        stage = "all-reduce"
        say({"stage": stage})
        say(_reduce(torch, group, spec))
        time.sleep(spec["seconds"])  # until doctor ends it: the other rank may still read this one's memory
    except (ImportError, *TORCH_ERRORS) as error:
        say({"error": "%s: %s" % (type(error).__name__, first_line(error)), "stage": stage})
        sys.stdout.flush()
        os._exit(1)  # a destructor of a broken group may wait for the other rank
    sys.stdout.flush()
    os._exit(0)


def _leave_with_stdin_after(spec: dict[str, Any]) -> None:
    """Read the port from stdin, except on rank 0, and start a thread that exits the process at the end of stdin."""
    given = {} if spec["rank"] == 0 else json.loads(sys.stdin.buffer.readline() or b"{}")
    spec["port"] = given.get("port", 0)

    def wait() -> None:
        while sys.stdin.buffer.read(1):
            continue
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _meet(torch: Any, spec: dict[str, Any]) -> Any:
    """Initialize the process group of the pair and return it. Raises TORCH_ERRORS."""
    from datetime import timedelta

    limit = timedelta(seconds=spec["seconds"])
    first = spec["rank"] == 0
    port, more = spec["port"], {}
    if first:
        more["master_listen_fd"], port = _listening(spec["address"])
        if tuple(map(int, torch.__version__.split(".")[:2])) < LIBUV_LISTENS:
            more["use_libuv"] = False
    store = torch.distributed.TCPStore(
        spec["address"], port, spec["world"], first, timeout=limit, wait_for_workers=False, **more
    )
    say({"stage": "connect", **({"port": store.port} if first else {})})
    if spec["device"] is not None:
        torch.cuda.set_device(spec["device"])
    torch.distributed.init_process_group(
        "gloo" if spec["device"] is None else "nccl",
        store=store,
        rank=spec["rank"],
        world_size=spec["world"],
        timeout=limit,
    )
    return torch.distributed.group.WORLD


def _listening(address: str) -> tuple[int, int]:
    """Return a socket that listens only on this address (torch's would use all), and its port. Raises OSError."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as made:
        made.bind((address, 0))
        made.listen()
        port: int = made.getsockname()[1]
        return made.detach(), port


def _reduce(torch: Any, group: Any, spec: dict[str, Any]) -> dict[str, Any]:
    """Return the median seconds of an all-reduce of `bytes`, the number of rounds, and whether all sums were right."""
    device = "cpu" if spec["device"] is None else "cuda:%d" % spec["device"]
    for _ in range(2):
        _once(torch, WARM_BYTES, device, spec["world"])
    seconds, right = _once(torch, spec["bytes"], device, spec["world"])
    slowest = torch.tensor([seconds], dtype=torch.float64, device=device)
    torch.distributed.all_reduce(slowest, op=torch.distributed.ReduceOp.MAX, group=group)
    rounds = max(1, min(MOST_ROUNDS, int(BUDGET_SECONDS / max(float(slowest.item()), 1e-6))))
    times = []
    for _ in range(rounds):
        seconds, correct = _once(torch, spec["bytes"], device, spec["world"])
        times.append(seconds)
        right = right and correct
    return {"seconds": sorted(times)[len(times) // 2], "rounds": rounds, "right": right}


def _once(torch: Any, size: int, device: str, world: int) -> tuple[float, bool]:
    """Run an all-reduce after a barrier; return its seconds and whether the sum is right."""
    values = torch.ones(max(1, size // 4), dtype=torch.float32, device=device)
    torch.distributed.barrier()
    if device != "cpu":
        torch.cuda.synchronize()
    began = time.perf_counter()
    torch.distributed.all_reduce(values)
    if device != "cpu":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    return seconds, bool((values == world).all().item())
