"""The place of a node among the nodes of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .finding import PlanError


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of a node among the nodes of a job."""

    node: int
    """Node number. The head is 0."""
    addresses: tuple[str, ...]
    """Address of every node by number, reachable from the other nodes."""
    source: str
    """ "SkyPilot" or "the launch"."""


def seat(env: Mapping[str, str], nnodes: int, nnodes_min: int | None = None) -> Seat:
    """Return this node's seat from SkyPilot's variables. Raises PlanError if they are missing or contradict the plan."""
    if "SKYPILOT_NODE_RANK" not in env:
        raise PlanError("The node number is unknown: SKYPILOT_NODE_RANK is unset")
    addresses = tuple(env.get("SKYPILOT_NODE_IPS", "").split())
    count = _number(env, "SKYPILOT_NUM_NODES")
    if count is not None and count != len(addresses):
        raise PlanError(
            f"SKYPILOT_NUM_NODES is {count}, and SKYPILOT_NODE_IPS names {len(addresses)} nodes: the two have to agree"
        )
    node = _number(env, "SKYPILOT_NODE_RANK")
    return check_seat(Seat(node or 0, addresses, "SkyPilot"), nnodes, nnodes_min)


def given_seat(node: int, addresses: Sequence[str], nnodes: int, nnodes_min: int | None = None) -> Seat:
    """Return the seat that the launch assigned. Raises PlanError."""
    return check_seat(Seat(node, tuple(addresses), "the launch"), nnodes, nnodes_min)


def check_seat(seat: Seat, nnodes: int, nnodes_min: int | None) -> Seat:
    """Return `seat` if it fits the plan. Raises PlanError."""
    count, least = len(seat.addresses), nnodes if nnodes_min is None else nnodes_min
    if not 0 <= seat.node < count:
        raise PlanError(f"{seat.source} has an impossible node number: {seat.node} of {count} nodes")
    if not least <= count <= nnodes:
        asked = nnodes if least == nnodes else f"{least} to {nnodes}"
        raise PlanError(
            f"{seat.source} gives {count} nodes, and the plan is for {asked}: launch it with --nnodes {count}"
        )
    return seat


def _number(env: Mapping[str, str], name: str) -> int | None:
    """Return the number in a variable, or None if it is empty. Raises PlanError for other text."""
    text = env.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise PlanError(f"{name} is {text!r}, and must be a number")
    return int(text)
