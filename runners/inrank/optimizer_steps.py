"""Count a rank's optimizer steps, and inspect its objects at the first one."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from .adopt.report import adopted, initialising
from .import_watch import PATCH_ERRORS, untraced
from .wrapping import describe, grouped, optimizers

INSPECT_S = 1.0
"""Most seconds that the first step waits for the inspection of the objects. It takes 0.1 s for 2,000 parameters, 0.6 s
for 40,000. A longer one goes on while the script continues."""
MOST_INSPECTIONS = 4
"""Most inspections: a script may make new optimizers repeatedly."""


class Steps:
    """Counts optimizer steps through torch's public global hook."""

    def __init__(self) -> None:
        self.on_made: Callable[[dict[str, Any]], None] = lambda made: None
        self.begin()

    def begin(self) -> None:
        """Reset all counts."""
        self.count = 0
        self.last = 0.0
        """Unix time of the newest step; 0 before the first."""
        self.first = 0.0
        self.optimizers = 0
        """Number of optimizers made since torch was imported."""
        self.made: dict[str, Any] | None = None
        """Result of `describe()` at the first step; None before, or if it failed."""
        self._inspected: weakref.WeakSet[Any] = weakref.WeakSet()
        self._inspections = 0
        self._optimizer: Callable[[], Any] = lambda: None
        """Weak reference to the optimizer whose steps are counted."""
        self.watch: Callable[[int], None] | None = None
        """Called after each step with their number."""

    def arm(self, module: Any) -> None:
        """Register with the module torch.optim.optimizer."""
        module.register_optimizer_step_post_hook(self._stepped)
        self._count_optimizers(module.Optimizer)

    def _count_optimizers(self, kind: Any) -> None:
        """Count constructed optimizers: one without steps may be freed by the exit, and torch has no hook for this."""
        init = kind.__init__

        @functools.wraps(init)
        def counted(*args: Any, **named: Any) -> None:
            self.optimizers += 1
            init(*args, **named)

        kind.__init__ = counted

    @property
    def counted(self) -> int | None:
        """Steps so far; None before the first optimizer: a loop without an optimizer may have trained, too."""
        return self.count if self.count or self.optimizers else None

    @property
    def pace(self) -> float | None:
        """Mean seconds per step; None before the second."""
        return (self.last - self.first) / (self.count - 1) if self.count > 1 else None

    def note(self) -> dict[str, Any]:
        """Return the progress of training for the note of an exception.

        Untrained: an optimizer exists without any step. Without torch's optimizers, steps are not counted.
        """
        return {"step": self.count, "untrained": not self.count and self._has_optimizer()}

    def at_end(self) -> dict[str, Any]:
        """Return the progress for the note of an exit, and whether an optimizer and a process group existed."""
        group = grouped()
        return {
            "step": self.count,
            "made": self.made,
            "optimizer": self._has_optimizer(),
            "alone": "torch" in sys.modules and group is False,
        }

    def _has_optimizer(self) -> bool:
        return bool(self.optimizers or optimizers())

    @untraced
    def _stepped(
        self, optimizer: Any, args: Any, kwargs: Any, now: Callable[[], float] = time.time
    ) -> None:
        if initialising():
            return
        # A sharded optimizer calls an inner optimizer: only the first that steps is counted.
        if self._optimizer() is optimizer:
            self.count += 1
            self.last = now()
        elif self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
            self.count += 1
            self.first = self.last = now()
        else:
            self._inspect_new(optimizer)  # zero1 divides its states, too
            return
        if not self._inspections and self._inspect_new(optimizer) and self.count == 1:
            self.first = self.last = now()
        watch = self.watch
        if watch is not None:
            watch(self.count)

    @untraced
    def _inspect_new(self, optimizer: Any) -> bool:
        """Inspect the objects at the first step of the first optimizer, and of some others if --adopt applies a preset.

        Return whether it inspected them.
        """
        first = self._optimizer()
        if optimizer is not first and not (adopted.calls and self._inspections):
            return False
        if self._inspections >= MOST_INSPECTIONS or optimizer in self._inspected:
            return False
        self._inspected.add(optimizer)
        self._inspections += 1
        self._inspect(first)
        return True

    @untraced
    def _inspect(self, optimizer: Any) -> None:
        """Inspect the objects in a separate thread: torch.compile does not trace its frames."""
        seen = threading.Event()

        def inspect() -> None:
            with contextlib.suppress(*PATCH_ERRORS):
                self.made = describe(optimizer)
            seen.set()
            if self.made is not None:
                self.on_made(self.made)

        threading.Thread(target=inspect, name="distui-inspect", daemon=True).start()
        seen.wait(INSPECT_S)
