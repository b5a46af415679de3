"""Stacks of many ranks as one text: equal ones together, the largest group first. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...runners.diagnosis.stacks import Group, main_frames, merged
from ...runners.logs.clean import clean_text
from . import glyphs
from .cells import Row, fit, numbers, plural

_PACKAGES = re.compile(r"/(?:site|dist)-packages/|/lib/python\d\.\d+/")


def stack_title(data: Mapping[str, str]) -> str:
    """How many ranks answered, and in how many places they are."""
    groups = _groups(data)
    return f"Where {plural(len(data), 'rank')} are: {plural(len(groups), 'place')}"


def stack_rows(data: Mapping[str, str]) -> list[Row]:
    """A group after the other; where the ways part is marked."""
    rows: list[Row] = []
    for group in _groups(data):
        rows += [*_group_rows(group, data), ()]
    return rows[:-1]


def _groups(data: Mapping[str, str]) -> list[Group]:
    return merged({int(rank): text for rank, text in data.items() if rank.isdecimal()})


def _group_rows(group: Group, data: Mapping[str, str]) -> list[Row]:
    many = len(group.ranks)
    head = (
        f"{plural(many, 'rank')} here: {numbers(group.ranks)}"
        if many > 1
        else f"rank {group.ranks[0]} alone"
    )
    rows: list[Row] = [((head, "head"),)]
    if not group.frames:
        text = data.get(str(group.ranks[0]), "").strip()
        told = (
            clean_text(text.splitlines()[0]) if text and not main_frames(text) else "no Python runs there"
        )
        return [*rows, ((f"    {told}", "dim"),)]
    parted = len(group.frames) - group.shared - 1
    edge = min(24, max(len(frame.rpartition(" ")[2]) for frame in group.frames)) + 2
    for at, frame in enumerate(group.frames):
        where, _, function = clean_text(frame).rpartition(" ")
        mark = glyphs.CURSOR if group.shared and at == parted else " "
        ink = "dim" if group.shared and at > parted else "text"
        rows.append(((f"  {mark} ", "warn"), (fit(function, edge), ink), (_end_of(where), "dim")))
    return rows


def _end_of(where: str, width: int = 34) -> str:
    """File and line: of a package what stands in it, of a long path the end, because the line stands there."""
    inside = _PACKAGES.split(where)[-1]
    return inside if len(inside) <= width else f"…{inside[1 - width :]}"
