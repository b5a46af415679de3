"""Request the account of a run on another machine from the distui there, by ssh."""

from __future__ import annotations

import msgspec
from msgspec import structs

from ..launch import hosts
from ..node.routes import check_remote_word
from ..run.errors import RunError, UnreachableError
from ..run.wire.ssh import HostError
from .account import FORMAT, Account, RunName


async def asked(name: RunName, ssh_config: str | None = None) -> Account:
    """Return the account from the host. Raises RunError."""
    if name.run.startswith("-"):
        raise RunError(f"{name.run!r} is not the name of a run: write HOST:NAME")
    run = check_remote_word(name.run) + ("" if name.attempt is None else f"@{name.attempt}")
    (way,) = hosts.named_ways([name.host], "HOST:RUN", ssh_config)
    try:
        return received(await hosts.json_of(way, "diff", run), way.destination)
    except HostError as error:
        raise UnreachableError(str(error)) from None


def received(sent: bytes, host: str) -> Account:
    """Return the account that a host has sent. Raises UnreachableError."""
    try:
        account = msgspec.json.decode(sent, type=Account)
    except (msgspec.MsgspecError, RecursionError):
        account = None
    if account is None or account.format != FORMAT:
        raise UnreachableError(
            f"{host}: its distui sends a record that this version cannot read: install the same version there"
        )
    return structs.replace(account, title=f"{host}:{account.title}", fingerprints={})
