"""The system's ssh with the user's configuration: links through a bridge's stdin and stdout, commands on hosts."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from ....presets.secrets import mask_text
from ..model import Stamped
from .client import LinkError, SocketLink
from .frames import MAX_LINE

OPTIONS = (
    "-T",
    "-oBatchMode=yes",
    "-oServerAliveInterval=5",
    "-oServerAliveCountMax=3",
    "-oConnectTimeout=10",
    "-oClearAllForwardings=yes",
    "-oForwardAgent=no",  # ClearAllForwardings does not include these two
    "-oForwardX11=no",
    "-oRemoteCommand=none",
    "-oControlMaster=no",  # a new master would end with this link; an existing one is still used
    "-oCompression=yes",
    "-enone",
)
"""Options of a plain pipe, against the user's configuration of terminals, forwardings and commands."""
GREET_SECONDS = 40.0
"""Maximum seconds to connect, log in, and find a Python on the host."""
KEPT_LINES = 12
LEAVE_SECONDS = 2.0

CLOSED = "{host} ended the connection before the login: too many at once, or a firewall"
CLOSED_BY_SKY = "SkyPilot's API server ended the connection to {host} before the login"
_EARLY = re.compile("(kex|ssh)_exchange_identification|banner exchange")
"""Part of ssh's message that proves a close before any command was executed."""
AGAIN_S = (0.5, 1.0, 2.0)
"""Seconds before each new try after a close before the login."""

_FAILURES = (
    (
        r"Permission denied|Too many authentication failures|no mutual signature",
        "{host} does not accept your key: `ssh {host}` has to work without a password",
    ),
    (
        r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED|host key is known for",
        "the host key of {host} is not the known one: run `ssh {host}` once by hand and check it",
    ),
    (
        r"Could not resolve hostname|Name or service not known|nodename nor servname",
        "unknown host {host}: check its name, or add it to your ssh configuration",
    ),
    (r"Connection refused", "{host} refuses ssh connections: is its sshd up, and the port right?"),
    (
        r"timed out|Timeout, server|No route to host|Network is unreachable",
        "{host} does not answer: is it up, and the network between?",
    ),
    (
        r"Session open refused|open failed|administratively prohibited|mux_client",
        "{host} opens no further session on that connection (MaxSessions of its sshd): close others, or raise it",
    ),
    (
        r"Connect call failed",  # said by SkyPilot's websocket_proxy.py
        "the way to {host} leads through SkyPilot's API server, which does not answer: `sky api start`",
    ),
    (
        r"ConnectionClosedOK",
        CLOSED_BY_SKY,
    ),  # its first message is awaited there when Slurm's step has ended
    (
        r"ConnectionClosedError.*\(policy violation\)",
        "SkyPilot's API server refuses the way to {host}: `sky status {host}` shows whether it is up",
    ),
    (r"kex_exchange_identification|Connection (reset|closed) by|banner exchange|MaxStartups", CLOSED),
    (r"Broken pipe|client_loop", "the connection to {host} broke"),
    (
        r"Bad owner or permissions|Bad configuration option|terminating, \d+ bad",
        "your ssh does not accept its own configuration: `ssh {host}` shows why",
    ),
)


def argv(destination: str, options: Sequence[str], remote: Sequence[str]) -> list[str]:
    """Return the ssh command of a link.

    ssh uses the first of several values, so `options` override OPTIONS. Nothing after `--` can be an option.
    """
    return ["ssh", *options, *OPTIONS, "--", destination, *remote]


def explain(lines: Sequence[str], code: int | None, host: str) -> str:
    """Sentence for the stderr of ssh or the bridge; "" if no known line is in it."""
    for line in reversed(lines):
        if line.startswith("distui: "):
            return f"{host}: {line.removeprefix('distui: ')}"
    if sentence := _sentence(lines):
        return sentence.format(host=host)
    if code in (126, 127):
        return f"{host} has no distui where it should be: launch the run again, or copy it there"
    if code == 255 and lines:
        return f"ssh to {host}: {mask_text(lines[-1])}"
    return ""


def _sentence(lines: Sequence[str]) -> str:
    """Sentence for the lines of ssh; "" if none is known."""
    text = "\n".join(lines)
    return next((sentence for pattern, sentence in _FAILURES if re.search(pattern, text)), "")


# -----------------------------------------------------------------------------------------------------------
# A connection may be closed before the login: by sshd with too many connections (MaxStartups), or by SkyPilot's API
# server if its Slurm step did not start. Nothing was executed on the host, so a retry is harmless.


T = TypeVar("T")
U = TypeVar("U")
Report = Callable[[str, float], None]
"""Report why a connection is retried, and the seconds before the retry."""


class HostError(Exception):
    """An operation on a host failed; the text is one sentence with the host's name."""


class ClosedEarlyError(Exception):
    """ssh's connection was closed before the login."""


class LinkClosedEarlyError(LinkError, ClosedEarlyError):
    """Closed early, for a link."""


class HostClosedEarlyError(HostError, ClosedEarlyError):
    """Closed early, for a command."""


def closed_early(lines: Sequence[str], code: int | None) -> bool:
    """Whether ssh, which exited with `code`, reports a close before the login."""
    early = any(_EARLY.search(line) for line in lines)
    return code == 255 and early and _sentence(lines) in (CLOSED, CLOSED_BY_SKY)


def report_to_stderr(text: str, pause_s: float) -> None:
    """Print a line to the terminal, or to a daemon's log."""
    sys.stderr.write(f"distui: {text}; trying again in {pause_s:g} s\n")
    sys.stderr.flush()


