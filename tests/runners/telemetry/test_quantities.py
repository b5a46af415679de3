"""The table of quantities fits the model, and docs/telemetry.md lists its curves.

With DISTUI_WRITE=1 the table in docs/telemetry.md is written anew.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from each import for_each

from distui.presets.signal_patterns import FIELDS
from distui.runners.run.freshness import PULSE_S, SAMPLE_S, TIMES
from distui.runners.run.samples import Gpu, Host, RankSample, TrainingSample
from distui.runners.telemetry.quantities import BY_KIND, TRAINING
from distui.runners.telemetry.quantity import Holds

SAMPLES: dict[str, type[msgspec.Struct]] = {
    "gpu": Gpu,
    "rank": RankSample,
    "host": Host,
    "train": TrainingSample,
}
INDEXES = {"gpu": "by NVML index", "rank": "by rank", "host": "per node", "train": "by reporting rank"}
PAGE = Path(__file__).parents[3] / "docs/telemetry.md"
BEGIN, END = "| name | unit | |\n|---|---|---|\n", "| `train.<name>`"


def documented(kind: str) -> str:
    """Rows of a kind's curves, one per unit."""
    names: dict[str, list[str]] = {}
    for quantity in BY_KIND[kind]:
        if quantity.name:
            names.setdefault(quantity.unit, []).append(f"`{quantity.name}`")
    rows = [f"| {' '.join(of_unit)} | {unit} | {INDEXES[kind]} |\n" for unit, of_unit in names.items()]
    return "".join(rows).replace("|  |", "| |")


def test_the_page_lists_the_curves() -> None:
    head, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    wanted = f"{head}{BEGIN}{''.join(map(documented, BY_KIND))}{END}{tail}"
    if os.environ.get("DISTUI_WRITE"):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted, (
        "write it anew: DISTUI_WRITE=1 pytest tests/runners/telemetry/test_quantities.py"
    )


@for_each("kind", [*SAMPLES])
def test_rows_name_fields_of_the_samples(kind: str) -> None:
    fields = {field.name for field in msgspec.structs.fields(SAMPLES[kind])}
    rows = BY_KIND[kind]
    assert len({row.field for row in rows}) == len(rows)
    for row in rows:
        assert row.field in fields
        assert row.kind in ("", kind)
        assert row.column is None or row.column.plus in fields | {""}
        if row.limit:
            owner, _, limit = row.limit.partition(".")
            assert limit in SAMPLES[owner].__struct_fields__


def test_the_rows_of_a_training_are_what_a_script_may_report() -> None:
    assert {row.field for row in TRAINING} == set(FIELDS)


def test_the_page_has_the_seconds_for_which_values_hold() -> None:
    page = PAGE.read_text()
    assert f"| samples of a node | {TIMES * SAMPLE_S:.0f} s |" in page
    rows = [row for rows in BY_KIND.values() for row in rows if row.holds is Holds.PULSES]
    for row in rows:
        assert row.column is not None
        assert f"| *{row.column.id}* | {TIMES * PULSE_S:.0f} s |" in page
