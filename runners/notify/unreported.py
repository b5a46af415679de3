"""Find runs with undelivered notifications that no process handles. Reads files and processes, and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...presets.finding import Finding
from ...presets.plurals import plural
from ..run import clock, file_locks, journal, own_runs, run_directories
from ..run.model import RunEnded, RunPhase, Stamped
from ..run.run_directories import AGENT_LOCK, Condition, Entry
from ..run.state import RunState
from .delivery import FILE, GIVE_UP_S, NoticeSummary, records, summaries, wanted_on
from .notice_rules import ends
from .rule_words import called

FAILED = "notify-failed"


def unattended() -> list[Path]:
    """Return the directories of this account's runs that need a courier."""
    paths = sorted(run_directories.directories())
    return [path for path in paths if not _is_history(path) and is_unattended(path)]


def _is_history(run_dir: Path) -> bool:
    """Return True if the run ended so long ago that nothing is sent any more."""
    try:
        return clock.now() - (run_dir / journal.END_FILE).stat().st_mtime > GIVE_UP_S
    except OSError:
        return False  # the run has not ended


def is_unattended(run_dir: Path) -> bool:
    """Return True if a run of this machine has a runner without an agent, or unsent notifications without a process.

    The hub of a run on several nodes is not restarted, because it needs the environment of a shell that reaches the
    nodes.
    """
    entry = run_directories.served(run_dir)
    if entry is None or entry.record.kind == "node" or not own_runs.is_own(run_dir):
        return False
    if is_delivering(run_dir):
        return False
    condition, state = last_state(entry)
    if not state.phase.ended:
        return condition is Condition.UNSERVED and entry.record.kind == "local"
    known = _known(run_dir)
    return bool(_ends_on(state) - known.keys()) or any(each.is_open(clock.now()) for each in known.values())


def is_delivering(run_dir: Path) -> bool:
    """Return True if an agent or a courier delivers the notifications of a run."""
    return any(file_locks.locked(run_dir / name) for name in (FILE, AGENT_LOCK))


def last_state(entry: Entry) -> tuple[Condition, RunState]:
    """Return condition and state of a run. A lost run that had begun, and was not being stopped, has ended as lost."""
    history = entry.history()
    condition, state = run_directories.condition_of(entry, history), history.state
    has_begun = any(entry.path.glob("node-*/attempt-*"))
    if condition is Condition.LOST and has_begun and state.phase is not RunPhase.STOPPING:
        why = run_directories.why_lost(entry, run_directories.orphans(entry))
        state.apply(Stamped(clock.now(), RunEnded(RunPhase.LOST, None, why), node=history.node))
    return condition, state


def _ends_on(state: RunState) -> set[tuple[str, str]]:
    """Return the channels for a run's end, each with the key of that notification."""
    words = () if state.plan is None else state.plan.notify
    return {(channel, notice.key) for channel, notice in wanted_on(called(words), ends(state, clock.now()))}


def _known(run_dir: Path) -> Mapping[tuple[str, str], NoticeSummary]:
    """Return the state of a run's notifications by channel and key."""
    return {(each.newest.channel, each.newest.key): each for each in summaries(records(run_dir))}


def unreported(entry: Entry) -> list[Finding]:
    """Return at most one finding of `status`, for a run whose end was not reported on a channel."""
    known, texts = _known(entry.path), []
    for channel, key in sorted(_ends_on(last_state(entry)[1])):
        text = _standing(entry.path, known.get((channel, key)))
        if text:
            texts.append(f"the end of the run is not reported on the channel {channel}{text}")
    if not texts:
        return []
    log = f"`distui notify log {entry.record.name}` lists all notifications"
    remedy = f"{log}, `distui notify test` tests the channels"
    return [Finding(FAILED, "warning", "; ".join(texts), role="fact", remedy=remedy)]


def _standing(run_dir: Path, each: NoticeSummary | None) -> str:
    """Return why a report has not arrived and what follows, or "" if it has arrived or an agent will send it."""
    if each is None:
        is_left = own_runs.is_own(run_dir) and not is_delivering(run_dir)
        return "; the next launch reports it" if is_left else ""
    if each.newest.state == "sent":
        return ""
    if not each.is_open(clock.now()):
        follows = f"it is given up after {plural(each.failures, 'failure')}"
    elif is_delivering(run_dir):
        follows = "it is tried again"
    else:
        follows = "the next launch tries it again"
    why = f": {each.newest.why}" if each.newest.why else ""
    return f"{why}; {follows}"
