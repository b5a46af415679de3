"""The account of a run that another machine keeps, as the distui there gives it, by ssh."""

from __future__ import annotations

import msgspec
from msgspec import structs

from ..errors import RunError, UnreachableError
from ..hub.routes import check_remote_word
from ..launch import hosts
from ..wire.ssh import HostError, Way, call
from .account import FORMAT, Account, RunName

ANSWER_S = 60.0
"""How long a host has for its answer."""


async def asked(name: RunName, ssh_config: str | None = None) -> Account:
    """Raises RunError."""
    if name.run.startswith("-"):
        raise RunError(f"{name.run!r} is no name of a run: write HOST:NAME")
    run = check_remote_word(name.run) + ("" if name.attempt is None else f"@{name.attempt}")
    (host,) = hosts.check_hosts([hosts.Named(name.host)], "HOST:RUN")
    way = Way(host.destination, hosts.ssh_options(ssh_config))
    command = f"{hosts.WHICH}exec \"$found\" diff --json '{run}'\n"
    try:
        out = await call(way, ("sh",), command.encode(), ANSWER_S)
    except HostError as error:
        raise UnreachableError(str(error)) from None
    return received(out, host.destination)


def received(out: bytes, host: str) -> Account:
    """What the host has printed, perhaps behind a banner of its login. Raises UnreachableError."""
    for line in reversed(out.splitlines()):
        if line.startswith(b"{"):
            try:
                account = msgspec.json.decode(line, type=Account)
            except (msgspec.MsgspecError, RecursionError):
                break
            if account.format == FORMAT:
                return structs.replace(account, title=f"{host}:{account.title}", fingerprints={})
    raise UnreachableError(
        f"{host}: its distui gives no record that this version reads: use the same version there"
    )
