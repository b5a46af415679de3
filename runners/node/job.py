"""The job of one node of a run: its document, its part of the run with an agent, and the ranks' output on its stdout.

The job lives as long as its part. Its launcher (SkyPilot under Slurm, for example) ends all nodes if one process exits
with an error, and a session's other processes with the session. So this process exits last, with the part's outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import platform
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ...presets import seats
from ...presets.base_dirs import private_folder
from ...presets.finding import PlanError
from ...presets.node_plans import for_host, for_node, part_id, part_run8
from ...presets.plan import Plan
from ...presets.plan_json import plan_from_json, plan_to_json, revealed
from ...presets.seats import Seat
from ...presets.secrets import SECRET_WORDS
from ..inrank.secure_channel import KEY_FILE
from ..run import clock, environment, file_io, run_directories
from ..run.commands import Stop
from ..run.errors import RunError
from ..run.formatting import size_text
from ..run.host_processes import StartMode
from ..run.journal import RunRecord
from ..run.log_files import LogFile, parse_file_id
from ..run.machine import check_python
from ..run.model import LogGrew, RunEnded, RunPhase
from ..run.opened_logs import LogError, opened
from ..run.parts import Parts, failure
from ..run.state import RunState
from ..run.wire.client import LinkError, SocketLink, new_id
from .local_agent import start_agent

# -----------------------------------------------------------------------------------------------------------
# The job document of every node of a run: ~/.distui/jobs/<run>.json.


HUB_FILE = "job.json"
"""The document in the hub's run directory, before it is sent."""
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_RUN8 = re.compile(r"[0-9a-f]{8}")


class Document(Struct, frozen=True):
    """Job document of one run on several nodes."""

    run: str
    run8: str
    name: str
    created: float
    nnodes: int
    plan: dict[str, Any]
    """`plan_json.plan_to_json` of the plan for all nodes, with placeholders, secrets masked."""
    addresses: tuple[str, ...] | None = None
    """Address of every node by number; None: SkyPilot has them."""

    def whole(self) -> Plan:
        """Return the plan for all nodes with the secret words from this process's environment, or raise RunError."""
        try:
            return revealed(plan_from_json(self.plan), os.environ)
        except PlanError as error:
            raise RunError(str(error)) from None


class Start(Struct, frozen=True):
    """Input of `node.sh start` on stdin: the document, and values that must not be in a file."""

    job: Document
    env: dict[str, str] = {}
    """Result of `plan_json.hidden` for the plan, and DISTUI_RELAY_KEY."""


def path_of(run: str) -> Path:
    """Path of a run's document on this node. Raises RunError for an invalid run id."""
    if not _RUN.fullmatch(run):
        raise RunError(f"{run!r} is not a valid run id")
    return Path.home() / ".distui" / "jobs" / f"{run}.json"


def read_document(run: str) -> Document:
    """Read a run's document. Raises RunError."""
    path = path_of(run)
    try:
        document = msgspec.json.decode(path.read_bytes(), type=Document)
    except (OSError, msgspec.MsgspecError) as error:
        raise RunError(f"the job document {path} cannot be read: {error}") from None
    return _checked(document, run)


def write_document(document: Document) -> None:
    """Write the document for `read_document`. Raises RunError."""
    path = path_of(document.run)
    try:
        private_folder(path.parent)
        file_io.write_atomically(path, msgspec.json.encode(document))
    except OSError as error:
        raise RunError(f"the job document {path} cannot be written: {error.strerror}") from None


def read_start(data: bytes, run: str) -> Start:
    """Decode the input on stdin. Raises RunError."""
    try:
        start = msgspec.json.decode(data, type=Start)
    except msgspec.MsgspecError as error:
        raise RunError(f"the job document on stdin is not valid: {error}") from None
    _checked(start.job, run)
    return start


def _checked(document: Document, run: str) -> Document:
    """Return the document if it belongs to the run. Raises RunError."""
    if document.run != run or not _RUN8.fullmatch(document.run8):
        raise RunError(f"the job document of {run} is that of {document.run!r}")
    return document


# -----------------------------------------------------------------------------------------------------------
# The ranks' output on the job's own stdout, so that the job's log contains it. The log files are authoritative, and this
# copy blocks nothing: a flood is cut, with a line that reports it.


CHUNK = 1 << 16
"""Maximum bytes per file and round."""
BEHIND = 1 << 20
"""Maximum bytes waiting for output; of more, only the last chunk is printed."""
PAUSE_S = 0.25
"""Seconds between two chunks: at most 256 KiB per second and file."""


