"""What a person sees who opens the address of `distui serve` in Chromium, and that keys change nothing."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from patience import HANG_S

from .runs import World
from .test_serve import LINES, Served

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
KEYS = "xyryR:stop\r"
PICTURE = os.environ.get("DISTUI_BROWSER_PICTURE")
"""File for a picture of the page."""


class Tab:
    """A page of a headless Chromium, steered through its debugging protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.loaded: list[str] = []
        """Addresses from which the page has loaded something."""
        self.typed = ""
        """Keys that the page has sent."""
        self.complaints: list[str] = []
        """Errors in its console."""

    async def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return the result."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(HANG_S):
            while True:
                told = await self._socket.receive_json()
                if told.get("id") == number:
                    assert "error" not in told, told
                    result: dict[str, Any] = told["result"]
                    return result
                self._note(told)

    def _note(self, told: dict[str, Any]) -> None:
        if told["method"] == "Network.responseReceived":
            self.loaded.append(told["params"]["response"]["url"])
        elif told["method"] == "Network.webSocketFrameSent":
            kind, *values = json.loads(told["params"]["response"]["payloadData"])
            self.typed += values[0] if kind == "stdin" else ""
        elif told["method"] == "Runtime.exceptionThrown":
            self.complaints.append(str(told["params"]["exceptionDetails"]))

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        result = await self.do("Runtime.evaluate", expression=expression, returnByValue=True)
        return result["result"].get("value")

    async def press(self, text: str) -> None:
        for letter in text:
            await self.do("Input.dispatchKeyEvent", type="keyDown", text=letter, key=letter)
            await self.do("Input.dispatchKeyEvent", type="keyUp", key=letter)

    async def picture(self) -> bytes:
        """The page as PNG."""
        return base64.b64decode((await self.do("Page.captureScreenshot", format="png"))["data"])


@contextlib.asynccontextmanager
async def chromium(address: str) -> AsyncIterator[Tab]:
    """A headless Chromium that opens an address."""
    assert CHROMIUM is not None
    profile = tempfile.mkdtemp(prefix="dt-", dir="/tmp")
    process = await asyncio.create_subprocess_exec(
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--window-size=1280,800",
        "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        port = Path(profile, "DevToolsActivePort")
        async with asyncio.timeout(HANG_S):
            while not port.exists() or not port.read_text():
                await asyncio.sleep(0.1)
        number = port.read_text().split()[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{number}/json/list") as answer:
                (tab,) = [one for one in json.loads(await answer.text()) if one["type"] == "page"]
            async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=1 << 28) as socket:
                opened = Tab(socket)
                for domain in ("Page", "Runtime", "Network"):
                    await opened.do(f"{domain}.enable")
                await opened.do("Page.navigate", url=address)
                yield opened
                await opened.do("Browser.close")
    finally:
        with contextlib.suppress(ProcessLookupError, TimeoutError):
            async with asyncio.timeout(10):
                await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
        shutil.rmtree(profile, ignore_errors=True)


async def until(tab: Tab, expression: str) -> None:
    """Wait until a JavaScript expression is true."""
    async with asyncio.timeout(HANG_S):
        while not await tab.evaluate(expression):
            await asyncio.sleep(0.2)


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
async def test_chromium_shows_the_cockpit_and_its_keys_change_nothing(world: World) -> None:
    run = world.execute(LINES, name="night")
    assert run.wait("running") == 0
    served = Served(run, world.start("serve", run.id))
    try:
        async with chromium(served.address) as tab:
            await until(tab, "document.body && document.body.classList.contains('-first-byte')")
            assert "token" not in await tab.evaluate("location.href")
            assert not await tab.evaluate("document.cookie"), "scripts do not see the cookie"
            await asyncio.sleep(3.0)
            first = await tab.picture()
            await tab.evaluate("document.querySelector('.xterm-helper-textarea').focus()")
            await tab.press(KEYS)
            await asyncio.sleep(2.0)
            second = await tab.picture()
            assert first != second
            assert all(key in tab.typed for key in KEYS), tab.typed
            if PICTURE:
                Path(PICTURE).write_bytes(second)
            own = (served.origin, served.origin.replace("http", "ws"), "data:", "blob:")
            assert tab.loaded
            assert all(url.startswith(own) for url in tab.loaded), tab.loaded
            assert not tab.complaints
        status = run.status()
        assert (status["state"], status["attempt"]) == ("running", 1)
        assert [event["verb"] for event in run.of("CommandReceived")] == ["share"]
    finally:
        served.close()
