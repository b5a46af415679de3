"""Runs on this machine: what there is to launch on, how a run starts, and how its agent is reached."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..presets.secrets import is_secret
from . import identity, registry
from .errors import RunError, UnreachableError
from .wire.client import SocketLink
from .wire.disk import DiskLink
from .wire.link import Link, LinkError
from .wire.sockets import ensure_socket_dir

if TYPE_CHECKING:  # a viewer only reaches runs, and is on the screen the sooner
    from ..presets.plan import Place, Plan, Request

MOST_SOURCE = 4 << 20
"""Bytes of a script that are looked at."""
START_SECONDS = 20.0


def gpus_here() -> int:
    """GPUs that the NVIDIA kernel driver names; 0 without one."""
    listed = len(glob.glob("/proc/driver/nvidia/gpus/*"))
    return listed or len(
        [path for path in glob.glob("/dev/nvidia*") if re.fullmatch(r"/dev/nvidia\d+", path)]
    )


def free_port() -> int:
    """A TCP port of the loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def default_python() -> str:
    """The training environment's interpreter: the active environment's, ours if it has torch, else PATH's."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        candidate = Path(os.environ.get(variable, "/nonexistent")) / "bin" / "python"
        if candidate.exists():
            return str(candidate)
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    return shutil.which("python3") or sys.executable


def check_python(python: str) -> str:
    """Absolute path of an interpreter that has a usable torch. Raises RunError."""
    path = shutil.which(python)
    if path is None:
        raise RunError(f"{python} is no executable Python: give the training environment's with --python")
    path = os.path.abspath(path)
    found = _torch_version(path)
    if found is None:
        raise RunError(f"{path} has no torch: install it there, or give another interpreter with --python")
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < (2, 7):
        raise RunError(f"torch {found} in {path} is too old: distui needs 2.7 or newer there")
    return path


def _torch_version(python: str) -> str | None:
    """Version of the torch an interpreter would import, without importing it. Raises RunError."""
    if _same_environment(python, sys.executable):
        from importlib import metadata  # slow to import, and most verbs do not ask

        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version("torch")
    code = "import importlib.metadata as m; print('torch', m.version('torch'))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunError(
            f"{python} cannot be executed ({error}): give an interpreter with --python"
        ) from None
    words = done.stdout.split()
    if done.returncode and "PackageNotFoundError" not in done.stderr:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunError(f"{python} is no working Python ({last}): give another interpreter with --python")
    return words[1] if len(words) == 2 and words[0] == "torch" else None


def _same_environment(python: str, other: str) -> bool:
    """Whether two paths of one folder are one interpreter: `python` and `python3` of an environment."""
    here, there = os.path.abspath(python), os.path.abspath(other)
    return os.path.dirname(here) == os.path.dirname(there) and os.path.samefile(here, there)


def place(record: registry.RunRecord, request: Request, port: int | None = None) -> Place:
    """What a launch on this machine finds."""
    from ..presets.environ import inherited
    from ..presets.plan import Place

    exists, source = _script(request)
    return Place(
        run=record.run,
        run_dir=str(registry.runs_dir() / record.run),
        port=port or free_port(),
        ras_port=free_port(),
        gpus=gpus_here(),
        cores=len(os.sched_getaffinity(0)),
        cwd=_cwd(),
        python=request.python or default_python(),
        script_exists=exists,
        script_source=source,
        user_env=inherited(os.environ),
    )


def _cwd() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise RunError("the directory you are in was removed: cd to one that exists") from None


def _script(request: Request) -> tuple[bool, bytes | None]:
    if request.script is None:
        return True, None
    if request.no_python:
        return shutil.which(request.script) is not None, None
    path = Path(request.script)
    if request.module:
        path = Path(*request.script.split("."))
        path = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
        if not path.exists():
            return True, None  # installed in the training environment, perhaps
    source = read_source(path)
    return source is not None or path.is_file(), source


def read_source(path: Path) -> bytes | None:
    """What is looked at of a script; None when it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_SOURCE)
    except OSError:
        return None


