"""Whatever connects to the agent's socket: it stays up, stays small, and goes on serving everybody else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from distui.runners.agent.processes import state_of
from distui.runners.model import AgentHello
from distui.runners.wire.client import MAGIC, LinkError, SocketLink, encode

from ..runs import Run, World, alive, rss_bytes, until

MORE = 24 << 20
"""Bytes that an agent may grow by while it is attacked."""

STEADY = "import time\nfor n in range(1000000):\n    print(n, flush=True)\n    time.sleep(0.02)\n"


@pytest.fixture
def served(world: World) -> Run:
    run = world.execute(STEADY)
    assert run.wait("running") == 0
    return run


def connect(run: Run) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(20 * slowness())
    peer.connect(str(next(run.world.sockets.glob("*.sock"))))
    return peer


def shown_the_door(peer: socket.socket) -> bool:
    """Read until the agent closes the connection."""
    with contextlib.suppress(ConnectionError):
        while peer.recv(1 << 16):
            continue
    return True


def sent(peer: socket.socket, data: bytes) -> None:
    """Send as far as the other side takes it."""
    with contextlib.suppress(ConnectionError):
        peer.sendall(data)


@pytest.mark.real
def test_garbage(served: Run) -> None:
    """Random bytes, endless lines, valid JSON that is no command, numbers that are too large."""
    agent = served.agent_pid()
    before = rss_bytes(agent)
    dice = random.Random(7)
    attacks = [dice.randbytes(4096) + b"\n" for _ in range(20)]
    attacks += [
        b"x" * (10 << 20) + b"\n",
        b"[" * 200_000 + b"\n",
        b'{"type":"Hello","after":' + b"9" * 5000 + b"}\n",
        b'{"type":"Hello","after":"zero"}\n',
        b'{"type":"Nothing"}\n',
        b"null\n",
        b"[]\n",
        b'{"type":"Restart"}\n',
        b'{"type":"Signal","id":"a","signal":["KILL"]}\n',
        b"\xff\xfe\n",
        b"\0" * 1000 + b"\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ]
    for attack in attacks:
        with connect(served) as peer:
            sent(peer, attack)
            assert shown_the_door(peer), attack[:40]
    assert alive(agent)
    assert rss_bytes(agent) < before + MORE
    assert served.status()["state"] == "running"
    assert "Traceback" not in served.file("agent.log").decode(), served.file("agent.log").decode()[-2000:]


@pytest.mark.real
def test_half_frames_and_hang_ups(served: Run) -> None:
    """Connections that say half a line, nothing at all, or leave at once with a reset."""
    agent, open_before = served.agent_pid(), len(os.listdir(f"/proc/{served.agent_pid()}/fd"))
    held = [connect(served) for _ in range(40)]
    for number, peer in enumerate(held):
        if number % 3 == 0:
            sent(peer, b'{"type":"Hello","af')
        elif number % 3 == 1:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert served.status()["state"] == "running"
    for peer in held:
        peer.close()
    # A third of the connections would be 13; files of /proc and of cgroups that it keeps open come with its samples.
    assert until(lambda: len(os.listdir(f"/proc/{agent}/fd")) <= open_before + 10), "descriptors leak"
    assert served.status()["agent_pid"] == agent


@pytest.mark.real
def test_a_reader_that_never_reads(served: Run) -> None:
    """It asks for everything and reads nothing: what it is owed must not pile up in the agent."""
    agent = served.agent_pid()
    log = served.path / "node-0/attempt-001/rank-0.out"
    with (served.path / "node-0/attempt-001/rank-5.out").open("wb") as big:
        big.truncate(64 << 20)
    assert until(lambda: log.stat().st_size > 1000)
    before = rss_bytes(agent)
    peers = [connect(served) for _ in range(3)]
    for peer in peers:
        peer.settimeout(0.5)
        with contextlib.suppress(OSError):
            peer.sendall(b'{"type":"Hello"}\n')
            for number in range(3000):
                ask = {"type": "ReadLog", "id": str(number), "file": "node-0/attempt-001/rank-5.out",
                       "offset": number << 10, "limit": 1 << 20}  # fmt: skip
                peer.sendall(json.dumps(ask).encode() + b"\n")
    worst = 0
    for _ in range(5):
        assert served.status()["state"] == "running", "everybody else is served meanwhile"
        worst = max(worst, rss_bytes(agent))
    assert worst < before + MORE, f"{(worst - before) >> 20} MiB more"
    for peer in peers:
        peer.close()
    assert served.status()["agent_pid"] == agent


@pytest.mark.real
def test_many_commands_at_once(served: Run) -> None:
    """A client that asks for a thousand things without waiting gets its answers or is shown the door."""
    agent = served.agent_pid()
    before = rss_bytes(agent)
    with connect(served) as peer:
        sent(peer, b"".join(
            json.dumps({"type": "Signal", "id": f"s{n}", "signal": "CONT", "ranks": [99]}).encode() + b"\n"
            for n in range(1000)
        ))  # fmt: skip
        told = b""
        while told.count(b'"CommandDone"') < 1000 and (data := peer.recv(1 << 16)):
            told += data
    assert told.count(b'"CommandDone"') == 1000
    assert rss_bytes(agent) < before + MORE
    told_events = served.events()
    assert [one["seq"] for one in told_events] == list(range(1, len(told_events) + 1))


def connects(run: Run) -> socket.socket | None:
    """A connection that never waits; None where too many wait already (EAGAIN)."""
    peer = socket.socket(socket.AF_UNIX)
    peer.setblocking(False)
    try:
        peer.connect(str(next(run.world.sockets.glob("*.sock"))))
    except BlockingIOError:
        peer.close()
        return None
    return peer


@pytest.fixture
def files() -> Iterator[int]:
    """How many files this process may open, as many as it can be given."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield before[1] if before[1] >= 0 else 1 << 30
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.real
@pytest.mark.torch
def test_a_thousand_connections_to_an_agent_that_may_open_few_files(world: World, files: int) -> None:
    """1024, as is usual: who says nothing makes room for others, and the ranks never notice."""
    if files < 1100:
        pytest.skip(f"only {files} files may be open here")
    run = world.ddp().healthy()
    agent = run.agent_pid()
    resource.prlimit(agent, resource.RLIMIT_NOFILE, (1024, 1024))
    with contextlib.ExitStack() as held:
        peers: list[socket.socket] = []
        while len(peers) < 1000:
            if peer := connects(run):
                peers.append(held.enter_context(peer))
        before = [rank["step"] for rank in run.status()["ranks"]]
        assert len(before) == 2
        run.eventually(lambda now: all(
            rank["step"] > then + 20 for rank, then in zip(now["ranks"], before, strict=True)
        ))  # fmt: skip
        assert len(os.listdir(f"/proc/{agent}/fd")) < 700
    assert run.status()["agent_pid"] == agent
    assert run.status()["state"] == "running"
    assert len(run.file("agent.log")) < 100_000, run.file("agent.log")[:2000]
    run.stop("--grace", "2").fine()


