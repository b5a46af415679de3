"""Try `--adopt` before a launch: run the script's first steps without and with it, and compare the reported losses.

Both runs are launches on this machine, and are removed after the comparison. A run that fails is kept.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

import msgspec

from ...presets.plan import Plan
from ...presets.plurals import plural
from ...presets.request import Request
from ..launch.prepare import prepare
from ..launch.prepared import run_name
from ..node import agentless
from ..node.local_agent import open_link, with_link
from ..node.run_following import folded_events
from ..notify.rule_words import OFF
from ..removal import run_removal
from ..run import run_directories
from ..run.commands import Stop
from ..run.errors import RunError
from ..run.log_files import attempt_dir
from ..run.model import RunPhase
from ..run.run_directories import Entry
from ..run.state import RunState
from ..run.wire.client import Link, new_id
from ..telemetry import output_signals
from ..telemetry.signal_names import Reported, ReportedValue, best, of_trackers

VARIABLE = "DISTUI_TRY"
"""Set to 1 to have the hook append all reports to trackers to a file. inrank/hook.py reads it."""
RANKS = 2
"""Ranks of each run, unless the request has a number."""
SILENT_STEPS = 500
"""Optimizer steps without a reported loss after which the script counts as one that reports none."""
GRACE_S = 2.0
UNEQUAL = 0.01
"""Relative difference of the first losses above which the runs hardly started from the same weights and samples."""


class TriedStep(TypedDict):
    """A reported loss of both runs; None if it is not finite."""

    step: int
    """The script's step, or the number of the report if the script reports no step."""
    bare: float | None
    adopted: float | None
    difference: float | None


class AdoptionTrial(TypedDict):
    """`plan --adopt --try`."""

    preset: str
    ranks: int
    obeys: str
    """The plan's sentence on the effect of --adopt."""
    steps: list[TriedStep]
    greatest_difference: float | None
    at_step: int | None


class TrialError(RunError):
    """A run failed before it had reported enough losses."""

    code = 1


Losses = dict[int, float]
"""Step → loss, in the order of the reports."""
Source = tuple[int, str]
"""Rank, and the kind of its file: "out", "err" or "reports"."""


