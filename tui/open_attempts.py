"""The attempts whose files are open: a range of those that have files. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class OpenAttempts:
    """Grows at both ends while a reader moves, and shrinks when lines are removed."""

    def __init__(self) -> None:
        self.all: Sequence[int] = ()
        """The attempts with files, in order."""
        self.lowest, self.highest = 0, -1

    def __bool__(self) -> bool:
        return self.lowest <= self.highest

    def __contains__(self, number: int | None) -> bool:
        """Whether the files of an attempt are open. Those of no attempt (None) are open with any."""
        return bool(self) and (number is None or self.lowest <= number <= self.highest)

    @property
    def older(self) -> int | None:
        """The newest attempt before the open ones."""
        return max((number for number in self.all if number < self.lowest), default=None)

    @property
    def newer(self) -> int | None:
        """The oldest attempt after the open ones."""
        return min((number for number in self.all if number > self.highest), default=None)

    def open(self, number: int) -> None:
        """Open an attempt, next to the open ones if there are any."""
        if not self:
            self.lowest = self.highest = number
        self.lowest, self.highest = min(self.lowest, number), max(self.highest, number)

    def open_newest(self) -> None:
        """Open all attempts after the open ones."""
        self.highest = max([self.highest, *self.all])
