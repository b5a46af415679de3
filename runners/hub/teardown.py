"""What can still be done with the cluster of a run that has ended, when there is no hub any more."""

from __future__ import annotations

import time

import msgspec

from .. import run_directories
from ..journal import Journal
from ..model import HUB, Cluster, ClusterChanged, Down, SetAutostop, Stamped
from . import launch_order
from .launch_order import CloudError
from .skypilot_client import Sky


async def do(entry: run_directories.Entry, command: Down | SetAutostop) -> tuple[bool, str]:
    """Do it and write it down; whether it worked, and a sentence."""
    order = launch_order.read(entry.path)
    if order is None:
        return False, f"{entry.record.name} has no cluster"
    before = entry.state().cluster or Cluster(name=order.cluster)
    sky = Sky(order.python)
    try:
        match command:
            case Down(cluster=name):
                if name != order.cluster:
                    return (
                        False,
                        f"the cluster of this run is {order.cluster}, not {name!r}: nothing was done",
                    )
                await sky.call("down", cluster=name)
                after, text = (
                    msgspec.structs.replace(before, state="", down=True),
                    f"cluster {name} is down",
                )
            case SetAutostop(minutes=minutes):
                await sky.call("autostop", cluster=order.cluster, minutes=minutes)
                after = msgspec.structs.replace(before, autostop_min=minutes)
                text = f"cluster {order.cluster} {stays(minutes)}"
    except CloudError as error:
        return False, str(error)
    finally:
        await sky.close()
    _write(entry, after)
    return True, text


def stays(minutes: int | None) -> str:
    """How long a cluster stays, as the rest of a sentence."""
    if minutes is None:
        return "stays until it is taken down"
    return f"goes down after {minutes} {'minute' if minutes == 1 else 'minutes'} without a job"


def _write(entry: run_directories.Entry, cluster: Cluster) -> None:
    journal = Journal(entry.path)
    last = max((stamped.seq for stamped in journal.replay()), default=0)
    journal.append(Stamped(time.time(), ClusterChanged(cluster), last + 1, HUB))
    journal.close()
