"""The position and size of each pane, for a given terminal size. Pure.

`arrange` returns rectangles; a pane without a rectangle is hidden. The most important panes get rows first. The other
panes share the rest, so that no part of a large screen stays empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct, field

from .layouts import LAYOUTS, TRAIN, Layout

SMALLEST = (60, 15)
"""Columns and rows below which the screen shows only a summary."""

TALL = 30
"""Minimum terminal rows for panes with a full frame; on smaller terminals panes have only a title line."""

MIDDLE = (110, 30)
"""Minimum terminal size for curves next to ranks and GPUs."""

LARGE = (160, 45)
"""Minimum terminal size for two columns of panes."""

ONE_PANE = ("log", "curves", "nccl", "findings", "events")
"""Panes that fill the whole screen."""

LEAST_LOG, LEAST_RANKS, STRIP = 4, 6, 3
"""Minimum rows of text of the log, the rank table and the strip of curves on a small terminal."""

LEAST_CURVES = 8
"""Rows of text of a readable chart."""

ROW_OF_CHARTS = LEAST_CURVES + 2
"""Rows of text of a readable chart, with its marks and times."""

TWO_CHARTS = 2 * LEAST_CURVES + 2
"""Rows of text of two readable charts, with their marks and times."""

MOST_EVENTS = 10
"""Maximum rows of text of events above another pane."""

LEFT = 88
"""Columns of text that the tables can use; a wider left column leaves its room to curves and log."""

NARROWEST_PAIR = 62
"""Minimum columns of the card of the run and of the events next to each other."""

NARROWEST_LOG, NARROWEST_CURVES = 48, 42
"""Minimum columns of text of a log with times, and of a chart with labels."""

LEAST_OF_BOTH = 20
"""Minimum body rows for GPUs in the rank pane (a terminal of 24 lines)."""

MOST_STRIP = 18
"""Maximum rows of text of the strip ranks × time: 16 ranks or groups, the time axis, the legend."""


def _none(width: int) -> int:
    return 0


class Wants(Struct, frozen=True, kw_only=True):
    """Rows of text that each pane could fill. Callables take the pane's width in columns, `strip` takes rows."""

    map: Callable[[int], int] = _none
    """The map of GPUs."""
    launch: Callable[[int], int] = _none
    """The stages of the launch, before the first rank."""
    end: Callable[[int], int] = _none
    """How the run ended."""
    gpus: int = 0
    """Rows of the GPU table, with its header."""
    ranks: int = 0
    """Rows of the rank table, with its header."""
    strip: Callable[[int], int] = _none
    """Ranks × time: takes the maximum number of rows; 0 if no times are known."""
    card: Callable[[int], int] = _none
    events: Callable[[int], int] = lambda width: MOST_EVENTS
    log: int = 0
    """Columns of text that nearly all lines of the log need; 0 if no line is known."""
    crowded: bool = False
    """Whether the run has so many nodes that the map needs the full width."""
    launching: bool = False
    ended: bool = False
    curves: bool = True
    """Whether there are metrics to plot."""


class Rect(Struct, frozen=True):
    """Columns and rows of a pane inside the body, including its frame."""

    x: int
    y: int
    width: int
    height: int


class Arrangement(Struct, frozen=True):
    """The layout of the whole screen."""

    small: bool = False
    framed: bool = False
    header: int = 2
    banner: int = 0
    flash: int = 0
    panes: dict[str, Rect] = field(default_factory=dict)
    main: str = "log"
    """The pane that gets key presses if no other widget has the focus."""


