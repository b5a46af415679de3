"""Rules that produce a run's notifications from its state, each once per cause. Pure.

A condition that lasts (a hang, idle GPUs) must hold for a while before its notification, and be absent for a while
before the next one, so that an intermittent condition does not repeat it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from msgspec import Struct, structs

from ...presets.finding import Finding, worst_first
from ...presets.plurals import plural
from ..run.formatting import duration_exact, spans_text
from ..run.model import FirstCause, Outcome, RankPhase, RunPhase
from ..run.state import Attempt, RunState
from ..telemetry.progress import current, parts, progress
from .idle_gpus import IdleGpus
from .rule_words import Minutes, every_rule


class Notice(Struct, frozen=True, omit_defaults=True):
    """A reason to notify the user."""

    rule: str
    key: str
    """Identifies the cause, also across processes."""
    what: str
    """The headline without the run's name: "ranks 0-2 hang"."""
    at: float
    """Unix time of the cause."""
    text: str = ""
    """One or two sentences, or "" if the headline is complete."""
    remedy: str = ""
    severity: str = "note"
    ranks: tuple[int, ...] = ()
    node: int | None = None
    minutes: float | None = None
    """Minutes of the rule, if it has any: channels may use different values."""


HOLD_S: Mapping[str, float] = {"hang": 6.0, "straggler": 30.0, "disk": 10.0}
"""Seconds that a condition must hold. The detectors have already waited."""
CALM_S: Mapping[str, float] = {"checkpoint-overdue": 0.0, "loss-nan": 60.0, "disk": 600.0}
"""Seconds that a condition must be absent before its next notification."""
USUAL_CALM_S = 300.0
LATE_S = 900.0
"""An older event that was not observed live is history, in seconds."""
GAPS = 2
"""Fewest gaps between checkpoints for a usual gap."""
MOST_GAPS = 10
SLACK_S = 300.0
"""Tolerated delay of a checkpoint, in seconds."""


@dataclass(slots=True)
class _Condition:
    """One condition that held, or that had a notification."""

    since: float | None = None
    """Monotonic seconds of its begin, or None."""
    gone: float | None = None
    """Monotonic seconds of its end, or None."""
    number: int = 0
    """Number of its notifications."""
    open: bool = False
    """True from a notification until the condition has been absent for long enough."""

    def hold(self, ticks: float) -> float:
        """Record that it holds. Return for how many seconds it has."""
        self.gone = None
        if self.since is None:
            self.since = ticks
        return ticks - self.since

    def rest(self, ticks: float, calm_s: float) -> None:
        """Record that it is absent. After `calm_s` seconds it may have another notification."""
        if self.gone is None:
            self.gone = ticks
        if self.open and ticks - self.gone < calm_s:
            return
        self.open, self.since = False, None


def wanted_of(channels: Iterable[Minutes]) -> set[tuple[str, float | None]]:
    """Return the enabled rules of all channels, with their minutes."""
    return {pair for rules in channels for pair in rules.items()}


