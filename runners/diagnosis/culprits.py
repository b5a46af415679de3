"""Explain why ranks wait for another one, from what that rank does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...presets.finding import Finding
from ..inrank.failure_causes import UNEVEN
from ..run.formatting import agreeing, bytes_of, spans_text, time_of_day
from ..run.model import RankPhase
from ..run.pulse import Pulse, Site
from . import activity, held_by, own_lines, progress
from .activity import Activity, Doing, Kind
from .held_by import HeldBy
from .view import View
from .waits import Ends, Pending, WaitPoint, ended, last_answer, waiting_ranks

FRESH_S = 2.0
"""A missing rank's sample counts if it is at least this many seconds newer than the start of the wait."""
LONG_S, WORKS_S, LOADER_S = 20.0, 30.0, 120.0
"""Seconds that others must wait before weaker evidence counts: a loop or slow I/O, work, a busy data loader."""
GPU_S = 45.0
"""Seconds before a busy GPU no longer excuses a sleeping rank: a kernel may be long, others may use the GPU."""
EXTERNAL_S = 80.0
"""Seconds before a wait for an answer or a file is an error: servers answer within a minute, or give up."""
BACK_OFF_S = 10.0
"""A sleep that lasts longer is a planned pause between two attempts."""
COMPUTES_S = 80.0
"""Seconds before a wait is a warning for a rank that computes in a C call that holds the GIL."""
SUSPECT_S = 45.0
"""Seconds before a wait is a warning for a rank that only repeats a loop, or that waits while another thread does so."""
GROWS_S, GROWS_BYTES = 60.0, 4 << 20
"""Growth of memory, within so many seconds, that shows work."""
MOST = 3
"""Maximum number of collectives that the evidence lists."""

_AT = {
    Kind.LOADER: "waits for its data loader",
    Kind.CHECKPOINT: "is in checkpoint I/O",
    Kind.DEBUGGER: "is in the debugger",
    Kind.SUBPROCESS: "waits for a process that it started",
    Kind.NETWORK: "waits for the network",
    Kind.IMPORT: "is in an import",
    Kind.COMPILE: "waits for the compiler",
}
_REMEDIES = {
    "hang-loader": "check its dataset and its workers (their stacks: py-spy dump --subprocesses); "
    "try num_workers=0, and give DataLoader a timeout",
    "hang-checkpoint": "check the file system that the checkpoint is written to: space, quota, a server that is gone",
    "hang-stopped": "continue it with SIGCONT: `distui signal RUN CONT --rank {rank}`",
    "hang-c-call": "check what that line calls: a library that holds the GIL needs a time-out of its own, and a regular "
    "expression with nested repeats may never end",
    "hang-python": "check the condition that this loop waits for",
    "hang-not-joined": "check what that line waits for; every rank has to call the same collectives",
    "hang-lock": "let it release the lock before it waits for ranks that need the lock",
    "hang-gone": "restart the group; its log says why the rank ended",
    "hang-mismatch": "make every rank call the same collectives in the same order, with no rank left out",
}
_IN_KERNEL = "is in a call of the kernel that does not return (state D)"
_KERNEL = (
    "check the storage or the driver behind that line: `dmesg | tail`, `df` on its mounts; no signal ends the process "
    "before the call returns"
)
_RETRIES = (
    "check what it tries, by its last lines; limit the attempts, so that the job fails with the reason"
)
_THAW = "thaw it: `docker unpause`, `systemctl thaw`, or the file cgroup.freeze of its cgroup"
_HALTED = "continue {it} with `kill -CONT {pids}`, or thaw the cgroup of the container"
_BUSY = "if it should not take so long, press w to see its stack (in a shell: `distui dump RUN stacks`)"
_TOO_LONG = (
    "check its stack; torch ends a group whose collective waits too long (NCCL: after 10 min), so give "
    "init_process_group a longer timeout if this work may take that long"
)


