"""The layouts of the overview that `Z` switches between. Pure."""

from __future__ import annotations

from msgspec import Struct


class Layout(Struct, frozen=True):
    """Panes of two columns, from the top; on a narrow terminal they are one column. The last takes the free rows."""

    left: tuple[str, ...] = ()
    right: tuple[str, ...] = ()


TRAIN = "train"
"""The layout without a choice, which follows what the run does."""

LAYOUTS: dict[str, Layout] = {
    TRAIN: Layout(),
    "cluster": Layout(("gpus", "heat", "ranks"), ("strip", "events")),
    "log": Layout(("ranks", "card"), ("log",)),
    "profile": Layout(("ranks", "strip"), ("curves",)),
}