@dataclass(slots=True)
class Rules:
    """The reported causes and the enabled rules."""

    wanted: set[tuple[str, float | None]] = field(default_factory=lambda: wanted_of([every_rule()]))
    _keys: set[str] = field(default_factory=set)
    _conditions: dict[str, _Condition] = field(default_factory=dict)
    _idle: IdleGpus = field(default_factory=IdleGpus)
    _stepless: int = 0
    """The newest attempt that was observed without a step."""

    def resume(self, keys: Iterable[str]) -> None:
        """Restore the keys of notifications from an earlier process."""
        for key in keys:
            self._keys.add(key)
            base, mark, number = key.rpartition("#")
            if mark and number.isdecimal() and len(number) < 10:
                kept = self._conditions.setdefault(base, _Condition())
                kept.number, kept.open = max(kept.number, int(number)), True

    def prime(self, state: RunState, now: float, ticks: float) -> None:
        """Mark the current state as known, so that it causes no notification. See `judge`."""
        self._keys |= {notice.key for notice in self._happened(state, now)}
        for notice in self._holding(state, now, ticks):
            self._conditions[notice.key] = _Condition(ticks, number=1, open=True)

    def judge(self, state: RunState, now: float, ticks: float) -> list[Notice]:
        """Return the new notifications. `now`: Unix time of the clock of `state`. `ticks`: monotonic seconds."""
        fresh = [notice for notice in self._happened(state, now) if notice.key not in self._keys]
        fresh += self._lasting(list(self._holding(state, now, ticks)), ticks)
        self._keys |= {notice.key for notice in fresh}
        rules = {rule for rule, _ in self.wanted}
        return [notice for notice in fresh if notice.rule in rules]

    # --- what happens once ---

    def _happened(self, state: RunState, now: float) -> Iterator[Notice]:
        yield from self._first_step(state, now)
        for attempt in state.attempts:
            if _failed_and_goes_on(state, attempt):
                yield _restarted(state, attempt, now)
        yield from ends(state, now)
        if state.cluster is not None and state.cluster.recoveries:
            times = plural(state.cluster.recoveries, "time")
            yield Notice(
                "spot-notice",
                f"recovered:{state.cluster.recoveries}",
                "SkyPilot recovers the job on other nodes",
                now,
                f"it has done so {times} by now; the training goes on from its newest checkpoint",
                severity="warning",
            )

    def _first_step(self, state: RunState, now: float) -> Iterator[Notice]:
        attempt = state.newest
        if attempt is None or attempt.outcome is not None or state.phase.ended:
            return
        if not stepped(state):
            self._stepless = attempt.number
            return
        what = f"it trains again, in attempt {attempt.number}" if attempt.number > 1 else "it trains"
        at, text = attempt.began, ""
        if self._stepless == attempt.number:  # the step was observed
            took, ranks = max(0.0, now - attempt.began), plural(attempt.world_size, "rank")
            at, text = now, f"the first step came {duration_exact(took)} after the start, on {ranks}"
        yield Notice("first-step", f"first-step:{attempt.number}", what, at, text)

    # --- what lasts ---

    def _holding(self, state: RunState, now: float, ticks: float) -> Iterator[Notice]:
        """Yield the current conditions, each with its key."""
        if state.phase.ended:
            return
        yield from _of_findings(state, now)
        for rule, minutes in self.wanted:
            if rule == "checkpoint-overdue":
                yield from _overdue(state, now, minutes)
            elif rule == "gpus-idle" and minutes is not None:
                yield from self._idle_gpus(state, now, ticks, minutes)

    def _idle_gpus(self, state: RunState, now: float, ticks: float, minutes: float) -> Iterator[Notice]:
        idle = self._idle.of(state, now, ticks, 60 * minutes)
        if idle is not None:
            yield Notice(
                "gpus-idle",
                f"gpus-idle:{state.attempt}:{minutes:g}",
                idle.what,
                now,
                idle.text,
                "find out what they wait for (`distui status`), or stop the run",
                "warning",
                idle.ranks,
                minutes=minutes,
            )

    def _lasting(self, holding: list[Notice], ticks: float) -> list[Notice]:
        """Return the notifications of conditions that have held for long enough."""
        fresh = []
        for notice in holding:
            condition = self._conditions.setdefault(notice.key, _Condition())
            held_s = condition.hold(ticks)
            if not condition.open and held_s >= HOLD_S.get(notice.rule, 0.0):
                condition.open, condition.number = True, condition.number + 1
                fresh.append(structs.replace(notice, key=f"{notice.key}#{condition.number}"))
        held = {notice.key for notice in holding}
        for key, condition in self._conditions.items():
            if key not in held:
                condition.rest(ticks, CALM_S.get(key.partition(":")[0], USUAL_CALM_S))
        return fresh


def ends(state: RunState, now: float) -> list[Notice]:
    """Return the notification on the end of a run, or [] for an active run and one that the user stopped."""
    if state.phase in (RunPhase.FAILED, RunPhase.LOST):
        return [_gave_up(state, now)]
    return [_succeeded(state, now)] if state.phase is RunPhase.SUCCEEDED else []


