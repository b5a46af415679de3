"""How the panes of the run screen share the terminal."""

from __future__ import annotations

from dataclasses import dataclass

SMALLEST = (60, 15)
"""Columns and rows below which only a summary is shown."""

TALL = 30
"""From this many rows on, panes have a whole frame; below, only a title line."""

WIDE = 160
"""From this many columns on, the log stands beside the rest."""

SIDE = 90
"""Most columns of a log that stands beside."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Heights in rows, frames included; 0 hides a pane. The log (or `main`) takes what is left."""

    small: bool = False
    framed: bool = False
    beside: int = 0
    """Columns of the log where it stands beside the rest; 0 where it stands below."""
    banner: int = 1
    heat: int = 0
    table: int = 0
    events: int = 0
    main: str = "log"
    """The pane that takes the rest: "log", "table", "events", "findings" or "nccl"."""


def side_width(width: int) -> int:
    """Columns of the log where it stands beside the rest."""
    return min(SIDE, width * 9 // 20) if width >= WIDE else 0


def plan_layout(
    width: int,
    height: int,
    pane: str,
    heat_rows: int,
    ranks: int,
    banner: int,
    ended: bool = False,
    launching: bool = False,
) -> Layout:
    """What each pane gets; `heat_rows` and `ranks` are the rows that map and table would like.

    After the end the map's place holds the report, and before the first rank the launch: both may take more.
    """
    if width < SMALLEST[0] or height < SMALLEST[1]:
        return Layout(small=True)
    framed = height >= TALL
    extra = 2 if framed else 1
    shown = max(1, min(banner, 6 if framed else 2))
    if pane in ("log", "events", "findings", "nccl"):
        return Layout(framed=framed, banner=1 if pane == "findings" else shown, main=pane)
    if pane == "ranks":
        return Layout(framed=framed, banner=shown, main="table")
    room = height - 2 - shown  # the status line and the footer
    if width >= WIDE:
        heat = min(heat_rows + extra, room // 2)
        table = 0 if launching else min(ranks + 1 + extra, room - heat)
        events = room - heat - table
        if events < 2 + extra:
            table, events = table + events, 0
        return Layout(
            framed=framed, beside=side_width(width), banner=shown, heat=heat, table=table, events=events
        )
    if launching:
        return Layout(framed=framed, banner=shown, heat=min(heat_rows + extra, max(3, room * 2 // 3)))
    heat = min(heat_rows + extra, max(3, room // 2 if ended else room // 3))
    least_log = max(5, room // 4 if ended else room // 3)
    table = max(min(ranks + 1 + extra, room - heat - least_log), 0)
    return Layout(framed=framed, banner=shown, heat=heat, table=table)
