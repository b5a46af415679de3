"""What a run's cluster costs, and how it is left: said wherever a run is over, or is about to be."""

from __future__ import annotations

from ...runners.model import Cluster
from ...runners.state import RunState
from ..text import cost

HOSTS = "hosts"
"""`Cluster.infra` of hosts that the user named: nobody pays for them through distui."""


def billed(state: RunState) -> Cluster | None:
    """The cluster that has to be taken down by somebody; None where there is none."""
    known = state.cluster
    if known is None or known.managed or known.down or known.infra == HOSTS or not known.name:
        return None
    return known


def remains(state: RunState, now: float | None = None) -> str:
    """What stays of the cluster after the run, and how to be rid of it, in a sentence; "" where nothing does."""
    known = billed(state)
    if known is None:
        return ""
    price = cost(known, now)
    paid = f"is billed ({price})" if price else "may be billed (SkyPilot names no price)"
    if known.state == "STOPPED":
        return f"cluster {known.name} is stopped, its disks may be billed: :down takes it away"
    if known.autostop_min is not None:
        late = f"goes down after {known.autostop_min} min without a job"
        return f"cluster {known.name} {paid} and {late}; :down takes it down now"
    return f"cluster {known.name} stays and {paid} until :down takes it down"


def price(known: Cluster, now: float | None = None) -> str:
    """What it costs, for a question about it."""
    return cost(known, now) or "unknown: SkyPilot names no price"