class Stack(Struct):
    """Panes stacked vertically in some columns of the body."""

    x: int
    y: int
    width: int
    height: int
    """Rows that are still free."""
    extra: int
    """Rows of a frame: 2 with a full frame, 1 with only a title line."""
    panes: dict[str, Rect] = field(default_factory=dict)

    @property
    def frame(self) -> int:
        """Columns of a frame."""
        return 2 if self.extra == 2 else 0

    @property
    def inner(self) -> int:
        """Columns of text."""
        return max(1, self.width - self.frame)

    def add(self, name: str, rows: int, keep: int = 0) -> int:
        """Add a pane of up to `rows` rows of text that leaves `keep` rows free; return its height, 0 if no text fits."""
        height = min(rows + self.extra, self.height - keep)
        if rows <= 0 or height <= self.extra:
            return 0
        self.panes[name] = Rect(self.x, self.y, self.width, height)
        self.y, self.height = self.y + height, self.height - height
        return height

    def rest(self, name: str) -> None:
        """Give all free rows to a pane."""
        self.add(name, self.height)

    def split(self, left: int, height: int) -> tuple[Stack, Stack]:
        """Return two columns next to each other that take the next `height` rows of this stack."""
        height = min(height, self.height)
        columns = (
            Stack(self.x, self.y, left, height, self.extra),
            Stack(self.x + left, self.y, self.width - left, height, self.extra),
        )
        self.y, self.height = self.y + height, self.height - height
        return columns

    def take(self, *columns: Stack) -> None:
        """Add the panes of columns next to each other."""
        for column in columns:
            self.panes |= column.panes

    def grow(self, name: str) -> None:
        """Give the free rows to a pane of this stack, and move the panes below it down."""
        spare, self.height = self.height, 0
        if name not in self.panes or not spare:
            return
        grown = self.panes[name]
        for other, rect in self.panes.items():
            if rect.y > grown.y:
                self.panes[other] = Rect(rect.x, rect.y + spare, rect.width, rect.height)
        self.panes[name] = Rect(grown.x, grown.y, grown.width, grown.height + spare)


class Choice(Struct, frozen=True):
    """What the user chose to see."""

    pane: str = "overview"
    layout: str = TRAIN
    """Layout of the overview: a name of LAYOUTS."""
    maximised: str = ""
    """The pane that has the whole body, if it is on the screen."""


def arrange(
    width: int, height: int, choice: Choice, wants: Wants, banner: int = 0, flash: int = 0
) -> Arrangement:
    """Return the layout of a terminal; `banner` and `flash` are the rows that these two could fill."""
    if width < SMALLEST[0] or height < SMALLEST[1]:
        return Arrangement(small=True)
    framed = height >= TALL
    header = 2 if height >= 20 else 1
    banner = min(banner, most_banner(height))
    flash = min(flash, 3)
    body = Stack(0, 0, width, height - header - 2 - banner - flash, 2 if framed else 1)
    whole = Rect(body.x, body.y, body.width, body.height)
    main = _fill(body, width, height, choice, wants, flash)
    if choice.maximised in body.panes:
        main = choice.maximised
        body.panes = {main: whole}
    return Arrangement(False, framed, header, banner, flash, body.panes, main)


def _fill(body: Stack, width: int, height: int, choice: Choice, wants: Wants, flash: int) -> str:
    """Add the panes to the body; return the main one."""
    pane = choice.pane
    if pane in ONE_PANE:
        body.rest(pane)
        return pane
    if pane == "ranks":
        _rank_pane(body, wants, flash)
    elif wants.launching:
        _launch(body, width, wants)
        return "log"
    elif choice.layout != TRAIN and not wants.ended:
        _chosen(body, LAYOUTS[choice.layout], wants)
    elif is_large(width, height):
        _large(body, wants)
    elif width >= MIDDLE[0] and height >= MIDDLE[1]:
        _middle(body, wants)
    else:
        _narrow(body, wants)
    return "ranks"


