"""Links through ssh: what it prints before it fails, and names that mean harm; a double of ssh, and a real sshd."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import bundled
import pytest
from patience import HANG_S

from distui.runners.doctor.session import NodeSession
from distui.runners.hub.links import STEADY_S
from distui.runners.node import routes
from distui.runners.node.routes import Route
from distui.runners.run.commands import ReadLog
from distui.runners.run.errors import RunError
from distui.runners.run.model import LinkChanged, LinkState
from distui.runners.run.state import RunState
from distui.runners.run.wire.client import LinkError
from distui.runners.run.wire.ssh import HostError, SshLink, Way, argv, call, explain

from .children import Pipes, Programs, copied
from .rehearsal import Rehearsed
from .site import Site, Viewer, Whole
from .sshd import SSHD, Sshd
from .test_hub_run import OUT, running, told_twice_or_not_at_all

needs_sshd = pytest.mark.skipif(SSHD is None, reason="no sshd here: apt-get install openssh-server")
Make = Callable[..., Sshd]


@pytest.fixture
def serve(site: Site) -> Iterator[Make]:
    """Starts servers, and ends them."""
    made: list[Sshd] = []

    def make(*lines: str) -> Sshd:
        try:
            made.append(Sshd(site.root / f"sshd{len(made)}", *lines))
        except OSError as error:
            pytest.skip(f"sshd does not start here: {error}")
        return made[-1]

    yield make
    for one in made:
        one.close()


def bridge(site: Site, run: Whole, node: int) -> tuple[str, ...]:
    """Words that join stdio with an agent, as node.sh does: a script without arguments that could need quoting."""
    path = site.root / f"bridge{node}.sh"
    command = f"exec {sys.executable} -E -s -S {bundled.bridge()} {run.record.run8} {node}"
    sockets = f"export DISTUI_SOCKET_DIR={site.root / 's'}"
    path.write_text(f"echo welcome to this node\n{sockets}\n{command}\n")
    return ("sh", str(path))


def ways(site: Site, run: Whole, config: str) -> list[Route]:
    return [
        Route(node, f"box{node}", "ssh", "box", ("-F", config), bridge(site, run, node)) for node in (0, 1)
    ]


def lost(viewer: Viewer) -> int:
    """How often links were lost so far."""
    changes = [told.event for told in viewer.stamped if isinstance(told.event, LinkChanged)]
    return sum(change.state is LinkState.LOST for change in changes)


def up(state: RunState) -> bool:
    return all(node.link is LinkState.UP for node in state.nodes.values())


class FakeSsh:
    """An ssh whose first `closing` connections end before the login, as those through SkyPilot's API server do.

    The others lead to the socket that is their last word, behind a banner.
    """

    def __init__(self, programs: Programs, closing: int) -> None:
        self.closing, self.connections = closing, 0
        self._programs = programs
        programs.put("ssh", self._run)

    async def kill(self, run: Whole) -> None:
        """SIGKILL to all of them."""
        self._programs.kill("ssh")

    async def _run(self, words: tuple[str, ...], pipes: Pipes) -> int:
        self.connections += 1
        if self.connections <= self.closing:
            pipes.stderr.write(
                PROXY_SAID + b"kex_exchange_identification: Connection closed by remote host\n"
            )
            return 255
        pipes.stdout.write(b"welcome to this node\n")
        reader, writer = await asyncio.open_unix_connection(words[-1])
        down = asyncio.create_task(copied(reader, pipes.stdout))
        try:
            await copied(pipes.stdin, writer)
            await down
        finally:  # also where it is killed: what it runs on the node ends with its stdin
            down.cancel()
            writer.close()
        return 0


PROXY_SAID = b"websockets.exceptions.ConnectionClosedOK: received 1000 (OK); then sent 1000 (OK)\n"
BROKEN = {"the agent closed the connection", "the connection to box broke"}
"""What ends a link whose ssh is killed: ssh prints a reason if it still tries to send."""
CLOSED = "SkyPilot's API server ended the connection to box before the login"


def through_ssh(run: Rehearsed) -> list[Route]:
    return [
        Route(node, f"box{node}", "ssh", "box", (), ("attach", str(run.site.root / "s" / run.socket(node))))
        for node in (0, 1)
    ]


async def test_a_link_is_lost_once_it_was_closed_before_the_login_often_enough(
    run: Rehearsed, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = FakeSsh(Programs(monkeypatch), 1 << 40)
    await run.begin(through_ssh(run))
    async with run.viewer() as viewer:
        await viewer.until(lambda _: lost(viewer) >= 2)
        ssh.closing = 0
        changes = [told.event for told in viewer.stamped if isinstance(told.event, LinkChanged)]
        texts = [change.text for change in changes if change.state is LinkState.LOST]
        assert texts[:2] == [f"{CLOSED} (4 tries)"] * 2
        assert up(await viewer.until(running)), "and is tried on"
        assert await viewer.stop() == "stopped: no process of the run is left"


PROXY = """\
import os, socket, sys, threading
counter, closing, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(counter, "a+") as file:
    file.write("x")
    file.flush()
    if file.tell() <= closing:
        sys.exit("websockets.exceptions.ConnectionClosedOK: received 1000 (OK); then sent 1000 (OK)")