def stepped(state: RunState) -> bool:
    """Return True if the newest attempt has made a training step."""
    for rank in state.ranks.values():
        if rank.sample is not None and rank.sample.step:
            return True
        if rank.pulse is not None and rank.pulse.step:
            return True
    began = state.attempt_began
    return any(sample.at >= began and (sample.step or 0) > 0 for sample in current(state))


def _failed_and_goes_on(state: RunState, attempt: Attempt) -> bool:
    if attempt.outcome not in (Outcome.FAILED, Outcome.LOST) or state.phase is RunPhase.STOPPING:
        return False
    later = next((each for each in state.attempts if each.number == attempt.number + 1), None)
    if later is not None:
        return later.cause == "failure"
    return state.delay is not None and not state.phase.ended


def _restarted(state: RunState, attempt: Attempt, now: float) -> Notice:
    cause = attempt.first_cause
    count = ""
    if state.plan and state.failures:
        count = f"failure {state.failures} of {state.plan.restart_limit}"
    saved = ""
    if state.checkpoint is not None:
        saved = f"the newest checkpoint is {state.checkpoint.path}"
    notice = Notice(
        "restarted",
        f"restarted:{attempt.number}",
        f"attempt {attempt.number} failed, the next one starts",
        attempt.ended or now,
        _sentences(_cause_text(cause) or attempt.text, count, saved),
        severity="warning",
    )
    return _with_cause(notice, cause)


def _gave_up(state: RunState, now: float) -> Notice:
    key, what = "gave-up", "it failed, and nothing restarts it"
    if state.phase is RunPhase.LOST:
        key, what = "lost", "it is lost"
    cause, text = state.first_cause, state.end_text
    if cause is not None and cause.text and cause.text not in text:
        text = _sentences(_cause_text(cause), text)
    remedy = "`distui diagnose` has what the logs say"
    at = state.end() or now
    return _with_cause(Notice("gave-up", f"{key}:{state.attempt}", what, at, text, remedy, "error"), cause)


def _with_cause(notice: Notice, cause: FirstCause | None) -> Notice:
    """Return a notification with the rank, the node and the remedy of a failure."""
    if cause is None:
        return notice
    remedy = cause.remedy or notice.remedy
    return structs.replace(notice, remedy=remedy, ranks=(cause.rank,), node=cause.node)


def _succeeded(state: RunState, now: float) -> Notice:
    lasted = state.lasted(now)
    took = "" if lasted is None else f"it took {duration_exact(lasted)}"
    line = ", ".join(words for name, words in parts(progress(state, now)) if name in ("step", "loss"))
    what, severity = "it has succeeded", "note"
    if state.idle:
        what, severity = "it has succeeded, without a training step", "warning"
    text = _sentences(took, line, state.idle)
    key, at = f"succeeded:{state.attempt}", state.ended or now
    return Notice("succeeded", key, what, at, text, severity=severity)


def _cause_text(cause: FirstCause | None) -> str:
    """Return the sentence on a failure, with its rank."""
    if cause is None or not cause.text:
        return ""
    named = f"rank {cause.rank}" in cause.text
    return cause.text if named else f"rank {cause.rank}: {cause.text}"


def _sentences(*texts: str) -> str:
    return "; ".join(text.strip().rstrip(".;") for text in texts if text.strip())


_OF_FINDINGS = {
    "straggler": "straggler",
    "loss-not-finite": "loss-nan",
    "spot-notice": "spot-notice",
    "disk-low": "disk",
    "disk-full": "disk",
    "disk-checkpoints-low": "disk",
    "disk-checkpoints-full": "disk",
}
"""Finding → its rule. Findings that begin with hang- or start- belong to the rule "hang"."""


def _rule_of(finding: Finding) -> str | None:
    if finding.id.startswith(("hang-", "start-")):
        return "hang" if finding.alarm else None
    return _OF_FINDINGS.get(finding.id)