class Echo:
    """Prints the growth of files, each line with its rank as prefix."""

    def __init__(self, run_dir: Path, write: Callable[[bytes], object]) -> None:
        self._run_dir, self._write = run_dir, write
        self._sizes: dict[str, int] = {}
        self._shown: dict[str, int] = {}
        self._news = asyncio.Event()

    def skip(self) -> None:
        """Skip existing output, because an earlier job printed it."""
        for path in self._run_dir.glob("node-*/attempt-*/*"):
            name = path.relative_to(self._run_dir).as_posix()
            if wanted(name):
                self._shown[name] = path.stat().st_size

    def grew(self, sizes: dict[str, int]) -> None:
        """Set the new sizes in bytes of files that grew."""
        self._sizes |= {name: size for name, size in sizes.items() if wanted(name)}
        self._news.set()

    async def run(self) -> None:
        """Print until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while await self._round():
                await asyncio.sleep(PAUSE_S)

    async def rest(self, seconds: float) -> None:
        """Print the rest, including incomplete lines, for at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while await self._round(last=True):
                    continue

    async def _round(self, last: bool = False) -> bool:
        """Print a chunk of every file, and return whether any has more."""
        more = False
        for name, size in sorted(self._sizes.items()):
            shown = self._shown.get(name, 0)
            if shown < size:
                self._shown[name], text = take(self._run_dir, name, shown, size, last)
                if text:
                    await asyncio.to_thread(self._write, text)
                more = more or shown < self._shown[name] < size
        return more


def wanted(name: str) -> bool:
    """Whether to print a file: stdout and stderr of ranks and commands."""
    file = parse_file_id(name)
    return file is not None and file.source in ("rank", "command") and file.stream in ("out", "err")


def take(run_dir: Path, name: str, shown: int, size: int, last: bool) -> tuple[int, bytes]:
    """Read a file of `size` bytes from `shown`; return the new offset, and the text to print.

    The text ends with a line, unless the line is longer than a chunk, or `last`.
    """
    file = parse_file_id(name)
    assert file is not None
    skipped = b""
    if size - shown > BEHIND:
        missed, shown = size - shown - CHUNK, size - CHUNK
        text = f"… {size_text(missed)} of {name} are not shown here: `distui logs` has all of it\n"
        skipped = prefix(file) + text.encode()
    try:
        with opened(run_dir, name) as descriptor:
            data = os.pread(descriptor, min(CHUNK, size - shown), shown)
    except (LogError, OSError):
        return size, b""
    whole = data.rfind(b"\n") + 1
    if not whole and not last and len(data) < CHUNK:
        return shown, skipped
    if whole and not (last and shown + len(data) == size):
        data = data[:whole]
    return shown + len(data), skipped + lines(data, prefix(file))


def prefix(file: LogFile) -> bytes:
    """Prefix of a file's lines: "[rank 3] "."""
    return f"[{file.label}] ".encode()


def lines(data: bytes, before: bytes) -> bytes:
    """Prefix each line with `before`; keep only the last state of an overwritten line (progress bar)."""
    shown = []
    for line in data.removesuffix(b"\n").split(b"\n"):
        seen = [part for part in line.split(b"\r") if part]
        shown.append(before + (seen[-1] if seen else b"") + b"\n")
    return b"".join(shown)


def to_stdout(data: bytes) -> None:
    """Write all of `data`; ignore a closed reader."""
    view = memoryview(data)
    with contextlib.suppress(OSError):
        while view:
            view = view[os.write(1, view) :]


# -----------------------------------------------------------------------------------------------------------
# The job: starts the part's agent, and another if that ends.


STOPPED = 143
"""Exit code of a stopped job: a shell's code for SIGTERM."""
RETRY_SECONDS = 5.0
"""Seconds between two tries to start an agent for living ranks (full disk)."""
LINGER_SECONDS = 30.0
"""Maximum seconds to wait after the end for the agent, which waits for its viewers and its hub."""

CANCEL_SECONDS = 180.0
"""Maximum seconds that a stopped job waits for its cancellation; longer than the hub gives SkyPilot."""


def job(run: str, node: int | None = None) -> int:
    """Run this node's part to its end, and return the job's exit code. Raises RunError.

    `node` is given if the launch itself numbered the nodes (the document then has their addresses); otherwise SkyPilot's
    variables determine it.
    """
    ours = own_environment()
    doc = read_document(run)
    plan = doc.whole()
    try:
        if node is None:
            seat = seats.seat(os.environ, plan.nnodes, plan.nnodes_min)
        else:
            seat = seats.given_seat(node, doc.addresses or (), plan.nnodes, plan.nnodes_min)
    except PlanError as error:
        raise RunError(str(error)) from None
    entry = establish(doc, seat, work_directory(plan, own=node is None))
    keep_relay_key(entry)
    with job_lock(entry):
        return asyncio.run(NodeJob(entry, {**ours, **secrets_of(entry)}).run())


