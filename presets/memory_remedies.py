"""What to try when a model does not fit on the GPUs: each tried in the estimate before it is said. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from .memory import Estimate, Format, Shape, estimate, needed, survey
from .memory_rows import Strategy
from .model import Batch

SHORTEST = 128
"""Positions below which no shorter sequence is tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """One change, and the simplest strategy that fits with it."""

    change: str
    """What to do, the beginning of a sentence."""
    options: str
    """Of `distui advise`, to see its table; "" where there are none."""
    estimate: Estimate | None
    """None: of ZeRO-3 on more GPUs."""

    @property
    def text(self) -> str:
        """A sentence."""
        if self.estimate is None:
            return f"{self.change}."
        how = f"{self.change} ({self.options})" if self.options else self.change
        return f"{how}: {self.estimate.strategy.title} fits, with `{self.estimate.strategy.words}`."


def on_gpus(found: list[Estimate]) -> Estimate | None:
    """The simplest that fits with everything on the GPUs."""
    return next((one for one in found if one.fits and not one.host and not one.disk), None)


def remedies(model: Shape, form: Format, per_node: int, nodes: int, limit: float) -> list[Remedy]:
    """Changes after which something fits without host memory or disk, the cheapest first; [] where none helps."""
    return list(_tried(model, form, per_node, nodes, limit))


def _tried(model: Shape, form: Format, per_node: int, nodes: int, limit: float) -> Iterator[Remedy]:
    def simplest(changed: Shape, passes: int = 1) -> Estimate | None:
        found = survey(changed, form, per_node, nodes, limit)
        if passes > 1:
            found = [
                _accumulating(one, changed, form, per_node * nodes, passes) for one in found if _can(one)
            ]
        return on_gpus(found)

    again = replace(model, recompute=True)
    helped = False
    if not model.recompute and (one := simplest(again)):
        helped = True
        yield Remedy(change="Compute activations again in backward", options="--recompute", estimate=one)
    for changed in (model,) if helped or model.recompute else (model, again):
        found = _smaller(changed, simplest)
        if found:
            helped = True
            yield found
            break
    if not helped and (found := _shorter(again, simplest, "" if model.recompute else " --recompute")):
        yield found
    if more := _more(model, form, per_node, nodes, limit):
        yield more


def _smaller(model: Shape, simplest: Callable[[Shape, int], Estimate | None]) -> Remedy | None:
    """The batch in as few passes as will do."""
    for passes in _divisors(model.micro_batch):
        size = model.micro_batch // passes
        if one := simplest(replace(model, micro_batch=size), passes):
            options = f"--micro-batch {size}" + " --recompute" * model.recompute
            return Remedy(
                change=f"Accumulate gradients over {passes} passes", options=options, estimate=one
            )
    return None


def _shorter(model: Shape, simplest: Callable[[Shape], Estimate | None], also: str) -> Remedy | None:
    """The longest sequence that fits, one at a time."""
    seq = model.seq // 2
    while seq >= SHORTEST:
        if one := simplest(replace(model, seq=seq, micro_batch=1)):
            options = f"--seq {seq}" + " --micro-batch 1" * (model.micro_batch > 1) + also
            return Remedy(change="Take shorter sequences", options=options, estimate=one)
        seq //= 2
    return None


def _more(model: Shape, form: Format, per_node: int, nodes: int, limit: float) -> Remedy | None:
    """More of the same GPUs, as it is or with as little as possible kept."""
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


def _can(one: Estimate) -> bool:
    """Whether the strategy may accumulate: a pipeline does so by itself."""
    return one.strategy.preset.mesh.pp == 1


def _accumulating(one: Estimate, model: Shape, form: Format, ranks: int, passes: int) -> Estimate:
    """The same strategy with several passes a step."""
    old = one.strategy
    preset = replace(old.preset, batch=Batch(accumulation=passes))
    words = f"{old.words} --set batch.accumulation={passes}"
    strategy = Strategy(key=old.key, title=old.title, words=words, why=old.why, preset=preset)
    return estimate(strategy, model, form, ranks, one.limit)


def _divisors(number: int) -> list[int]:
    """Those above 1, the smallest first."""
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)} - {1})
