"""`python -m distui.runners.notify.courier RUN_DIR …`: delivers what the agents of ended runs have left undelivered.

A process of its own: the agent leaves, and the run can be removed. It ends once each notice has arrived or is given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...presets.finding import Finding
from .. import clock, file_io, host_processes, own_runs, run_directories
from ..formatting import plural
from ..parts import Parts
from ..run_directories import AGENT_LOCK
from ..settings_file import Lookup
from . import ways
from .delivery import FILE, Delivery, records, summaries
from .notice_rules import ends
from .rule_words import LAST, chosen
from .sending import DESKTOP, NETWORK, NoticeSender

FAILED = "notify-failed"


def start(run_dirs: Sequence[Path], lookup: Lookup) -> None:
    """Start a courier for these runs; `lookup`: variables of the launch."""
    secrets = [name for way in ways.load().ways.values() for name in (way.url_env, way.token_env)]
    given = {name: value for name in (*NETWORK, *DESKTOP, *secrets) if name and (value := lookup(name))}
    with contextlib.suppress(OSError), file_io.appending(run_dirs[0] / "agent.log") as log:
        subprocess.Popen(
            [sys.executable, "-P", "-m", "distui.runners.notify.courier", *map(str, run_dirs)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env={**os.environ, **given},
        )  # fmt: skip


async def start_for_others(lookup: Lookup) -> None:
    """Start a courier for all runs of this user whose notices nobody delivers."""
    if left := await asyncio.to_thread(undelivered):
        start(left, lookup)


def undelivered() -> list[Path]:
    """Own run directories with notices that are still to be sent and that no process sends."""
    now = clock.now()
    return [
        path.parent
        for path in sorted(run_directories.runs_dir().glob(f"*/{FILE}"))
        if run_directories.at(path.parent) is not None
        and own_runs.is_own(path.parent)
        and not is_delivering(path.parent)
        and any(each.is_open(now) for each in summaries(records(path.parent)))
    ]


def is_delivering(run_dir: Path) -> bool:
    """Whether an agent or a courier delivers the notices of a run."""
    return any(host_processes.locked(run_dir / name) for name in (FILE, AGENT_LOCK))


def unreported(run_dir: Path) -> list[Finding]:
    """What `status` says of a run whose end was not reported on a way: at most one finding."""
    now, texts = clock.now(), []
    for each in summaries(records(run_dir)):
        newest = each.newest
        if newest.rule not in LAST or newest.state == "sent":
            continue
        if not each.is_open(now):
            what = f"it is given up after {plural(each.failures, 'failure')}"
        elif is_delivering(run_dir):
            what = "it is tried again"
        else:
            what = "the next launch tries it again"
        why = f": {newest.why}" if newest.why else ""
        texts.append(f"the end of the run is not reported on the way {newest.way}{why}; {what}")
    remedy = "`distui notify log RUN` lists all notices, `distui notify test` tries the ways"
    return [Finding(FAILED, "warning", "; ".join(texts), role="fact", remedy=remedy)] if texts else []


async def deliver(run_dir: Path, lookup: Lookup) -> None:
    """Deliver what is left of one run, unless another process does."""
    entry = run_directories.served(run_dir)
    with _held(run_dir / FILE) as is_ours:
        if entry is None or not is_ours:
            return
        state = entry.state()
        sender = NoticeSender(entry.record.name, entry.record.host, lookup)
        words = () if state.plan is None else state.plan.notify
        delivery = Delivery(run_dir, chosen(words), sender.send, lambda way, why: None)
        delivery.resume()
        delivery.offer(ends(state, clock.now()))  # again, where the disk was too full to note it
        delivery.leave()
        await delivery.run()


@contextlib.contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Hold a lock on a file; whether it was free."""
    try:
        flags = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        descriptor = os.open(path, flags, 0o600)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


async def deliver_all(run_dirs: Sequence[Path], environ: Mapping[str, str]) -> None:
    """Deliver for several runs at once; none of them can fail the others."""
    parts = Parts(lambda name, error, follows: traceback.print_exception(error))
    await asyncio.gather(*(parts.guard(path.name, deliver(path, environ.get)) for path in run_dirs))


if __name__ == "__main__":
    asyncio.run(deliver_all([Path(word) for word in sys.argv[1:]], os.environ))
