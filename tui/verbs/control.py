"""nccl, restart, signal, stop: changing a run from the command line."""

from __future__ import annotations

import argparse
import asyncio
import sys

import msgspec

from ...presets.environ import refusal
from ...presets.secrets import mask
from ...runners import registry
from ...runners.errors import RunError
from ...runners.model import Command, CommandDone, Restart, SetNccl, Signal, Stop
from ...runners.state import RunState
from ...runners.wire.client import new_id
from ...runners.wire.link import Link
from ..connect import snapshot, with_link
from ..starting import pairs


def nccl(options: argparse.Namespace) -> int:
    """Change NCCL_DEBUG: live where the ranks' NCCL can."""
    if options.reachable and not options.restart:
        raise RunError("--reachable is for a restart: add --restart")
    command = SetNccl(
        new_id(), options.level, options.subsys, tuple(options.rank), options.seconds, options.restart,
        options.reachable,
    )  # fmt: skip
    return _do(options, command)


def restart(options: argparse.Namespace) -> int:
    """Restart the group in place, after asking."""
    env = pairs(options.env, "--env")
    refused = refusal({**env, **dict.fromkeys(options.unset, "")})
    if refused:
        raise RunError(refused)
    if not _sure(options, "restart", [f"{name}={mask(name, value)}" for name, value in env.items()]
                 + [f"-{name}" for name in options.unset]):  # fmt: skip
        return 1
    return _do(options, Restart(new_id(), env, tuple(options.unset), options.reachable))


def stop(options: argparse.Namespace) -> int:
    """End the run, after asking."""
    return _do(options, Stop(new_id(), options.grace)) if _sure(options, "stop", []) else 1


def send_signal(options: argparse.Namespace) -> int:
    """Send a signal to ranks."""
    return _do(options, Signal(new_id(), options.signal, tuple(options.rank)))


def _do(options: argparse.Namespace, command: Command) -> int:
    async def use(entry: registry.Entry, link: Link) -> CommandDone:
        return await link.send(command)  # no history is asked for: the answer is all that comes

    done = asyncio.run(with_link(options.run, use))
    if options.json:
        sys.stdout.write(
            msgspec.json.encode({"ok": done.ok, "text": done.text, "data": done.data}).decode() + "\n"
        )
    elif done.ok:
        sys.stdout.write(done.text + "\n")
    if not done.ok:
        sys.stderr.write(f"distui: {done.text}\n")
    return 0 if done.ok else 1


def _sure(options: argparse.Namespace, verb: str, changes: list[str]) -> bool:
    """Say what will happen and ask; without a terminal only --yes is an answer. Raises RunError."""
    if options.yes:
        return True
    if not sys.stdin.isatty():
        raise RunError(f"{verb} asks first, and there is no terminal to ask on: add --yes")

    async def use(entry: registry.Entry, link: Link) -> RunState:
        return await snapshot(link)

    state = asyncio.run(with_link(options.run, use))
    grace = state.plan.grace_s if state.plan else 30.0
    question = f"{verb} {state.name}: {len(state.ranks)} ranks get SIGTERM, after {grace:g} s SIGKILL"
    question += f"; environment: {' '.join(changes)}" if changes else ""
    sys.stderr.write(f"{question}. Really? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    sys.stderr.write("nothing was changed\n")
    return False
