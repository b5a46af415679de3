"""What a script keeps of parameters that fully_shard replaces: sets and dicts of them or their ids get the new ones.

Scripts choose parameters so for their optimizer's groups: `[p for p in model.parameters() if id(p) in no_decay]`. With
the old ids all of them would be in the wrong group, without a sign.
"""

from __future__ import annotations

import gc
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch

from .adopted import AdoptionError, where

KINDS = (set, frozenset, dict, OrderedDict, defaultdict, list)
MOST = 1_000_000
"""Members of a container that is looked into."""


def _kept() -> Iterator[Any]:
    """Containers of this process. The collector has no dicts of mere numbers: what holds them does."""
    objects = gc.get_objects()
    yield from (each for each in objects if type(each) in KINDS)
    yield from (
        each for each in gc.get_referents(*objects) if type(each) is dict and not gc.is_tracked(each)
    )
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield from (each for each in list(frame.f_locals.values()) if type(each) is dict)
        frame = frame.f_back


def _changed(members: Iterable[Any], new: Mapping[int, Any]) -> list[Any] | None:
    """Members with new parameters and ids in place of old ones; None where there are none."""
    changed, there = [], False
    for each in members:
        if type(each) is int and each in new:
            each, there = id(new[each]), True
        elif isinstance(each, torch.nn.Parameter) and id(each) in new:
            each, there = new[id(each)], True
        changed.append(each)
    return changed if there else None


def repoint(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """By names: the parameters that were, and are. Raises AdoptionError for a set that cannot be changed."""
    new = {id(parameter): after[name] for name, parameter in before.items()}
    done = {id(new)}
    for kept in _kept():
        if id(kept) in done or not 0 < len(kept) <= MOST:
            continue
        first = next(iter(kept))
        if type(first) is int or (isinstance(first, torch.nn.Parameter) and type(kept) is not list):
            done.add(id(kept))
            members = _changed(list(kept), new)
            if members is not None:
                _exchange(kept, members)


def _exchange(kept: Any, members: list[Any]) -> None:
    if isinstance(kept, frozenset):
        raise AdoptionError(
            f"fsdp2 cannot be applied at {where()}: the script keeps parameters, or their ids, in a frozenset, and they "
            "become others; take zero1"
        )
    if isinstance(kept, list):
        kept[:] = members
    elif isinstance(kept, set):
        kept.clear()
        kept.update(members)
    else:
        values = list(kept.values())
        kept.clear()
        kept.update(zip(members, values))
