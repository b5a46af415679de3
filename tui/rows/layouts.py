"""The layouts of the overview that `Z` switches between. Pure."""

from __future__ import annotations

from msgspec import Struct


class Layout(Struct, frozen=True):
    """Panes from the top; the last of a column takes the free rows. Only `gpus` or `map` has something to show."""

    left: tuple[str, ...] = ()
    right: tuple[str, ...] = ()
    narrow: tuple[str, ...] = ()
    """The only column of a narrow terminal."""


TRAIN = "train"
"""The layout without a choice, which follows what the run does."""

LAYOUTS: dict[str, Layout] = {
    TRAIN: Layout(),
    "cluster": Layout(
        ("gpus", "map", "ranks", "curves"), ("strip", "events", "log"), ("gpus", "map", "ranks")
    ),
    "log": Layout(("ranks", "card", "events", "curves"), ("log",), ("ranks", "log")),
    "profile": Layout(("gpus", "ranks", "strip", "log"), ("curves",), ("strip", "curves")),
}
