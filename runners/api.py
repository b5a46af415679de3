"""distui from Python: launch runs, find them, wait for them, read their logs, restart and stop them.

    from distui.runners import api

    run = api.launch("train.py", "--lr", "1e-3", preset="ddp", nproc_per_node=2)
    run.wait("running")
    run.restart(env={"NCCL_DEBUG": "INFO"})
    for line in run.logs(ranks=[0]):
        print(line)
    run.stop()

Every call blocks until it is done, and raises a `distui.runners.errors.RunError` whose text is one sentence. A run
goes on when the program that launched it has ended. Where an event loop runs already (a notebook), the calls work in a
thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..presets.plan import Request
from . import connect, forced_stop, registry, remote_hosts
from .errors import RunError
from .launch.prepare import prepare
from .launch.prepared import Here, LaunchRequest, OnHosts
from .local import open_link
from .logs.follow import Merge, choose
from .logs.log_files import parse_file_id
from .model import CommandDone, Restart, RunPhase, Stop
from .status import status_json
from .wire.client import new_id
from .wire.link import Link

T = TypeVar("T")


class RefusedError(RunError):
    """The run answered that what was asked of it was not done; the text says why."""

    code = 1


def launch(
    script: str,
    *args: str,
    preset: str = "ddp",
    overrides: Sequence[str] = (),
    name: str | None = None,
    nproc_per_node: int | str | None = None,
    nnodes: int | str | None = None,
    hosts: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    nccl: Mapping[str, str] | None = None,
    python: str | None = None,
) -> Run:
    """Start `script` under a preset on this machine, or on `hosts` by ssh. Raises RunError and PresetError.

    `overrides`: fields of the preset, "mesh.tp=2"; the rest is as on the command line.
    """
    request = Request(
        script=script, args=args, name=name, python=python, nnodes=nnodes, nproc_per_node=nproc_per_node,
        env=env or {}, nccl=nccl or {},
    )  # fmt: skip
    place = OnHosts(hosts=remote_hosts.from_words(",".join(hosts))) if hosts else Here()
    asked = LaunchRequest(preset=preset, overrides=tuple(overrides), request=request, place=place)
    return Run(_apart(lambda: prepare(asked).start()))


def execute(*command: str, name: str | None = None, env: Mapping[str, str] | None = None) -> Run:
    """Start any command on this machine, supervised as it is. Raises RunError."""
    asked = LaunchRequest(command=command, request=Request(name=name, env=env or {}))
    return Run(_apart(lambda: prepare(asked).start()))


def runs() -> list[Run]:
    """Every run known on this machine, newest first."""
    return [Run(entry) for entry in registry.entries()]


def attach(run: str | None = None) -> Run:
    """The run that a name, an id or a unique prefix means; None: the only live one, else the newest.

    Raises NoSuchRunError.
    """
    return Run(registry.resolve(run))


@dataclass(frozen=True, slots=True)
class Run:
    """A run, live or ended."""

    entry: registry.Entry

    @property
    def id(self) -> str:
        return self.entry.record.run

    @property
    def name(self) -> str:
        return self.entry.record.name

    @property
    def path(self) -> Path:
        """Its directory: logs, journal, plan."""
        return self.entry.path

    @property
    def phase(self) -> RunPhase:
        """Where it stands, as far as its files and processes say it."""
        return registry.phase(self.entry)

    def status(self) -> dict[str, Any]:
        """What `distui status --json` prints; docs/cli.md has the fields. Raises RunError."""
        return status_json(self._linked(connect.snapshot))

    def wait(self, until: str = "done", timeout: float | None = None) -> RunPhase:
        """Wait until the run is as far as asked, or has ended; the phase then.

        `until`: "running" (every rank has a process), "healthy" (each has made a step), "done". Raises RunError, and
        TimeoutError after `timeout` seconds.
        """

        async def use(link: Link) -> RunPhase:
            async with asyncio.timeout(timeout):
                return (await connect.follow_until(link, until)).phase

        return self._linked(use)

    def logs(
        self, ranks: Sequence[int] = (), streams: Sequence[str] = ("out", "err"), attempt: int | None = None
    ) -> Iterator[str]:
        """Lines that are there now, cleaned of what acts on terminals: of the newest attempt unless one is named.

        Of several files each line says whose it is: "[rank 0] …". Raises RunError.
        """

        async def use(link: Link) -> list[str]:
            state = await connect.history(link)
            files = [file for name in state.log_sizes if (file := parse_file_id(name)) is not None]
            chosen = choose(files, ranks, streams, attempt)
            merge, lines = Merge(chosen), list[str]()
            for file in chosen:
                async for more, problem in connect.read_on(link, merge, file.id, state.log_sizes[file.id]):
                    if problem:
                        raise RunError(f"{file.id}: {problem}")
                    lines += more
            return lines + merge.flush()

        yield from self._linked(use)

    def restart(
        self, env: Mapping[str, str] | None = None, unset: Sequence[str] = (), reachable: bool = False
    ) -> str:
        """Restart every rank in place with a changed environment, and wait until all run; what came of it, a sentence.

        `reachable`: without the nodes that do not answer. Raises RefusedError, and RunError.
        """
        command = Restart(new_id(), dict(env or {}), tuple(unset), reachable)
        return _accepted(self._linked(lambda link: link.send(command)))

    def stop(self, grace_s: float | None = None) -> str:
        """End the run: SIGTERM, after `grace_s` seconds SIGKILL; also where its agent does not answer.

        Raises RefusedError where something is left, and RunError.
        """
        stopping = forced_stop.stop_run(self.entry, Stop(new_id(), grace_s), lambda text: None, open_link)
        return _accepted(_apart(lambda: asyncio.run(stopping)))

    def _linked(self, use: Callable[[Link], Awaitable[T]]) -> T:
        return _apart(lambda: asyncio.run(connect.with_link(self.id, lambda entry, link: use(link))))


def _accepted(done: CommandDone) -> str:
    if not done.ok:
        raise RefusedError(done.text)
    return done.text


def _apart(do: Callable[[], T]) -> T:
    """What `do` returns; in another thread where this one has a running event loop, which nothing in it can wait for."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return do()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(do).result()
