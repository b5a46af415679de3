"""Rank the strategies that let a model train on some GPUs, with the command of each. Pure.

`distui advise`, the Python API, MCP and the launch screen's guide all render the result of `advise`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .advice_case import AdviceCase
from .assumptions import Change
from .option import Option, option_of
from .strategies import Needs, Strategy, mesh_sizes, script_kinds, strategies
from .workload import Shape

GROUPS: Sequence[Needs] = ("", "edit", "host", "disk")
"""What a strategy needs, the cheapest first. More GPUs come after these."""
LARGEST_NODE = 8
"""GPUs of a usual node."""
MOST_NODES = 1 << 14
SHORTEST = 128
"""Shortest sequence to try, in positions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """The answer."""

    case: AdviceCase
    rows: list[Option]
    """Every strategy as asked, without remedies, the simplest first."""
    ranked: list[Option]
    """Every strategy that fits, with its cheapest remedies, the cheapest first."""
    more: Option | None
    """The cheapest option on the fewest GPUs that hold everything, if these do not."""
    shorter: Option | None
    """An option with the longest sequence that fits, if nothing else helps."""
    plain: Option | None = None
    """The first option for a script that calls DistributedDataParallel, if the kind of the script is unknown."""
    with_bf16: Advice | None = None
    """The answer for weights in bf16, if the script decides their format and it is unknown."""

    @property
    def first(self) -> Option | None:
        return next(iter(self.ranked), None)

    def remedied(self, option: Option) -> Option | None:
        """Return the row's strategy with its cheapest remedies, or None if it fits without, or not at all."""
        if option.fits:
            return None
        return next((ranked for ranked in self.ranked if ranked.strategy is option.strategy), None)

    def also(self, option: Option) -> Option | None:
        """Return the row of the same strategy for weights in bf16, or None if it is the same estimate."""
        rows = self.with_bf16.rows if self.with_bf16 else []
        twin = next((row for row in rows if row.strategy is option.strategy), None)
        return None if twin is None or twin.form == option.form else twin


def advise(case: AdviceCase) -> Advice:
    """Rank the strategies for a case."""
    advice = _advise(case)
    if case.kind == "unknown" and advice.first is not None:
        plain = _ranked(replace(case, kind="ddp"), ("",))
        advice = replace(advice, plain=next(iter(plain), None))
    if case.weights is not None:
        return advice
    other = _advise(replace(case, weights="bf16"))
    depends = any(one.form != two.form for one, two in zip(advice.rows, other.rows, strict=True))
    return replace(advice, with_bf16=other if depends else None)


def _advise(case: AdviceCase) -> Advice:
    ranked = _ranked(case)
    on_gpus = any(option.needs in ("", "edit") for option in ranked)
    more = None if on_gpus else _on_more_gpus(case)
    shorter = _with_shorter_sequences(case) if not ranked and more is None else None
    base = Change(case.model.recompute)
    rows = [_best_size(case, strategy, base, case.kind) for strategy in _suitable(case, case.kind)]
    return Advice(case=case, rows=rows, ranked=ranked, more=more, shorter=shorter)


def _suitable(case: AdviceCase, kind: str) -> list[Strategy]:
    place, model = case.place, case.model
    suited = [row for row in strategies(kind) if row.suits(model, place.gpus, place.nodes)]
    return [row for row in suited if mesh_sizes(row, model, place.gpus, place.nodes)]


def _ranked(case: AdviceCase, groups: Sequence[Needs] = GROUPS) -> list[Option]:
    """Return every strategy with its cheapest change that fits, the cheapest first."""
    found: list[Option] = []
    for needs in groups:
        found += _of_group(
            case, case.kind, [row for row in _suitable(case, case.kind) if row.needs == needs]
        )
        other = script_kinds()[case.kind].edit
        if needs == "edit" and other and not found:
            rows = [row for row in _suitable(case, other) if row.needs in ("", "edit")]
            found += _of_group(case, other, rows)
    return found


def _of_group(case: AdviceCase, kind: str, rows: Sequence[Strategy]) -> list[Option]:
    """Return the strategies that fit, by the cost of their change, then in the given order."""
    changes = list(_changes(case.model))
    fitting: list[Option] = []
    for strategy in rows:
        if not _best_size(case, strategy, changes[-1], kind).fits:
            continue  # the smallest batch does not fit, so no larger one does
        options = (_best_size(case, strategy, change, kind) for change in changes)
        cheapest = next((option for option in options if option.fits), None)
        if cheapest is not None:
            fitting.append(cheapest)
    return sorted(fitting, key=lambda option: (option.change.passes, option.change.recompute))


def _changes(model: Shape) -> Iterator[Change]:
    """Yield the remedies, the cheapest first: a fused optimizer, recomputed layers, smaller batches."""
    recomputing = [model.recompute] if model.recompute else [False, True]
    for passes in _divisors(model.micro_batch):
        for recompute in recomputing:
            for fused in (False, True):
                yield Change(recompute, passes, fused)


def _divisors(number: int) -> list[int]:
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


def _best_size(case: AdviceCase, strategy: Strategy, change: Change, kind: str) -> Option:
    """Return the option with the smallest sizes that fit, else with the sizes that need the least memory."""
    place = case.place
    options = (
        option_of(case, strategy, change, kind, sizes)
        for sizes in mesh_sizes(strategy, case.model, place.gpus, place.nodes)
    )
    best: Option | None = None
    for option in options:
        if option.fits:
            return option
        if best is None or option.estimate.total < best.estimate.total:
            best = option
    assert best is not None  # _suitable keeps only strategies with a size
    return best


def _on_more_gpus(case: AdviceCase) -> Option | None:
    """Return the cheapest option on the fewest GPUs that hold everything: in one node, else on more such nodes."""

    def on(count: int, nodes: int) -> Option | None:
        gpus = replace(case.place.gpus, count=count)
        place = replace(case.place, gpus=gpus, nodes=nodes, hosts=())
        return next(iter(_ranked(replace(case, place=place), ("", "edit"))), None)

    count, few = case.place.gpus.count, case.place.nodes
    if few == 1:
        for larger in range(count + 1, LARGEST_NODE + 1):
            if found := on(larger, 1):
                return found
        count = LARGEST_NODE if count == 1 else count
    many = few
    while on(count, many) is None:
        few, many = many, many * 2
        if many > MOST_NODES:
            return None
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if on(count, middle) is None else (few, middle)
    return on(count, many)


def _with_shorter_sequences(case: AdviceCase) -> Option | None:
    """Return the cheapest option with the longest sequence, of halves of the given one, that fits here."""
    seq = case.model.seq // 2
    while seq >= SHORTEST:
        found = _ranked(replace(case, model=replace(case.model, seq=seq)))
        if found:
            return found[0]
        seq //= 2
    return None
