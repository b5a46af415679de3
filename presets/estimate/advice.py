"""Rank the strategies that let a model train on some GPUs, with the command of each. Pure.

`distui advise`, the Python API, MCP and the launch screen's guide all render the result of `advise`.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .advice_case import AdviceCase
from .assumptions import Change
from .launch_command import LaunchPlace
from .option import Option, option_of
from .strategies import Needs, Strategy, mesh_sizes, script_kinds, strategies

GROUPS: Sequence[Needs] = ("", "edit", "host", "disk")
"""What a strategy needs, the cheapest first. More GPUs come after these."""
LARGEST_NODE = 8
"""GPUs of a usual node."""
MOST_NODES = 1 << 12
SHORTEST = 128
"""Shortest sequence to try, in positions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """The answer."""

    case: AdviceCase
    rows: list[Option]
    """Every strategy as asked, without remedies, the simplest first; with the sizes that fit with the least change."""
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
        return next((ranked for ranked in self.ranked if ranked.layout == option.layout), None)

    def also(self, option: Option) -> Option | None:
        """Return the row of the same layout for weights in bf16, or None if it is the same estimate."""
        rows = self.with_bf16.rows if self.with_bf16 else []
        twin = next((row for row in rows if row.layout == option.layout), None)
        return None if twin is None or twin.form == option.form else twin


def advise(case: AdviceCase) -> Advice:
    """Rank the strategies for a case."""
    advice = _advise(case)
    if case.kind == "unknown" and advice.first is not None:
        plain = _ranked(replace(case, kind="ddp"), ("",))
        advice = replace(advice, plain=next(iter(plain), None))
    if case.weights is not None or not case.may_be_bf16 or not weights_matter(case):
        return replace(advice, rows=_rows(case, [advice]))
    other = _advise(replace(case, weights="bf16"))
    rows = _rows(case, [advice, other])
    twins = [_as_asked(other.case, row.strategy, row.kind, row.sizes) for row in rows]
    return replace(advice, rows=rows, with_bf16=replace(other, rows=twins))


def weights_matter(case: AdviceCase) -> bool:
    """Return True if an estimate depends on the format of the script's weights."""
    for strategy in _suitable(case, case.kind):
        sizes = mesh_sizes(strategy, case.model, case.place.gpus, case.place.nodes)[0]
        rows = [
            _as_asked(replace(case, weights=weights), strategy, case.kind, sizes)
            for weights in ("fp32", "bf16")
        ]
        if rows[0].form != rows[1].form:
            return True
    return False


def _advise(case: AdviceCase) -> Advice:
    ranked = _ranked(case)
    on_gpus = any(option.needs in ("", "edit") for option in ranked)
    more = None if on_gpus else _on_more_gpus(case)
    shorter = _with_shorter_sequences(case) if not ranked and more is None else None
    return Advice(case=case, rows=[], ranked=ranked, more=more, shorter=shorter)


def _as_asked(case: AdviceCase, strategy: Strategy, kind: str, sizes: Mapping[str, int]) -> Option:
    return option_of(case, strategy, Change(case.model.recompute), kind, sizes)


def _rows(case: AdviceCase, answers: Sequence[Advice]) -> list[Option]:
    """Return every strategy as asked, and the first option of each answer. Earlier answers have priority.

    The sizes are those that fit with the cheapest remedies, so that the table has the layouts of the sentences.
    """
    rows: list[Option] = []
    for strategy in _suitable(case, case.kind):
        ranked = (option for answer in answers for option in answer.ranked)
        same = (option for option in ranked if (option.strategy, option.kind) == (strategy, case.kind))
        fitting = next(same, None)
        if fitting is None:
            rows.append(_best_size(case, strategy, Change(case.model.recompute), case.kind))
        else:
            rows.append(_as_asked(case, strategy, case.kind, fitting.sizes))
    for first in filter(None, (answer.first for answer in answers)):
        if first.layout not in [row.layout for row in rows]:
            rows.append(_as_asked(case, first.strategy, first.kind, first.sizes))
    return sorted(rows, key=lambda row: GROUPS.index(row.needs))