def _chosen(body: Stack, layout: Layout, wants: Wants) -> None:
    """Show the panes of a layout that have something to show."""
    left, right = (_worth(panes, body, wants) for panes in (layout.left, layout.right))
    if body.width < MIDDLE[0] or not left or not right:
        _stacked(body, _worth(layout.narrow, body, wants) or ["ranks"], wants)
        return
    split = _left_width(body.width)
    if "log" in layout.right:
        split = max(split, body.width - max(_log_width(body, wants), body.width // 3))
    columns = body.split(split, body.height)
    _stacked(columns[0], left, wants)
    _stacked(columns[1], right, wants)
    body.take(*columns)


def _worth(panes: Sequence[str], stack: Stack, wants: Wants) -> list[str]:
    return [pane for pane in panes if _rows_wanted(pane, stack, wants)]


def _stacked(stack: Stack, panes: Sequence[str], wants: Wants) -> None:
    """Add panes with the rows that they could fill; each leaves some rows for those below."""
    panes = panes[: max(1, stack.height // (LEAST_RANKS + stack.extra))]
    for place, pane in enumerate(panes[:-1], 1):
        below = (len(panes) - place) * (LEAST_LOG + stack.extra)
        if pane == "card" and "events" in panes[place:-1] and _pair(stack, wants, below):
            continue
        if pane not in stack.panes:
            stack.add(pane, _rows_wanted(pane, stack, wants), keep=below)
    stack.rest(panes[-1])


def _pair(stack: Stack, wants: Wants, keep: int) -> bool:
    """Add the card of the run and its events next to each other; return False if the stack is too narrow."""
    half = stack.width // 2
    if half < NARROWEST_PAIR:
        return False
    inner = half - stack.frame
    rows = max(wants.card(inner), min(MOST_EVENTS, wants.events(inner)))
    height = min(rows + stack.extra, stack.height - keep)
    if height <= stack.extra:
        return False
    card, events = stack.split(half, height)
    card.rest("card")
    events.rest("events")
    stack.take(card, events)
    return True


def _rows_wanted(pane: str, stack: Stack, wants: Wants) -> int:
    """Return the rows of text that a pane could fill in a stack."""
    if pane == "gpus":
        return wants.gpus
    if pane == "map":
        return 0 if wants.gpus else wants.map(stack.inner)
    if pane == "ranks":
        return wants.ranks
    if pane == "strip":
        return wants.strip(MOST_STRIP)
    if pane == "card":
        return wants.card(stack.inner)
    if pane == "events":
        return min(MOST_EVENTS, wants.events(stack.inner))
    if pane == "curves" and not wants.curves:
        return 0
    return stack.height


def is_large(width: int, height: int) -> bool:
    """Whether the screen has two columns of panes."""
    return width >= LARGE[0] and height >= LARGE[1]


def _left_width(width: int) -> int:
    """Return the width of the left one of two columns."""
    return max(width * 9 // 20, min(LEFT, width * 11 // 20))


def most_banner(height: int) -> int:
    """Return the maximum rows of the banner of findings and alerts."""
    if height >= LARGE[1]:
        return 9
    if height >= TALL:
        return 6
    return 4 if height >= 20 else 2


def shows_findings(pane: str, ended: bool) -> bool:
    """Whether a pane already shows the findings, so that the banner does not repeat them."""
    return pane == "findings" or (pane == "overview" and ended)


def _rank_pane(body: Stack, wants: Wants, flash: int) -> None:
    """Show ranks, GPUs above them if both fit, and ranks × time and curves below them if rows are free.

    A notification of `flash` rows is short-lived, so it does not hide the GPU table.
    """
    if not wants.ended and body.height + flash >= LEAST_OF_BOTH:
        body.add("gpus", wants.gpus, keep=max(body.height * 3 // 5, min(wants.ranks, 12) + body.extra))
    strip = wants.strip(MOST_STRIP) + body.extra
    if body.extra < strip <= body.height - wants.ranks - body.extra:
        body.add("ranks", wants.ranks)
        body.add("strip", strip - body.extra)
        if wants.curves and body.height >= LEAST_CURVES + body.extra:
            body.rest("curves")
        body.grow("ranks")
        return
    body.rest("ranks")


def _launch(body: Stack, width: int, wants: Wants) -> None:
    if width >= LARGE[0]:
        left, right = body.split(width * 11 // 20, body.height)
        left.rest("launch")
        right.rest("log")
        body.take(left, right)
        return
    body.add("launch", wants.launch(body.inner), keep=body.height // 3)
    body.rest("log")


def _narrow(body: Stack, wants: Wants) -> None:
    """One column: ranks, one strip of curves, the log; the map if there are more ranks than rows."""
    log = LEAST_LOG + body.extra
    if wants.ended:
        body.add("ended", wants.end(body.inner), keep=max(log, body.height // 2))
        body.add("ranks", wants.ranks, keep=max(log, body.height // 2))
        body.rest("log")
        return
    strip = 0
    if wants.curves:
        free = body.height - wants.ranks - 2 * body.extra
        strip = max(STRIP, min(LEAST_CURVES, free // 2)) + body.extra
    many = wants.ranks > max(9, body.height - log - strip - body.extra)
    if many:
        ranks = LEAST_RANKS + 1 + body.extra
        body.add("map", wants.map(body.inner), keep=ranks + log)
        body.add("ranks", wants.ranks, keep=log + (strip if body.height >= ranks + log + strip else 0))
    else:
        spare = body.height - wants.ranks - body.extra - strip - 2 * log
        if wants.map(body.inner) + body.extra <= spare:
            body.add("map", wants.map(body.inner))
        body.add("ranks", wants.ranks, keep=log)
    if strip and body.height >= strip + log:
        body.add("curves", strip - body.extra)
    body.rest("log")


def _middle(body: Stack, wants: Wants) -> None:
    """GPUs and ranks next to curves; the log below them in full width."""
    if wants.crowded and not wants.ended:
        body.add("map", wants.map(body.inner), keep=body.height * 3 // 5)
    left, right = body.split(body.width * 11 // 20, body.height - LEAST_LOG - 4 - body.extra)
    _left(left, wants, natural=False)
    used = left.y - right.y
    top = min(right.height, max(used, TWO_CHARTS + body.extra))
    spare = right.height - top  # the log gets the rows that neither column needs
    strip = wants.strip(MOST_STRIP) + left.extra
    if left.extra < strip <= spare + top - used:
        more = max(0, strip - (top - used))
        top, spare = top + more, spare - more
    left.height, right.height = top - used, top
    body.y, body.height = body.y - spare, body.height + spare
    if strip <= left.height:
        left.add("strip", strip - left.extra)
    if left.height >= 4 + left.extra:
        left.add("card", wants.card(left.inner))
    left.grow("card" if "card" in left.panes else "ranks")
    right.rest("curves")
    body.take(left, right)
    body.rest("log")


def _large(body: Stack, wants: Wants) -> None:
    """Two columns: hardware and ranks on the left; curves and the log on the right."""
    if wants.crowded and not wants.ended:
        body.add("map", wants.map(body.inner), keep=body.height * 3 // 5)
    if wants.curves and _has_room_for_charts(body, wants):
        log = max(_log_width(body, wants), body.width // 3)
        left, right = body.split(max(_left_width(body.width), body.width - log), body.height)
        _left(left, wants, natural=True)
        if "events" not in left.panes:
            left.add("events", _rows_wanted("events", left, wants), keep=ROW_OF_CHARTS + left.extra)
        left.rest("curves")
        right.rest("log")
    else:
        left, right = body.split(_left_width(body.width), body.height)
        _left(left, wants, natural=True)
        if "events" in left.panes:
            left.grow("ranks")
        elif left.height >= 4 + left.extra:
            left.rest("events")
        else:
            left.grow("card" if "card" in left.panes else "ranks")
        _right(right, wants)
    body.take(left, right)


def _has_room_for_charts(body: Stack, wants: Wants) -> bool:
    """Whether the panes of the left column leave the rows of a chart free."""
    left = Stack(0, 0, _left_width(body.width), body.height, body.extra)
    _left(left, wants, natural=True)
    left.add("events", _rows_wanted("events", left, wants))
    return left.height >= ROW_OF_CHARTS + left.extra


def _right(right: Stack, wants: Wants) -> None:
    """Curves next to a log of short lines, else above the log."""
    log = _log_width(right, wants)
    if wants.curves and right.width - log >= NARROWEST_CURVES + right.frame:
        curves, lines = right.split(right.width - log, right.height)
        curves.rest("curves")
        lines.rest("log")
        right.take(curves, lines)
        return
    if wants.curves:
        right.add("curves", right.height * 11 // 20 - right.extra)
    right.rest("log")


def _log_width(stack: Stack, wants: Wants) -> int:
    """Return the columns that the log uses in a stack, with its frame."""
    return max(NARROWEST_LOG, wants.log) + stack.frame


def _left(left: Stack, wants: Wants, natural: bool) -> None:
    """GPUs and ranks; if rows are free also ranks × time and the card of the run."""
    ranks = min(wants.ranks, LEAST_RANKS + 3) + left.extra
    strip = _strip_height(left, wants, ranks) if natural else 0
    below = max(ranks + strip, min(left.height * 3 // 5, wants.ranks + left.extra + strip))
    if wants.ended:
        left.add("ended", wants.end(left.inner), keep=ranks)
    elif wants.gpus:
        left.add("gpus", wants.gpus, keep=below)
    elif not wants.crowded:
        left.add("map", wants.map(left.inner), keep=below)
    left.add("ranks", wants.ranks, keep=strip)
    if not natural:
        return
    left.add("strip", strip - left.extra)
    if _pair(left, wants, keep=ROW_OF_CHARTS + left.extra):
        return
    card = wants.card(left.inner)
    if left.height >= min(card, 6) + left.extra:
        left.add("card", card)


def _strip_height(left: Stack, wants: Wants, others: int) -> int:
    """Return the rows of ranks × time if a quarter of the rows stays free next to the `others`; else 0."""
    strip = wants.strip(min(MOST_STRIP, left.height * 2 // 5)) + left.extra
    return strip if strip > left.extra and others + strip <= left.height * 3 // 4 else 0
