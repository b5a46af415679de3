"""An event as one node's agent tells it → as it stands in the journal of all nodes. Pure."""

from __future__ import annotations

from msgspec import MsgspecError, Raw, structs

from ..diagnosis import live
from ..logs.files import whole_id
from ..model import (
    AttemptEnded,
    AttemptStarted,
    CaughtUp,
    CommandDone,
    CommandReceived,
    Event,
    FindingCleared,
    FindingRaised,
    LogGrew,
    NcclChanged,
    NcclTick,
    Pulse,
    PulseTick,
    RankChanged,
    RunCreated,
    Stamped,
)

SMALLEST_SHIFT_S = 0.5
"""Clocks that differ by less are taken for the same one: what travels takes time, too, and nodes keep theirs by NTP."""
SKEW_S = 2.0
"""Clocks that differ by more are worth a finding."""


def sub_id(command: str, node: int) -> str:
    """Id under which a node is asked for its part of a command."""
    return f"{command}.{node}"


def shift_of(told: float, now: float) -> float:
    """Seconds to add to a node's times, from the time it told and ours when that arrived; 0.0 where it told none."""
    difference = now - told
    return difference if told and abs(difference) >= SMALLEST_SHIFT_S else 0.0


def merge(stamped: Stamped, node: int, shift: float, host: str = "") -> Stamped | None:
    """The event with its node, our clock's time, and its seq as `source`; None for what only that link needs.

    `host`: what the node is called here, by which ssh finds it.
    """
    event = stamped.event
    if isinstance(event, CaughtUp):
        return None
    if isinstance(event, CommandReceived | CommandDone) and event.id.endswith(f".{node}"):
        return None  # the hub itself asked, and says in one line what came of it
    if isinstance(event, RunCreated) and host:
        event = structs.replace(event, host=host)
    return Stamped(stamped.time + shift, _placed(event, node, shift), 0, node, stamped.seq)


def _placed(event: Event, node: int, shift: float) -> Event:
    """The fields of an event that name a node, a file or a time."""
    if isinstance(event, AttemptStarted):
        return structs.replace(
            event, ranks=tuple(structs.replace(place, node=node) for place in event.ranks)
        )
    if isinstance(event, FindingRaised):
        return FindingRaised(
            structs.replace(event.finding, node=node, since=_moved(event.finding.since, shift))
        )
    if isinstance(event, FindingCleared):
        return structs.replace(event, node=node)
    if isinstance(event, LogGrew):
        return LogGrew({whole_id(file, node): size for file, size in event.sizes.items()})
    if isinstance(event, AttemptEnded) and event.first_cause is not None:
        at = _moved(event.first_cause.at, shift)
        return structs.replace(event, first_cause=structs.replace(event.first_cause, node=node, at=at))
    return _timed(event, shift) if shift else event


def _timed(event: Event, shift: float) -> Event:
    """The times of an event that names no node."""
    if isinstance(event, RankChanged):
        return structs.replace(event, at=_moved(event.at, shift))
    if isinstance(event, PulseTick):
        return PulseTick(tuple(_shifted(pulse, shift) for pulse in event.pulses))
    if isinstance(event, NcclChanged):
        return structs.replace(event, until=_moved(event.until, shift))
    if isinstance(event, NcclTick):
        return structs.replace(event, document=_later(event.document, shift))
    return event


def _moved(at: float | None, shift: float) -> float | None:
    return None if at is None else at + shift


def _later(document: Raw, shift: float) -> Raw:
    """What NCCL's logs say, by our clock; as it is, where it is of a version that this one does not read."""
    try:
        facts = live.decode(bytes(document))
    except MsgspecError:
        return document
    return Raw(live.encode(live.shifted(facts, shift)))


def _shifted(pulse: Pulse, shift: float) -> Pulse:
    """By our clock, so that arrivals of ranks on several nodes can be compared."""
    return structs.replace(
        pulse,
        at=pulse.at + shift,
        last_step=_moved(pulse.last_step, shift),
        active=tuple(structs.replace(one, created=one.created + shift) for one in pulse.active),
        recent=tuple(structs.replace(one, created=one.created + shift) for one in pulse.recent),
    )
