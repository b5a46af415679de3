"""Nodes that SkyPilot brings: those it would take, what a run's cluster costs, and how it is left. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...runners.formatting import NA, plural
from ...runners.model import Cluster
from ...runners.state import RunState
from .glyphs import Cell, Row, fit
from .plain import table

if TYPE_CHECKING:
    from ...runners.hub.sky_process import Candidate

# -----------------------------------------------------------------------------------------------------------
# The nodes that SkyPilot would take, as rows.


_WIDTHS = (("infra", 20), ("instance", 18), ("CPUs", 5), ("GB", 5), ("GPUs", 9), ("$/h", 8))
_RIGHT = ("CPUs", "GB", "$/h")


def head_row() -> Row:
    """The names of the columns."""
    return tuple((f"{fit(name, width, right=name in _RIGHT)} ", "dim") for name, width in _WIDTHS)


def _texts(offer: Candidate) -> tuple[str, ...]:
    price = NA if offer.price_per_hour is None else f"{offer.price_per_hour:.2f}"
    texts = (offer.infra, offer.instance, offer.vcpus, offer.memory_gb, offer.gpus, price)
    return tuple(text or "-" for text in texts)


def candidate_rows(offers: Sequence[Candidate]) -> list[Row]:
    """As SkyPilot orders them: one kind of nodes each, with its price for all of them."""
    return [_candidate_row(offer) for offer in offers]


def _candidate_row(offer: Candidate) -> Row:
    cells: list[Cell] = []
    for text, (name, width) in zip(_texts(offer), _WIDTHS, strict=True):
        style = "stale" if text in ("-", NA) else "head" if offer.chosen else "text"
        cells.append((f"{fit(text, width, right=name in _RIGHT)} ", style))
    return (*cells, ("first", "ok")) if offer.chosen else tuple(cells)


def candidate_table(offers: Sequence[Candidate]) -> list[str]:
    """The same as text, nothing cut."""
    names = [name for name, _ in _WIDTHS]
    rows = [(*_texts(offer), "first" if offer.chosen else "") for offer in offers]
    return table([(*names, ""), *rows], frozenset(map(names.index, _RIGHT)))


# -----------------------------------------------------------------------------------------------------------
# What a run's cluster costs, and how it is left: said wherever a run is over, or is about to be.


HOSTS = "hosts"
"""`Cluster.infra` of hosts that the user named: nobody pays for them through distui."""


def billed(state: RunState) -> Cluster | None:
    """The cluster that has to be taken down by somebody; None where there is none."""
    cluster = state.cluster
    if cluster is None or cluster.managed or cluster.down or cluster.infra == HOSTS or not cluster.name:
        return None
    return cluster


def remains(state: RunState, now: float | None = None) -> str:
    """What stays of the cluster after the run, and how to be rid of it, in a sentence; "" where nothing does."""
    cluster = billed(state)
    if cluster is None:
        return ""
    price = cost(cluster, now)
    paid = f"is billed ({price})" if price else "may be billed (SkyPilot names no price)"
    if cluster.state == "STOPPED":
        return f"cluster {cluster.name} is stopped, its disks may be billed: :down takes it away"
    if cluster.autostop_min is not None:
        late = f"goes down after {cluster.autostop_min} min without a job"
        return f"cluster {cluster.name} {paid} and {late}; :down takes it down now"
    return f"cluster {cluster.name} stays and {paid} until :down takes it down"


def price(cluster: Cluster, now: float | None = None) -> str:
    """What it costs, for a question about it."""
    return cost(cluster, now) or "unknown: SkyPilot names no price"


def given_up(state: RunState, now: float | None = None) -> str:
    """What giving the launch up does, in a sentence."""
    cluster = state.cluster
    if cluster is not None and cluster.managed:
        return "cancels the managed job; SkyPilot takes its cluster down"
    if cluster is not None and cluster.infra == HOSTS:
        return "gives the launch up: what was started on the hosts is ended"
    left = remains(state, now) or (
        "what SkyPilot has brought up by then stays and is billed until `distui down` takes it down"
    )
    return f"gives the launch up; {left}"


def recovered(cluster: Cluster) -> str:
    """How often SkyPilot recovered a managed job; "" for never."""
    return f"recovered {plural(cluster.recoveries, 'time')}" if cluster.recoveries else ""


def cost(cluster: Cluster, now: float | None = None) -> str:
    """Price an hour, and so far; "" where SkyPilot names no price."""
    if cluster.price_per_hour is None:
        return ""
    price = f"${cluster.price_per_hour:.2f}/h"
    if cluster.since is None:
        return price
    until = cluster.until or (time.time() if now is None else now)
    return f"{price}, ${cluster.price_per_hour * max(0.0, until - cluster.since) / 3600:.2f} so far"
