"""The web server of the read-only cockpit: textual-serve's page, which the gate protects.

Only the page, its websocket and its static files are routed. There is no route for downloads.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import socket
import sys

import aiohttp_jinja2
import jinja2
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from textual_serve.server import Server

from .gate import COOKIE, Gate

MOST_PAGES = 4
"""Pages at a time; each has a process."""
CLOSING_S = 2.0
"""Maximum seconds that open pages delay the end of the server."""

REFUSED = "403: this address is wrong or was used before; `distui serve` prints a new one"
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
SOURCES = (
    "default-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'"
)
"""Content security policy: the page loads nothing from other servers, such as a font that its template names."""


class Website:
    """The pages of one run, and who may see them."""

    def __init__(self, gate: Gate, share: str, title: str) -> None:
        """`share`: path of the socket that the pages attach to."""
        self._gate = gate
        words = [sys.executable, "-P", "-m", "distui.tui.browser.page", share]
        self._textual = Server(f"exec {shlex.join(words)}", title=title, public_url=gate.origin)
        self._pages = 0

    def application(self) -> web.Application:
        """Make the aiohttp application."""
        page = web.Application()
        aiohttp_jinja2.setup(page, loader=jinja2.FileSystemLoader(self._textual.templates_path))
        page.add_routes(
            [
                web.get("/", self._textual.handle_index, name="index"),
                web.get("/ws", self._screen, name="websocket"),
                web.static("/static", self._textual.statics_path, name="static"),
            ]
        )
        whole = web.Application(middlewares=[self._check])
        whole.add_routes([web.get("/", self._enter, allow_head=False)])  # a HEAD would use the token up
        whole.add_subapp(self._gate.place.rstrip("/"), page)
        whole.on_response_prepare.append(self._add_headers)
        return whole

    @web.middleware
    async def _check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what the gate refuses, whichever path it is for."""
        gate, headers = self._gate, request.headers
        is_websocket = headers.get("Upgrade", "").lower() == "websocket"
        if not gate.is_ours(headers.get("Host", ""), headers.get("Origin"), is_websocket):
            raise web.HTTPForbidden(text=REFUSED)
        if request.path != "/" and not gate.knows(request.cookies.get(COOKIE, "")):
            raise web.HTTPForbidden(text=REFUSED)
        return await handler(request)

    async def _enter(self, request: web.Request) -> web.Response:
        """Exchange the token for the cookie, and lead to the page.

        A redirect would not do: after a click in another site, browsers withhold the new cookie from it.
        """
        gate = self._gate
        if not gate.redeem(request.query.get("token", "")):
            raise web.HTTPForbidden(text=REFUSED)
        text = (
            f'<!DOCTYPE html><meta http-equiv="refresh" content="0;url={gate.place}"><title>distui</title>'
        )
        response = web.Response(text=text, content_type="text/html")
        response.set_cookie(COOKIE, gate.session, path=gate.place, httponly=True, samesite="Strict")
        return response

    async def _screen(self, request: web.Request) -> web.StreamResponse:
        """Serve the screen of one page, in a separate process."""
        if self._pages >= MOST_PAGES:
            raise web.HTTPServiceUnavailable(text=f"{MOST_PAGES} pages are open: close one")
        self._pages += 1
        try:
            return await self._textual.handle_websocket(request)
        finally:
            self._pages -= 1

    async def _add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(HEADERS)
        response.headers["Content-Security-Policy"] = (
            f"{SOURCES}; connect-src 'self' ws://{self._gate.host}"
        )


def _is_of_server(record: logging.LogRecord) -> bool:
    """Return whether a record of aiohttp is about more than a malformed request, which every account can send."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


async def serve(website: Website, listener: socket.socket) -> None:
    """Serve until cancelled."""
    logging.getLogger("aiohttp.server").addFilter(_is_of_server)
    runner = web.AppRunner(website.application(), access_log=None, shutdown_timeout=CLOSING_S)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