def _suitable(case: AdviceCase, kind: str) -> list[Strategy]:
    place, model = case.place, case.model
    suited = [row for row in strategies(kind) if row.suits(model, place.gpus, place.nodes)]
    return [row for row in suited if mesh_sizes(row, model, place.gpus, place.nodes)]


def _ranked(case: AdviceCase, groups: Sequence[Needs] = GROUPS) -> list[Option]:
    """Return every strategy with its cheapest change that fits, the cheapest first."""
    found: list[Option] = []
    for needs in groups:
        found += _of_group(case, case.kind, needs)
        other = script_kinds()[case.kind].edit
        if needs == "edit" and other and not found:
            found += [*_of_group(case, other, ""), *_of_group(case, other, "edit")]
    return found


def _of_group(case: AdviceCase, kind: str, needs: Needs) -> list[Option]:
    """Return the strategies with these needs that fit, by the cost of their change, then in the given order."""
    rows = [row for row in _suitable(case, kind) if row.needs == needs]
    fitting = [option for strategy in rows if (option := _cheapest(case, strategy, kind)) is not None]
    return sorted(fitting, key=lambda option: (option.change.passes, option.change.recompute))


def _cheapest(case: AdviceCase, strategy: Strategy, kind: str) -> Option | None:
    """Return the strategy with the cheapest change that fits, or None.

    A fused optimizer costs nothing, recomputed layers cost time, and smaller batches cost more of it.
    """
    fitting: list[Option] = []
    recomputing = [True] if case.model.recompute else [False, True]
    for recompute, fused in itertools.product(recomputing, (False, True)):
        option = _fewest_passes(case, strategy, kind, Change(recompute, fused=fused))
        if option is None:
            continue
        if option.change.passes == 1:
            return option  # the remedies come with growing cost
        fitting.append(option)
    return min(fitting, key=lambda option: (option.change.passes, option.change.recompute), default=None)


def _fewest_passes(case: AdviceCase, strategy: Strategy, kind: str, change: Change) -> Option | None:
    """Return the option with the largest part of the micro-batch that fits, or None."""

    def option(passes: int) -> Option:
        return _best_size(case, strategy, replace(change, passes=passes), kind)

    divisors = _divisors(case.model.micro_batch)
    at = bisect.bisect_left(divisors, True, key=lambda passes: option(passes).fits)
    return option(divisors[at]) if at < len(divisors) else None


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
    place = case.place
    if place.nodes == 1:
        for count in range(place.gpus.count + 1, LARGEST_NODE + 1):
            larger = replace(place, gpus=replace(place.gpus, count=count), hosts=())
            if found := _first_on(case, larger):
                return found
        if place.gpus.count == 1:
            place = replace(place, gpus=replace(place.gpus, count=LARGEST_NODE))
    few, many = place.nodes, 2 * place.nodes
    while not _holds(case, replace(place, nodes=many, hosts=())):
        few, many = many, many * 2
        if many > MOST_NODES:
            return None
    while many - few > 1:
        middle = (few + many) // 2
        holds = _holds(case, replace(place, nodes=middle, hosts=()))
        few, many = (few, middle) if holds else (middle, many)
    return _first_on(case, replace(place, nodes=many, hosts=()))


def _first_on(case: AdviceCase, place: LaunchPlace) -> Option | None:
    """Return the cheapest option that holds everything on the GPUs of a place, or None."""
    if not _holds(case, place):
        return None
    return next(iter(_ranked(replace(case, place=place), ("", "edit"))), None)


def _holds(case: AdviceCase, place: LaunchPlace) -> bool:
    """Return True if some strategy with all remedies holds everything on the GPUs of a place."""
    there = replace(case, place=place)
    remedies = Change(recompute=True, passes=case.model.micro_batch, fused=True)
    for kind in filter(None, (case.kind, script_kinds()[case.kind].edit)):
        for strategy in _suitable(there, kind):
            if strategy.needs in ("", "edit") and _best_size(there, strategy, remedies, kind).fits:
                return True
    return False


def _with_shorter_sequences(case: AdviceCase) -> Option | None:
    """Return the cheapest option with the longest sequence, of halves of the given one, that fits here."""
    seq = case.model.seq // 2
    while seq >= SHORTEST:
        found = _ranked(replace(case, model=replace(case.model, seq=seq)))
        if found:
            return found[0]
        seq //= 2
    return None
