"""A terminal that repeats with REP (ECMA-48, 8.3.103), and clears with the current background; pyte's does neither."""

from __future__ import annotations

from typing import Any, ClassVar

import pyte


class ColouredScreen(pyte.Screen):  # type: ignore[misc]  # pyte has no types
    """Clears cells that were never written, too."""

    def erase_in_display(self, how: int = 0, *args: Any, **kwargs: Any) -> None:
        super().erase_in_display(how, *args, **kwargs)
        if how == 2:
            for y in range(self.lines):
                self.buffer[y].update(dict.fromkeys(range(self.columns), self.cursor.attrs))


class RepeatingScreen(ColouredScreen):
    """Repeats the last character if asked to."""

    last = ""

    def draw(self, data: str) -> None:
        self.last = data[-1:] or self.last
        super().draw(data)

    def repeat_last(self, count: int = 1) -> None:
        super().draw(self.last * count)


class RepeatingStream(pyte.Stream):  # type: ignore[misc]
    """Passes REP to its screen."""

    csi: ClassVar[dict[str, Any]] = {**pyte.Stream.csi, "b": "repeat_last"}
    events = pyte.Stream.events | {"repeat_last"}


class RepeatingByteStream(pyte.ByteStream):  # type: ignore[misc]
    """The same for bytes."""

    csi: ClassVar[dict[str, Any]] = RepeatingStream.csi
    events = RepeatingStream.events
