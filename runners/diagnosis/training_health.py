"""Report a loss that is NaN or diverges, from the script's own values.

Called once per round; keeps earlier values. Conservative: a warm-up, a spike, a restart from a checkpoint, and losses
that rise and fall by design (GAN, reinforcement learning) raise nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from ...presets.finding import Finding
from ..run.formatting import spans_text
from ..run.samples import TrainingSample
from ..telemetry.progress import current
from .view import View

NOT_FINITE, DIVERGES = "loss-not-finite", "loss-diverges"

STEADY_REPORTS = 3
"""Consecutive reports required for values that may be an accident: inf, or NaN before any finite loss."""

WINDOW = 20
"""Number of reports whose median is a level."""
MATURE = 3 * WINDOW
"""Minimum number of reports for divergence."""
RAISE, CLEAR = 0.5, 0.25
"""Share of the way from the lowest level back to the first one that raises and clears the finding."""
PROGRESS = 0.2
"""Minimum fall of a loss before it can diverge, as a share of its first level."""
NOISE = 6.0
"""Minimum rise above the lowest level, in spreads of that level."""
HOLDS_S = 60.0
"""Minimum seconds of the rise."""
UP_AND_DOWN = re.compile(
    r"(?:^|[^a-z])(?:d|g|(?:disc|gen|adv)\w{0,40}|gan)[_ /]?loss|reward|return|advantage|kl\b|entropy", re.I
)
"""Script values that make the loss meaningless: adversarial and reinforcement learning."""


@dataclass(slots=True)
class _Losses:
    """The losses of one rank since its first attempt with a loss."""

    seen: float = 0.0
    values: list[float] = field(default_factory=list)
    """The newest WINDOW values."""
    count: int = 0
    first: float | None = None
    lowest: float | None = None
    spread: float = 0.0
    since: float | None = None
    """Unix time since which the loss is high."""
    finding: Finding | None = None

    def reached(self, level: float) -> tuple[float, float]:
        """Record the median of a full window. Return the first and the lowest one."""
        if self.first is None:
            self.first = level
        if self.lowest is None or level < self.lowest:
            self.lowest = level
            self.spread = median(abs(value - level) for value in self.values)
        return self.first, self.lowest


class TrainingHealth:
    """Detector with state across rounds."""

    def __init__(self) -> None:
        self._bad: dict[int, tuple[float, int]] = {}
        """Time of the newest report of a non-finite loss, and number of consecutive ones, by rank."""
        self._finite: set[int] = set()
        """Ranks that have reported a finite loss in this attempt."""
        self._raised: Finding | None = None
        """The finding of a non-finite loss as it was raised, so that its evidence does not change."""
        self._losses: dict[int, _Losses] = {}
        self._attempt = 0

    def find(self, view: View) -> Iterable[Finding]:
        """Return the findings of this round."""
        if view.attempt is None:
            return []
        if view.state.attempt != self._attempt:
            self._begin(view.state.attempt)
        samples = [sample for sample in current(view.state) if sample.at >= view.attempt.began]
        return [*self._not_finite(view, samples)] or [*self._diverging(view, samples[:1])]

    def _begin(self, attempt: int) -> None:
        self._attempt = attempt
        self._bad, self._finite = {}, set()
        for losses in self._losses.values():  # steps after the checkpoint are reported again
            losses.values, losses.since, losses.finding = [], None, None

    def _not_finite(self, view: View, samples: Sequence[TrainingSample]) -> Iterable[Finding]:
        bad = [sample for sample in samples if self._is_bad(sample)]
        if not bad:
            self._raised = None
            return
        ranks = tuple(sample.rank for sample in bad)
        lead = bad[0]
        steps = [step for sample in bad if (step := sample.not_finite_since.get("loss")) is not None]
        value = lead.not_finite.get("loss", "nan")
        word = "NaN" if value == "nan" else value
        since = f" since step {min(steps):,}" if steps else ""
        text = f"the loss is {word}{since}: {spans_text('rank', ranks)}"
        if self._raised is None or self._raised.text != text:
            self._raised = self._finding_of(view, ranks, text, [*self._evidence(lead, word)])
        yield self._raised

    def _evidence(self, lead: TrainingSample, word: str) -> Iterator[str]:
        losses = self._losses.get(lead.rank)
        yield f"{lead.sources.get('loss', '')}: loss {word} at step {lead.step}"
        if losses is not None and losses.values:
            yield f"the last finite loss was {losses.values[-1]:.4g}"
        if lead.lr is not None or "grad_norm" in lead.not_finite:
            norm = lead.not_finite.get("grad_norm", lead.grad_norm)
            yield f"learning rate {lead.lr}, gradient norm {norm}"

    def _finding_of(self, view: View, ranks: tuple[int, ...], text: str, evidence: list[str]) -> Finding:
        return Finding(
            id=NOT_FINITE,
            severity="error",
            text=text,
            remedy="restart from a checkpoint before that step, with a lower learning rate, gradient clipping, or "
            "without the batch; torch.autograd.set_detect_anomaly(True) names the operation",
            evidence=tuple(evidence),
            since=view.now,
            **view.rank_fields(ranks),
        )

    def _is_bad(self, sample: TrainingSample) -> bool:
        word = sample.not_finite.get("loss")
        # transformers reports a loss of 0 instead of NaN
        hidden = sample.loss == 0.0 and sample.not_finite.get("grad_norm") == "nan"
        if word is None and not hidden:
            if sample.loss is not None:
                self._finite.add(sample.rank)
                self._bad.pop(sample.rank, None)
            return False
        at, count = self._bad.get(sample.rank, (0.0, 0))
        if sample.at > at:
            at, count = sample.at, count + 1
            self._bad[sample.rank] = at, count
        return count >= STEADY_REPORTS or (word == "nan" and sample.rank in self._finite)

    def _diverging(self, view: View, samples: Sequence[TrainingSample]) -> Iterable[Finding]:
        for sample in samples:
            losses = self._losses.setdefault(sample.rank, _Losses())
            if sample.loss is not None and sample.at > losses.seen and not _swings(sample):
                losses.seen = sample.at
                self._add(losses, sample, view.now)
            if losses.finding is not None:
                yield losses.finding

    def _add(self, losses: _Losses, sample: TrainingSample, now: float) -> None:
        assert sample.loss is not None
        losses.values = [*losses.values, sample.loss][-WINDOW:]
        losses.count += 1
        if len(losses.values) < WINDOW:
            return
        level = median(losses.values)
        first, lowest = losses.reached(level)
        way = first - lowest
        if losses.finding is not None:
            if level < lowest + CLEAR * way:
                losses.since, losses.finding = None, None
            return
        limit = lowest + max(RAISE * way, NOISE * losses.spread)
        moved = losses.count >= MATURE and way > PROGRESS * abs(first)
        if not moved or min(losses.values) <= limit:
            losses.since = None
            return
        losses.since = now if losses.since is None else losses.since
        if now - losses.since >= HOLDS_S:
            losses.finding = _diverged(sample, losses, level)


def _swings(sample: TrainingSample) -> bool:
    """Whether the script has losses or rewards that rise and fall by design."""
    return any(UP_AND_DOWN.search(name) for name in sample.values)


def _diverged(sample: TrainingSample, losses: _Losses, level: float) -> Finding:
    step = f" at step {sample.step:,}" if sample.step is not None else ""
    return Finding(
        id=DIVERGES,
        severity="warning",
        text=f"the loss has risen from {losses.lowest:.4g} to {level:.4g}{step}, and stays there",
        remedy="compare learning rate and data with those before the rise; a restart from a checkpoint before it, "
        "with a lower learning rate, is the usual way out",
        rank=sample.rank,
        evidence=(
            f"median of {WINDOW} reports; it began at {losses.first:.4g}",
            f"learning rate {sample.lr}, gradient norm {sample.grad_norm}",
        ),
        since=losses.since,
    )
