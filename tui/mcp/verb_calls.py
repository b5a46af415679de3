"""A verb as a process of its own: what it prints is read here, bounded, and it ends when its call is cancelled.

A process and no call in this one: reading gigabytes, a hang of a host or a fault ends with it, nothing that a verb
prints gets between the messages of the protocol, and several run side by side.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import anyio
from anyio.abc import Process

from ..terminal import working_directory
from .answers import Refused

MOST_BYTES = 64 << 20
"""Of what a verb prints; more is no answer to anybody."""
MOST_SENTENCES = 64 << 10
"""Bytes that are kept of what a verb writes on stderr."""
END_SECONDS = 5.0
"""How long a verb may take to leave in order."""

SEARCHED = (
    "PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONUSERBASE",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
)
"""Variables with folders of programs, libraries and modules. An empty or relative entry (the rest of
`LD_LIBRARY_PATH=/x:$LD_LIBRARY_PATH`, for one) means the working directory, which a model chooses by `cwd`."""

_running: set[Process] = set()

Take = Callable[[bytes], bool]
"""Takes what was printed, piece by piece; False: no more is wanted."""


@dataclass(frozen=True)
class VerbEnd:
    code: int | None
    """None: what it printed was enough, and it was ended."""
    sentences: list[str]
    """What it wrote on stderr, without its name before them."""


STARTED_IN = working_directory()
"""A folder of this name may be there again when the one in which the server was started has been removed."""


class Printed:
    """All that a verb prints, up to MOST_BYTES."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.whole = True

    def take(self, data: bytes) -> bool:
        self.whole = len(self.data) + len(data) <= MOST_BYTES
        if self.whole:
            self.data += data
        return self.whole


def anchored(env: Mapping[str, str], folder: str) -> dict[str, str]:
    """The environment with each entry of SEARCHED as it is seen from `folder`, whatever the working directory is."""
    anchors = {
        name: os.pathsep.join(os.path.join(folder, entry) for entry in env[name].split(os.pathsep))
        for name in SEARCHED
        if env.get(name)
    }
    return {**env, **anchors}


async def run_verb(
    words: Sequence[str], take: Take, *, limit_s: float, env: Mapping[str, str] | None = None, cwd: str = ""
) -> VerbEnd:
    """Carry out `distui WORDS…`. `env`: variables beside those of this process. Raises Refused."""
    verb = next(word for word in words if not word.startswith("-"))
    folder = working_directory() or STARTED_IN
    if not cwd and not os.path.isdir(folder):
        raise Refused(
            f"{folder}, the folder in which this server was started, is gone: make it again, or start the server in "
            "another one"
        )
    command = [sys.executable, "-P", "-m", __package__.rpartition(".")[0], *words]
    try:
        process = await anyio.open_process(
            command,
            stdin=subprocess.DEVNULL,
            cwd=cwd or folder,
            env=anchored({**os.environ, **(env or {})}, folder),
        )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        where = f" in {cwd}" if cwd else ""
        raise Refused(f"`distui {verb}` cannot be started{where}: {why}") from None
    _running.add(process)
    try:
        with anyio.fail_after(limit_s):
            return await _followed(process, take)
    except TimeoutError:
        raise Refused(f"`distui {verb}` took longer than {limit_s:g} s and was ended") from None
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
        _running.discard(process)


async def end_all() -> None:
    """End every verb that is being carried out."""
    async with anyio.create_task_group() as group:
        for process in set(_running):
            group.start_soon(_end, process)


async def _followed(process: Process, take: Take) -> VerbEnd:
    errors = bytearray()

    async def complaints() -> None:
        assert process.stderr is not None
        async for data in process.stderr:
            errors.extend(data[: MOST_SENTENCES - len(errors)])

    enough = False
    async with anyio.create_task_group() as group:
        group.start_soon(complaints)
        assert process.stdout is not None
        async for data in process.stdout:
            if not take(data):
                enough = True
                group.cancel_scope.cancel()
                break
    code = None if enough else await process.wait()
    lines = errors.decode("utf-8", "replace").splitlines()
    return VerbEnd(code, [line.removeprefix("distui: ") for line in lines if line.strip()])


async def _end(process: Process) -> None:
    """Nothing of it is left: neither the process nor the pipes."""
    if process.returncode is None:
        process.terminate()
        with anyio.move_on_after(END_SECONDS):
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    await pipe.aclose()
            await process.wait()
    if process.returncode is None:
        process.kill()
    await process.aclose()
