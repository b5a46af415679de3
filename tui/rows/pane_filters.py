"""The filters of the panes of a run: ranks, GPUs, findings, events. Pure."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from msgspec import Struct

from ...presets.finding import SEVERITIES
from ...runners.diagnosis.rank_activity import Now
from ...runners.run.model import RankPhase
from .columns import GpuRow, RankRow, TableRow
from .findings import Item
from .frame import Frame, ViewOptions
from .list_filter import FilterField, FilterGrammar, Value
from .map_filter import MAP


def _value(of: str, name: str) -> Callable[[Any], tuple[Value, ...]]:
    """Return a reader of one value of a GPU or of the sample of a rank, which may be unknown."""
    part = attrgetter(of)
    return lambda row: (getattr(part(row), name, None),)


def _memory_percent(row: TableRow) -> tuple[Value, ...]:
    gpu = row.gpu
    if gpu is None or gpu.mem_used is None or not gpu.mem_total:
        return (None,)
    return (100 * gpu.mem_used / gpu.mem_total,)


STATES = (*map(str, RankPhase), *(str(now) for now in Now if now is not Now.PHASE))
"""Words of `state:`: the phase of the process, and what the rank does."""

RANKS: FilterGrammar[RankRow] = FilterGrammar(
    {
        "rank": FilterField("number", lambda row: (row.rank.place.rank,), "rank:0-7"),
        "node": FilterField("host", lambda row: (row.where,), "node:c1"),
        "state": FilterField(
            "text", lambda row: (f"{row.rank.phase} {row.doing.now}",), "state:failed", STATES
        ),
        "util": FilterField("percent", _value("gpu", "util"), "util<50"),
        "mem": FilterField("percent", _memory_percent, "mem>90"),
        "temp": FilterField("number", _value("gpu", "temp_c"), "temp>80"),
        "power": FilterField("number", _value("gpu", "power_w"), "power<300"),
        "gpu": FilterField("number", lambda row: (row.gpu_index,), "gpu:0-3"),
        "step": FilterField("number", _value("sample", "step"), "step<1000"),
        "pace": FilterField("number", _value("sample", "step_s"), "pace>0.5"),
        "wait": FilterField("percent", _value("sample", "wait_percent"), "wait>30"),
        "cpu": FilterField("percent", _value("sample", "cpu_percent"), "cpu<10"),
        "log": FilterField("time", _value("sample", "log_age_s"), "log>1m"),
        "exit": FilterField("number", lambda row: (row.rank.exit_code,), "exit!=0"),
    },
    lambda row: (f"rank {row.rank.place.rank}", row.where, str(row.rank.phase), row.doing.text),
)


def _throttle(row: GpuRow) -> tuple[Value, ...]:
    reasons = None if row.gpu is None else row.gpu.throttle
    return (None,) if reasons is None else reasons


GPUS: FilterGrammar[GpuRow] = FilterGrammar(
    {
        "gpu": FilterField("number", lambda row: (row.index,), "gpu:0-3"),
        "util": FilterField("percent", _value("gpu", "util"), "util<50"),
        "rank": FilterField("number", lambda row: row.ranks, "rank:0-7"),
        "node": FilterField("host", lambda row: (row.where,), "node:c1"),
        "mem": FilterField("percent", _memory_percent, "mem>90"),
        "temp": FilterField("number", _value("gpu", "temp_c"), "temp>80"),
        "power": FilterField("number", _value("gpu", "power_w"), "power<300"),
        "throttle": FilterField("text", _throttle, "throttle:thermal"),
    },
    lambda row: (
        f"GPU {row.index}",
        row.where,
        row.name,
        "lost" if row.lost else "",
        *(f"rank {rank}" for rank in row.ranks),
    ),
)

FINDINGS: FilterGrammar[Item] = FilterGrammar(
    {
        "severity": FilterField("text", lambda item: (item.first.severity,), "severity:error", SEVERITIES),
        "role": FilterField("text", lambda item: (item.first.role,), "role:cause"),
        "id": FilterField("text", lambda item: (item.first.id,), "id:hang*"),
        "rank": FilterField("number", lambda item: item.ranks, "rank:0-7"),
        "node": FilterField("number", lambda item: (item.first.node,), "node:1"),
    },
    lambda item: [text for each in item.findings for text in (each.id, each.text, each.role)],
)


class EventText(Struct, frozen=True):
    """One event, as its filter sees it."""

    at: float
    """Unix seconds."""
    text: str
    age_s: float


EVENTS: FilterGrammar[EventText] = FilterGrammar(
    {"age": FilterField("time", lambda event: (event.age_s,), "age<10m")}, lambda event: (event.text,)
)


class PaneFilter(Struct, frozen=True):
    field: str
    """Its field in ViewOptions."""
    grammar: FilterGrammar[Any]


PANE_FILTERS: dict[str, PaneFilter] = {
    "ranks": PaneFilter("rank_filter", RANKS),
    "gpus": PaneFilter("gpu_filter", GPUS),
    "map": PaneFilter("map_filter", MAP),
    "findings": PaneFilter("finding_filter", FINDINGS),
    "events": PaneFilter("event_filter", EVENTS),
}
"""Filter per name of a pane."""


def filter_changes(view: ViewOptions, pane: str, text: str) -> dict[str, str]:
    """Return the changed fields of the view after another filter of a pane.

    A filter of the map also filters the ranks, until the user filters them differently; removing either removes both.
    """
    changes = {PANE_FILTERS[pane].field: text}
    has_one_filter = view.rank_filter == view.map_filter
    if has_one_filter and (pane == "map" or (pane == "ranks" and not text)):
        changes |= {PANE_FILTERS[each].field: text for each in ("map", "ranks")}
    return changes


def filter_note(frame: Frame, pane: str, shown: int, total: int) -> str:
    """Return the filter for the title of a pane, with the number of rows that match; "" without one."""
    text = getattr(frame.view, PANE_FILTERS[pane].field)
    return f" · /{text}: {shown} of {total}" if text else ""


def fitting_events(frame: Frame, happened: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return the events that match the filter of their pane."""
    if not frame.view.event_filter:
        return happened
    events = [EventText(at, text, max(0.0, frame.now - at)) for at, text in happened]
    return [(event.at, event.text) for event in EVENTS.fitting(events, frame.view.event_filter)]