@pytest.mark.real
async def test_a_connection_for_which_the_queue_is_full_waits(
    served: Run, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses it with EAGAIN; it is tried again, and nobody else is blamed."""
    # Thousands are greeted before it.
    monkeypatch.setattr(SocketLink.greet, "__defaults__", (10.0 * slowness(),))
    most = int(Path("/proc/sys/net/core/somaxconn").read_text())
    if files < min(most, socket.SOMAXCONN) + 100:
        pytest.skip(f"only {files} files may be open here")
    agent = served.agent_pid()
    path = next(served.world.sockets.glob("*.sock"))
    with contextlib.ExitStack() as held:
        os.kill(agent, signal.SIGSTOP)
        assert until(lambda: state_of(agent) == "T"), "it accepts no more"
        try:
            while peer := connects(served):
                held.enter_context(peer)
            done = await asyncio.to_thread(served.distui, "status")
            assert f"the agent (pid {agent}) does not answer: stopped (state T)" in done.refused(4)
            waiting = asyncio.create_task(SocketLink.connect(path))
            assert not (await asyncio.wait({waiting}, timeout=0.5))[0], waiting
        finally:
            os.kill(agent, signal.SIGCONT)
        await (await asyncio.wait_for(waiting, 60 * slowness())).close()
    assert served.status()["agent_pid"] == agent


LARGE = "x" * (1 << 20)
RESTARTS: dict[str, tuple[bytes, str]] = {
    "1 MB": (
        json.dumps({"A": LARGE}).encode(),
        "A has 1048579 bytes, and Linux gives a program no variable of more",
    ),
    "together": (
        json.dumps({f"A{number}": LARGE[: 100 << 10] for number in range(12)}).encode(),
        "these changes together take",
    ),
    "NUL": (b'{"A":"x\\u0000y"}', "the value of A holds a NUL"),
    "equals": (b'{"A=B":"x"}', "'A=B' is not a name"),
    "no name": (b'{"":"x"}', "'' is not a name"),
    "of the launcher": (b'{"RANK":"0"}', "RANK is computed for each rank"),
    "of distui": (b'{"DISTUI_HOOK":"0"}', "DISTUI_HOOK is distui's own"),
}
"""Changes that no rank can be started with, as they are sent, and how the refusal begins."""


@pytest.mark.real
def test_a_restart_that_no_rank_can_be_started_with(served: Run) -> None:
    """It is refused in one sentence before the old ranks are told to go; the command line cannot send so much."""
    agent, runner, pids = served.agent_pid(), served.runner_pid(), served.pids()
    log = served.path / "node-0/attempt-001/rank-0.out"
    with connect(served) as peer, peer.makefile("rb") as answers:
        sent(peer, b'{"type":"Hello"}\n')
        for number, (changes, sentence) in enumerate(RESTARTS.values()):
            sent(peer, b'{"type":"Restart","id":"r%d","env":%s}\n' % (number, changes))
            done = next(line for line in answers if b'"CommandDone","id":"r%d"' % number in line)
            event = json.loads(done)["event"]
            assert (event["ok"], event["text"][: len(sentence)]) == (False, sentence), event["text"][:500]
            assert "\n" not in event["text"]
            assert len(event["text"]) < 300
        sent(
            peer, b'{"type":"Restart","id":"s","env":{"A":"\\ud800"}}\n'
        )  # half a character: no text at all
        rest = answers.read()
    assert b'"ok":true' not in rest
    size = log.stat().st_size
    assert until(lambda: log.stat().st_size > size), "the rank goes on"
    status = served.status()
    assert (status["state"], status["attempt"], served.pids()) == ("running", 1, pids)
    assert (served.agent_pid(), served.runner_pid()) == (agent, runner)
    assert len(served.file("journal.jsonl")) < 100_000, "what was sent is not kept"
    served.distui("restart", "--yes", "--env", "A=1").fine()
    assert served.status()["attempt"] == 2, "and a restart that can be done is done"


@pytest.mark.real
def test_another_user(served: Run) -> None:
    """Even where the socket's mode lets somebody in, the agent asks the kernel who it is."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    path = next(served.world.sockets.glob("*.sock"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    for opened in (path, path.parent, served.world.root):
        Path(opened).chmod(0o777)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            with connect(served) as peer:
                os.write(write, b"got %d bytes" % len(peer.recv(1000)))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as said:
        assert said.read() == b"got 0 bytes"
    path.parent.chmod(0o700)
    assert served.status()["state"] == "running"


@pytest.mark.real
@pytest.mark.parametrize(
    ("proto", "common"), [([1, 1], True), ([0, 1], True), ([1, 9], True), ([2, 9], False), ([0, 0], False)]
)
def test_a_viewer_of_another_protocol(served: Run, proto: list[int], common: bool) -> None:
    """Both sides look: an agent tells nothing to who could not read it."""
    with connect(served) as peer:
        sent(peer, json.dumps({"type": "Hello", "proto": proto, "follow": False}).encode() + b"\n")
        said = b""
        with contextlib.suppress(ConnectionError):
            while piece := peer.recv(1 << 16):
                said += piece
    assert (b"RunCreated" in said) == common
    assert served.status()["state"] == "running"


@pytest.mark.parametrize(
    ("proto", "refused"), [((1, 1), False), ((0, 3), False), ((2, 3), True), ((0, 0), True)]
)
def test_an_agent_of_another_protocol(tmp_path: Path, proto: tuple[int, int], refused: bool) -> None:
    async def connected() -> str:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(MAGIC + encode(AgentHello(proto, "9.9", "r", 0)))
            await reader.read()
            writer.close()

        async with await asyncio.start_unix_server(greet, tmp_path / "s"):
            try:
                link = await SocketLink.connect(tmp_path / "s")
            except LinkError as error:
                return str(error)
            await link.close()
            return ""

    text = asyncio.run(connected())
    assert ("use a distui of that version" in text) == refused, text
