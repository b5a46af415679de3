"""The table of `plan --adopt --try`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...presets.plurals import plural
from .glyphs import or_na, table

if TYPE_CHECKING:
    from ...runners.comparison.adoption_trial import AdoptionTrial

COLUMNS = ("step", "loss bare", "loss adopted", "difference")


def trial_lines(trial: AdoptionTrial) -> list[str]:
    """Return the effect of the preset, the losses of both runs, and their greatest difference."""
    rows = [
        (
            str(each["step"]),
            _number(each["bare"], ".7g"),
            _number(each["adopted"], ".7g"),
            _number(each["difference"], ".2g"),
        )
        for each in trial["steps"]
    ]
    return [
        f"preset {trial['preset']} on {plural(trial['ranks'], 'rank')} of this machine. {trial['obeys']}",
        "",
        *table([COLUMNS, *rows], frozenset(range(len(COLUMNS)))),
        "",
        _greatest(trial),
    ]


def _greatest(trial: AdoptionTrial) -> str:
    if trial["greatest_difference"] == 0:
        return "all losses are equal"
    greatest = _number(trial["greatest_difference"], ".2g")
    return f"greatest difference {greatest}, at step {trial['at_step']}"


def _number(value: float | None, form: str) -> str:
    return or_na(value, lambda number: format(number, form))
