"""Whether all ranks do the same: with parameters in shards, a pass or a look at a parameter waits for every rank.

Each rank counts such events. What scripts often do on rank 0 alone asks first what the others do as that of the same
number: an evaluation is then made alone, anything else stops the run with both lines. Before each optimizer step all
must have done the same, and a rank that stands still for long asks the others; so no rank waits for ever.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from .adopted import AdoptionError, own_call, where
from .peer_service import PeerService

COLLECTIVES = (
    "barrier",
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "broadcast_object_list",
    "all_gather_object",
    "gather_object",
)
"""Functions of torch.distributed by which scripts wait for each other."""
EVALUATION, VALUES = "evaluation", "use of a parameter's values"
ALONE = EVALUATION, VALUES
"""What a rank may do alone: it then comes to what the others do afterwards."""
RETRY_S = 0.02
"""Seconds until a rank looks again whether the others have come to what it is at."""
LOOK_S = 2.0
"""Seconds between two looks whether this rank stands still."""
STILL_S = 15.0
"""Seconds without an event after which the others are asked for theirs."""
KEPT = 4096
"""Events that are kept: ranks are never so far apart."""


class Shared(NamedTuple):
    """Something that waits for the other ranks."""

    kind: str
    place: str
    """Its line in the script."""
    history: int
    """A checksum of the kinds up to here."""

    def __str__(self) -> str:
        return f"{self.kind} at {self.place}"


class SharedEvents:
    """Those of this rank, from the first; old ones are forgotten."""

    def __init__(self) -> None:
        self._kept: deque[Shared] = deque(maxlen=KEPT)
        self.count = 0

    def add(self, kind: str, place: str = "") -> None:
        """One more; at the line that is executed, unless another is given."""
        history = zlib.crc32(kind.encode(), self.last.history if self.count else 0)
        self._kept.append(Shared(kind, place or where(), history))
        self.count += 1

    def take_back(self) -> None:
        """The last one does not count."""
        self._kept.pop()
        self.count -= 1

    @property
    def last(self) -> Shared:
        """The newest. Raises IndexError where there is none."""
        return self._kept[-1]

    def text(self, number: int) -> str:
        """Of the event of a number, from 1. Raises IndexError for one that is forgotten."""
        return str(self._kept[number - self.count - 1])

    def newest(self) -> dict[int, str]:
        """Number → text of the last ones."""
        return {number: self.text(number) for number in range(max(1, self.count - 15), self.count + 1)}


SHARDS = "under fsdp2 every rank has to, as each has a part of the parameters; take zero1"


class Agreement:
    """The events of this rank beside those of the others."""

    def __init__(self, service: PeerService, why: str = SHARDS) -> None:
        """`why`: end of the sentence of a rank that does something else."""
        self._service, self._events, self._why = service, SharedEvents(), why
        self._group = dist.new_group(backend="gloo")
        self.inside = 0
        """Above 0 while this rank does what all ranks are known to do."""
        self._asks = False
        """Whether the main thread is asking what the others do."""
        service.serve("events", lambda: self._events.count, self._events.text, exact=False)
        service.start("distui-agreement", self._compare)

    @contextlib.contextmanager
    def zone(self) -> Iterator[None]:
        """What is done here, all ranks do."""
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    def outside(self) -> bool:
        """Whether it is the script itself that does something now."""
        return not self.inside and threading.current_thread() is threading.main_thread()

    def note(self, kind: str, place: str = "") -> None:
        """An event that waits for the other ranks."""
        self._events.add(kind, place)

    def others(self, kind: str) -> tuple[int, str] | None:
        """Another rank and what it is at, where that is something else than this event, which one rank might make alone.

        None where all make it: it counts then. Waits until that shows.
        """
        self._asks = True
        try:
            self.note(kind)
            other = self._differing(self._events.count, kind)
            if other is not None:
                self._events.take_back()
            return other
        finally:
            self._asks = False

    def _differing(self, number: int, kind: str) -> tuple[int, str] | None:
        """A rank whose event of this number is of another kind, and that event."""
        for rank in range(self._service.world):
            if rank == self._service.rank:
                continue
            try:
                (event,) = self._service.ask("events", number, number, [rank])
            except AdoptionError:  # it has ended
                event = "end"
            if event.partition(" at ")[0] != kind:
                return rank, event
        return None

    def need(self, kind: str) -> None:
        """An event that no rank can make alone. Raises AdoptionError where one does."""
        other = self.apart(kind)
        if other is not None:
            raise self.refusal(other, kind)

    def apart(self, kind: str) -> tuple[int, str] | None:
        """As `others`, which of several events in a row is asked for the first."""
        if self._events.count and self._events.last.kind == kind:
            self.note(kind)
            return None
        other = self.others(kind)
        while other is not None and other[1].startswith(ALONE):
            time.sleep(RETRY_S)
            other = self.others(kind)
        return other

    def refusal(self, other: tuple[int, str], kind: str) -> AdoptionError:
        """Of an event that this rank makes alone."""
        return AdoptionError(self._sentence(other, f"{kind} at {where()}"))

    def _sentence(self, other: tuple[int, str], own: str) -> str:
        return (
            f"rank {other[0]} is at its {other[1]}, and rank {self._service.rank} at its {own}: {self._why}"
        )

    def same(self, kind: str) -> None:
        """An event before which all ranks must have done the same since the beginning. Raises AdoptionError."""
        self.note(kind)
        last = self._events.last
        sums = torch.tensor([last.history, -last.history, self._events.count, -self._events.count])
        with self.zone():
            dist.all_reduce(sums, dist.ReduceOp.MAX, group=self._group)
            if sums[0] == -sums[1] and sums[2] == -sums[3]:
                return
            theirs: list[dict[int, str]] = [{} for _ in range(self._service.world)]
            dist.all_gather_object(theirs, self._events.newest(), group=self._group)
        own = theirs[self._service.rank]
        apart = (
            (number, rank)
            for number in sorted(own)
            for rank, events in enumerate(theirs)
            if number in events and events[number].partition(" at ")[0] != own[number].partition(" at ")[0]
        )
        number, rank = next(apart, (self._events.count, 0))
        raise AdoptionError(self._sentence((rank, theirs[rank].get(number, "end")), own[number]))

    def equal(self, numbers: list[int]) -> bool:
        """Whether all ranks give the same ones, in an event that all make."""
        sums = torch.tensor([*numbers, *(~each for each in numbers)])
        dist.all_reduce(sums, dist.ReduceOp.MAX, group=self._group)
        return bool(torch.equal(sums[: len(numbers)], ~sums[len(numbers) :]))

    def _compare(self) -> None:
        """Stop this rank where it waits for what another does not do."""
        seen, since, asked = 0, time.monotonic(), 0
        while not self._service.ended(LOOK_S):
            if self._asks or self._events.count != seen:
                seen, since = self._events.count, time.monotonic()
            elif seen and seen != asked and time.monotonic() - since > STILL_S:
                asked, event = seen, self._events.last
                with contextlib.suppress(
                    RuntimeError
                ):  # the other rank, or the store, is gone: torch says it
                    other = self._differing(seen, event.kind)
                    if other is not None and other[1].startswith(ALONE):
                        asked = 0
                        continue
                    there = not self._asks and self._events.count == seen and self._events.last is event
                    if other is not None and there and not self._service.ended(0):
                        stop(self._sentence(other, str(event)))

    def watch(self) -> None:
        """Note the collectives that the script calls itself, of all ranks."""
        for name in COLLECTIVES:
            noted = self._noted(name, getattr(dist, name))
            setattr(dist, name, noted)
            setattr(dist.distributed_c10d, name, noted)

    def _noted(self, name: str, theirs: Callable[..., Any]) -> Any:
        signature = inspect.signature(theirs)

        @functools.wraps(theirs)
        def called(*args: Any, **named: Any) -> Any:
            if self.outside() and own_call():
                if any(isinstance(each, DTensor) for each in (*args, *named.values())):
                    raise AdoptionError(
                        f"{where()} calls {name}() with a parameter, or a gradient, of which fsdp2 has parts: take zero1"
                    )
                group = signature.bind(*args, **named).arguments.get("group")
                if group is None or group is dist.group.WORLD:
                    self.note(name)
            return theirs(*args, **named)

        return called


def stop(sentence: str) -> None:
    """End this process as if its main thread, which cannot be interrupted, had raised."""
    try:
        raise AdoptionError(sentence)
    except AdoptionError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
