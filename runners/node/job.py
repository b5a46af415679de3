"""The job of one node of a run: its document, its part of the run with an agent, and the ranks' output on its stdout.

The job stays as long as its part lives. Whatever started it (SkyPilot under Slurm, say) ends all nodes when one process
exits with an error, and a session's leftovers with the session: so this process leaves last, with the part's outcome.
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

from ...presets import worker_group
from ...presets.finding import PlanError
from ...presets.plan import Plan
from ...presets.render import for_host, for_node, part_id, part_run8, plan_from_json, plan_to_json, revealed
from ...presets.secrets import SECRET_WORDS
from ...presets.trusted_files import private_folder
from ...presets.worker_group import Seat
from .. import clock, environment, file_io, run_directories
from ..errors import RunError
from ..formatting import size_text
from ..host_processes import StartMode
from ..inrank.secure_channel import KEY_FILE
from ..journal import RunRecord
from ..local_agent import check_python, start_agent
from ..logs.log_files import LogError, LogFile, opened, parse_file_id
from ..model import LogGrew, RunEnded, RunPhase, Stop
from ..parts import Parts, failure
from ..state import RunState
from ..wire.client import LinkError, SocketLink, new_id

# -----------------------------------------------------------------------------------------------------------
# The job document: what every node of a run gets, ~/.distui/jobs/<run>.json.


HUB_FILE = "job.json"
"""The document in the hub's run directory, before it travels."""
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_RUN8 = re.compile(r"[0-9a-f]{8}")


class Document(Struct, frozen=True):
    """One run on several nodes."""

    run: str
    run8: str
    name: str
    created: float
    nnodes: int
    plan: dict[str, Any]
    """`render.plan_to_json` of the plan for all nodes, with placeholders, secrets masked."""
    addresses: tuple[str, ...] | None = None
    """Of every node by number; None: SkyPilot knows them."""

    def whole(self) -> Plan:
        """The plan for all nodes, with the secret words that this process was given. Raises RunError."""
        try:
            return revealed(plan_from_json(self.plan), os.environ)
        except PlanError as error:
            raise RunError(str(error)) from None


class Start(Struct, frozen=True):
    """What `node.sh start` reads from stdin: the document, and what must not stand in a file."""

    job: Document
    env: dict[str, str] = {}
    """What `render.hidden` gives of the plan, and DISTUI_RELAY_KEY."""


def path_of(run: str) -> Path:
    """Where the document of a run lies on this node. Raises RunError for what cannot be a run's id."""
    if not _RUN.fullmatch(run):
        raise RunError(f"{run!r} is no id of a run")
    return Path.home() / ".distui" / "jobs" / f"{run}.json"


def read_document(run: str) -> Document:
    """Raises RunError."""
    path = path_of(run)
    try:
        document = msgspec.json.decode(path.read_bytes(), type=Document)
    except (OSError, msgspec.MsgspecError) as error:
        raise RunError(f"the job document {path} cannot be read: {error}") from None
    return _checked(document, run)


def write_document(document: Document) -> None:
    """Put it where `read_document` reads it. Raises RunError."""
    path = path_of(document.run)
    try:
        private_folder(path.parent)
        file_io.write_atomically(path, msgspec.json.encode(document))
    except OSError as error:
        raise RunError(f"the job document {path} cannot be written: {error.strerror}") from None


def read_start(data: bytes, run: str) -> Start:
    """What came on stdin. Raises RunError."""
    try:
        start = msgspec.json.decode(data, type=Start)
    except msgspec.MsgspecError as error:
        raise RunError(f"what came on stdin is no start of a run: {error}") from None
    _checked(start.job, run)
    return start


def _checked(document: Document, run: str) -> Document:
    """The document itself, if it is that run's. Raises RunError."""
    if document.run != run or not _RUN8.fullmatch(document.run8):
        raise RunError(f"the job document of {run} is that of {document.run!r}")
    return document


# -----------------------------------------------------------------------------------------------------------
# The ranks' output on the job's own stdout, so that a job's log shows the ranks' output.
# The files are the truth; this view blocks nothing: a flood is cut short, with a line that reports it.


CHUNK = 1 << 16
"""Bytes shown of one file at a time."""
BEHIND = 1 << 20
"""Bytes that may wait to be shown; of more only the last chunk is."""
PAUSE_S = 0.25
"""Between two chunks: at most 256 KiB a second of each file."""


class Echo:
    """Shows what files grow by, each line with its rank before it."""

    def __init__(self, run_dir: Path, write: Callable[[bytes], object]) -> None:
        self._run_dir, self._write = run_dir, write
        self._sizes: dict[str, int] = {}
        self._shown: dict[str, int] = {}
        self._news = asyncio.Event()

    def skip(self) -> None:
        """What is there already was shown by an earlier job."""
        for path in self._run_dir.glob("node-*/attempt-*/*"):
            name = path.relative_to(self._run_dir).as_posix()
            if wanted(name):
                self._shown[name] = path.stat().st_size

    def grew(self, sizes: dict[str, int]) -> None:
        """Sizes in bytes of files that grew."""
        self._sizes |= {name: size for name, size in sizes.items() if wanted(name)}
        self._news.set()

    async def run(self) -> None:
        """Show for ever; cancel to stop."""
        while True:
            await self._news.wait()
            self._news.clear()
            while await self._round():
                await asyncio.sleep(PAUSE_S)

    async def rest(self, seconds: float) -> None:
        """Show what is left, also lines without an end, but not for longer than `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while await self._round(last=True):
                    continue

    async def _round(self, last: bool = False) -> bool:
        """A chunk of every file; whether any of them has more."""
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
    """Whether a file is shown: what ranks and commands write to stdout and stderr."""
    file = parse_file_id(name)
    return file is not None and file.source in ("rank", "command") and file.stream in ("out", "err")


def take(run_dir: Path, name: str, shown: int, size: int, last: bool) -> tuple[int, bytes]:
    """Read on from `shown` in a file of `size` bytes: how far that was, and the text to show.

    Only whole lines, unless they are longer than a chunk or `last`.
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
    """ "[rank 3] "."""
    return f"[{file.label}] ".encode()


