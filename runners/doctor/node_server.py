"""The doctor's server on a node: requests on stdin, one line of JSON each; answers on stdout.

Steps that may hang or crash (a driver call, an import of torch, a rank of a pair) run in a child process. All children
end when stdin ends. Needs only the standard library and Python 3.8: session.py sends the text of this module.
"""

from __future__ import annotations

import collections
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from . import node_facts
from .node_facts import MAGIC

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Report = Callable[[dict[str, Any]], None]

BOOT = (
    "import sys;sys.path[:]=[p for p in sys.path if p];i=sys.stdin.buffer;exec(i.read(int(i.readline())))"
)
"""Executes code from stdin after its length, and no module of the working directory. It has no characters that a login
shell would interpret in quotes."""
KEPT_LINES = 12


class Child:
    """A child process in a separate session.

    Its messages go to `report`. The last message has its exit code and the end of its stderr:
    {"exit": …, "lines": […]}.
    """

    every: dict[int, Child] = {}

    def __init__(
        self, python: Sequence[str], text: str, spec: dict[str, Any], seconds: float, report: Report
    ) -> None:
        self._report, self._late = report, False
        self._stderr: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
        environ = dict(os.environ, **spec.get("env", {}))
        self._process = subprocess.Popen(
            [*python, "-c", BOOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=environ,
        )
        Child.every[self._process.pid] = self
        self._timer = threading.Timer(seconds, self._too_late)
        self._timer.daemon = True
        self._timer.start()
        self._hearing = threading.Thread(target=self._hear_errors, daemon=True)
        self._hearing.start()
        threading.Thread(target=self._hear, daemon=True).start()
        source = text.encode()
        self._write(b"%d\n" % len(source) + source)
        self.send(spec)

    @property
    def pid(self) -> int:
        """Also the ID of its session and process group."""
        return self._process.pid

    def send(self, value: dict[str, Any]) -> None:
        """Write a line to its stdin. If the child has ended, nothing happens."""
        self._write(json.dumps(value).encode() + b"\n")

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except (OSError, ValueError):
            return

    def end(self) -> None:
        """Kill the child and its process group."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return

    def _too_late(self) -> None:
        self._late = True
        self.end()
        # A call that hangs in the kernel survives SIGKILL, so report the end without waiting for it.
        self._finished(None)

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text = line.decode("utf-8", "replace")
            if text.startswith(MAGIC):
                self._report(json.loads(text[len(MAGIC) :]))
        code = self._process.wait()
        self._hearing.join(1.0)
        self.end()  # kill processes that remain in its group
        self._finished(code)

    def _hear_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            text = line.decode("utf-8", "replace").strip()
            if text:
                self._stderr.append(text[:500])

    def _finished(self, code: int | None) -> None:
        self._timer.cancel()
        if Child.every.pop(self._process.pid, None) is not None:
            self._report({"exit": code, "lines": list(self._stderr), "late": self._late})


def end_all() -> None:
    """Kill every child."""
    for child in list(Child.every.values()):
        child.end()


def once(
    python: Sequence[str], text: str, spec: dict[str, Any], seconds: float
) -> tuple[dict[str, Any] | None, str]:
    """Return the first message of a child, or None and the reason."""
    heard: queue.Queue[dict[str, Any]] = queue.Queue()
    try:
        child = Child(python, text, spec, seconds, heard.put)
    except OSError as error:
        return None, f"{python[0]} cannot be executed ({error.strerror})"
    answer = heard.get()
    child.end()
    if "exit" not in answer:
        return answer, ""
    if answer["late"]:
        return None, f"no answer within {seconds:.0f} s"
    lines = answer["lines"]
    return None, lines[-1] if lines else f"ended with code {answer['exit']} without output"


LIFE_SECONDS = 3600
"""Maximum life in seconds, if the connection breaks unnoticed."""

_lock = threading.Lock()
_listeners: list[socket.socket] = []
_workers: dict[int, Child] = {}


def send(value: dict[str, Any]) -> None:
    """Write a line to the doctor. If the connection is broken, end everything."""
    with _lock:
        try:
            sys.stdout.write(MAGIC + json.dumps(value) + "\n")
            sys.stdout.flush()
        except OSError:
            leave()


def leave() -> None:
    """Kill all children and exit."""
    end_all()
    os._exit(0)


def serve(texts: dict[str, str]) -> None:
    """Answer until stdin ends. `texts`: sources that children execute, by name."""
    signal.alarm(LIFE_SECONDS)
    send({"ready": True})
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        if asked["op"] == "clock":
            send({"id": asked["id"], "clock": time.time()})
        elif asked["op"] == "run":
            _run(asked, texts)
        elif asked["op"] == "forward":
            _forward(asked)
        else:
            threading.Thread(target=_answer, args=(asked, texts), daemon=True).start()
    leave()


def _answer(asked: dict[str, Any], texts: dict[str, str]) -> None:
    """Answer a request in a separate thread, and report every exception."""
    try:
        answer = _answered(asked, texts)
    except Exception as error:  # noqa: BLE001  # the node's border: the doctor reports the error
        answer = {"failed": f"{type(error).__name__}: {error}"}
    send({"id": asked["id"], **answer})


def _answered(asked: dict[str, Any], texts: dict[str, str]) -> dict[str, Any]:
    if asked["op"] == "facts":
        return gather(asked, texts)
    if asked["op"] == "listen":
        return _listen(asked["port"])
    answer = node_facts.connect(asked["host"], asked["port"], asked["within"])
    answer["resolved"] = node_facts.resolve(asked["name"]) if asked["name"] else None
    return answer


def _listen(port: int) -> dict[str, Any]:
    """Listen until the end. The kernel completes connections without an accept."""
    try:
        _listeners.append(node_facts.listener(port))
    except OSError as error:
        return {"ok": False, "problem": error.strerror or str(error)}
    return {"ok": True, "problem": ""}


def _run(asked: dict[str, Any], texts: dict[str, str]) -> None:
    number = asked["id"]

    def reply(value: dict[str, Any]) -> None:
        send({"id": number, **value})

    try:
        _workers[number] = Child([asked["python"]], texts["torch"], asked["spec"], asked["seconds"], reply)
    except OSError as error:
        reply({"exit": None, "late": False, "lines": [f"{asked['python']}: {error.strerror}"]})


def _forward(asked: dict[str, Any]) -> None:
    worker = _workers.get(asked["to"])
    if worker is None:
        return
    if asked["value"] is None:
        worker.end()
    else:
        worker.send(asked["value"])


GPU_SECONDS = 20.0
TORCH_SECONDS = 90.0
"""Importing torch from a cold network file system takes about a minute."""


def gather(spec: dict[str, Any], texts: dict[str, str]) -> dict[str, Any]:
    """Return all facts. `spec`: python (of the training; "" for PATH's), cwd, port (None: not checked)."""
    gpus, gpu_problem = once([sys.executable, "-I"], texts["nvml"], {}, GPU_SECONDS)
    training, training_problem = _training(spec["python"], texts["torch"])
    return {
        **node_facts.kernel(),
        "agent_python": {
            "version": ".".join(str(part) for part in sys.version_info[:3]),
            "executable": sys.executable,
        },
        "training": training,
        "training_problem": training_problem,
        "driver": node_facts.driver(),
        "kernel_gpus": node_facts.kernel_gpus(),
        "nvml": gpus,
        "nvml_problem": gpu_problem,
        "infiniband": node_facts.infiniband(),
        "gpudirect": node_facts.gpudirect(),
        "iommu": node_facts.iommu(),
        "pci": node_facts.bridges(),
        "interfaces": node_facts.interfaces(),
        "ssh_address": node_facts.ssh_address(),
        "dns": {"own": node_facts.resolve(socket.gethostname())},
        "port": None if spec["port"] is None else node_facts.port_state(spec["port"]),
        "shm": node_facts.shm(),
        "limits": node_facts.limits(),
        "disks": node_facts.disks(spec["cwd"]),
        "cgroup": node_facts.cgroup(),
        "env": {
            name: node_facts.masked(value) for name, value in node_facts.variables(dict(os.environ)).items()
        },
        "nccl_conf": node_facts.conf_files(os.path.expanduser("~")),
    }


def _training(python: str, text: str) -> tuple[dict[str, Any] | None, str]:
    """Return the report of the training environment's interpreter, or None and the reason.

    Without a name, use the first interpreter on PATH that has torch, as a launch does.
    """
    wanted: list[str] = [python] if python else ["python", "python3"]
    paths = list(filter(None, map(node_facts.which, wanted)))
    if not paths:
        return None, "%s is not an executable" % (python or "python")
    answers = []
    for path in paths:
        answer, problem = once([path], text, {"do": "facts"}, TORCH_SECONDS)
        if answer is not None and answer.get("torch"):
            return {**answer, "executable": path}, ""
        answers.append(
            (None if answer is None else {**answer, "executable": path}, problem and f"{path}: {problem}")
        )
    return answers[0]