class NodeJob:
    """One part, from its start to its end."""

    def __init__(self, entry: run_directories.Entry, env: dict[str, str]) -> None:
        self._entry, self._env = entry, env
        self._state = RunState()
        self._echo = Echo(entry.path, to_stdout)
        self._stop = asyncio.Event()
        self._parts = Parts(lambda name, error, follows: say(failure(name, error, follows, None, "").text))
        self._followed = False
        """Whether an agent answered this job at least once."""

    async def run(self) -> int:
        """Return the exit code of the job. Raises RunError if nothing could be started."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        self._continue()
        self._parts.start("output", self._echo.run)
        try:
            while not self._state.phase.ended:
                await self._follow()
        finally:
            await self._parts.stop("output")
        await self._echo.rest(5.0)
        await self._leave()
        await self._await_cancel()
        return exit_code(self._state.phase)

    def _continue(self) -> None:
        """Skip old output, and let a part that has ended continue with its next attempt."""
        self._echo.skip()
        if self._entry.state().phase.ended and not runner_lives(self._entry):
            self._env = {**self._env, "DISTUI_AGAIN": "1"}

    async def _follow(self) -> None:
        """Start or find an agent, and follow it until it ends or the part has ended."""
        try:
            link = await self._link()
        except (RunError, LinkError) as error:
            if not self._followed and not runner_lives(self._entry):
                raise RunError(str(error)) from None
            say(f"{error}: trying again in {RETRY_SECONDS:g} s")
            await asyncio.sleep(RETRY_SECONDS)
            return
        stopping = self._parts.once("stop", self._pass_on_stop(link))
        try:
            async for stamped in link.events(self._state.seq):
                self._state.apply(stamped)
                if isinstance(stamped.event, LogGrew):
                    self._echo.grew(stamped.event.sizes)
                elif isinstance(stamped.event, RunEnded):
                    say(f"node {self._entry.record.node}: {stamped.event.phase}: {stamped.event.text}")
        except LinkError:
            say(
                f"the agent of node {self._entry.record.node} is gone, its ranks are not: another one takes over"
            )
        finally:
            stopping.cancel()
            await link.close()

    async def _link(self) -> SocketLink:
        """Connect to the agent, or start one before. Raises RunError and LinkError."""
        who = self._entry.agent()
        if who is None:
            await asyncio.to_thread(start_agent, self._entry, self._env, StartMode.START)
            self._env.pop("DISTUI_AGAIN", None)
            who = self._entry.agent()
        if who is None:
            raise RunError(f"no agent came up: see {self._entry.path / 'agent.log'}")
        link = await SocketLink.connect(Path(who.socket))
        self._followed = True
        return link

    async def _pass_on_stop(self, link: SocketLink) -> None:
        await self._stop.wait()
        with contextlib.suppress(LinkError):
            await link.send(Stop(new_id()))

    async def _leave(self) -> None:
        """Wait while viewers read from the agent: the node may be lost with this process."""
        deadline = clock.monotonic() + LINGER_SECONDS
        while self._entry.agent() is not None and clock.monotonic() < deadline:
            await asyncio.sleep(0.1)

    async def _await_cancel(self) -> None:
        """Wait until the hub lets SkyPilot cancel a stopped job: SkyPilot lists a job that exited before as failed."""
        if self._state.phase is RunPhase.STOPPED and "SKYPILOT_TASK_ID" in os.environ:
            await clock.wait_set(self._stop, CANCEL_SECONDS)


def exit_code(phase: RunPhase) -> int:
    """Exit code of the job: 0 only for success, so that no scheduler mistakes another outcome for it."""
    return {RunPhase.SUCCEEDED: 0, RunPhase.STOPPED: STOPPED}.get(phase, 1)


def say(text: str) -> None:
    """Print a line of the job itself on stdout."""
    to_stdout(f"distui: {text}\n".encode())


# -----------------------------------------------------------------------------------------------------------
# One node's part of a run: a separate run directory, created once and then continued.


RELAY_KEY = "DISTUI_RELAY_KEY"


def training_python(plan: Plan) -> str:
    """Interpreter of the ranks on this node: the plan's, else `python` on PATH. Raises RunError.

    For a command that needs no interpreter, the plan's value, usually "".
    """
    if plan.launcher != "torchrun":
        return plan.python
    if plan.python:
        return check_python(plan.python)
    try:
        return check_python("python")
    except RunError:
        return check_python("python3")


def establish(document: Document, seat: Seat, cwd: str) -> run_directories.Entry:
    """Create the part of this node, or renew the plan of an existing one. Raises RunError.

    Attempts and journal of an earlier job are never overwritten; its plan stays too while its ranks live.
    """
    path = run_directories.runs_dir() / part_id(document.run, seat.node)
    plan = document.whole()
    try:
        fitted = for_node(plan, seat.node, seat.addresses, str(path), cwd, training_python(plan))
        fitted = for_host(fitted, platform.node())
    except PlanError as error:
        raise RunError(str(error)) from None
    record = RunRecord(
        run=fitted.run,
        run8=part_run8(document.run8, seat.node),
        name=document.name,
        created=document.created,
        host=platform.node(),
        kind="node",
        node=seat.node,
        nnodes=plan.nnodes,
        whole=document.run,
    )
    earlier = run_directories.at(path)
    text = json.dumps(plan_to_json(fitted, masked=True), indent=1).encode()
    try:
        if earlier is None:
            run_directories.create(record, text, fitted.files)
            environment.write(path, environment.of_launch(os.environ, fitted.env))
        elif not runner_lives(earlier):
            for name, content in fitted.files.items():  # they may contain the nodes' addresses
                private_folder((path / name).parent)
                file_io.write_atomically(path / name, content.encode())
            file_io.write_atomically(path / run_directories.PLAN_FILE, text)
            environment.write(path, environment.of_launch(os.environ, fitted.env))
            file_io.write_atomically(path / run_directories.RUN_FILE, msgspec.json.encode(record))
    except OSError as error:
        raise RunError(f"cannot write {path} ({error.strerror}): free space there") from None
    return run_directories.Entry(path, record)


def runner_lives(entry: run_directories.Entry) -> bool:
    """Whether ranks of this part may be alive on this node."""
    who = file_io.read(entry.path / run_directories.RUNNER_FILE)
    return who is not None and not file_io.elsewhere(who) and file_io.alive(who)


def secrets_of(entry: run_directories.Entry) -> dict[str, str]:
    """Secrets of the part in this job's environment: its agents get them from here, because no file has them."""
    kept = environment.read(entry.path)
    return {} if kept is None else environment.remembered(kept.hidden | {SECRET_WORDS}, os.environ)