class LossFiles:
    """The losses in the output of a run's ranks, and in their reports to trackers."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / attempt_dir(0, 1)
        self._read: dict[Source, int] = {}
        """Bytes that have been read."""
        self._newest: dict[Source, float] = {}
        """Time of the newest loss in a file of reports: each line repeats the earlier values."""
        self.losses: dict[Source, Losses] = {}

    def read(self) -> None:
        """Take the new lines of all files."""
        for kind in ("out", "err", "reports"):
            for path in sorted(self._folder.glob(f"rank-*.{kind}")):
                source = int(path.stem.removeprefix("rank-")), kind
                for line in self._new_lines(path, source):
                    self._take(source, line)

    def _new_lines(self, path: Path, source: Source) -> Iterator[bytes]:
        with path.open("rb") as file:
            file.seek(self._read.get(source, 0))
            new = file.read()
        whole = new.rpartition(b"\n")[0]
        if whole:
            self._read[source] = self._read.get(source, 0) + len(whole) + 1
            yield from whole.replace(b"\r", b"\n").split(b"\n")

    def _take(self, source: Source, line: bytes) -> None:
        values = self._reported(source, line) if source[1] == "reports" else _printed(line)
        loss, step = values.get("loss"), values.get("step")
        if loss is not None:
            losses = self.losses.setdefault(source, {})
            losses.setdefault(len(losses) + 1 if step is None else int(step.value), loss.value)

    def _reported(self, source: Source, line: bytes) -> Mapping[str, ReportedValue]:
        values = best(of_trackers(msgspec.json.decode(line, type=Reported)))
        loss = values.get("loss")
        if loss is None or self._newest.get(source) == loss.at:
            return {}
        self._newest[source] = loss.at
        return values

    def longest(self) -> int:
        """Return the number of losses in the file with most."""
        return max(map(len, self.losses.values()), default=0)


def _printed(line: bytes) -> Mapping[str, ReportedValue]:
    text = line.decode("utf-8", "replace")
    return best(output_signals.signals(text)) if output_signals.is_candidate(text) else {}


def compared(
    bare: Mapping[Source, Losses], adopted: Mapping[Source, Losses], steps: int
) -> list[TriedStep]:
    """Return the first losses that one file of the lowest possible rank has in both runs."""
    both = [source for source in sorted(bare) if source in adopted]
    if not both:
        return []
    lowest = [source for source in both if source[0] == both[0][0]]
    source = max(lowest, key=lambda each: min(len(bare[each]), len(adopted[each])))
    common = [step for step in bare[source] if step in adopted[source]]
    return [_tried(step, bare[source][step], adopted[source][step]) for step in common[:steps]]


def _tried(step: int, bare: float, adopted: float) -> TriedStep:
    difference = abs(bare - adopted)
    return TriedStep(
        step=step, bare=_finite(bare), adopted=_finite(adopted), difference=_finite(difference)
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def starts_unequal(tried: list[TriedStep]) -> bool:
    """Return whether the first losses differ so much that the script probably sets no seed."""
    bare, difference = tried[0]["bare"], tried[0]["difference"]
    return bare is not None and difference is not None and difference > UNEQUAL * abs(bare)


def try_adopted(request: Request, steps: int) -> AdoptionTrial:
    """Run the script without and with --adopt until each has reported `steps` losses. Raises RunError."""
    _check(request, steps)
    request = replace(
        request,
        nproc_per_node=request.nproc_per_node or RANKS,
        name=request.name or run_name(request.script),
        notify=(OFF,),
        restart_limit=0,
    )
    plan = prepare(request).plan  # refuses what the script's text shows, before anything starts
    bare = _losses(replace(request, adopt=False, name=f"{request.name}-bare"), steps)
    if not bare:
        raise RunError(
            f"{request.script} reports no loss that distui reads: have rank 0 print one per step, as in "
            "`step 10 loss 2.31`"
        )
    tried = compared(bare, _losses(replace(request, name=f"{request.name}-adopted"), steps), steps)
    if not tried:
        raise RunError(
            f"{request.script} reports losses of other steps with --adopt than without: compare two runs of it with "
            "`distui diff`"
        )
    return _summary(plan, tried)


def _summary(plan: Plan, tried: list[TriedStep]) -> AdoptionTrial:
    known = [(each["difference"], each["step"]) for each in tried if each["difference"] is not None]
    greatest, step = max(known, key=lambda pair: pair[0], default=(None, None))
    return AdoptionTrial(
        preset=plan.preset,
        ranks=plan.nproc_per_node or RANKS,
        obeys=plan.obeys or "",
        steps=tried,
        greatest_difference=greatest,
        at_step=step,
    )


def _check(request: Request, steps: int) -> None:
    """Raise RunError for a request that cannot be tried on this machine."""
    if not request.adopt:
        raise RunError("--try compares a run with --adopt to one without it: add --adopt")
    if steps < 1:
        raise RunError(f"--try {steps}: a number of reported losses from 1 on")
    elsewhere = request.through_sky or request.hosts or request.hostfile
    if elsewhere or request.nnodes not in (None, 1, "1"):
        raise RunError(
            "--try runs the script on this machine: add --on local, and leave out --hosts and --nnodes"
        )


def _losses(request: Request, steps: int) -> dict[Source, Losses]:
    """Run a request until it has reported enough losses, and remove the run. Raises TrialError if it fails."""
    ready = prepare(request)
    plan = replace(ready.plan, env={**ready.plan.env, VARIABLE: "1"})
    entry = replace(ready, plan=plan).start()
    files = LossFiles(entry.path)
    try:
        state = asyncio.run(with_link(entry.record.run, lambda _, link: _follow(link, files, steps)))
    except BaseException:  # also Ctrl-C
        _stop(entry)
        run_removal.remove(entry)
        raise
    if not state.phase.ended:
        _stop(entry)
    files.read()
    if state.phase.ended and state.phase is not RunPhase.SUCCEEDED and files.longest() < steps:
        raise TrialError(
            _failure(state, entry.record.name, f"{files.longest()} of {plural(steps, 'loss')}")
        )
    run_removal.remove(entry)
    return files.losses


def _failure(state: RunState, name: str, reported: str) -> str:
    cause = state.attempts[-1].first_cause if state.attempts else None
    why = state.end_text if cause is None else cause.text
    return (
        f"run {name} {state.phase} after {reported}: {why}; `distui diagnose {name}` shows more, and "
        f"`distui rm {name}` removes it"
    )


async def _follow(link: Link, files: LossFiles, steps: int) -> RunState:
    """Follow a run until it has ended, has reported enough losses, or makes steps without any."""
    state = RunState()
    async for _ in folded_events(link, state):
        files.read()
        is_silent = not files.losses and _optimizer_steps(state) >= SILENT_STEPS
        if state.phase.ended or files.longest() >= steps or is_silent:
            break
    return state


def _optimizer_steps(state: RunState) -> int:
    samples = [rank.sample for rank in state.ranks.values()]
    return max((sample.step or 0 for sample in samples if sample is not None), default=0)


def _stop(entry: Entry) -> None:
    if not run_directories.ended(entry):
        command = Stop(new_id(), GRACE_S)
        asyncio.run(agentless.stop_run(entry, command, lambda text: None, open_link))
