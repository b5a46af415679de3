"""A session with one node: its server runs in a Python process there, through ssh or as a local process.

Nothing is installed on the node, and all processes there end with the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from ..doctor.node_facts import MAGIC
from ..run import clock, rpc
from ..run.parts import Parts, Report
from ..run.wire import ssh
from ..run.wire.ssh import HostClosedEarlyError, HostError, Way
from .node_server import BOOT

READY_SECONDS = 60.0
LINE_BYTES = 4 << 20
KEPT_LINES = 12
PINGS = 5
READY = "ready"
"""Number of the first message, which answers the source itself instead of a request."""
PYTHONS = (
    *('"$DISTUI_PYTHON"', "python3", "python", "python3.13", "python3.12", "python3.11"),
    *("$HOME/miniconda3/bin/python3", "$HOME/miniforge3/bin/python3", "/opt/conda/bin/python3"),
)
FIND = (
    f"for p in {' '.join(PYTHONS)}; do "
    '"$p" -c "import sys;sys.exit(sys.version_info<(3,8))" </dev/null >/dev/null 2>&1 && '
    f'exec "$p" -c "{BOOT}"; done; '
    'echo "distui: no Python 3.8 or newer is found there: install one" >&2; exit 3'
)
"""Contains no characters that a login shell other than sh would interpret within single quotes."""
HERE = Path(__file__).resolve().parent
MODULES = (HERE / "node_facts.py", HERE / "node_server.py")
"""The node server's modules in import order."""
TORCH_CHECK = HERE.parent / "inrank" / "torch_check.py"
"""Source that the node's server executes in the training environment's interpreter."""
LOADER = """
import sys, types
root = types.ModuleType("distui_doctor")
root.__path__ = []
sys.modules["distui_doctor"] = root
for name, text in MODULES.items():
    module = types.ModuleType("distui_doctor." + name)
    module.__package__ = "distui_doctor"
    sys.modules[module.__name__] = module
    setattr(root, name, module)
    exec(compile(text, name + ".py", "exec"), module.__dict__)
TEXTS = {"nvml": MODULES["node_facts"] + "\\nreport_nvml()\\n", "torch": TORCH_CHECK + "\\nmain()\\n"}
root.node_server.serve(TEXTS)
"""


def source() -> bytes:
    """Return the node's server as one script."""
    modules = {path.stem: path.read_text(encoding="utf-8") for path in MODULES}
    torch_check = TORCH_CHECK.read_text(encoding="utf-8")
    return f"MODULES = {json.dumps(modules)}\nTORCH_CHECK = {json.dumps(torch_check)}\n{LOADER}".encode()