def keep_relay_key(entry: run_directories.Entry) -> None:
    """Move the relay's key into a file of the part; raise RunError if that file cannot be written.

    The key comes from this environment, which the ranks would inherit, or from a file next to the job document, which
    stays for other nodes with this home.
    """
    key = os.environ.pop(RELAY_KEY, "")
    brought = path_of(entry.record.whole).with_suffix(".key")
    with contextlib.suppress(OSError):
        brought.chmod(0o600)
        key = key or brought.read_text()
    if key:
        try:
            file_io.write_atomically(entry.path / KEY_FILE, key.encode())
        except OSError as error:
            raise RunError(f"cannot write {entry.path / KEY_FILE}: {error.strerror}") from None


def own_environment() -> dict[str, str]:
    """Restore the user's PYTHONPATH in this process, and return the variables that distui's own children need instead.

    `boot.py` has set it to the bundle's library, which ranks must not use: see `agent.runner.environment`.
    """
    if "DISTUI_USER_PYTHONPATH" not in os.environ:
        return {}
    users = os.environ.pop("DISTUI_USER_PYTHONPATH")
    ours = {"PYTHONPATH": os.environ.pop("PYTHONPATH", ""), "DISTUI_USER_PYTHONPATH": users}
    if users:
        os.environ["PYTHONPATH"] = users
    return ours


@contextlib.contextmanager
def job_lock(entry: run_directories.Entry) -> Iterator[None]:
    """Hold the lock of a part's job process. Raises RunError if another process has it."""
    lock = os.open(entry.path / "job.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise RunError(f"another job process of {entry.record.run} lives on this node") from None
    finally:
        os.close(lock)


def work_directory(plan: Plan, own: bool) -> str:
    """Working directory of the ranks: this process's (`own`), or the plan's. Raises RunError."""
    if own or not plan.cwd:
        return str(Path.cwd())
    path = Path(plan.cwd).expanduser()
    if not path.is_dir():
        raise RunError(
            f"{platform.node()} has no directory {path}, where the ranks are to start: put your code there"
        )
    return str(path)
