"""Send one notification once on one channel, in bounded time: by HTTP request, command, or desktop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..run import clock
from ..run.settings_file import Lookup, SecretError
from . import channels
from .channels import POSTED, NotificationChannel, target
from .messages import (
    Text,
    apprise_request,
    desktop_words,
    generic,
    text_of,
    variables,
    webhook_request,
    without,
)
from .notice_rules import Notice

ANSWER_S = 10.0
"""Seconds for a connection, and for each part of an answer."""
WHOLE_S = 15.0
"""Seconds for the whole request."""
APPRISE_S = 30.0
"""Seconds for apprise, which may send several requests."""
COMMAND_S = 30.0
POST, APPRISE = "distui.runners.run.post", "distui.runners.notify.apprise_process"
"""Modules of the processes that send."""
NETWORK = (
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)
"""Variables of the launch that apply to requests."""
DESKTOP = ("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR")
"""Variables of the launch that notify-send needs to find the desktop."""
_LATER = (408, 425, 429)
"""HTTP statuses below 500 that allow another try."""
_PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY)
"""Temporary reasons for a failed start of a program."""


class SendOutcome(Struct, frozen=True):
    ok: bool
    why: str = ""
    """The end of a sentence about the channel, after a failure."""
    again: bool = False
    """True if another try may succeed."""
    after_s: float | None = None
    """Seconds that the server requests before the next try."""


async def send_notice(
    run: str, host: str, lookup: Lookup, name: str, notice: Notice, left_out: Mapping[str, int]
) -> tuple[Text, SendOutcome]:
    """Try a notification once, on the named channel of the current settings: see `delivery.Send`."""
    text = text_of(notice, run, host, left_out, clock.now())
    configured = await asyncio.to_thread(channels.load)
    channel = configured.channels.get(name)
    if channel is None:
        why = configured.why_not(name) or "there is no such channel any more"
        return text, SendOutcome(False, why, again=bool(configured.problems))
    return text, await send(channel, text, lookup, configured.path.parent)


async def send(channel: NotificationChannel, text: Text, lookup: Lookup, folder: Path) -> SendOutcome:
    """Try once. Never raises. `folder`: of the settings. `lookup`: the environment of the launch."""
    if channel.kind == "command":
        env, notice = {**os.environ, **variables(text)}, json.dumps(generic(text))
        return await _run(list(channel.command), env, notice, f"its command {channel.command[0]}")
    if channel.kind == "desktop":
        return await _run(desktop_words(text), {**os.environ, **_bus(lookup)}, "", "notify-send")
    if channel.kind not in POSTED:
        return SendOutcome(False, "the cockpit notifies a terminal, the agent cannot")
    try:
        where = target(channel, lookup, folder)
    except SecretError as error:
        return SendOutcome(False, str(error), again=True)  # its file may be incomplete at this moment
    env = {**os.environ, **given(NETWORK, lookup)}
    if channel.kind == "apprise":
        answer = await _answer(APPRISE, apprise_request(where, text), env, APPRISE_S)
    else:
        answer = await _answer(POST, {**webhook_request(where, text), "seconds": ANSWER_S}, env, WHOLE_S)
    outcome = _judged(answer, where.host)
    return SendOutcome(outcome.ok, without(outcome.why, where.secrets), outcome.again, outcome.after_s)


def given(names: Iterable[str], lookup: Lookup) -> dict[str, str]:
    """Return the launch's values of these variables."""
    return {name: value for name in names if (value := lookup(name))}


def _bus(lookup: Lookup) -> dict[str, str]:
    """Return the address of this user's desktop, also for a process that was started outside of it."""
    bus = given(DESKTOP, lookup)
    runtime = bus.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    if "DBUS_SESSION_BUS_ADDRESS" not in bus and os.path.exists(f"{runtime}/bus"):
        bus["DBUS_SESSION_BUS_ADDRESS"] = f"unix:path={runtime}/bus"
    return bus


async def _answer(
    module: str, request: Mapping[str, Any], env: Mapping[str, str], seconds: float
) -> dict[str, Any]:
    """Send a request in a separate process, and return its report."""
    words = [sys.executable, "-P", "-m", module]
    try:
        code, out = await _ended(words, env, json.dumps(request), seconds, asyncio.subprocess.PIPE)
    except OSError as error:
        return {"error": f"the process that sends it cannot be started: {error.strerror}"}
    if code is None:
        return {"error": f"it does not answer within {seconds:.0f} s"}
    try:
        return dict(json.loads(out))
    except (ValueError, TypeError):
        return {"error": "the process that sends it failed"}


def _judged(answer: Mapping[str, Any], host: str) -> SendOutcome:
    """Return the outcome of a report. apprise's failures are not told apart: each is tried again."""
    status = answer.get("status")
    if not isinstance(status, int):
        return SendOutcome(False, f"{host}: {answer.get('error')}", again=True)
    if 200 <= status < 300:
        return SendOutcome(True)
    if 300 <= status < 400:
        why = f"{host} answers with a redirect ({status}): write the address that it leads to"
        return SendOutcome(False, why)
    again = status >= 500 or status in _LATER
    return SendOutcome(False, f"{host} answers {status}", again, answer.get("retry_after"))


async def _run(words: list[str], env: Mapping[str, str], text: str, what: str) -> SendOutcome:
    if shutil.which(words[0], path=env.get("PATH")) is None:
        return SendOutcome(
            False, f"{what} is not installed: install it, or remove the channel from the settings"
        )
    try:
        code, _ = await _ended(words, env, text, COMMAND_S)
    except OSError as error:
        return SendOutcome(False, f"{what} cannot be started: {error.strerror}", error.errno in _PASSING)
    if code is None:
        return SendOutcome(False, f"{what} took longer than {COMMAND_S:.0f} s", again=True)
    if code:
        return SendOutcome(False, f"{what} ended with exit code {code}", again=True)
    return SendOutcome(True)


async def _ended(
    words: list[str],
    env: Mapping[str, str],
    text: str,
    seconds: float,
    output: int = asyncio.subprocess.DEVNULL,
) -> tuple[int | None, bytes]:
    """Run a program with a text on its standard input. Return its exit code and output.

    If it takes too long, its process group is killed and the exit code is None. Raises OSError if it cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        *words,
        env=env,
        stdin=asyncio.subprocess.PIPE,
        stdout=output,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(seconds):
            out, _ = await process.communicate(text.encode("utf-8", "replace"))
            return process.returncode, out or b""
    except TimeoutError:
        return None, b""
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
