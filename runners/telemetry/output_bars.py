"""Progress bars of tqdm, rich and Keras in a rank's output: what they count, and how fast. Pure."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from .output_formats import (
    EPOCH_FIRST,
    EPOCH_UNITS,
    KERAS,
    OF_EPOCHS,
    OF_TRAINING,
    OPEN_TQDM,
    OPEN_WORDS,
    RICH,
    RICH_COUNT,
    RICH_RATE,
    STEP_UNITS,
    TQDM,
)

LONGEST_TITLE = 160
"""Maximum characters of a bar's title, before the percentage."""
_NUMBERED_EPOCH = re.compile(r"\bep(?:ochs?)?\b\W{0,8}\d", re.IGNORECASE)

Counted = Literal["steps", "steps of an epoch", "epochs", ""]


class Bar(NamedTuple):
    """The newest state of a progress bar."""

    kind: str
    title: str
    n: int
    total: int
    """0 if the bar has none."""
    counts: Counted
    """What `n` and `total` count; "" if that is unknown."""
    step_s: float
    """Seconds per step; 0 if the rate is unknown, or not one of steps."""
    values: str
    """Text with the values of the bar."""
    end: int
    """End of the bar in the text."""

    @property
    def is_of_training(self) -> bool:
        """Whether the title is a training's."""
        known = OF_TRAINING.fullmatch(self.title) or EPOCH_FIRST.match(self.title)
        return self.kind == "Keras bar" or known is not None

    @property
    def epoch(self) -> float | None:
        """The epoch, if the title has it as a column."""
        columns = EPOCH_FIRST.match(self.title)
        return None if columns is None else float(columns["epoch"])


def bar_in(text: str) -> Bar | None:
    """Return the progress bar in a text."""
    if "[" in text and "/" in text and (bar := _tqdm(text)) is not None:
        return bar
    if "━" in text or "] - " in text:
        return _keras(text) or _rich(text)
    return None


def _tqdm(text: str) -> Bar | None:
    pattern = _tqdm_pattern(text)
    match = None if pattern is None else pattern.search(text)
    if match is None:
        return None
    total = int(match["total"]) if pattern is TQDM else 0
    title = text[: match.start()].rstrip().removesuffix("||:")[-LONGEST_TITLE:]
    unit = (match["unit"] or "").lower()
    things = unit.removeprefix("s/").removesuffix("/s") or "it"
    counts = _counted(title, things)
    step_s = _step_s(match["rate"], unit) if counts != "epochs" and things in STEP_UNITS else 0.0
    kind = "Lightning" if "v_num" in match["post"] else "tqdm"
    return Bar(kind, title, int(match["n"]), total, counts, step_s, match["post"], match.end())


def _tqdm_pattern(text: str) -> re.Pattern[str] | None:
    """Return the pattern that a line may match, by cheap tests."""
    if "%" in text and "<" in text:
        return TQDM
    return OPEN_TQDM if any(word in text for word in OPEN_WORDS) else None


def _rich(text: str) -> Bar | None:
    match = RICH.search(text)
    count = None if match is None else RICH_COUNT.search(match["post"])
    if match is None or count is None:
        return None
    title = text[: match.start()].rstrip()[-LONGEST_TITLE:]
    rest = f"{match['post'][: count.start()]} | {match['post'][count.end() :]}"
    rate = RICH_RATE.search(rest)
    counts = _counted(title, "it")
    step_s = _step_s(rate["rate"], rate["unit"]) if rate is not None and counts != "epochs" else 0.0
    values = rest if rate is None else rest[rate.end() :]
    return Bar("rich", title, int(count["n"]), int(count["total"]), counts, step_s, values, len(text))


def _keras(text: str) -> Bar | None:
    match = KERAS.match(text)
    if match is None:
        return None
    return Bar(
        "Keras bar", "", int(match["n"]), int(match["total"]), "steps of an epoch", 0.0, "", match.end()
    )


def _counted(title: str, things: str) -> Counted:
    """Return what a bar with this title and unit counts."""
    if things in EPOCH_UNITS or OF_EPOCHS.fullmatch(title):
        return "epochs"
    if things not in STEP_UNITS:
        return ""
    if _NUMBERED_EPOCH.search(title) or EPOCH_FIRST.match(title):
        return "steps of an epoch"
    return "" if "epoch" in title.lower() else "steps"


def _step_s(rate: str | None, unit: str) -> float:
    """Return seconds per step of a rate such as 2.5 "it/s" or 1.2 "s/it"."""
    value = 0.0 if rate in (None, "?", ".") else float(rate)
    if value <= 0 or unit.startswith("s/"):
        return value
    return 1 / value
