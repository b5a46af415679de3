"""Whether NCCL_DEBUG can change while the ranks go on, and why not."""

from __future__ import annotations

from dataclasses import dataclass

from ...runners.state import RunState
from .cells import numbers


@dataclass(frozen=True, slots=True)
class Ways:
    """What is possible now."""

    live: bool
    text: str
    """One sentence for the dialog."""


def ways(state: RunState) -> Ways:
    """Live where every rank's NCCL allows it; an honest restart otherwise."""
    if state.plan is not None and state.plan.backend == "gloo":
        return Ways(False, "this run uses gloo: NCCL_DEBUG changes nothing here")
    unknown = [number for number, rank in state.ranks.items() if rank.nccl_live is None]
    refused = [number for number, rank in state.ranks.items() if rank.nccl_live is False]
    versions = sorted({rank.nccl_version for rank in state.ranks.values() if rank.nccl_version})
    version = f"NCCL {', '.join(versions)}" if versions else "this NCCL"
    if refused:
        return Ways(
            False,
            f"{version} cannot change it live on ranks {numbers(refused)} (2.24 or newer can): restart",
        )
    if unknown and len(unknown) == len(state.ranks):
        return Ways(False, "no rank has loaded NCCL yet, or the hook is off: only a restart can change it")
    if unknown:
        return Ways(True, f"{version} changes it live; not yet known for ranks {numbers(unknown)}")
    if not state.ranks:
        return Ways(False, "no rank has started yet")
    return Ways(True, f"{version} changes it live on every rank")
