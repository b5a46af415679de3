"""Request the account of a run on another machine from the distui there, by ssh."""

from __future__ import annotations

import msgspec
from msgspec import structs

from ...presets.request import Named
from ..launch import hosts
from ..node.routes import check_remote_word
from ..run.errors import RunError, UnreachableError
from ..run.wire.ssh import HostError, Way, call
from .account import FORMAT, Account, RunName

ANSWER_S = 60.0
"""Seconds before the request times out."""


async def asked(name: RunName, ssh_config: str | None = None) -> Account:
    """Return the account from the host. Raises RunError."""
    if name.run.startswith("-"):
        raise RunError(f"{name.run!r} is not the name of a run: write HOST:NAME")
    run = check_remote_word(name.run) + ("" if name.attempt is None else f"@{name.attempt}")
    (host,) = hosts.check_hosts([Named(name.host)], "HOST:RUN")
    way = Way(host.destination, hosts.ssh_options(ssh_config))
    command = f"{hosts.WHICH}exec \"$found\" diff --json '{run}'\n"
    try:
        out = await call(way, ("sh",), command.encode(), ANSWER_S)
    except HostError as error:
        raise UnreachableError(str(error)) from None
    return received(out, host.destination)


def received(out: bytes, host: str) -> Account:
    """Return the account in a host's output, which may begin with a login banner. Raises UnreachableError."""
    for line in reversed(out.splitlines()):
        if line.startswith(b"{"):
            try:
                account = msgspec.json.decode(line, type=Account)
            except (msgspec.MsgspecError, RecursionError):
                break
            if account.format == FORMAT:
                return structs.replace(account, title=f"{host}:{account.title}", fingerprints={})
    raise UnreachableError(
        f"{host}: its distui sends a record that this version cannot read: install the same version there"
    )