async def persist(connect: Callable[[], Awaitable[T]], report: Report = report_to_stderr) -> T:
    """Return the result of `connect`, retried after ClosedEarlyError; the last one is raised."""
    for pause_s in AGAIN_S:
        try:
            return await connect()
        except ClosedEarlyError as error:
            report(str(error), pause_s)
        await asyncio.sleep(pause_s)
    try:
        return await connect()
    except ClosedEarlyError as error:
        raise type(error)(f"{error} ({len(AGAIN_S) + 1} tries)") from None


class SshLink(SocketLink):
    """A SocketLink over ssh; its errors quote ssh."""

    def __init__(self, process: asyncio.subprocess.Process, host: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        super().__init__(process.stdout, process.stdin)
        self._process, self._host = process, host
        self._stderr: list[str] = []
        self._hearing = asyncio.create_task(self._hear())

    @classmethod
    async def open(
        cls,
        destination: str,
        options: Sequence[str],
        remote: Sequence[str],
        report: Report = report_to_stderr,
    ) -> SshLink:
        """Log in and greet the agent. Raises LinkError with the reason as a sentence."""
        return await persist(lambda: cls._open(destination, options, remote), report)

    @classmethod
    async def _open(cls, destination: str, options: Sequence[str], remote: Sequence[str]) -> SshLink:
        link = cls(await _started(argv(destination, options, remote), LinkError), destination)
        try:
            await link.greet(GREET_SECONDS)
        except LinkError as error:
            why = await link.why(str(error))
            early = closed_early(link._stderr, link._process.returncode)
            raise (LinkClosedEarlyError if early else LinkError)(why) from None
        except asyncio.CancelledError:
            await link.close()
            raise
        return link

    async def batches(self, after: int = 0, fold: str = "") -> AsyncIterator[list[Stamped]]:
        """See SocketLink.batches."""
        try:
            async for batch in super().batches(after, fold):
                yield batch
        except LinkError as error:
            raise LinkError(await self.why(str(error))) from None

    async def why(self, otherwise: str) -> str:
        """Close, and return why the link broke: ssh's message, or `otherwise`."""
        try:
            # After its exit, ssh has written everything.
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._process.wait()
                await self._hearing
        except TimeoutError:
            pass
        code = self._process.returncode
        await self.close()
        return explain(self._stderr, code, self._host) or f"{self._host}: {otherwise}"

    async def close(self) -> None:
        """End ssh; its command on the node ends with its stdin."""
        await super().close()
        if self._process.returncode is None:
            await kill(self._process)
        self._hearing.cancel()

    async def _hear(self) -> None:
        """Keep the last lines of stderr; a banner may be long."""
        assert self._process.stderr is not None
        rest = b""
        while data := await self._process.stderr.read(4096):
            *lines, rest = (rest + data)[-65536:].split(b"\n")
            self._keep(lines)
        self._keep([rest])

    def _keep(self, lines: list[bytes]) -> None:
        texts = (line.decode("utf-8", "replace").strip() for line in lines)
        self._stderr += [text for text in texts if text]
        del self._stderr[:-KEPT_LINES]


async def _started(
    command: Sequence[str], refused: type[LinkError | HostError]
) -> asyncio.subprocess.Process:
    """Start ssh in a separate session, which Ctrl-C does not reach. Raises `refused` if it cannot be executed."""
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, limit=MAX_LINE, start_new_session=True
        )
    except OSError as error:
        raise refused(f"ssh cannot be executed here ({error.strerror}): install OpenSSH") from None


async def kill(process: asyncio.subprocess.Process) -> None:
    """Kill an ssh without waiting for its ProxyCommand, which may hold the pipes longer and delay `wait`."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await leaves(process)


async def leaves(process: asyncio.subprocess.Process) -> bool:
    """Wait LEAVE_SECONDS for its end. Before Python 3.11.3, asyncio.timeout fails in a cancelled task."""
    leaving = asyncio.ensure_future(process.wait())
    done, _ = await asyncio.wait({leaving}, timeout=LEAVE_SECONDS)
    if not done:
        leaving.cancel()
    return bool(done)


# -----------------------------------------------------------------------------------------------------------
# Commands on hosts, several at once.


AT_ONCE = 8
"""Maximum number of connections being made: sshd's MaxStartups begins to refuse at 10."""


class Way(Struct, frozen=True):
    """How to reach a host."""

    destination: str
    options: tuple[str, ...] = ()


async def call(way: Way, remote: Sequence[str], data: bytes, seconds: float) -> bytes:
    """Run a command on a host with `data` on its stdin, for at most `seconds`; return its stdout. Raises HostError."""
    return await persist(lambda: _call(way, remote, data, seconds))


async def _call(way: Way, remote: Sequence[str], data: bytes, seconds: float) -> bytes:
    process = await _started(argv(way.destination, way.options, remote), HostError)
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate(data)
    except TimeoutError:
        raise HostError(
            f"host {way.destination} did not finish `{' '.join(remote)}` within {seconds:.0f} s"
        ) from None
    finally:
        if process.returncode is None:
            await kill(process)
    if process.returncode:
        lines = [line for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
        why = explain(lines, process.returncode, way.destination)
        last = lines[-1].strip() if lines else f"exit code {process.returncode}"
        early = closed_early(lines, process.returncode)
        raise (HostClosedEarlyError if early else HostError)(why or f"{way.destination}: {last}")
    return out


async def each(items: Sequence[T], do: Callable[[T], Awaitable[U]]) -> list[U | HostError]:
    """Call `do` for all items, AT_ONCE concurrently, and return the results or errors in order."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def limited(item: T) -> U | HostError:
        async with gate:
            try:
                return await do(item)
            except HostError as error:
                return error

    return list(await asyncio.gather(*(limited(item) for item in items)))