def start(
    plan: Plan,
    record: registry.RunRecord,
    files: Mapping[str, str] | None = None,
    hidden: Mapping[str, str] | None = None,
) -> registry.Entry:
    """Write the run down and start its agent, which starts the ranks, or its hub, which launches nodes.

    `files`: further ones in the run directory; `hidden`: secrets that are not in the plan. Raises RunError.
    """
    from ..presets.render import plan_to_json

    ensure_socket_dir()
    document = json.dumps(plan_to_json(plan, masked=True), indent=1).encode()
    secrets = {name: value for name, value in plan.env.items() if is_secret(name)}
    with registry.one_start_at_a_time():
        path = registry.create(record, document, {**plan.files, **(files or {})})
        entry = registry.Entry(path, record)
        start_agent(entry, {**secrets, **(hidden or {})})
    return entry


def start_agent(entry: registry.Entry, env: dict[str, str] | None = None) -> None:
    """Start an agent, or a hub, in a session of its own and wait until it answers, or is not needed.

    Raises RunError.

    Where another one holds the run already, `agent()` of the entry names it as soon as it answers.
    """
    module = f"{__package__}.{'hub' if entry.record.kind == 'hub' else 'agent'}"
    read, write = os.pipe()
    base = {
        name: value for name, value in os.environ.items() if name not in ("DISTUI_RUN_ID", "DISTUI_ATTEMPT")
    }
    try:
        with (entry.path / "agent.log").open("ab") as log:
            subprocess.Popen(
                # -P: what lies in the user's directory must not shadow the standard library
                [sys.executable, "-P", "-m", module, "run", str(entry.path), str(write)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, pass_fds=(write,),
                env={**base, **(env or {})},
            )  # fmt: skip
    except OSError as error:
        raise RunError(f"the agent of {entry.record.name} could not be started: {error.strerror}") from None
    finally:
        os.close(write)
    said = _first_line(read)
    if said.startswith("error:"):
        raise RunError(said.removeprefix("error:").strip())
    if said not in ("ready", "taken"):
        raise RunError(f"the agent of {entry.record.name} did not come up: see {entry.path / 'agent.log'}")


def _first_line(descriptor: int) -> str:
    import select

    deadline = time.monotonic() + START_SECONDS
    data = b""
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        while b"\n" not in data:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            chunk = pipe.read(4096) if ready else b""
            if not chunk:
                break
            data += chunk
    return data.decode(errors="replace").strip()


async def open_link(entry: registry.Entry, readonly: bool = False) -> Link:
    """A link to a run: to its agent or hub, to a new one if it has none, to its files if it has ended.

    A part of a run on several nodes leads to that run, through a hub that is made now. Raises LinkError.
    """
    try:
        if entry.record.kind == "node":
            from .hub.spot import keep

            entry = keep(entry)
        return await open_agent(entry, readonly)
    except RunError as error:
        raise LinkError(str(error)) from None


async def _new_agent(entry: registry.Entry) -> identity.Identity | None:
    """The agent that serves a run from now on, ours or one that was quicker; None when the run has ended."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        await asyncio.to_thread(start_agent, entry)
        who = entry.agent()
        if who is not None or entry.state().phase.ended:
            return who
        await asyncio.sleep(0.1)
    raise UnreachableError(
        f"another agent holds {entry.record.name} and does not answer: see {entry.path / 'agent.log'}"
    )


async def open_agent(entry: registry.Entry, readonly: bool = False) -> Link:
    """A link to exactly what serves this run directory. Raises RunError and LinkError."""
    who = entry.agent()
    if who is not None and identity.elsewhere(who):
        raise UnreachableError(f"{entry.record.name} runs on {who.host}: ssh there and run distui")
    if who is None:
        if entry.state().phase.ended:
            return DiskLink(entry.path, entry.record.kind == "hub")
        if entry.record.host != os.uname().nodename:
            raise UnreachableError(
                f"{entry.record.name} was started on {entry.record.host}: ssh there and run distui"
            )
        who = await _new_agent(entry)
    if who is None:
        return DiskLink(entry.path, entry.record.kind == "hub")
    try:
        return await SocketLink.connect(Path(who.socket), readonly)
    except LinkError:
        if entry.state().phase.ended:
            return DiskLink(entry.path, entry.record.kind == "hub")
        raise