def _of_findings(state: RunState, now: float) -> Iterator[Notice]:
    """Yield a notification for the worst finding per rule, for disks also per node, and for stragglers per rank."""
    by_key: dict[tuple[str, str], list[Finding]] = {}
    for finding in state.findings.values():
        if (rule := _rule_of(finding)) is not None:
            by_key.setdefault((rule, _key(rule, finding, state)), []).append(finding)
    for (rule, key), findings in by_key.items():
        yield _of_finding(rule, key, worst_first(findings)[0], state, now)


def _key(rule: str, finding: Finding, state: RunState) -> str:
    if rule == "disk":
        return f"{rule}:{finding.id}:{finding.where or finding.node}"  # one for all nodes on a shared disk
    if rule == "spot-notice":
        return f"{rule}:{finding.node}:{finding.value}"
    rank = f":{finding.rank}" if rule == "straggler" else ""
    return f"{rule}:{state.attempt}{rank}"


def _of_finding(rule: str, key: str, finding: Finding, state: RunState, now: float) -> Notice:
    ranks = finding.ranks
    if not ranks and finding.rank is not None:
        ranks = (finding.rank,)
    where = ""
    if finding.node in state.nodes and state.nodes[finding.node].host and not finding.where:
        where = f" on {state.nodes[finding.node].host}"
    what = _headline(rule, finding.id, ranks, where)
    return Notice(rule, key, what, now, finding.text, finding.remedy, finding.severity, ranks, finding.node)


def _headline(rule: str, finding_id: str, ranks: tuple[int, ...], where: str) -> str:
    """Return the headline of a finding. `where`: " on HOST" or ""."""
    named = spans_text("rank", ranks) if ranks else ""
    if finding_id.startswith("start-"):
        return "it does not start"
    if rule == "hang":
        return f"{named} hang" if len(ranks) > 1 else f"{named or 'it'} hangs"
    if rule == "disk":
        disk = "the disk of the checkpoints" if "checkpoints" in finding_id else "the disk"
        fill = "full" if finding_id.endswith("-full") else "nearly full"
        return f"{disk} is {fill}{where}"
    return {
        "straggler": f"{named or 'a rank'} holds the others up",
        "spot-notice": f"a node is taken back{where}",
        "loss-nan": "the loss is not a number any more",
    }[rule]


def _overdue(state: RunState, now: float, minutes: float | None) -> Iterator[Notice]:
    """Yield a notification if the running ranks have saved no checkpoint for too long."""
    is_running = any(rank.phase is RankPhase.RUNNING for rank in state.ranks.values())
    if state.phase is not RunPhase.RUNNING or not is_running:
        return
    since, last = state.attempt_began, "no checkpoint was seen in this run"
    saved, usual = state.checkpoint, usual_gap(state)
    if saved is not None:
        step = "" if saved.step is None else f" of step {saved.step:,}"
        since, last = max(since, saved.at), f"the newest{step} is {saved.path}"
    limit = _limit(minutes, usual)
    if limit is None or now - since < limit:
        return
    usually = f"usually there is one every {duration_exact(usual)}" if usual is not None else ""
    yield Notice(
        "checkpoint-overdue",
        f"checkpoint-overdue:{state.attempt}:{minutes or 0:g}",
        f"no checkpoint for {duration_exact(now - since)}",
        now,
        _sentences(usually, last),
        "a failure now costs all that was trained since: see whether the ranks can still save",
        "warning",
        minutes=minutes,
    )


def _limit(minutes: float | None, usual: float | None) -> float | None:
    """Return the seconds without a checkpoint that are too many, or None if that is unknown."""
    if minutes is not None:
        return 60 * minutes
    return None if usual is None else max(2 * usual, usual + SLACK_S)


def usual_gap(state: RunState) -> float | None:
    """Return the median seconds between the newest complete checkpoints of an attempt, or None for too few."""
    times: dict[int, list[float]] = {}
    for each in state.checkpoints:
        if each.complete:
            times.setdefault(each.attempt, []).append(each.at)
    gaps = [
        after - before for saves in times.values() for before, after in pairwise(saves) if after > before
    ]
    return median(gaps[-MOST_GAPS:]) if len(gaps) >= GAPS else None
