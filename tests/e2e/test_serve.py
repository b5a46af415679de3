"""`distui serve`: the read-only cockpit in a browser, and who does not get in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from patience import HANG_S

from distui.runners.run import shared_sockets

from .runs import Run, World, until

LINES = """
import itertools, time
for number in itertools.count():
    print("a line for the browser", number, flush=True)
    time.sleep(0.5)
"""


class Served:
    """A run that `distui serve` serves."""

    def __init__(self, run: Run, process: subprocess.Popen[bytes]) -> None:
        self.run, self._process = run, process
        assert process.stdout is not None
        lines = [process.stdout.readline().decode().strip() for _ in range(4)]
        assert lines[0].startswith(f"{run.name}, read-only, until Ctrl-C"), lines
        self.forward, self.address = lines[1], lines[3]
        self.origin = self.address.partition("/?")[0]
        self.port = int(self.origin.rpartition(":")[2])

    def interrupt(self) -> int:
        """Press Ctrl-C; the exit code."""
        self._process.send_signal(signal.SIGINT)
        self.errors = self._process.communicate(timeout=HANG_S)[1].decode()
        return self._process.returncode

    def close(self) -> None:
        if self._process.poll() is None:
            self.interrupt()


@pytest.fixture
def served(world: World) -> Iterator[Served]:
    run = world.execute(LINES, name="night")
    assert run.wait("running") == 0
    started = Served(run, world.start("serve", run.id))
    try:
        yield started
    finally:
        started.close()


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    """A client that keeps cookies for 127.0.0.1."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session


async def page_of(session: aiohttp.ClientSession, served: Served) -> str:
    """Bring the token; the address of the page."""
    async with session.get(served.address) as answer:
        assert answer.status == 200
        text = await answer.text()
    return served.origin + text.partition("url=")[2].partition('"')[0]


async def code(session: aiohttp.ClientSession, address: str, **headers: str) -> int:
    async with session.get(address, headers=headers, allow_redirects=False) as answer:
        return answer.status


UPGRADE = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
           "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}  # fmt: skip


@pytest.mark.real
async def test_nobody_gets_in_without_the_token(served: Served) -> None:
    async with browser() as stranger, browser() as owner:
        assert await code(stranger, f"{served.origin}/") == 403
        assert await code(stranger, f"{served.origin}/?token=guessed") == 403
        page = await page_of(owner, served)
        paths = ("", "ws", "static/js/textual.js", "static/", "download/x", "../", "nothing")
        for path in paths:
            assert await code(stranger, page + path) == 403, path
            assert await code(stranger, page + path, Cookie="distui=guessed") == 403, path
        for path in ("/ws", "/static/js/textual.js", "/download/x", "//", "/nothing"):
            assert await code(owner, served.origin + path) == 403, path
        assert await code(stranger, served.address) == 403, "the address works once"
        assert await code(owner, served.address) == 403
        assert await code(owner, page) == 200
        assert await code(owner, f"{page}static/js/textual.js") == 200
        assert await code(owner, f"{page}download/x") == 404


@pytest.mark.real
async def test_only_the_browser_uses_the_token_up_and_malformed_requests_leave_no_traceback(
    served: Served,
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"GET /\x1b HTTP/1.1\r\n\r\n")
    assert b"400" in await reader.readline()
    writer.close()
    async with browser() as owner:
        async with owner.head(served.address) as answer:
            assert answer.status == 405
        await page_of(owner, served)
    served.interrupt()
    assert "Traceback" not in served.errors


@pytest.mark.real
async def test_a_page_of_another_site_and_another_name_get_nothing(served: Served) -> None:
    async with browser() as owner:
        page = await page_of(owner, served)
        for host in ("evil.example", f"evil.example:{served.port}", f"localhost:{served.port}"):
            assert await code(owner, page, Host=host) == 403, host
        for origin in ("http://evil.example", "http://127.0.0.1:1", "null"):
            assert await code(owner, page, Origin=origin) == 403, origin
            assert await code(owner, f"{page}ws", **UPGRADE, Origin=origin) == 403, origin
        assert await code(owner, f"{page}ws", **UPGRADE) == 403, "a websocket without origin"
        async with owner.get(page) as answer:
            text = await answer.text()
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy
        assert "http" not in policy.replace(f"ws://127.0.0.1:{served.port}", "")
        assert "token" not in text
        async with browser() as stranger:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await stranger.ws_connect(f"{page}ws", origin=served.origin)
            assert refused.value.status == 403


async def screen_of(websocket: aiohttp.ClientWebSocketResponse, wanted: str) -> bytes:
    """Read until the screen has had a text."""
    came = b""
    async with asyncio.timeout(HANG_S):
        async for message in websocket:
            if message.type is aiohttp.WSMsgType.BINARY:
                came += message.data
            if wanted.encode() in came:
                return came
    raise AssertionError(came[-2000:])


@pytest.mark.real
async def test_the_page_shows_the_run_and_its_keys_change_nothing(served: Served) -> None:
    async with browser() as owner:
        page = await page_of(owner, served)
        async with owner.ws_connect(f"{page}ws?width=120&height=40", origin=served.origin) as screen:
            await screen_of(screen, "RUNNING")
            await screen_of(screen, "a line for the browser")
            for key in ("x", "y", "r", "y", "\x0e", "R", "D", "y", "!", "o", ":stop\r", "y", "P", "y"):
                await screen.send_str(json.dumps(["stdin", key]))
            await screen.send_str(json.dumps(["stdin", "x"]))
            await screen_of(screen, "a browser can only look at the run")
            started = served.run.world.processes()
            assert sum("distui.tui.browser.page" in line for line in started.values()) == 1
    status = served.run.status()
    assert (status["state"], status["attempt"]) == ("running", 1)
    asked = [event["verb"] for event in served.run.of("CommandReceived")]
    assert asked == ["share"]
    assert until(lambda: not pages(served.run.world)), "the page's process ends with the page"


def pages(world: World) -> list[str]:
    return [line for line in world.processes().values() if "distui.tui.browser.page" in line]


@pytest.mark.real
async def test_the_end_of_the_server_ends_its_pages(served: Served) -> None:
    async with browser() as owner:
        page = await page_of(owner, served)
        many = [await owner.ws_connect(f"{page}ws", origin=served.origin) for _ in range(4)]
        with pytest.raises(aiohttp.WSServerHandshakeError) as full:
            await owner.ws_connect(f"{page}ws", origin=served.origin)
        assert full.value.status == 503
        await screen_of(many[0], "RUNNING")
        assert await asyncio.to_thread(served.interrupt) == 0
    assert until(lambda: not pages(served.run.world))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", served.port))
    folders = Path(shared_sockets.FOLDER).glob(f"distui-share-{served.run.id.rpartition('-')[2]}-*")
    assert not list(folders)
    assert served.run.status()["state"] == "running"


@pytest.mark.real
def test_the_line_for_ssh_has_the_port(served: Served) -> None:
    assert served.forward.startswith(f"ssh -N -L {served.port}:127.0.0.1:{served.port} ")
    socket.create_connection(("127.0.0.1", served.port)).close()
    other = served.run.distui("serve", "--port", str(served.port))
    other.refused(
        2, f"ort {served.port} cannot be opened (Address already in use)", "choose another with --port"
    )
