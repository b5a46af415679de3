"""`python -m distui.runners.node.courier RUN_DIR …`: report on runs that no process serves.

It delivers the remaining notifications of ended runs, and reports the end of lost runs. If a runner lives without an
agent, or has reported its end to no agent, it starts the agent. It is a separate process, so that the agent that starts
it can exit, and the run can be removed. It ends when each notification has arrived or is given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import structs

from ..notify import channels
from ..notify.delivery import FILE, Delivery
from ..notify.notice_rules import ends
from ..notify.rule_words import called
from ..notify.sending import given, send_notice
from ..notify.unreported import last_state
from ..run import clock, environment, run_directories
from ..run.errors import RunError
from ..run.parts import Parts
from ..run.run_directories import Condition, Entry
from ..run.settings_file import Lookup
from .local_agent import start_agent


async def attend(run_dir: Path, lookup: Lookup) -> None:
    """Start the missing agent of a run, or deliver the remaining notifications."""
    entry = run_directories.served(run_dir)
    if entry is None:
        return
    lacks_agent = run_directories.condition_of(entry) in (Condition.UNSERVED, Condition.UNREAD)
    if lacks_agent and entry.record.kind == "local":
        kept = environment.read(run_dir)
        names = channels.secret_names() & kept.hidden if kept is not None else ()
        await asyncio.to_thread(start_agent, entry, given(names, lookup))
    else:
        await deliver(run_dir, lookup)


async def deliver(run_dir: Path, lookup: Lookup) -> None:
    """Deliver the remaining notifications of one run, unless another process does."""
    entry = run_directories.served(run_dir)
    with _held(run_dir / FILE) as is_ours:
        if entry is None or not is_ours:
            return
        entry = _distinct(entry)
        _, state = last_state(entry)
        if state.plan is None or not state.phase.ended:
            return
        send = partial(send_notice, entry.record.name, entry.record.host, lookup)
        delivery = Delivery(run_dir, called(state.plan.notify), send, lambda channel, why: None)
        delivery.resume()
        delivery.offer(ends(state, clock.now()))  # repeated, in case the disk was too full to record it
        delivery.leave()
        await delivery.run()


def _distinct(entry: Entry) -> Entry:
    """Return the run, with its ID as its name if the name now means another run."""
    with contextlib.suppress(RunError):
        if run_directories.resolve(entry.record.name).path != entry.path:
            return structs.replace(entry, record=structs.replace(entry.record, name=entry.record.run))
    return entry


@contextlib.contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Hold a lock on a file. Yields True if it was free."""
    flags = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    with contextlib.ExitStack() as stack:
        is_held = False
        with contextlib.suppress(OSError):
            descriptor = os.open(path, flags, 0o600)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = True
        yield is_held


async def attend_all(run_dirs: Sequence[Path], environ: Mapping[str, str]) -> None:
    """Attend to several runs concurrently. A failure of one does not affect the others."""
    parts = Parts(lambda name, error, follows: traceback.print_exception(error))
    await asyncio.gather(*(parts.guard(path.name, attend(path, environ.get)) for path in run_dirs))


if __name__ == "__main__":
    asyncio.run(attend_all([Path(word) for word in sys.argv[1:]], os.environ))
