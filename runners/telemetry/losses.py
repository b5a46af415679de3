"""Loss by a restart or a stop: the work since the newest complete checkpoint. Pure."""

from __future__ import annotations

from msgspec import Struct

from ...presets.plurals import noun_form, plural
from ..run.model import Checkpoint, RankPhase
from ..run.state import Attempt, RunState
from .progress import STEPS_SOURCE, Progress, progress

NONE_SEEN = "no checkpoint seen; unsaved progress will be lost"


class Loss(Struct, frozen=True):
    """Unsaved work of the ranks; None if unknown."""

    steps: int | None = None
    seconds: float | None = None
    """Wall-clock seconds."""
    units: str = ""
    """Workers in words: "16 GPUs", "2 ranks"."""
    saved_step: int | None = None
    saved_ago: float | None = None
    """Seconds since the newest complete checkpoint; None without one."""
    torn: bool = False
    """Whether a newer checkpoint was begun but is not complete."""

    @property
    def text(self) -> str:
        """One line for a question: "2,140 steps since the checkpoint at step 18,000, about 30 min × 16 GPUs"."""
        if not self.units:
            return "nothing: no rank has run yet"
        spent = "" if self.seconds is None else f"about {_about(self.seconds)} × {self.units}"
        if self.saved_ago is None:
            steps = "" if self.steps is None else f"{self.steps:,} {noun_form(self.steps, 'step')}, "
            most = f" (at most {steps}{spent})" if spent else ""
            return NONE_SEEN + most
        since = "" if self.saved_step is None else f" since the checkpoint at step {self.saved_step:,}"
        if self.steps is not None:
            text = f"{self.steps:,} {noun_form(self.steps, 'step')}{since}"
        else:
            text = f"work since the checkpoint of {_about(self.saved_ago)} ago"
            text += f" (step {self.saved_step:,})" if self.saved_step is not None else ""
        torn = "; a newer checkpoint is not complete" if self.torn else ""
        return ", ".join(filter(None, (text, spent))) + torn


def _about(seconds: float) -> str:
    """Format an estimate in one unit: "40 s", "30 min", "5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def what_is_lost(state: RunState, now: float) -> Loss:
    """Loss if the worker group ends at `now`, unix time by the clock of the state."""
    attempt = state.newest
    if attempt is None or not state.ranks:
        return Loss()
    saved, line = state.checkpoint, progress(state, now)
    until = _end_of_work(state, attempt, now)
    if saved is None:
        first_known = line.sources.get("step") == STEPS_SOURCE or attempt.number == 1
        return Loss(
            steps=line.step if first_known else None,
            seconds=max(0.0, until - attempt.began),
            units=_units(state),
        )
    return Loss(
        steps=_steps_since(state, saved, line),
        seconds=max(0.0, until - max(attempt.began, saved.at)),
        units=_units(state),
        saved_step=saved.step,
        saved_ago=max(0.0, until - saved.at),
        torn=state.checkpoints[-1] is not saved,
    )


def _end_of_work(state: RunState, attempt: Attempt, now: float) -> float:
    """Unix time until which the ranks worked."""
    until = state.ended if state.phase.ended and state.ended is not None else now
    if any(rank.phase in (RankPhase.RUNNING, RankPhase.STARTING) for rank in state.ranks.values()):
        return until
    return min(until, attempt.ended or until)


def _steps_since(state: RunState, saved: Checkpoint, line: Progress) -> int | None:
    """Return the steps since the save: counted, else by the reported step.

    The reported step counts only if both numbers count from the same start.
    """
    counted = _counted_since(state, saved)
    if counted is not None or line.step is None or saved.step is None:
        return counted
    attempt = state.attempts[-1]
    in_first = attempt.number == 1 and saved.at >= attempt.began
    comparable = line.sources.get("step") != STEPS_SOURCE or in_first
    return line.step - saved.step if comparable and line.step >= saved.step else None


def _counted_since(state: RunState, saved: Checkpoint) -> int | None:
    """Optimizer steps of the saving process since the save; None if not counted, or if it has ended."""
    if saved.count is None or saved.attempt != state.attempt:
        return None
    own = None if saved.rank is None else state.ranks.get(saved.rank)
    ranks = list(state.ranks.values()) if own is None else [own]
    counts = [rank.sample.step for rank in ranks if rank.sample and rank.sample.step is not None]
    now = max(counts, default=None)
    return None if now is None or now < saved.count else now - saved.count


def _units(state: RunState) -> str:
    gpus = set()
    for rank in state.ranks.values():
        gpu = rank.sample.gpu if rank.sample is not None and rank.sample.gpu is not None else rank.place.gpu
        if gpu is None:
            return plural(len(state.ranks), "rank")
        gpus.add((rank.place.node, str(gpu)))
    return plural(len(gpus), "GPU")
