"""One node's end: requests on stdin, a line of JSON each; answers on stdout. Whatever was started ends with stdin."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

from . import children, network, system

LIFE_SECONDS = 3600
"""If the connection breaks and nobody notices, no longer than this."""

_lock = threading.Lock()
_listeners: list[socket.socket] = []
_workers: dict[int, children.Child] = {}


def say(value: dict[str, Any]) -> None:
    """A line to the one who asks; where that one has gone, everything ends."""
    with _lock:
        try:
            sys.stdout.write(children.MAGIC + json.dumps(value) + "\n")
            sys.stdout.flush()
        except OSError:
            leave()


def leave() -> None:
    """End, and everything that was started with it."""
    children.end_all()
    os._exit(0)


def serve(texts: dict[str, str]) -> None:
    """Answer until stdin ends. `texts`: sources that children execute, by name."""
    signal.alarm(LIFE_SECONDS)
    say({"ready": True})
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        if asked["op"] == "clock":
            say({"id": asked["id"], "clock": time.time()})
        elif asked["op"] == "run":
            _run(asked, texts)
        elif asked["op"] == "tell":
            _forward(asked)
        else:
            threading.Thread(target=_answer, args=(asked, texts), daemon=True).start()
    leave()


def _answer(asked: dict[str, Any], texts: dict[str, str]) -> None:
    if asked["op"] == "facts":
        answer = gather(asked, texts)
    elif asked["op"] == "listen":
        answer = _listen(asked["port"])
    else:
        answer = network.connect(asked["host"], asked["port"], asked["within"])
        answer["resolved"] = network.resolve(asked["name"]) if asked["name"] else None
    say({"id": asked["id"], **answer})


def _listen(port: int) -> dict[str, Any]:
    """Listen until the end; nobody need accept for a connection to come about."""
    try:
        _listeners.append(network.listener(port))
    except OSError as error:
        return {"ok": False, "problem": error.strerror or str(error)}
    return {"ok": True, "problem": ""}


def _run(asked: dict[str, Any], texts: dict[str, str]) -> None:
    number = asked["id"]

    def reply(value: dict[str, Any]) -> None:
        say({"id": number, **value})

    try:
        _workers[number] = children.Child(
            [asked["python"]], texts["checking"], asked["spec"], asked["seconds"], reply
        )
    except OSError as error:
        reply({"exit": None, "late": False, "said": [f"{asked['python']}: {error.strerror}"]})


def _forward(asked: dict[str, Any]) -> None:
    worker = _workers.get(asked["to"])
    if worker is None:
        return
    if asked["value"] is None:
        worker.end()
    else:
        worker.send(asked["value"])


# -----------------------------------------------------------------------------------------------------------
# Everything that one node says of itself, as one JSON object. What is not known is null.


GPU_SECONDS = 20.0
TORCH_SECONDS = 90.0
"""An import of torch from a cold network file system takes about a minute."""


def gather(spec: dict[str, Any], texts: dict[str, str]) -> dict[str, Any]:
    """The facts. `spec`: python (of the training; "" for PATH's), cwd, port (None: not looked at)."""
    faces = network.interfaces()
    address = network.ssh_address()
    gpus, gpu_problem = children.once([sys.executable, "-I"], texts["gpus"], {}, GPU_SECONDS)
    training, training_problem = _training(spec["python"], texts["checking"])
    return {
        **system.kernel(),
        "agent_python": {
            "version": ".".join(str(part) for part in sys.version_info[:3]),
            "executable": sys.executable,
        },
        "training": training,
        "training_problem": training_problem,
        "driver": system.driver(),
        "kernel_gpus": system.kernel_gpus(),
        "nvml": gpus,
        "nvml_problem": gpu_problem,
        "infiniband": system.infiniband(),
        "gpudirect": system.gpudirect(),
        "iommu": system.iommu(),
        "pci": system.bridges(),
        "interfaces": faces,
        "ssh_address": address,
        "dns": network.names(faces, address),
        "port": None if spec["port"] is None else network.port_state(spec["port"]),
        "shm": system.shm(),
        "limits": system.limits(),
        "disks": system.disks(spec["cwd"]),
        "cgroup": system.cgroup(),
        "clock_synchronised": system.clock_synchronised(),
        "env": {name: network.masked(value) for name, value in system.variables(dict(os.environ)).items()},
        "nccl_conf": system.conf_files(os.path.expanduser("~")),
    }


def _training(python: str, text: str) -> tuple[dict[str, Any] | None, str]:
    """What the training environment's interpreter reports, and why it reports nothing.

    Without a name: the first of PATH's that has torch, as a launch takes it.
    """
    wanted: list[str] = [python] if python else ["python", "python3"]
    paths = [path for path in map(system.which, wanted) if path is not None]
    if not paths:
        return None, "%s is no executable" % (python or "python")
    answers = []
    for path in paths:
        answer, problem = children.once([path], text, {"do": "facts"}, TORCH_SECONDS)
        if answer is not None and answer.get("torch"):
            return {**answer, "executable": path}, ""
        answers.append(
            (None if answer is None else {**answer, "executable": path}, problem and f"{path}: {problem}")
        )
    return answers[0]
