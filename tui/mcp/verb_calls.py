"""Runs a verb as a separate process: reads its output with a limit, and ends it if its call is cancelled.

A separate process isolates the server from large reads, hanging hosts and crashes. Its output cannot mix with messages
of the protocol, and several verbs can run in parallel.
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
"""Maximum bytes of a verb's output; more is too long for any answer."""
MOST_SENTENCES = 64 << 10
"""Maximum bytes of a verb's stderr that are kept."""
END_SECONDS = 5.0
"""Seconds for an orderly exit of a verb."""

SEARCHED = (
    "PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONUSERBASE",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
)
"""Variables with directories of programs, libraries and modules.

An empty or relative entry (such as the rest of `LD_LIBRARY_PATH=/x:$LD_LIBRARY_PATH`) means the working directory, which
a model chooses with `cwd`.
"""

_running: set[Process] = set()

Take = Callable[[bytes], bool]
"""Takes output piece by piece; returns False to stop the verb."""


@dataclass(frozen=True)
class VerbEnd:
    code: int | None
    """None if the verb was stopped because its output was sufficient."""
    sentences: list[str]
    """Its lines on stderr, without the program's name."""


STARTED_IN = working_directory()
"""The server's start directory, saved because it can be removed and created again."""


class Printed:
    """The whole output of a verb, up to MOST_BYTES."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.whole = True

    def take(self, data: bytes) -> bool:
        self.whole = len(self.data) + len(data) <= MOST_BYTES
        if self.whole:
            self.data += data
        return self.whole


def anchored(env: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return the environment with entries of SEARCHED made absolute relative to `folder`."""
    anchors = {
        name: os.pathsep.join(os.path.join(folder, entry) for entry in env[name].split(os.pathsep))
        for name in SEARCHED
        if env.get(name)
    }
    return {**env, **anchors}


async def run_verb(
    words: Sequence[str], take: Take, *, limit_s: float, env: Mapping[str, str] | None = None, cwd: str = ""
) -> VerbEnd:
    """Execute `distui WORDS…` with additional variables `env`. Raises Refused."""
    verb = next(word for word in words if not word.startswith("-"))
    try:
        process = await _started(words, env or {}, cwd)
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


async def _started(words: Sequence[str], env: Mapping[str, str], cwd: str) -> Process:
    """Start a verb. Raises Refused, OSError and ValueError."""
    folder = working_directory() or STARTED_IN
    if not cwd and not os.path.isdir(folder):
        raise Refused(
            f"{folder}, the folder in which this server was started, is gone: make it again, or start the server in "
            "another one"
        )
    command = [sys.executable, "-P", "-m", __package__.rpartition(".")[0], *words]
    whole = anchored({**os.environ, **env}, folder)
    return await anyio.open_process(command, stdin=subprocess.DEVNULL, cwd=cwd or folder, env=whole)


async def end_all() -> None:
    """End every running verb."""
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
    """Terminate a process and close its pipes."""
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
