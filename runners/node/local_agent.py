"""Runs on this machine: the start of a run, and links to a run by name."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import structs

from ...presets.plurals import plural
from ...presets.rank_env import inherited_env
from ..run import clock, environment, file_io, launch_record, own_runs, run_directories
from ..run.commands import Command
from ..run.errors import RunError, UnknownOutcomeError, UnreachableError
from ..run.formatting import agreeing, spans_text
from ..run.host_processes import StartMode
from ..run.machine import cores_here, default_python, free_port, gpus_here
from ..run.model import CommandDone
from ..run.run_directories import Condition
from ..run.run_record import RunRecord
from ..run.server_link import connect
from ..run.state import RunState
from ..run.wire.client import Link, LinkError, SocketLink, UnansweredError, ensure_socket_dir
from .agentless import DiskLink, FilesLink
from .run_following import history

if TYPE_CHECKING:
    from ...presets.plan import Place, Plan
    from ...presets.request import Request
from .script_files import read_around, script_source

START_SECONDS = 20.0
FILES, FILES_A_RANK = 48, 4
"""Descriptors that an agent needs with a few viewers, and additional ones per rank; its runner needs fewer."""


def place(record: RunRecord, request: Request) -> Place:
    """Collect the facts about this machine that a launch needs."""
    from ...presets.plan import Place

    exists, source = script_source(request)
    beside, config = read_around(Path(request.script or ""), source, args=request.args)
    return Place(
        run=record.run,
        run_dir=str(run_directories.runs_dir() / record.run),
        port=request.port or free_port(),
        ras_port=free_port(),
        gpus=gpus_here(),
        cores=cores_here(),
        cwd=_cwd(),
        python=request.python or default_python(),
        script_exists=exists,
        script_source=source,
        script_beside=beside,
        script_config=config,
        user_env=inherited_env(os.environ),
    )


def _cwd() -> str:
    try:
        cwd = os.getcwd()
        cwd.encode()
        return cwd
    except UnicodeEncodeError:
        raise RunError("the directory you are in has a name that is not UTF-8 text: rename it") from None
    except FileNotFoundError:
        raise RunError("the directory you are in was removed: cd to one that exists") from None


def start(
    plan: Plan,
    record: RunRecord,
    files: Mapping[str, str] | None = None,
    hidden: Mapping[str, str] | None = None,
    shell: Mapping[str, str] | None = None,
) -> run_directories.Entry:
    """Create the run directory and start the run's agent, which starts the ranks, or its hub, which launches nodes.

    `files`: additional files of the run directory; `hidden`: secrets that are not in the plan; `shell`: environment that
    the ranks inherit, by default this process's. Raises RunError.
    """
    from ...presets.plan_json import hidden as hidden_of
    from ...presets.plan_json import plan_to_json

    ensure_socket_dir()
    document = json.dumps(plan_to_json(plan, masked=True), indent=1).encode()
    check_files(plan.nproc_per_node or 1)
    ours = record.kind != "hub"  # a hub's ranks have the environments of the jobs on its nodes
    inherited: Mapping[str, str] = {}
    if ours:
        inherited = os.environ if shell is None else shell
    env = environment.of_launch(inherited, plan.env)
    secrets = {**environment.hidden(env), **hidden_of(plan)} if ours else hidden_of(plan)
    whole = record.kind != "node"  # a node's part of a run gets the rest from its hub
    if whole:
        record = structs.replace(record, git=launch_record.git_state(plan.cwd if ours else os.curdir))
    with run_directories.start_lock():
        if whole:
            marks = launch_record.fingerprints(secrets, run_directories.runs_dir().parent)
            record = structs.replace(record, fingerprints=marks)
        path = run_directories.create(record, document, {**plan.files, **(files or {})})
        entry = run_directories.Entry(path, record)
        if ours:
            keep_environment(path, env)
        settling = threading.Thread(target=settle, args=(path,))
        settling.start()  # in parallel with the start of the agent
        try:
            start_agent(
                entry, {**environment.hidden(env), **hidden_of(plan), **(hidden or {})}, StartMode.START
            )
        finally:
            settling.join()
    return entry


def settle(path: Path) -> None:
    """Sync the constant files of a run directory to disk: after a power cut the run is still complete."""
    names = (run_directories.PLAN_FILE, run_directories.RUN_FILE, environment.FILE)
    for each in (*(path / name for name in names), path, path.parent):
        with contextlib.suppress(
            OSError
        ):  # a hub's run has no environment; some file systems sync no folders
            file_io.sync(each)


def check_files(ranks: int) -> None:
    """Raise RunError if agent and runner may not open enough files for this number of ranks."""
    import resource

    limit, least = resource.getrlimit(resource.RLIMIT_NOFILE)[0], FILES + FILES_A_RANK * ranks
    if limit != resource.RLIM_INFINITY and limit < least:
        raise RunError(
            f"only {limit} files may be open at a time here, and {plural(ranks, 'rank')} need {least}: "
            f"`ulimit -n {max(1024, least)}`, then launch again"
        )


def keep_environment(path: Path, env: Mapping[str, str]) -> None:
    """Write the environment for every runner of the run, or discard the run. Raises RunError."""
    try:
        environment.write(path, env)
    except OSError as error:
        run_directories.discard(path)
        raise RunError(
            f"cannot write {path / environment.FILE} ({error.strerror}): free space there"
        ) from None


def start_agent(
    entry: run_directories.Entry, env: Mapping[str, str] | None = None, mode: StartMode = StartMode.READ
) -> None:
    """Start an agent, or a hub, in a new session and wait until it answers, or is not needed.

    `env`: additional variables, including secrets of the run; `mode`: processes that it may start. Raises RunError.

    If another agent already holds the run, `entry.agent()` returns it once it answers.
    """
    own_runs.check(entry.path)
    check_files(1)
    module = f"distui.runners.{'hub' if entry.record.kind == 'hub' else 'agent'}"
    read, write = os.pipe()
    try:
        with file_io.appending(entry.path / "agent.log") as log:
            subprocess.Popen(
                # -P: modules in the user's directory must not shadow the standard library
                [sys.executable, "-P", "-m", module, "run", str(entry.path), str(write), str(mode)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(write,),
                env=_daemon_environment(entry, env or {}),
            )
    except OSError as error:
        raise RunError(f"the agent of {entry.record.name} could not be started: {error.strerror}") from None
    finally:
        os.close(write)
    answer = _first_line(read)
    if answer.startswith("error:"):
        raise RunError(answer.removeprefix("error:").strip())
    if answer not in ("ready", "taken", "lost"):
        raise RunError(f"the agent of {entry.record.name} did not come up: see {entry.path / 'agent.log'}")


def _daemon_environment(entry: run_directories.Entry, given: Mapping[str, str]) -> dict[str, str]:
    if entry.record.kind != "hub":
        return environment.of_daemon(environment.read(entry.path), os.environ, given)
    try:
        planned = json.loads(file_io.content(entry.path / run_directories.PLAN_FILE))["env"]
    except Exception:  # noqa: BLE001 - a damaged plan is reported by the process that serves the run
        planned = {}
    return environment.of_hub(os.environ, planned if isinstance(planned, dict) else {}, given)


def _first_line(descriptor: int) -> str:
    import select

    deadline = clock.monotonic() + START_SECONDS
    data = b""
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        while b"\n" not in data:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - clock.monotonic()))
            chunk = pipe.read(4096) if ready else b""
            if not chunk:
                break
            data += chunk
    return data.decode(errors="replace").strip()


async def open_link(entry: run_directories.Entry, readonly: bool = False) -> Link:
    """Open a link to a run: to its agent or hub, to a new one if ranks live without one, else to its files.

    This never starts, ends or changes a rank. A part of a run on several nodes leads to that run, through a new hub.
    Raises LinkError.
    """
    try:
        if entry.record.kind == "node":
            from .routes import keep

            entry = keep(entry)
        return await open_agent(entry, readonly)
    except RunError as error:
        raise LinkError(str(error)) from None


async def open_agent(entry: run_directories.Entry, readonly: bool = False) -> Link:
    """Open a link to the server of exactly this run directory, or to its files. Raises RunError and LinkError."""
    deadline = clock.monotonic() + START_SECONDS
    while clock.monotonic() < deadline:
        now = run_directories.condition_of(entry)
        if now in (Condition.UNSERVED, Condition.UNREAD):
            try:
                await asyncio.to_thread(start_agent, entry)
            except RunError as error:
                return FilesLink(entry, str(error), readonly)
            continue
        link = _to_files(entry, now, readonly)
        if link is None:
            link = await _to_server(entry, now, readonly)
        if link is not None:
            return link
        await asyncio.sleep(0.1)  # it will answer soon
    raise UnreachableError(
        f"another agent holds {entry.record.name} and does not answer: see {entry.path / 'agent.log'}"
    )


def _to_files(entry: run_directories.Entry, now: Condition, readonly: bool) -> Link | None:
    """Open the files of a run that has no server and gets none; None otherwise. Raises UnreachableError."""
    if now is Condition.ELSEWHERE:
        why = run_directories.elsewhere(entry)
        raise UnreachableError(why or f"run {entry.record.name} has moved: again")
    if now is Condition.ENDED:
        return DiskLink(entry)
    if now is Condition.LOST:
        why = run_directories.why_lost(entry, run_directories.orphans(entry))
        return FilesLink(entry, why, readonly, lambda given: start_agent(entry, given, StartMode.RESTART))
    return None


async def _to_server(entry: run_directories.Entry, now: Condition, readonly: bool) -> Link | None:
    """Connect to the server; None if it does not answer yet. Raises LinkError."""
    who = entry.agent()
    try:
        if who is not None:
            return await connect(who, readonly)
        return await SocketLink.connect(run_directories.socket_of(entry), readonly)
    except LinkError:
        if entry.state().phase.ended:
            return DiskLink(entry)
        if now is Condition.SERVED:
            raise
        return None


T = TypeVar("T")


async def with_link(name: str | None, use: Callable[[run_directories.Entry, Link], Awaitable[T]]) -> T:
    """Open a link to the run that `name` means, use it, close it. Raises RunError."""
    async with linked(name) as (entry, link):
        return await use(entry, link)


@contextlib.asynccontextmanager
async def linked(name: str | None) -> AsyncIterator[tuple[run_directories.Entry, Link]]:
    """Hold a link to the run that `name` means. Raises RunError, also in place of a LinkError inside."""
    entry = run_directories.resolve(name)
    try:
        link = await open_link(entry)
        try:
            yield entry, link
        finally:
            await link.close()
    except UnansweredError as error:
        raise UnknownOutcomeError(f"{entry.record.name}: {error}") from None
    except LinkError as error:
        raise UnreachableError(f"{entry.record.name}: {error}") from None


def check_ranks(state: RunState, asked: Sequence[int]) -> None:
    """Raise RunError if the newest attempt lacks one of the ranks; the text lists its ranks."""
    missing = sorted(set(asked) - state.ranks.keys())
    if missing and state.ranks:
        raise RunError(
            f"there {agreeing(missing, 'is', 'are')} no {spans_text('rank', missing)} in {state.name}: "
            f"it has {spans_text('rank', state.ranks)}"
        )


async def send(link: Link, command: Command, ranks: Sequence[int] = ()) -> CommandDone:
    """Send a command about some ranks of a run, and return the answer. Raises RunError for ranks that it lacks."""
    if ranks:
        state = await history(link)
        if not state.phase.ended:
            check_ranks(state, ranks)
    return await link.send(command)
