"""Explain why a job that distui did not start makes no progress: the detectors of runs, fed with py-spy's stacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ...presets.finding import NO_VERDICT, Finding
from ..agent import pyspy
from ..diagnosis import activity, culprits, diagnosis_settings, hang, starting
from ..diagnosis.activity import Kind
from ..diagnosis.rank_dumps import DEFAULT
from ..diagnosis.view import View
from ..diagnosis.waits import Key, Pending, WaitPoint
from ..run import clock
from ..run.finding_ledger import Emit, FindingLedger
from ..run.formatting import agreeing, spans_text
from ..run.freshness import PULSE_S
from ..run.state import RunState
from .foreign_jobs import RankProcess
from .outside_pulses import IDLE_S, OutsidePulses
from .scan_changes import Watched

LOOKS, LOOK_EVERY_S = 8, 3.5
"""Most samples for a viewer that asks once, and seconds between two of them. Weak evidence counts after 20 s, and only
PULSES_KEPT samples are kept."""
LOOK_IDLE_S, ASKED_IDLE_S = 3.0, 10.0
"""Seconds without work for such a viewer: before stacks are read, and before idle ranks are reported."""
QUIET_S = 60.0
"""Seconds without work and output after which idle ranks are reported even if none is seen to wait for another."""
FRAMES = 6
"""Innermost frames of a stack in the evidence."""
SOURCE = "stacks by py-spy, CPU time and bytes from /proc"
TRACING = (
    "`sudo sysctl kernel.yama.ptrace_scope=0` lets py-spy read processes of the same user; "
    "a container needs `--cap-add SYS_PTRACE`"
)
_REMEDIES = {
    pyspy.RIGHT: TRACING,
    pyspy.MISSING: "install it where the job's Python is, or on PATH: `pip install py-spy`",
}
_REMEDY_IDLE = "check what these lines wait for"
_REMEDY_ELSEWHERE = "run `distui watch` on the job's other hosts, too"


class IdleJob:
    """Samples the ranks of one job every few seconds, and reports why idle ones do not continue."""

    def __init__(
        self,
        state: RunState,
        emit: Emit,
        last_output: Callable[[], float],
        pulses: OutsidePulses,
    ) -> None:
        """`state`: the folded events of the job. `last_output`: Unix time at which its output last grew."""
        self._state, self._last_output = state, last_output
        self._processes: dict[int, RankProcess] = {}
        self._world_size = 0
        self._pulses = pulses
        self._works_for_s = diagnosis_settings.load().works_for_s
        self._ledger = FindingLedger(emit)

    def watch(self, watched: Watched) -> None:
        """Set the current ranks."""
        job = watched.job
        self._processes = {rank: process for rank, process in job.ranks.items() if rank not in watched.gone}
        self._world_size = job.world_size

    async def run(self) -> None:
        """Sample and judge until cancelled."""
        while True:
            await asyncio.sleep(PULSE_S)
            await self.sample()

    async def sample(self) -> None:
        """Sample all ranks once, and report the changes of findings."""
        await self._pulses.take(self._processes, clock.now() - self._last_output())
        self._ledger.update(self.judge(clock.now()))

    async def look(self) -> None:
        """Sample all ranks until an alarm is found, or while one of them is idle, for a viewer that asks once.

        It reads the stacks of idle ranks soon, because the viewer waits for the answer.
        """
        for number in range(LOOKS):
            quiet_s = clock.now() - self._last_output()
            await self._pulses.take(self._processes, max(quiet_s, LOOK_IDLE_S), LOOK_IDLE_S)
            found = self.judge(clock.now(), is_asked=True)
            has_worked = number > 0 and not self._pulses.idle(clock.now())
            if has_worked or any(finding.alarm for finding in found):
                break
            await asyncio.sleep(LOOK_EVERY_S)
        self._ledger.update(found)

    def judge(self, now: float, *, is_asked: bool = False) -> list[Finding]:
        """Return the findings that hold now. `is_asked`: report idle ranks soon, as a note."""
        view = View(
            state=self._state,
            plan=None,
            now=now,
            history={rank: tuple(watched.pulses) for rank, watched in self._pulses.ranks.items()},
            works_for_s=self._works_for_s,
        )
        known = [finding for finding in (*starting.find(view), *hang.find(view)) if self._holds(finding)]
        if not any(finding.alarm for finding in known):
            known.extend(self._without_verdict(view, is_asked))
        return [self._with_sources(finding) for finding in known]

    def _holds(self, finding: Finding) -> bool:
        """Return whether a finding holds though nothing is known of ranks on other hosts."""
        of_all = finding.id == "hang-mismatch" and not finding.waiting
        return not (of_all and self._is_elsewhere())

    def _is_elsewhere(self) -> bool:
        return self._world_size > len(self._state.ranks)

    def _without_verdict(self, view: View, is_asked: bool) -> Iterable[Finding]:
        """Report idle ranks that no detector explains."""
        unread_s, long_s = (LOOK_IDLE_S, ASKED_IDLE_S) if is_asked else (IDLE_S, QUIET_S)
        quiet_s = view.now - self._last_output()
        idle = {
            rank: min(watched.idle_s(view.now), quiet_s) for rank, watched in self._pulses.ranks.items()
        }
        unread = [rank for rank, watched in self._pulses.ranks.items() if watched.failure]
        if unread and idle[unread[0]] >= unread_s:
            yield self._unread(view, unread, unread_s)
            return
        long = [rank for rank, seconds in idle.items() if seconds >= long_s]
        if long:
            yield from self._idle(view, long, min(idle[rank] for rank in long))

    def _unread(self, view: View, unread: Sequence[int], least_s: float) -> Finding:
        """Report stacks that py-spy could not read, with the reason. Unknown is not hung."""
        why = self._pulses.ranks[unread[0]].failure
        idle = [rank for rank, watched in self._pulses.ranks.items() if watched.idle_s(view.now) >= least_s]
        text = (
            f"{spans_text('rank', idle)} {agreeing(idle, 'uses', 'use')} no CPU and "
            f"{agreeing(idle, 'writes', 'write')} no output; the reason is unknown, because the "
            f"{agreeing(unread, 'stack', 'stacks')} of {spans_text('rank', unread)} cannot be read: {why}"
        )
        return Finding(
            NO_VERDICT,
            "note",
            text,
            role="fact",
            ranks=tuple(unread),
            remedy=_REMEDIES.get(why, "press w to try again"),
            since=self._since(idle),
        )

    def _idle(self, view: View, long: Sequence[int], seconds: float) -> Iterable[Finding]:
        """Report what idle ranks wait for, as far as their stacks show it."""
        pending = Pending(WaitPoint(Key(DEFAULT), 0, "output"), age=seconds, since=view.now - seconds)
        cases = culprits.together(view, dict.fromkeys(long, (pending,)))
        parts = [culprits.finding(view, case._replace(nearest=())) for case in cases]
        named = sorted({rank for case in cases for rank in case.ranks})
        busy = sorted(self._pulses.ranks.keys() - set(long))
        only_wait = all(self._is_in_collective(view, rank) for rank in named)
        if named and not (busy and only_wait):  # else they wait for a rank that works
            unseen = only_wait and self._is_elsewhere()
            yield self._idle_finding(view, named, [part.text for part in parts], busy, unseen, seconds)

    def _idle_finding(
        self,
        view: View,
        named: Sequence[int],
        parts: Sequence[str],
        busy: Sequence[int],
        unseen: bool,
        seconds: float,
    ) -> Finding:
        """Return the finding of idle ranks. `unseen`: the ranks that they wait for may be on other hosts."""
        text = f"no output and 0 % CPU: {'; '.join(parts[:4])}"
        if busy:
            text += f"; {spans_text('rank', busy)} {agreeing(busy, 'has', 'have')} worked since"
        if unseen:
            text += "; the ranks that they wait for may be on other hosts"
        long_s = self._works_for_s if busy else QUIET_S
        certain = not unseen and seconds >= long_s
        return Finding(
            NO_VERDICT if unseen else "hang-idle",
            "warning" if certain else "note",
            text,
            role="cause" if certain else "fact",
            **view.rank_fields(named),
            remedy=_REMEDY_ELSEWHERE if unseen else _REMEDY_IDLE,
            since=self._since(named),
        )

    def _is_in_collective(self, view: View, rank: int) -> bool:
        stack = view.history[rank][-1].stack
        in_backward = any(site.name == "_engine_run_backward" for site in stack)
        return in_backward or activity.position_of(stack).kind is Kind.COLLECTIVE

    def _since(self, ranks: Iterable[int]) -> float | None:
        """Unix time since which the first of these ranks is idle."""
        watched = (self._pulses.ranks.get(rank) for rank in ranks)
        times = [each.idle_since for each in watched if each is not None and each.idle_since is not None]
        return min(times, default=None)

    def _with_sources(self, finding: Finding) -> Finding:
        """Return a finding with the stacks of its ranks, and with a remedy that can be typed for a watched job."""
        ranks = finding.ranks or (() if finding.rank is None else (finding.rank,))
        read = [rank for rank in ranks if rank in self._pulses.ranks and self._pulses.ranks[rank].stack]
        evidence = [line for line in finding.evidence if not line.startswith("stack of rank ")]
        for rank in read[:4]:
            frames = activity.stack_text(self._pulses.ranks[rank].stack[:FRAMES])
            evidence.append(f"stack of rank {rank}: {frames}")
        if read or finding.waiting:
            evidence.append(SOURCE)
        since = self._since(finding.waiting or ranks)  # the kept pulses do not reach back so far
        return replace(
            finding,
            evidence=tuple(evidence),
            remedy=self._typable(finding, ranks),
            since=finding.since if since is None else since,
        )

    def _typable(self, finding: Finding, ranks: Sequence[int]) -> str:
        if finding.id == "hang-stopped" and ranks and ranks[0] in self._pulses.ranks:
            return f"continue it: `kill -CONT {self._pulses.ranks[ranks[0]].process.pid}`"
        return finding.remedy.replace(" (in a shell: `distui dump RUN stacks`)", "")
