"""Suggest changes that let a model fit on its GPUs. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from .memory import Estimate, estimate
from .survey import needed, strategy_of, survey
from .workload import Format, Shape

SHORTEST = 128
"""Shortest sequence to try, in positions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """One change, and the simplest strategy that fits with it."""

    change: str
    """The advice, as the beginning of a sentence."""
    options: str
    """Options of `distui advise` that show the change in its table, or ""."""
    estimate: Estimate | None
    """None for advice to use ZeRO-3 on more GPUs."""

    @property
    def text(self) -> str:
        if self.estimate is None:
            return f"{self.change}."
        how = f"{self.change} ({self.options})" if self.options else self.change
        return f"{how}: {self.estimate.strategy.title} fits, with `{self.estimate.strategy.words}`."


def on_gpus(estimates: list[Estimate]) -> Estimate | None:
    """Return the simplest estimate that fits completely on the GPUs."""
    return next((row for row in estimates if row.fits and not row.host and not row.disk), None)


def remedies(model: Shape, form: Format, per_node: int, nodes: int, limit: float) -> list[Remedy]:
    """Return changes that make the model fit without host memory or disk, the cheapest first."""

    def simplest(changed: Shape, passes: int = 1) -> Estimate | None:
        rows = survey(changed, form, per_node, nodes, limit)
        if passes > 1:
            # a pipeline already accumulates its microbatches
            plain = [row for row in rows if row.strategy.preset.mesh.pp == 1]
            rows = [_accumulating(row, changed, form, per_node * nodes, passes) for row in plain]
        return on_gpus(rows)

    recomputing = replace(model, recompute=True)
    found = [_recomputed(model, simplest)]
    found.append(_smaller(model, simplest))
    if found == [None, None]:
        found.append(_smaller(recomputing, simplest) or _shorter(recomputing, simplest, model.recompute))
    found.append(_more(model, form, per_node, nodes, limit))
    return [remedy for remedy in found if remedy]


def _recomputed(model: Shape, simplest: Callable[[Shape], Estimate | None]) -> Remedy | None:
    fit = None if model.recompute else simplest(replace(model, recompute=True))
    change = "Compute activations again in backward"
    return Remedy(change=change, options="--recompute", estimate=fit) if fit else None


def _smaller(model: Shape, simplest: Callable[[Shape, int], Estimate | None]) -> Remedy | None:
    """Suggest the fewest passes over smaller batches that fit."""
    for passes in _divisors(model.micro_batch):
        size = model.micro_batch // passes
        if fit := simplest(replace(model, micro_batch=size), passes):
            options = f"--micro-batch {size}"
            if model.recompute:
                options += " --recompute"
            return Remedy(
                change=f"Accumulate gradients over {passes} passes", options=options, estimate=fit
            )
    return None


def _shorter(model: Shape, simplest: Callable[[Shape], Estimate | None], is_given: bool) -> Remedy | None:
    """Suggest the longest sequence that fits, with one sequence per batch. `is_given`: --recompute is an option."""
    seq = model.seq // 2
    while seq >= SHORTEST:
        if fit := simplest(replace(model, seq=seq, micro_batch=1)):
            options = f"--seq {seq}"
            if model.micro_batch > 1:
                options += " --micro-batch 1"
            if not is_given:
                options += " --recompute"
            return Remedy(change="Take shorter sequences", options=options, estimate=fit)
        seq //= 2
    return None


def _more(model: Shape, form: Format, per_node: int, nodes: int, limit: float) -> Remedy | None:
    """Suggest more GPUs of the same type, for the unchanged model or with the least activations."""
    for changed in (model, replace(model, recompute=True, micro_batch=1)):
        ranks = needed(changed, form, limit)
        if ranks is not None and ranks > per_node * nodes:
            least = (
                "" if changed == model else ", with one sequence at a time and activations computed again"
            )
            machines = f" ({-(-ranks // per_node)} nodes)" if ranks > per_node else ""
            change = f"Take more GPUs: ZeRO-3 fits on {ranks} such{machines}{least}"
            return Remedy(change=change, options="", estimate=None)
    return None


def _accumulating(plain: Estimate, model: Shape, form: Format, ranks: int, passes: int) -> Estimate:
    old = plain.strategy
    words = f"{old.words} --set batch.accumulation={passes}"
    return estimate(strategy_of(old.key, old.title, words, old.why), model, form, ranks, plain.limit)


def _divisors(number: int) -> list[int]:
    """Return the divisors above 1, the smallest first."""
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)} - {1})