def lines(data: bytes, before: bytes) -> bytes:
    """Each line with `before` in front; of one that was written over (a progress bar) what was seen last."""
    shown = []
    for line in data.removesuffix(b"\n").split(b"\n"):
        seen = [part for part in line.split(b"\r") if part]
        shown.append(before + (seen[-1] if seen else b"") + b"\n")
    return b"".join(shown)


def to_stdout(data: bytes) -> None:
    """All of `data`, or nothing more once nobody reads."""
    view = memoryview(data)
    with contextlib.suppress(OSError):
        while view:
            view = view[os.write(1, view) :]


# -----------------------------------------------------------------------------------------------------------
# The job: starts the part's agent, and another where one is gone.


STOPPED = 143
"""Exit code of a job that was stopped: what a shell gives for SIGTERM."""
RETRY_SECONDS = 5.0
"""Between two tries to start an agent where ranks live and none comes up (a full disk)."""
LINGER_SECONDS = 30.0
"""How long the job waits after the end for the agent, which waits for those who still read, and for its hub."""

CANCEL_SECONDS = 180.0
"""How long a stopped job waits to be cancelled; longer than the hub lets SkyPilot take for that."""


def job(run: str, node: int | None = None) -> int:
    """Run this node's part to its end; the job's exit code. Raises RunError.

    `node` is given where the launch itself numbered the nodes (the document holds their addresses then), else
    SkyPilot says it.
    """
    ours = own_environment()
    doc = read_document(run)
    plan = doc.whole()
    try:
        if node is None:
            seat = worker_group.seat(os.environ, plan.nnodes, plan.nnodes_min)
        else:
            seat = worker_group.given_seat(node, doc.addresses or (), plan.nnodes, plan.nnodes_min)
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
        """Exit code of the job. Raises RunError when nothing could be started."""
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
        """A part that ended before is to go on: its next attempt follows its last."""
        self._echo.skip()
        if self._entry.state().phase.ended and not runner_lives(self._entry):
            self._env = {**self._env, "DISTUI_AGAIN": "1"}

    async def _follow(self) -> None:
        """Have an agent, and follow it until it is gone or the part has ended."""
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
        """A link to the agent, or to one that is started now. Raises RunError and LinkError."""
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
        """Stay while somebody still reads from the agent: with this process the node may be gone."""
        deadline = clock.monotonic() + LINGER_SECONDS
        while self._entry.agent() is not None and clock.monotonic() < deadline:
            await asyncio.sleep(0.1)

    async def _await_cancel(self) -> None:
        """Whoever stopped the run has SkyPilot cancel its job next; one that is gone by then is listed as failed."""
        if self._state.phase is RunPhase.STOPPED and "SKYPILOT_TASK_ID" in os.environ:
            await clock.wait_set(self._stop, CANCEL_SECONDS)


def exit_code(phase: RunPhase) -> int:
    """0 only for success, so that no scheduler takes anything else for one."""
    return {RunPhase.SUCCEEDED: 0, RunPhase.STOPPED: STOPPED}.get(phase, 1)


def say(text: str) -> None:
    """A line of the job's own on its stdout."""
    to_stdout(f"distui: {text}\n".encode())


# -----------------------------------------------------------------------------------------------------------
# One node's part of a run: a run directory of its own, made once and continued ever after.


RELAY_KEY = "DISTUI_RELAY_KEY"


def training_python(plan: Plan) -> str:
    """The interpreter of the ranks on this node: the plan's, else what PATH calls python. Raises RunError.

    "" for a command, which brings its own.
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
    """The part of this node: made, or where it is there already its plan renewed. Raises RunError.

    What an earlier job left (attempts, journal) is never overwritten; while ranks of its live, nor is its plan.
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
            for name, content in fitted.files.items():  # which may name the nodes' addresses
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
    """Secrets of the part that this job brought: its agents get them from it, as no file holds them."""
    kept = environment.read(entry.path)
    return {} if kept is None else environment.remembered(kept.hidden | {SECRET_WORDS}, os.environ)


def keep_relay_key(entry: run_directories.Entry) -> None:
    """Move the relay's key into a file of the part: out of this environment, which the ranks would inherit, or from
    beside the job document, where it stays for other nodes that have the same home.

    Raises RunError.
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
    """Give this process the user's PYTHONPATH back; what our own children need instead of it.

    `boot.py` has put the bundle's library there, which is not for the ranks: see `agent.runner.environment`.
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
    """Held by the job process of a part. Raises RunError when there is another one."""
    lock = os.open(entry.path / "job.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise RunError(f"another job process of {entry.record.run} lives on this node") from None
    finally:
        os.close(lock)


def work_directory(plan: Plan, own: bool) -> str:
    """Where the ranks start: in this process's directory (`own`), or in the plan's. Raises RunError."""
    if own or not plan.cwd:
        return str(Path.cwd())
    path = Path(plan.cwd).expanduser()
    if not path.is_dir():
        raise RunError(
            f"{platform.node()} has no directory {path}, where the ranks are to start: put your code there"
        )
    return str(path)
