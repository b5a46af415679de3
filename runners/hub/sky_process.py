"""The process that calls SkyPilot, and its answers: candidates, and errors in plain words."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...presets.request import Request
from ...presets.sanitize import clean_lines
from ...presets.skypilot import resources
from ..run import rpc
from ..run.errors import RunError
from ..run.file_io import users_umask
from ..run.packages import install_extra
from .clouds import CloudError

MOST = 300
"""Maximum characters of SkyPilot's text in a sentence."""

KINDS: dict[str, str] = {
    "ApiServerConnectionError": "SkyPilot's API server does not answer: `sky api start` starts one here, "
    "`sky api info` names it",
    "ApiServerAuthenticationError": "SkyPilot's API server wants a login: `sky api login`",
    "APIVersionMismatchError": "SkyPilot here and its API server are of different versions: "
    "`sky api stop; sky api start` where it runs, or install the server's version",
    "NoCloudAccessError": "SkyPilot may use no infrastructure: `sky check` shows why for each",
    "RequestCancelled": "the request was cancelled at SkyPilot's API server",
    "CloudUserIdentityError": "SkyPilot does not know who you are at the cloud: log in with the cloud's own tool, "
    "then `sky check`",
    "ClusterOwnerIdentityMismatchError": "that cluster belongs to another identity at the cloud: "
    "choose another name with --cluster",
    "InvalidCloudCredentials": "the credentials of a cloud are not valid: `sky check` shows which",
}
"""Errors whose kind is sufficient."""

QUOTA = "quota"
CAPACITY = (
    "insufficient(?:instance)?capacity|capacity|ZONE_RESOURCE_POOL_EXHAUSTED|out of stock|stockout|SkuNotAvailable"
    r"|BadConstraints|QOS\w*Limit|Requested node configuration is not available"
    "|timed? ?out.*(?:pending|provision)|(?:pending|provision).*timed? ?out"
)
LET_IN = "credential|unauthori[sz]ed|permission denied|AuthFailure|AccessDenied|forbidden|expired token"
NOT_ENABLED = "which is not enabled|is not enabled"
NO_SUCH = (
    "Catalog does not contain any|not available in|Invalid accelerator|is not (?:a )?(?:valid|supported) accelerator"
    "|No launchable resource|No resource satisfying|not found in .*slurm|resources? .*not found"
)
CATALOG = r"ConnectionPool\(.*(?:raw\.githubusercontent\.com|skypilot-catalog)"
SERVER = "Connection refused|Connection reset|Max retries exceeded|RemoteDisconnected|Connection aborted"
TEXTS: tuple[tuple[str, str], ...] = (
    (
        QUOTA,
        "the account's quota is used up there: ask the cloud for more, or take another region or accelerator",
    ),
    (NOT_ENABLED, "SkyPilot may not use that infrastructure: `sky check` shows why"),
    (
        NO_SUCH,
        "no enabled infrastructure has such nodes: `distui candidates` and `sky show-gpus` show what there is",
    ),
    (CAPACITY, "no such nodes are free there now: take another infrastructure, or --retry-until-up"),
    (LET_IN, "SkyPilot was not let in there: `sky check` shows what is wrong with the credentials"),
    (CATALOG, "SkyPilot could not fetch its catalogue of prices from here: it needs a way to that host"),
    (SERVER, "SkyPilot's API server went away: `sky api start` starts it again"),
)
"""Patterns for the text of an error; the first match counts."""


def plain(kind: str, text: str) -> str:
    """One sentence: the problem, a remedy, and SkyPilot's text if our sentence would hide details."""
    short = shortened(text)
    if kind in KINDS:
        return KINDS[kind]
    if kind == "ResourcesMismatchError":
        return (
            f"the cluster there does not fit the request: another --cluster, or other resources ({short})"
        )
    for pattern, sentence in TEXTS:
        if re.search(pattern, text, re.IGNORECASE | re.DOTALL):
            return f"{sentence} ({short})" if short else sentence
    return f"SkyPilot says: {short}" if short else f"SkyPilot failed without a message ({kind})"


def shortened(text: str) -> str:
    """Return the meaningful lines of a text, joined, cleaned and cut."""
    lines = [line.strip(" │├└─") for line in clean_lines(text.encode())]
    whole = " ".join(line for line in lines if line and not re.fullmatch(r"[\W_]*", line))
    return whole if len(whole) <= MOST else whole[: MOST - 1] + "…"


# Calls of SkyPilot: a child process in SkyPilot's Python, with questions and answers as JSON lines. It is a separate
# process because importing SkyPilot takes 1 to 4 seconds and 150 MB, pins other package versions than distui, and prints
# anywhere. The child lives as long as its `Sky`; the next question restarts one that died.