_REPEATS = (
    "check the condition that this code waits for; if it computes, press w twice to see whether it gets on "
    "(in a shell: `distui dump RUN stacks`)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """Why others wait for a rank. Equal ones of several ranks become one finding."""

    id: str
    severity: str
    does: str
    """What the rank does, without its name: "sleeps at train.py:33 load"."""
    remedy: str
    stack: tuple[Site, ...] = ()
    proof: str = ""
    """Further evidence about the rank."""
    source: str = ""
    """Source of the stack if it is not from the hook."""
    more: tuple[str, ...] = ()
    """Further evidence."""
    lock: tuple[int, str] | None = None
    """The rank that holds the file lock, and the path of the locked file."""


class Case(NamedTuple):
    """One verdict, the ranks that it is about, and the collectives that wait for them."""

    culprit: Culprit
    ranks: list[int]
    nearest: Sequence[Pending]


def judge(view: View, rank: int, blocked: Sequence[Pending]) -> Culprit | None:
    """Explain why others wait for a rank; None if the reason is unknown or harmless."""
    if ended(view, rank):
        return _gone(view, rank)
    since = min((pending.since for pending in blocked), default=0.0)
    age = max((pending.age for pending in blocked), default=0.0)
    pulses = view.history.get(rank, ())
    if not pulses or pulses[-1].at < since + FRESH_S:
        return None
    does = doing(view, rank)
    if does.position.kind is Kind.LOADER and pulses[-1].halted_workers:
        return _halted_workers(does, pulses[-1].halted_workers)
    if does.activity is Activity.WORKS or (does.activity is Activity.GPU_ALONE and age < GPU_S):
        culprit = _works(view, does, age, blocked)
        if culprit is not None and _tries_again(does, pulses[-1], age):
            action = f"fails and tries again{_within(does, blocked)}"
            culprit = replace(culprit, severity="warning", does=action, remedy=_RETRIES)
        if culprit is not None and does.is_suspect:
            culprit = _with_death(culprit, pulses[-1])
        return None if culprit is None else replace(culprit, does=_steady(view, rank, culprit))
    return _stuck(does, age, held_by.of(view, rank))


def _halted_workers(does: Doing, pids: Sequence[int]) -> Culprit:
    """Describe a rank whose data loader has workers that a signal or the freezer has stopped."""
    many = len(pids) > 1
    workers = f"workers {', '.join(map(str, pids[:4]))} are" if many else f"worker {pids[0]} is"
    action = f"{_AT[Kind.LOADER]}{_at(does)}, whose {workers} stopped (SIGSTOP) or frozen"
    remedy = _HALTED.replace("{it}", "them" if many else "it").replace("{pids}", " ".join(map(str, pids)))
    return replace(_verdict("hang-loader", does, action, ""), remedy=remedy)


_RATE = re.compile(r" at ([\d.]+) (B|KiB|MiB|GiB|TiB)/s")


def _steady(view: View, rank: int, culprit: Culprit) -> str:
    """Return what a rank does with the rate of the raised finding, until it has doubled or halved.

    A finding with a new text is raised again.
    """
    rate = _RATE.search(culprit.does)
    raised = view.state.findings.get((culprit.id, rank, next(iter(view.nodes_of([rank])), None)))
    before = None if raised is None else _RATE.search(raised.text)
    if rate is None or before is None:
        return culprit.does
    now, then = (bytes_of(match[1] + match[2]) or 0 for match in (rate, before))
    same = then < 2 * now < 4 * then
    return culprit.does.replace(rate[0], before[0]) if same else culprit.does


def doing(view: View, rank: int) -> Doing:
    """Return what a rank does, from its pulses, samples and GPU."""
    state, pulses = view.state.ranks.get(rank), view.history.get(rank, ())
    if state is None or not pulses:
        return Doing(Activity.UNKNOWN)
    gpu, tree = view.gpu(rank), None if state.sample is None else state.sample.cpu_percent
    hooked = state.hook is not None or last_answer(pulses) is not None
    does = activity.doing(
        pulses,
        hooked=hooked,
        tree_percent=tree,
        gpu_percent=None if gpu is None else gpu.util,
        sleeps_for_s=view.works_for_s,
    )
    return does._replace(is_suspect=does.is_suspect and not _grows(view, rank))


def _grows(view: View, rank: int) -> bool:
    """Whether a rank uses more memory than some seconds ago, as a computation that collects results does."""
    points = (point for point in view.memory.get(rank, ()) if point.at >= view.now - GROWS_S)
    recent = [point.rss for point in points if point.rss is not None]
    return bool(recent) and recent[-1] - min(recent) >= GROWS_BYTES


def _gone(view: View, rank: int) -> Culprit:
    state = view.state.ranks[rank]
    if state.phase is RankPhase.SUCCEEDED:
        return Culprit(
            id="hang-gone",
            severity="error",
            does="ended with exit code 0",
            remedy=UNEVEN,
            proof="it was done before the others: uneven data at the end of an epoch, or a branch on the rank",
        )
    how = f"was killed by {state.signal}" if state.signal else "ended"
    if state.exit_code is not None and not state.signal:
        how = f"ended with exit code {state.exit_code}"
    return Culprit(id="hang-gone", severity="error", does=how, remedy=_REMEDIES["hang-gone"])


def stopped(does: Doing, pulse: Pulse) -> Culprit:
    """Describe a rank that a signal, a debugger or the cgroup freezer has stopped."""
    pid = "n/a" if pulse.pid is None else pulse.pid
    what, remedy = "is stopped by a signal (SIGSTOP) or a debugger", _REMEDIES["hang-stopped"]
    proof = f"kernel state of pid {pid}: T (stopped)"
    if pulse.frozen:
        what, remedy = "is frozen: the cgroup freezer has stopped it", _THAW
        proof = f"the cgroup of pid {pid} is frozen"
    return Culprit(
        id="hang-stopped", severity="error", does=what, remedy=remedy, proof=proof, stack=does.stack
    )


def _at(does: Doing) -> str:
    return f" at {activity.site_text(does.position.site)}" if does.position.site is not None else ""


def _placed(action: str, does: Doing) -> str:
    """Insert the rank's place after its action, before a clause about other processes."""
    of_others = re.search(r" \((?:lock|state)|, (?:and its|which|whose) |: (?:no|its) task", action)
    end = of_others.start() if of_others else len(action)
    return action[:end] + _at(does) + action[end:]


def _stuck(does: Doing, age: float, held: HeldBy) -> Culprit | None:
    if does.activity is Activity.LEAVING and age >= LONG_S:
        return Culprit(
            id="hang-gone",
            severity="error",
            does="is done with its script, and its interpreter shuts down",
            remedy=UNEVEN,
        )
    if does.activity is Activity.SILENT or (does.activity is Activity.SILENT_BUSY and age >= WORKS_S):
        return _silent(does, age)
    if does.activity is Activity.LOOPS and age >= LONG_S:
        return _verdict(
            "hang-python",
            does,
            f"loops{_at(does)}",
            "it uses CPU time, but every sample shows this one function, which calls no other",
            "warning",
        )
    if does.activity in (Activity.ASLEEP, Activity.GPU_ALONE):
        return _asleep(does, age, held)
    return None


def _silent(does: Doing, age: float) -> Culprit:
    """Describe a rank whose hook does not answer, because a C call holds the GIL."""
    is_busy = does.activity is Activity.SILENT_BUSY
    proof = "it uses CPU time" if is_busy else "it uses no CPU time, though it is runnable"
    if does.awaits_gil:
        proof = "its main thread asks for the GIL again and again"
    if does.is_in_kernel:
        verdict = _verdict("hang-c-call", does, _placed(_IN_KERNEL, does), "its hook does not answer")
        return replace(verdict, remedy=_KERNEL)
    if does.holder is not None:
        does = does._replace(stack=does.holder.stack)
    severity = "error"
    if is_busy:
        severity = "warning" if age >= COMPUTES_S else "note"
    return _verdict("hang-c-call", does, _c_call_text(does), f"its hook does not answer; {proof}", severity)


def _c_call_text(does: Doing) -> str:
    """Name the thread that holds the GIL, if the main thread waits for it."""
    last_seen = ", last seen" if does.stale else ""
    if not does.awaits_gil:
        return f"is in a C call that holds the GIL{last_seen}{_at(does)}"
    if does.holder is None:
        return f"has a thread in a C call that holds the GIL; its main thread waits for the GIL{last_seen}{_at(does)}"
    place = activity.site_text(activity.telling_frames(does.holder.stack, 1)[0])
    name = f" {does.holder.name}" if does.holder.name else ""
    return f"has a thread{name} in a C call that holds the GIL, at {place}"


def _asleep(does: Doing, age: float, held: HeldBy) -> Culprit | None:
    """Describe a rank that uses no CPU, or return None if it may still be well."""
    kind = does.position.kind
    if held.external and age < EXTERNAL_S:
        return _external(does, age, held)
    is_weak = not does.sure or kind is Kind.NETWORK
    if kind is Kind.COMPILE or (is_weak and age < LONG_S):
        return None
    still = f"{'0 %' if does.sure else 'hardly any'} CPU, same stack in every sample"
    if does.sign:
        still += f"; {does.sign}"
    if kind in (Kind.STORE, Kind.COLLECTIVE):
        return _verdict("hang-mismatch", does, f"is in {does.position.op}{_at(does)}", still)
    name = {Kind.LOADER: "hang-loader", Kind.CHECKPOINT: "hang-checkpoint"}.get(kind, "hang-not-joined")
    action = _sleeping_text(does, held)
    if action == _IN_KERNEL:
        held = held._replace(remedy=_KERNEL)
    severity = "warning" if does.is_hidden and not held.does else "error"
    verdict = _verdict(name, does, _placed(action, does), still, severity)
    return replace(verdict, remedy=held.remedy or verdict.remedy, more=held.proof, lock=held.lock)


def _sleeping_text(does: Doing, held: HeldBy) -> str:
    """Return what a sleeping rank does, by the best evidence of it.

    The kernel's evidence is better than a guess by names, except for a data loader, whose workers cause the wait.
    """
    kind = does.position.kind
    if held.does and kind is not Kind.LOADER:
        return held.does
    if does.is_in_kernel:
        return _IN_KERNEL
    if held.worker and kind is Kind.LOADER:
        return f"{_AT[kind]}, whose {held.worker}"
    if does.until is not None:
        return f"sleeps until {time_of_day(does.until, utc=True, date=True)}"
    return activity.wait_text(does.stack) if kind is Kind.LOCK else _AT.get(kind, "sleeps")


def _tries_again(does: Doing, pulse: Pulse, age: float) -> bool:
    """Whether a rank has only printed the same failure again and again for a while."""
    only_prints = does.move is None or does.move.source.counter in ("main_written", "main_disk")
    backs_off = pulse.until is not None and pulse.until - pulse.at > BACK_OFF_S
    return age >= EXTERNAL_S and not backs_off and only_prints and own_lines.repeats(pulse)


def _with_death(culprit: Culprit, pulse: Pulse) -> Culprit:
    """Add the thread that died to a rank that repeats itself: it may wait for that thread."""
    death = held_by.death(pulse)
    if death is None or culprit.severity == "note":
        return culprit
    return replace(culprit, does=culprit.does + death.does, remedy=death.remedy, more=death.proof)


def _external(does: Doing, age: float, held: HeldBy) -> Culprit | None:
    """Describe a wait for something outside of the job, which may well take a minute."""
    if age < WORKS_S:
        return None
    action = _placed(held.does, does)
    return Culprit(
        id="hang-not-joined",
        severity="note",
        does=action,
        remedy=held.remedy,
        stack=does.stack,
        more=held.proof,
    )


def _works(view: View, does: Doing, age: float, blocked: Sequence[Pending]) -> Culprit | None:
    if does.position.kind is Kind.LOADER and does.helped and age >= LOADER_S:
        action = _AT[Kind.LOADER] + _at(does)
        return _verdict("hang-loader", does, action, "the workers of its data loader work", "warning")
    if age < WORKS_S:
        return None
    late = age >= (SUSPECT_S if does.is_suspect else view.works_for_s)
    too_long = _REPEATS if does.is_suspect else _TOO_LONG
    return Culprit(
        id="hang-not-joined",
        severity="warning" if late else "note",
        does=_work_text(does, blocked, late),
        remedy=too_long if late else _BUSY,
        proof=does.sign,
        stack=does.stack if late and does.helped else (),
    )


def _work_text(does: Doing, blocked: Sequence[Pending], is_late: bool) -> str:
    if does.activity is Activity.GPU_ALONE:
        return f"sleeps{_at(does)} while its GPU is in use"
    if does.until is not None:
        return f"sleeps until {time_of_day(does.until, utc=True)}{_at(does)}"
    if does.move is not None:
        return progress.text_of(does.move) + _within(does, blocked)
    if does.is_suspect and is_late and does.helped:
        return f"{activity.wait_text(does.stack)}{_at(does)} while another thread of it works"
    if does.is_suspect and is_late:
        return f"repeats the same code{_within(does, blocked)}"
    return f"works{_within(does, blocked)}"


def _within(does: Doing, blocked: Sequence[Pending]) -> str:
    """Name the outermost function that only the working rank is in. It does not change while the work continues."""
    theirs = {site.name for pending in blocked for site in pending.call.sites} | {"<module>", "main"}
    caller = None
    for site in reversed(activity.telling_frames(does.stack, 64)):
        if site.name not in theirs:
            called = "" if caller is None else f" (called at {_line(caller)})"
            return "" if site.name.startswith("<") else f" in {site.name}(){called}"
        caller = site
    if does.helped or caller is None:
        return _at(does) if does.helped else ""
    return f" in {caller.file.rpartition('/')[2]}"


def _line(site: Site) -> str:
    return f"{site.file.rpartition('/')[2]}:{site.line}"


def _verdict(name: str, does: Doing, action: str, proof: str, severity: str = "error") -> Culprit:
    return Culprit(
        id=name,
        severity=severity,
        does=action,
        remedy=_REMEDIES[name],
        proof=proof,
        stack=does.stack,
        source=does.source,
    )


def together(view: View, candidates: Mapping[int, Sequence[Pending]]) -> list[Case]:
    """Judge the ranks that others wait for. Merge equal verdicts and sort errors first."""
    alike: dict[tuple[str, str, str], tuple[Culprit, list[int], dict[WaitPoint, Pending]]] = {}
    for rank, blocked in sorted(candidates.items()):
        if (culprit := judge(view, rank, blocked)) is not None:
            key = (culprit.id, culprit.does, culprit.severity)
            _, ranks, near = alike.setdefault(key, (culprit, [], {}))
            ranks.append(rank)
            near.update({pending.point: pending for pending in blocked})
    cases = [
        _by_holder(view, Case(culprit, ranks, list(near.values())))
        for culprit, ranks, near in alike.values()
    ]
    return sorted(cases, key=lambda case: (case.culprit.severity != "error", case.ranks))


def _by_holder(view: View, case: Case) -> Case:
    """If ranks wait for a file lock, blame the rank that holds it."""
    fault, ranks, nearest = case
    if fault.lock is None or fault.lock[0] in ranks:
        return case
    holder, path = fault.lock
    there = doing(view, ranks[0])
    wait = f"{spans_text('rank', ranks)} {agreeing(ranks, 'waits', 'wait')} for"
    does = f"holds the lock on {path.rpartition('/')[2]} that {wait}{_at(there)}"
    itself = next((pending for pending in nearest if holder in pending.waits), None)
    if itself is not None:
        does += f", and waits for {agreeing(ranks, 'it', 'them')} in {activity.call_text(itself.call)}"
    culprit = Culprit(
        id="hang-lock",
        severity=fault.severity,
        does=does,
        remedy=_REMEDIES["hang-lock"],
        stack=doing(view, holder).stack,
        proof=f"/proc/locks: {wait} {path}, which rank {holder} holds",
    )
    return Case(culprit, [holder], nearest)


def finding(view: View, case: Case, chain: Ends | None = None) -> Finding:
    """Return the finding of a case. `chain` adds the ranks that wait indirectly."""
    fault, ranks, nearest = case
    leading = nearest if chain is None else chain.leading(nearest)
    victims = sorted(set(waiting_ranks(leading)).difference(ranks))
    who = view.ranks_text(ranks)
    does = fault.does if len(ranks) == 1 else _plural(fault.does)
    waiting = f"{spans_text('rank', victims)} {agreeing(victims, 'waits', 'wait')}" if victims else ""
    where = f" in {activity.call_text(nearest[0].call)}" if nearest else ""
    it = agreeing(ranks, "it", "them")
    return Finding(
        id=fault.id,
        severity=fault.severity,
        text=f"{who} {does}" + (f"; {waiting} for {it}{where}" if waiting else ""),
        role="cause" if fault.severity != "note" else "fact",
        **view.rank_fields(ranks),
        waiting=tuple(victims),
        remedy=fault.remedy.replace("{rank}", str(ranks[0])),
        evidence=tuple(evidence(view, case, leading)),
        since=min((pending.since for pending in leading), default=None),
    )


def _plural(does: str) -> str:
    first, _, rest = does.partition(" ")
    word = {"is": "are", "was": "were", "ended": "ended", "loops": "loop"}.get(
        first, first.removesuffix("s")
    )
    rest = rest.replace("its ", "their ").replace(" it ", " they ")
    return f"{word} {rest}".rstrip()


def evidence(view: View, case: Case, leading: Sequence[Pending]) -> Iterable[str]:
    """Yield the waiting ranks, the culprit's progress and its stack."""
    fault, ranks, nearest = case
    for pending in leading[:MOST]:
        yield waiting_text(view, pending)
    if len(leading) > MOST:
        more = leading[MOST:]
        yield f"{sum(len(each.waits) for each in more)} more ranks wait in {len(more)} other collectives behind those"
    for pending in nearest[:1]:
        yield from _behind(view, ranks, pending)
        yield from own_lines.quoted(view, ranks, pending.ranks, pending.since)
    stack = activity.telling_frames(fault.stack)
    if stack:
        yield f"stack of rank {ranks[0]}: {activity.stack_text(stack)}"
    if fault.source:
        yield fault.source
    if fault.proof:
        yield fault.proof
    yield from fault.more


def _behind(view: View, ranks: Sequence[int], pending: Pending) -> Iterable[str]:
    """Yield how many collectives the culprits have called, if they report it."""
    if not pending.numbered:
        return
    name = pending.point.key.name
    counts: dict[int, list[int]] = {}
    for rank in ranks:
        pulse = last_answer(view.history.get(rank, ()))
        group = next((group for group in pulse.groups if group.name == name), None) if pulse else None
        if group is not None and pulse is not None and view.history[rank][-1].hook:
            counts.setdefault(group.enqueued, []).append(rank)
    for count, those in sorted(counts.items())[:MOST]:
        yield f"{spans_text('rank', those)} called {count} collectives of {pending.desc}"


def waiting_text(view: View, pending: Pending) -> str:
    """ "ranks 0, 1, 3 wait in all_reduce #42 of default_pg (train.py:50 step) since 20:41:07 UTC"."""
    site = next((wait.call.sites[0] for wait in pending.waits.values() if wait.call.sites), None)
    where = f" ({activity.site_text(site)})" if site is not None else ""
    ranks = pending.ranks
    of = f" of {pending.desc}" if pending.numbered else ""
    recorded = all(wait.recorded for wait in pending.waits.values())
    since = f" since {time_of_day(pending.since, utc=True)}" if recorded else ""
    what = activity.call_text(pending.call)
    return f"{view.ranks_text(ranks)} {agreeing(ranks, 'waits', 'wait')} in {what}{of}{where}{since}"