class NodeSession:
    """A session with one node. `name` is its name in findings."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, report: Report) -> None:
        """`report`: see Parts."""
        self.name = name
        self._process = process
        self._requests = rpc.OpenRequests[dict[str, Any]]()
        self._stderr_lines: list[str] = []
        self._over = ""
        self._parts = Parts(report)
        self._errors = self._parts.start("session-errors", self._hear_errors)
        self._parts.once("session", self._hear())

    @classmethod
    async def open(
        cls, name: str, way: Way | None, report: Report, seconds: float = READY_SECONDS
    ) -> NodeSession:
        """Log in and start the node's server. `way` None: on this machine. Raises HostError."""
        return await ssh.persist(lambda: cls._open(name, way, report, seconds))

    @classmethod
    async def _open(cls, name: str, way: Way | None, report: Report, seconds: float) -> NodeSession:
        if way is None:
            words = [sys.executable, "-I", "-c", BOOT]
        else:
            words = ssh.argv(way.destination, way.options, ["sh", "-c", shlex.quote(FIND)])
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *words, stdin=pipe, stdout=pipe, stderr=pipe, limit=LINE_BYTES, start_new_session=True
            )
        except OSError as error:
            raise HostError(f"{words[0]} cannot be executed here ({error.strerror})") from None
        session = cls(name, process, report)
        try:
            text = source()
            with session._requests.open(READY) as ready:
                await session._write(b"%d\n" % len(text) + text)
                await session._answer(ready, seconds)
        except (HostError, asyncio.CancelledError):
            await session.close()
            raise
        return session

    async def clock(self) -> tuple[float, float]:
        """Return the lead of its clock over ours and its maximum error, in seconds. Raises HostError."""
        trips = []
        for _ in range(PINGS):
            began, since = clock.now(), clock.monotonic()
            answer = await self.ask("clock", 10.0)
            took = clock.monotonic() - since
            trips.append((took / 2, answer["clock"] - began - took / 2))
        doubt, ahead = min(trips)
        return ahead, doubt

    async def ask(self, op: str, seconds: float, **fields: Any) -> dict[str, Any]:
        """Send one request and return its answer. Raises HostError."""
        with self._requests.open() as request:
            await self._send(request, op, fields)
            answer = await self._answer(request, seconds)
        if "failed" in answer:
            raise HostError(f"internal error in {op} on {self.name}: {answer['failed']}")
        return answer

    async def _answer(self, request: rpc.OpenRequest[dict[str, Any]], seconds: float) -> dict[str, Any]:
        try:
            return await request.next(seconds)
        except TimeoutError:
            raise HostError(f"{self.name} did not answer within {seconds:.0f} s") from None

    @contextlib.asynccontextmanager
    async def run(self, python: str, spec: dict[str, Any], seconds: float) -> AsyncIterator[Worker]:
        """Run a worker in the training environment's interpreter until the context ends. Raises HostError."""
        with self._requests.open() as request:
            await self._send(request, "run", {"python": python, "spec": spec, "seconds": seconds})
            worker = Worker(self, request)
            try:
                yield worker
            finally:
                await worker.write_line(None)

    async def _send(
        self, request: rpc.OpenRequest[dict[str, Any]], op: str, fields: dict[str, Any]
    ) -> None:
        if self._over:
            self._end(self._over)
        await self._write(json.dumps({"op": op, "id": request.number, **fields}).encode() + b"\n")

    async def write_line(self, number: rpc.Number, value: dict[str, Any] | None) -> None:
        """Write a line to a worker. None ends it."""
        await self._write(json.dumps({"op": "forward", "to": number, "value": value}).encode() + b"\n")

    async def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except OSError:
            return  # the end of its stdout explains the error

    async def _hear(self) -> None:
        await self._parts.keep_running("session-answers", self._take_answers)
        assert self._process.stdout is not None
        if not self._process.stdout.at_eof():
            self._over = self._over or f"{self.name} no longer answers"
            await ssh.kill(self._process)
        code = await self._process.wait()
        await asyncio.wait({self._errors}, timeout=ssh.LEAVE_SECONDS)  # read ssh's last messages
        early = ssh.closed_early(self._stderr_lines, code)
        self._end(self._why(code), HostClosedEarlyError if early else HostError)

    async def _take_answers(self) -> None:
        assert self._process.stdout is not None
        try:
            async for line in self._process.stdout:
                text = line.decode("utf-8", "replace")
                if text.startswith(MAGIC):
                    message = rpc.message(text.removeprefix(MAGIC))
                    self._requests.part(message.get("id", READY), message)
        except ValueError:
            self._over = f"{self.name} sends lines that are not answers"

    def _end(self, why: str, kind: type[HostError] = HostError) -> None:
        """Fail all current and future requests with this reason."""
        self._over = self._over or why
        self._requests.fail(kind(self._over))

    async def _hear_errors(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.readline():
            self._stderr_lines.append(data.decode("utf-8", "replace").strip()[:500])
            del self._stderr_lines[:-KEPT_LINES]

    def _why(self, code: int) -> str:
        lines = [line for line in self._stderr_lines if line]
        why = ssh.explain(lines, code, self.name) if code else ""
        return why or f"{self.name}: {lines[-1] if lines else f'the connection ended with code {code}'}"

    async def close(self) -> None:
        """Close the connection, which ends all processes on the node."""
        assert self._process.stdin is not None
        self._over = self._over or f"the connection to {self.name} was closed"
        self._process.stdin.close()
        if not await ssh.leaves(self._process):
            await ssh.kill(self._process)
        await self._parts.stop("session", "session-errors")
        self._end(self._over)


class Worker:
    """A process in the training environment on a node."""

    def __init__(self, session: NodeSession, request: rpc.OpenRequest[dict[str, Any]]) -> None:
        self.session, self._request = session, request

    async def write_line(self, value: dict[str, Any] | None) -> None:
        """Write a line to its stdin. None ends it."""
        await self.session.write_line(self._request.number, value)

    async def hear(self) -> dict[str, Any]:
        """Return its next message. The last message has "exit". Raises HostError if the node is lost."""
        return await self._request.next()
