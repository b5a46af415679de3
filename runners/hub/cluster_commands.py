"""Commands about the cluster of a run that SkyPilot launched."""

from __future__ import annotations

from msgspec import structs

from ..node.local_agent import with_link
from ..run import run_directories
from ..run.commands import Down, SetAutostop
from ..run.errors import RunError
from ..run.model import Cluster, CommandDone
from ..run.wire.client import new_id
from . import launch_order, sky_cloud


def cluster_of(entry: run_directories.Entry) -> Cluster:
    """Return the cluster of a run. Raises RunError if it has none."""
    launched = launch_order.read(entry.path)
    if launched is None:
        raise RunError(f"run {entry.record.name} has no cluster: it was not launched through SkyPilot")
    if launched.managed:
        raise RunError(f"run {entry.record.name} is a managed job: SkyPilot takes its cluster down itself")
    return structs.replace(entry.state().cluster or Cluster(), name=launched.cluster)


async def tear_down(entry: run_directories.Entry, name: str) -> CommandDone:
    """Take a run's cluster down. `name`: its name, as a confirmation. Raises RunError."""
    cluster, command = cluster_of(entry), Down(new_id(), name)
    if cluster.down:
        return CommandDone(command.id, True, f"cluster {cluster.name} is down already")
    if name != cluster.name:
        raise RunError(f"{name!r} is not the name of the cluster ({cluster.name}): nothing was done")
    return await _carried_out(entry, command)


async def set_autostop(entry: run_directories.Entry, minutes: int | None) -> CommandDone:
    """Set the idle minutes before a run's cluster is taken down; None for never. Raises RunError."""
    cluster = cluster_of(entry)
    if cluster.down:
        raise RunError(f"cluster {cluster.name} is down")
    return await _carried_out(entry, SetAutostop(new_id(), minutes))


async def _carried_out(entry: run_directories.Entry, command: Down | SetAutostop) -> CommandDone:
    """Send a command through the hub if the run is live, else directly to SkyPilot. Raises RunError."""
    if run_directories.ended(entry):
        return CommandDone(command.id, *await sky_cloud.carry_out(entry, command))
    return await with_link(entry.record.run, lambda _, link: link.send(command))
