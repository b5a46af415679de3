"""Places the panes of a run by `rows/layout.py`; counts their rows only if the counts may have changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from textual.widget import Widget

from ...runners.run.state import RunState
from ..rows.attempts import end_rows, event_rows
from ..rows.banner import banner_rows
from ..rows.card import card_rows
from ..rows.frame import Frame, silent
from ..rows.gpu_map import map_rows_wanted
from ..rows.layout import Arrangement, Choice, Rect, Wants, arrange, most_banner, shows_findings
from ..rows.map_cells import shown_nodes
from ..rows.rank_time import rows_wanted
from ..rows.run_status import launch_rows, launching
from ..rows.tables import gpu_rows_wanted
from .rank_strip import MOST_RANKS

MOST_GPUS = 32
"""Maximum number of the run's GPUs for a table; more are a map."""

CROWD = 24
"""Number of nodes above which the map gets the full width."""


class Measures:
    """The rows that panes could fill. Counts that samples cannot change are cached."""

    def __init__(self) -> None:
        self._counted: dict[str, tuple[Hashable, int]] = {}
        self.places: Mapping[str, str] = {}
        """Directories on the card."""

    def arranged(self, frame: Frame, width: int, height: int, flash: int, log: int) -> Arrangement:
        """Return the layout of a screen of this size; `log` are the columns that the log needs."""
        pane = frame.view.pane
        most = most_banner(height)
        above = not shows_findings(pane, frame.state.phase.ended)
        banner = len(banner_rows(frame, width, most, above))
        choice = Choice(pane, frame.view.layout, frame.view.maximised)
        return arrange(width, height, choice, self.wants(frame, log), banner, flash)

    def wants(self, frame: Frame, log: int) -> Wants:
        """Return the wanted rows for the state of the run."""
        state = frame.state
        is_launching, ended = launching(state), state.phase.ended
        gpus = 0 if ended else self._once("gpus", _shape(frame), lambda: gpu_rows_wanted(frame))
        return Wants(
            map=lambda width: self._once(
                f"map{width}", _shape(frame), lambda: map_rows_wanted(frame, width)
            ),
            launch=lambda width: len(launch_rows(frame, width)),
            end=lambda width: self._once(f"end{width}", state.version, lambda: len(end_rows(frame, width))),
            gpus=gpus if gpus <= MOST_GPUS + 2 and not silent(state) else 0,  # the map shows silent nodes
            ranks=len(state.ranks) + 1 if state.ranks else 0,
            strip=lambda most: 0 if ended else rows_wanted(_strips(state), most),
            card=lambda width: self._once(
                f"card{width}",
                (state.version, len(self.places), bool(state.training), len(state.checkpoints)),
                lambda: len(card_rows(frame, width, self.places)),
            ),
            events=lambda width: self._once(
                f"events{width}",
                (state.version, len(state.notices), len(state.checkpoints)),
                lambda: len(event_rows(frame, width - 1, False)[0]),
            ),
            log=log,
            crowded=len(shown_nodes(state)) > CROWD,
            launching=is_launching,
            ended=ended,
        )

    def _once(self, name: str, key: Hashable, count: Callable[[], int]) -> int:
        counted = self._counted.get(name)
        if counted is None or counted[0] != key:
            counted = self._counted[name] = (key, count())
        return counted[1]


def _strips(state: RunState) -> int:
    """Return the rows of ranks × time, ranks or nodes; 0 before any step or wait is known."""
    samples = [rank.sample for rank in state.ranks.values() if rank.sample is not None]
    if all(each.step is None and each.wait_percent is None for each in samples):
        return 0
    return len(state.nodes) if len(state.ranks) > MOST_RANKS else len(state.ranks)


def _shape(frame: Frame) -> Hashable:
    """Return the inputs that determine the height of a map and of the GPU table."""
    state = frame.state
    gpus = tuple(len(node.gpus) for node in state.nodes.values())
    sampled = any(rank.sample is not None for rank in state.ranks.values())
    return (state.attempt, len(state.ranks), gpus, len(shown_nodes(state)), sampled)


def place(panes: Mapping[str, Widget], rects: Mapping[str, Rect]) -> None:
    """Show each pane in its rectangle; hide panes without one."""
    for name, pane in panes.items():
        rect = rects.get(name)
        pane.display = rect is not None
        if rect is not None:
            pane.styles.offset = (rect.x, rect.y)
            pane.styles.width = rect.width
            pane.styles.height = rect.height