peer = socket.create_connection(("127.0.0.1", port))
def up():
    while data := os.read(0, 65536):
        peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := peer.recv(65536):
    os.write(1, data)
"""
"""SkyPilot's websocket_proxy.py where the first connections end before sshd's first word."""


class RealSsh:
    """The system's, with a way to the server that closes the first `closing` connections before the login."""

    def __init__(self, site: Site, server: Sshd, closing: int, *options: str) -> None:
        self._asked = site.root / "asked"
        (site.root / "proxy.py").write_text(PROXY)
        words = (sys.executable, site.root / "proxy.py", self._asked, closing, server.port)
        self.config = server.config(f"ProxyCommand {' '.join(map(str, words))}", *options)

    @property
    def connections(self) -> int:
        return len(self._asked.read_text())

    async def kill(self, run: Whole) -> None:
        """SIGKILL to all that the hub of a run has started."""
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                head, _, tail = path.read_text().rpartition(")")
                if int(tail.split()[1]) == run.hub_pid() and head.endswith("(ssh"):
                    os.kill(int(path.parent.name), signal.SIGKILL)


async def test_links_of_the_double_are_tried_again_and_lose_nothing(
    run: Rehearsed, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_links(run, through_ssh(run), FakeSsh(Programs(monkeypatch), 3))


@pytest.mark.real
@needs_sshd
async def test_links_of_a_real_ssh_are_tried_again_and_lose_nothing(site: Site, serve: Make) -> None:
    """A banner, one session and no forwarding are enough, also where the user's own configuration asks for more."""
    banner = site.root / "banner"
    banner.write_text("AUTHORISED USERS ONLY\n" * 40)
    server = serve(
        f"Banner {banner}", "MaxSessions 1", "AllowTcpForwarding no", "AllowStreamLocalForwarding no",
        "X11Forwarding no",
    )  # fmt: skip
    ssh = RealSsh(
        site, server, 3, "LocalForward 127.0.0.1:1 127.0.0.1:2", "RemoteCommand date", "RequestTTY force",
        "ControlMaster auto", f"ControlPath {site.root}/cm-%C",
    )  # fmt: skip
    run = Whole(site, site.script())
    await check_links(run, ways(site, run, ssh.config), ssh)
    assert not list(site.root.glob("cm-*"))


async def check_links(run: Whole, ways: Sequence[Route], ssh: FakeSsh | RealSsh) -> None:
    """The contract of the double: three connections are closed before the login; later every ssh is killed."""
    await run.begin(ways)
    async with run.viewer() as viewer:
        state = await viewer.until(running)
        assert up(state)
        assert {node.host for node in state.nodes.values()} == {"box0", "box1"}
        changes = [told.event for told in viewer.stamped if isinstance(told.event, LinkChanged)]
        assert {change.state for change in changes} == {LinkState.CONNECTING, LinkState.UP}
        assert CLOSED in {change.text for change in changes}
        assert ssh.connections == 5
        file = OUT.format(1, 1)
        await viewer.until(lambda state: state.log_sizes.get(file, 0) > 20)
        before = await viewer.link.read_log(ReadLog(file, 0))
        assert before.data.startswith(b"node 1 begins\ntick ")

        await asyncio.sleep(STEADY_S)  # a link that breaks sooner is not tried again at once
        await ssh.kill(run)
        await viewer.until(lambda _: lost(viewer) == 2)
        await viewer.until(up)
        assert ssh.connections == 7
        changes = [told.event for told in viewer.stamped if isinstance(told.event, LinkChanged)]
        assert {change.text for change in changes if change.state is LinkState.LOST} <= BROKEN
        after = await viewer.link.read_log(ReadLog(file, 0))
        assert after.data.startswith(before.data)
        assert await viewer.stop() == "stopped: no process of the run is left"
    assert [told_twice_or_not_at_all(run, node) for node in (0, 1)] == ["", ""]


@pytest.mark.real
@needs_sshd
async def test_a_command_is_executed_once_however_often_the_login_is_cut_off(
    site: Site, serve: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    server, out = serve(), site.root / "out"
    ran = ("sh", "-c", f"'cat >> {out}; echo done'")
    ssh = RealSsh(site, server, 2)
    way = Way("box", ("-F", ssh.config))
    assert await call(way, ran, b"once\n", HANG_S) == b"done\n"
    assert out.read_text() == "once\n"
    assert capsys.readouterr().err.splitlines() == [
        f"distui: {CLOSED}; trying again in 0.5 s",
        f"distui: {CLOSED}; trying again in 1 s",
    ]
    assert ssh.connections == 3


async def test_a_command_or_session_is_given_up_after_four_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ssh = FakeSsh(Programs(monkeypatch), 9)
    with pytest.raises(HostError, match=rf"^{CLOSED} \(4 tries\)$"):
        await call(Way("box"), ("cat",), b"once\n", 30.0)
    assert ssh.connections == 4
    with pytest.raises(HostError, match=rf"^{CLOSED} \(4 tries\)$"):
        await NodeSession.open("box", Way("box"), lambda *_: None)
    assert ssh.connections == 8


async def test_what_another_try_does_not_change_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = {
        "[Errno 111] Connect call failed ('127.0.0.1', 46580)": "which does not answer: `sky api start`",
        "websockets.exceptions.ConnectionClosedError: received 1008 (policy violation) Cluster box does not "
        "exist.; then sent 1008": "SkyPilot's API server refuses the way to box",
    }
    programs = Programs(monkeypatch)
    for said, text in sentences.items():

        async def ssh(words: tuple[str, ...], pipes: Pipes, said: str = said) -> int:
            pipes.stderr.write(f"{said}\nkex_exchange_identification: closed by remote host\n".encode())
            return 255

        programs.put("ssh", ssh)
        programs.started.clear()
        with pytest.raises(LinkError, match=text):
            await SshLink.open("box", (), ("true",))
        assert len(programs.started) == 1


@pytest.mark.real
@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh here")
async def test_a_proxy_command_that_stays_is_not_awaited(tmp_path: Path) -> None:
    """It holds the pipes of the ssh that was killed."""
    stays = tmp_path / "stays.sh"
    stays.write_text(f"echo $$ >> {tmp_path / 'pids'}\nexec sleep 600\n")
    way = Way("box", ("-F", "/dev/null", f"-oProxyCommand=sh {stays}"))
    pids = tmp_path / "pids"
    pids.touch()
    try:
        asking = asyncio.create_task(call(way, ("true",), b"", HANG_S))
        while not pids.read_text():
            await asyncio.sleep(0.01)
        asking.cancel()  # what a limit does, too
        async with asyncio.timeout(HANG_S):
            with pytest.raises(asyncio.CancelledError):
                await asking
        stayed = pids.read_text().split()
        assert stayed
        for pid in map(int, stayed):
            os.kill(pid, 0)  # it has stayed
    finally:
        for pid in map(int, pids.read_text().split()):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.real
@needs_sshd
async def test_what_goes_wrong_is_said_in_a_sentence(site: Site, serve: Make) -> None:
    server, run = serve(), Whole(site, site.script())
    config, other = server.config(), server.config(key="other")
    cases: list[tuple[str, str, tuple[str, ...], str]] = [
        (other, "box", ("true",), r"^box does not accept your key: `ssh box` has to work"),
        (config, "distui-no-such-host.invalid", ("true",), "unknown host"),
        (config, "box", ("distui-no-such-command",), "has no distui where it should be"),
        (config, "box", ("true",), "the other end is not a distui agent"),
        (config, "box", bridge(site, run, 0), r"^box: no agent answers on "),
    ]
    for path, host, words, text in cases:
        with pytest.raises(LinkError, match=text) as caught:
            await SshLink.open(host, ("-F", path), words)
        assert "\n" not in str(caught.value)
    (server.root / "known").write_text(
        f"[127.0.0.1]:{server.port} {(server.root / 'other.pub').read_text()}"
    )
    with pytest.raises(LinkError, match="host key of box is not the known one"):
        await SshLink.open("box", ("-F", config), ("true",))
    server.close()
    with pytest.raises(LinkError, match="box refuses ssh connections"):
        await SshLink.open("box", ("-F", config), ("true",))


def test_names_that_mean_harm_are_refused() -> None:
    for host in ("-oProxyCommand=touch /tmp/x", "-lroot", "a b", "a;b", "$(x)", "", "a\nb"):
        with pytest.raises(RunError, match="host "):
            routes.check(Route(0, "h", "ssh", host, (), ("sh", "x")))


def test_words_that_a_shell_would_change_are_refused() -> None:
    for word in ("a b", "a;b", "$HOME", "`x`", "a'b", "*", "", "a\nb", "a&b", "{a}", "#x", "(x)"):
        with pytest.raises(RunError, match="cannot be sent through ssh"):
            routes.check(Route(0, "h", "ssh", "box", (), ("sh", word)))


@pytest.mark.real
def test_every_login_shell_executes_the_same(site: Site) -> None:
    """sshd hands the words, with blanks between them, to the user's own shell behind -c."""
    bundle = site.root / ".distui/bundle-1/node.sh"
    bundle.parent.mkdir(parents=True)
    bundle.write_text('echo "$0" "$@"\n')
    route = Route(
        0, "h", "ssh", "box", (), ("sh", "~/.distui/bundle-1/node.sh", "attach", "0123abcd", "0", "30")
    )
    words = argv("box", (), routes.check(route).remote)
    typed = " ".join(words[words.index("box") + 1 :])
    for shell in filter(shutil.which, ("dash", "bash", "zsh", "ksh", "tcsh", "fish")):
        done = subprocess.run(
            [shell, "-c", typed], env={"HOME": str(site.root), "PATH": os.environ["PATH"]},
            capture_output=True, text=True, timeout=HANG_S, check=False,
        )  # fmt: skip
        assert done.stdout == f"{bundle} attach 0123abcd 0 30\n", (shell, done.stderr)


def test_nothing_behind_the_dashes_is_an_option() -> None:
    words = argv("box", ("-F", "file"), ("sh", "~/.distui/bundle-1/node.sh", "attach", "0123abcd", "0"))
    assert words[words.index("--") + 1 :] == [
        "box",
        "sh",
        "~/.distui/bundle-1/node.sh",
        "attach",
        "0123abcd",
        "0",
    ]
    assert "-oBatchMode=yes" in words[: words.index("--")]


SAID: list[tuple[list[str], int, str]] = [
    (["channel 0: open failed: administratively prohibited: open failed"], 255, "MaxSessions"),
    (["Session open refused by peer"], 255, "MaxSessions"),
    (["ssh: connect to host h port 22: Connection timed out"], 255, "does not answer"),
    (
        ["kex_exchange_identification: read: Connection reset by peer"],
        255,
        "ended the connection before",
    ),
    (["a banner", "distui: no agent answers on /tmp/x"], 4, "h: no agent answers on /tmp/x"),
    (["something new"], 255, "ssh to h: something new"),
    (["a banner"], 0, ""),
]


def test_the_words_of_ssh_become_a_sentence() -> None:
    for said, code, text in SAID:
        told = explain(said, code, "h")
        assert text in told
        assert bool(told) == bool(text)


def test_a_file_of_routes_is_read_back_and_checked(tmp_path: Path) -> None:
    ways = [Route(1, "b", "via", "/tmp/a.sock"), Route(0, "a", "ssh", "a", ("-p", "7"), ("sh", "x"))]
    routes.write(tmp_path, ways)
    assert routes.read(tmp_path) == [ways[1], ways[0]]
    assert routes.read(tmp_path / "none") == []
    (tmp_path / routes.NAME).write_text(
        '[{"node": 0, "host": "a", "kind": "ssh", "target": "-x", "remote": ["a"]}]'
    )
    with pytest.raises(RunError, match="begins with '-'"):
        routes.read(tmp_path)
    (tmp_path / routes.NAME).write_text("[{]")
    with pytest.raises(RunError, match="cannot be read"):
        routes.read(tmp_path)
