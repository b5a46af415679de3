"""The plan of a launch request, whatever its place; starting it is a method of what comes back."""

from __future__ import annotations

from . import hosts, sky, this_machine
from .request import LaunchRequest, OnHosts, OnSky, Prepared


def prepare(launch: LaunchRequest) -> Prepared:
    """Plan a run; nothing is started. Raises RunError and PresetError."""
    if isinstance(launch.place, OnHosts):
        return hosts.prepare(launch, launch.place)
    if isinstance(launch.place, OnSky):
        return sky.prepare_task(launch, launch.place) if launch.task else sky.prepare(launch, launch.place)
    return this_machine.prepare(launch) if launch.command is None else this_machine.prepare_command(launch)
