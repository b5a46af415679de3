"""nccl, restart, signal, stop: change a run from the command line."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TypedDict

import msgspec
from msgspec import structs

from ...presets.sanitize import clean_text, escaped_json
from ...runners.node.agentless import stop_run
from ...runners.node.local_agent import check_ranks, open_link, send, with_link
from ...runners.node.run_following import history
from ...runners.run import checked_commands, clock, run_directories, saving
from ...runners.run.commands import Command, Restart, Stop
from ...runners.run.environment import pairs
from ...runners.run.errors import RunError, UnreachableError
from ...runners.run.formatting import agreeing, spans_text
from ...runners.run.model import CommandDone, RankPhase
from ...runners.run.processes import disposition
from ...runners.run.signal_names import HARMLESS, signal_name
from ...runners.run.state import RunState
from ...runners.run.wire.client import Link, LinkError, new_id
from ..rows import confirm
from ..rows.glyphs import plain
from ..terminal import complain, confirmed


def nccl(options: argparse.Namespace) -> int:
    """Change NCCL_DEBUG, live if the ranks' NCCL supports that."""
    command = checked_commands.nccl_command(
        options.level,
        options.subsys,
        options.rank,
        options.seconds,
        options.restart,
        options.reachable,
    )
    return _do(options, command, options.rank)


def restart(options: argparse.Namespace) -> int:
    """Restart the group in place, after a confirmation."""
    env = {**from_shell(options.from_shell), **pairs(options.env, "--env")}
    command = checked_commands.restart_command(env, options.unset, options.reachable)
    save_s = _save_seconds(options)
    if not _sure(options, command, save_s):
        return 1
    if save_s is None:
        return _do(options, command)

    async def use(entry: run_directories.Entry, link: Link) -> CommandDone:
        return await saving.saved_then(command, save_s, link.send)

    return _report(options, asyncio.run(with_link(options.run, use)))


def _save_seconds(options: argparse.Namespace) -> float | None:
    """Return the maximum seconds of a save before the restart; None if no save is requested. Raises RunError."""
    if not options.save_first:
        if options.save_timeout is not None:
            raise RunError("--save-timeout is for a save before the restart: add --save-first")
        return None
    state = run_directories.resolve(options.run).state()
    return checked_commands.save_seconds(state, options.save_timeout, options.reachable)


def from_shell(names: list[str]) -> dict[str, str]:
    """Return the named variables of the calling shell. Raises RunError if one does not exist."""
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise RunError(f"--env-from-shell {missing[0]}: this shell has no such variable: export it first")
    return {name: os.environ[name] for name in names}


def stop(options: argparse.Namespace) -> int:
    """Stop the run after a confirmation, even if its agent cannot."""
    command = Stop(new_id(), options.grace)
    if not _sure(options, command):
        return 1
    entry = run_directories.resolve(options.run)
    try:
        done = asyncio.run(stop_run(entry, command, complain, open_link))
    except LinkError as error:
        raise UnreachableError(f"{entry.record.name}: {error}") from None
    return _report(options, done)


def send_signal(options: argparse.Namespace) -> int:
    """Send a signal to ranks, after a confirmation if it would end one."""
    command = checked_commands.signal_command(options.signal, options.rank)
    number = signal.Signals[command.signal]
    effect = ""
    if signal_name(number.name) not in HARMLESS:
        state = asyncio.run(with_link(options.run, lambda entry, link: history(link)))
        if not state.phase.ended:
            check_ranks(state, options.rank)
            effect = consequence(state, number, options.rank)
    if effect and not options.yes:
        if not sys.stdin.isatty():
            raise RunError(f"{effect}: add --yes to send it")
        if not confirmed(f"{clean_text(effect)}. ", "nothing was changed"):
            return 1
    return _do(options, command, options.rank)


def consequence(state: RunState, number: signal.Signals, asked: Sequence[int]) -> str:
    """Return the consequence of a signal as a sentence; "" if every rank survives it."""
    name = signal_name(number.name)
    if name in HARMLESS:
        return ""
    ends, unseen = _without_handler(state, number, sorted(set(asked) or state.ranks.keys()))
    parts = []
    if ends:
        why = (
            "" if number is signal.SIGKILL else f", which {agreeing(ends, 'has', 'have')} no handler for it"
        )
        parts.append(f"{name} ends {spans_text('rank', ends)}{why}")
    if unseen:
        parts.append(
            f"{name} ends {spans_text('rank', unseen)} unless there is a handler for it, "
            "which cannot be seen from this machine"
        )
    return "; ".join(parts)


def _without_handler(
    state: RunState, number: signal.Signals, ranks: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the running ranks that a signal ends, and those on other machines, whose handlers are unknown."""
    hostname = os.uname().nodename
    ends, unseen = [], []
    for rank in ranks:
        process = state.ranks.get(rank)
        if process is None or process.pid is None or process.phase is not RankPhase.RUNNING:
            continue
        node = state.nodes.get(process.place.node)
        if node is None or node.host != hostname:
            unseen.append(rank)
        elif number is signal.SIGKILL or disposition(process.pid, number) == "default":
            ends.append(rank)
    return ends, unseen


def _do(options: argparse.Namespace, command: Command, ranks: Sequence[int] = ()) -> int:
    return _report(
        options, asyncio.run(with_link(options.run, lambda entry, link: send(link, command, ranks)))
    )


class RankAnswers(TypedDict):
    """`nccl`, `restart`, `signal`, `stop`."""

    ok: bool
    text: str
    data: Mapping[str, str]


def _report(options: argparse.Namespace, done: CommandDone) -> int:
    if options.json:
        document = RankAnswers(ok=done.ok, text=done.text, data=done.data)
        sys.stdout.write(escaped_json(msgspec.json.encode(document).decode()) + "\n")
    elif done.ok:
        sys.stdout.write(clean_text(done.text) + "\n")
    if not done.ok:
        complain(done.text)
    return 0 if done.ok else 1


def _sure(options: argparse.Namespace, command: Restart | Stop, save_s: float | None = None) -> bool:
    """Return whether the user confirms the cockpit's question; without a terminal only --yes confirms.

    A confirmation applies only to the run in the state of the question. Raises RunError.
    """
    if options.yes:
        return True
    entry = run_directories.resolve(options.run)
    if not sys.stdin.isatty():
        verb = type(command).__name__.lower()
        raise RunError(f"{verb} asks first, and there is no terminal to ask on: add --yes")
    state = entry.state()  # from its files, since an agent may not answer
    about = confirm.target(state)
    asked = _question(state, command, save_s)
    lines = (clean_text(asked.title), *plain(asked.lines), "")
    if not confirmed("\n".join(lines), "nothing was changed"):
        return False
    state = entry.state()
    if isinstance(command, Stop):
        about = structs.replace(about, silent=confirm.target(state).silent)  # they are stopped in any case
    if changed := confirm.changed_since(about, state):
        complain(f"{changed}: nothing was done; type the command again to see the question as it is now")
        return False
    options.run = entry.record.run  # the name may belong to another run by now
    return True


def _question(state: RunState, command: Restart | Stop, save_s: float | None) -> confirm.Confirmation:
    if isinstance(command, Stop):
        return confirm.stop(state, command, clock.now())
    return confirm.restart(state, command, clock.now(), save_s)