PYTHON = "DISTUI_SKY_PYTHON"
"""Variable for the user's choice of SkyPilot's interpreter."""
SERVE = Path(__file__).resolve().parent.parent / "sky" / "serve.py"
MOST_LINE = 16 << 20
"""Maximum bytes of an answer; lists of accelerators are long."""
CLOSE_SECONDS = 3.0

Sink = Callable[[str], object]


class SkyError(CloudError):
    """SkyPilot refused or failed: the text is a sentence in plain words, `kind` SkyPilot's name of the error."""

    def __init__(self, text: str, kind: str = "", detail: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        if kind in ("absent", "unsupported"):
            self.code = RunError.code
        self.detail = detail
        """SkyPilot's full text."""


class SkyGoneError(SkyError):
    """The child ended during a call."""

    def __init__(self, text: str) -> None:
        super().__init__(text, "gone")


def interpreter(env: Mapping[str, str] | None = None) -> str:
    """SkyPilot's Python: the user's choice, the interpreter of `sky` on PATH, or this one."""
    env = os.environ if env is None else env
    if env.get(PYTHON):
        return env[PYTHON]
    command = shutil.which("sky", path=env.get("PATH"))
    return (command and _behind(Path(command))) or sys.executable


def _behind(script: Path) -> str | None:
    """Interpreter of a Python program, from its first lines."""
    try:
        with script.open("rb") as file:
            head = file.read(1024).decode(errors="replace").splitlines()
    except OSError:
        return None
    first = head[0].removeprefix("#!").strip() if head and head[0].startswith("#!") else ""
    if first.endswith("/sh") and len(head) > 1:  # too long for a #! line: installers use the second line
        match = re.match(r"'''exec' \"?([^\" ]+)", head[1])
        first = match[1] if match else ""
    path = first.split(" ")[0]
    return path if "python" in os.path.basename(path) and os.access(path, os.X_OK) else None


class Sky:
    """One child and its open calls. For use from one event loop."""

    def __init__(self, python: str = "") -> None:
        """`python`: the interpreter, if known."""
        self._python = python
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._requests = rpc.OpenRequests[dict[str, Any]]()

    async def start(self) -> None:
        """Ensure a child with a supported SkyPilot. Raises SkyError with a remedy."""
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return
            python = self._python if os.access(self._python, os.X_OK) else interpreter()
            try:
                self._process = await asyncio.create_subprocess_exec(
                    python,
                    str(SERVE),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.DEVNULL,
                    limit=MOST_LINE,
                    start_new_session=True,
                    umask=users_umask(),
                )
            except OSError as error:
                raise SkyError(
                    f"{python} cannot be executed ({error.strerror}): name SkyPilot's in {PYTHON}"
                ) from None
            self._reader = asyncio.create_task(self._read(self._process))
            about = await self._ask("version", {}, None, None)
            _check(about, python)

    async def call(
        self, verb: str, sink: Sink | None = None, began: Sink | None = None, **args: Any
    ) -> Any:
        """Return the answer of a verb of `runners/sky`. Raises SkyError; SkyGoneError if the child dies during the call.

        `sink` receives SkyPilot's text as it arrives, `began` the id of the request at the API server. A cancellation of
        the caller cancels that request, too.
        """
        await self.start()
        return await self._ask(verb, args, sink, began)

    async def close(self) -> None:
        """End the child; requests at the API server continue."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), CLOSE_SECONDS)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if self._reader is not None:
            await self._reader

    async def _ask(self, verb: str, args: dict[str, Any], sink: Sink | None, began: Sink | None) -> Any:
        with self._requests.open() as request:
            try:
                await self._send({"id": request.number, "verb": verb, "args": args})
                return await _answer(request, sink, began)
            except asyncio.CancelledError:
                with contextlib.suppress(SkyGoneError):
                    await self._send({"cancel": request.number})
                raise

    async def _send(self, what: dict[str, Any]) -> None:
        process = self._process
        if process is None or process.stdin is None or process.returncode is not None:
            raise SkyGoneError("the process that asks SkyPilot has ended: ask again")
        try:
            process.stdin.write(json.dumps(what).encode() + b"\n")
            await process.stdin.drain()
        except (ConnectionError, RuntimeError):
            raise SkyGoneError("the process that asks SkyPilot has ended: ask again") from None

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                message = rpc.message(line)
                self._requests.part(message.get("id"), message)
        except ValueError:
            process.kill()  # its output is not an answer
        code = await process.wait()
        text = f"the process that asks SkyPilot ended with exit status {code}: ask again"
        self._requests.fail(SkyGoneError(text))


async def _answer(request: rpc.OpenRequest[dict[str, Any]], sink: Sink | None, began: Sink | None) -> Any:
    """Return the result of a verb, after passing earlier messages to `sink` and `began`. Raises SkyError."""
    while True:
        message = await request.next()
        if "said" in message:
            if sink is not None:
                sink(message["said"])
        elif "request" in message:
            if began is not None:
                began(message["request"])
        elif "error" in message:
            error = message["error"]
            detail = "\n".join(part for part in (error["text"], error["tried"]) if part)
            raise SkyError(plain(error["kind"], detail), error["kind"], detail)
        else:
            return message.get("data")


def _check(about: dict[str, Any], python: str) -> None:
    """Raise SkyError unless this SkyPilot is supported."""
    if about["version"] is None:
        raise SkyError(
            f"{python} has no SkyPilot: put `sky` on PATH, name its Python in {PYTHON}, or "
            f"{install_extra('sky', python)}",
            "absent",
        )
    if not about["supported"]:
        raise SkyError(
            f"SkyPilot {about['version'] or 'of an unknown version'} in {python} is not supported: install 0.14, "
            f"for example with {install_extra('sky', python)}",
            "unsupported",
        )


async def check_installed() -> None:
    """Raise SkyError unless SkyPilot's Python has a supported SkyPilot."""
    sky = Sky()
    try:
        await sky.start()
    finally:
        await sky.close()


async def candidates_for(
    wish: Request, nnodes: int, below: Mapping[str, Any] = MappingProxyType({})
) -> list[Candidate]:
    """Nodes that SkyPilot would choose, in its order. Raises SkyError if there are none.

    `below`: resources of a task, as defaults for `wish`.
    """
    sky = Sky()
    try:
        task = {"num_nodes": nnodes, "resources": {**below, **resources(wish)}, "run": "true"}
        return parse((await sky.call("candidates", config=task))["text"])
    finally:
        await sky.close()


# The optimizer's table → candidates with their price. Pure.
# SkyPilot returns only this text (sky/optimizer.py, release 0.14). A line that is not understood completely is
# skipped, and a price that is not a number is None: a missing value is better than a wrong one.


_COLUMNS = ("INFRA", "INSTANCE", "vCPUs", "Mem(GB)", "GPUS", "COST ($)", "CHOSEN")
_INFRA = re.compile(r"(?P<cloud>[^()]+?)(?: \((?P<place>[^()]*)\))?")


@dataclass(frozen=True, slots=True)
class Candidate:
    """Nodes that SkyPilot would choose."""

    infra: str
    """Value for `--on`: "slurm/lab", "aws/us-east-1"."""
    instance: str
    """The cloud's name of the machine; "" if it has none."""
    vcpus: str
    memory_gb: str
    gpus: str
    """GPUs of one node: "H100:8"; "" for none."""
    price_per_hour: float | None
    """US dollars for all nodes; None if SkyPilot has no price."""
    chosen: bool
    """Whether it is SkyPilot's first choice."""


def parse(text: str) -> list[Candidate]:
    """Parse the optimizer's output into candidates, in its order."""
    candidates: list[Candidate] = []
    starts: list[int] = []
    for line in clean_lines(text.encode()):
        if all(column in line for column in _COLUMNS):
            starts = [line.index(column) for column in _COLUMNS]
        elif starts and line.strip() and not set(line.strip()) <= {"-"}:
            candidate = _row(line, starts)
            if candidate is not None:
                candidates.append(candidate)
    return candidates


def _row(line: str, starts: list[int]) -> Candidate | None:
    ends = [*starts[1:], len(line)]
    cells = [line[start:end] for start, end in zip(starts, ends, strict=True)]
    # A cell without a blank at its end overlaps the next one, so that the columns are unknown.
    if any(cell and not cell.endswith(" ") for cell in cells[:-1]):
        return None
    infra, instance, vcpus, memory, gpus, cost, chosen = (cell.strip() for cell in cells)
    place = _INFRA.fullmatch(infra)
    if place is None:
        return None
    cloud = place["cloud"].lower().replace("kubernetes", "k8s")
    names = cloud if place["place"] is None else f"{cloud}/{place['place'].replace(' ', '')}"
    return Candidate(
        names, _value(instance), _value(vcpus), _value(memory), _value(gpus), price(cost), bool(chosen)
    )


def _value(cell: str) -> str:
    return "" if cell in ("-", "None") else cell


def price(cell: str) -> float | None:
    """Dollars per hour; None if not a number, and for 0, which SkyPilot prints for an unknown price."""
    if not re.fullmatch(r"\d+\.\d+", cell):
        return None
    return float(cell) or None


def elsewhere(offers: list[Candidate], tried: str) -> str:
    """Alternatives if `tried` has no such nodes, as the rest of a sentence; "" if none is known."""
    others = [offer for offer in offers if not offer.infra.startswith(tried.split("/")[0].lower() or "*")]
    if not others:
        return ""
    best = others[0]
    what = " ".join(part for part in (best.gpus, best.instance) if part) or f"{best.vcpus} CPUs"
    cost = "" if best.price_per_hour is None else f", ${best.price_per_hour:.2f} per hour"
    return f"; --on {best.infra} has them ({what}{cost})"
